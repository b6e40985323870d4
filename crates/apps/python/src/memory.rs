//! The memory of a tensor that is passed to a library.

use std::{mem::ManuallyDrop, sync::Arc};

use pyo3::prelude::*;
use straightway_core::Place;
use straightway_io::Region;
use straightway_sys::FilePages;

/// The memory of tensors. It lives as long as any of them.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// A region that a load fills.
    Region(Arc<Region>),
    /// Mapped pages of a file.
    Pages(Arc<FilePages>),
    /// A block that a Python library allocated.
    Block(Arc<LibraryMemory>),
}

/// GPU memory that a Python object owns.
#[derive(Debug)]
pub(crate) struct LibraryMemory {
    pub(crate) gpu: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) owner: ManuallyDrop<Arc<Py<PyAny>>>,
}

impl Drop for LibraryMemory {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let owner = unsafe { ManuallyDrop::take(&mut self.owner) };
        // A library frees a tensor from C. Without the interpreter's lock the object and its memory would be freed only
        // with the next call of this package. While the interpreter shuts down, the object is leaked.
        let mut owner = Some(owner);
        Python::try_attach(|_| drop(owner.take()));
        std::mem::forget(owner);
    }
}

impl Memory {
    /// The place of the memory.
    pub(crate) fn place(&self) -> Place {
        match self {
            Self::Region(region) => region.place(),
            Self::Pages(_) => Place::Host,
            Self::Block(block) => Place::Gpu(block.gpu),
        }
    }

    /// Its address.
    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Region(region) => region.address(),
            Self::Pages(pages) => pages.address(),
            Self::Block(block) => block.address,
        }
    }

    /// The size in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Region(region) => region.bytes(),
            Self::Pages(pages) => pages.bytes(),
            Self::Block(block) => block.bytes,
        }
    }
}
