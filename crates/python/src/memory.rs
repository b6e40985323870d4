//! The memory of a tensor that is handed to a library.

use std::{mem::ManuallyDrop, sync::Arc};

use pyo3::prelude::*;
use straightway_core::Place;
use straightway_io::Region;
use straightway_sys::FilePages;

/// Memory that tensors are in. It lives as long as any of them.
#[derive(Clone, Debug)]
pub(crate) enum Memory {
    /// What a load has filled, or is about to.
    Region(Arc<Region>),
    /// The pages of a file.
    Pages(Arc<FilePages>),
    /// What a library of Python's has allocated.
    Block(Arc<Allocated>),
}

/// Memory of a GPU that an object of Python's owns.
#[derive(Debug)]
pub(crate) struct Allocated {
    pub(crate) gpu: u32,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) owner: ManuallyDrop<Arc<Py<PyAny>>>,
}

impl Drop for Allocated {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let owner = unsafe { ManuallyDrop::take(&mut self.owner) };
        // A library that lets go of a tensor calls from C. Without the interpreter's lock the object would go only with the
        // next call of this package, and its memory with it. While the interpreter ends, it stays.
        let mut owner = Some(owner);
        Python::try_attach(|_| drop(owner.take()));
        std::mem::forget(owner);
    }
}

impl Memory {
    /// Where it is.
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

    /// How long it is.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Region(region) => region.bytes(),
            Self::Pages(pages) => pages.bytes(),
            Self::Block(block) => block.bytes,
        }
    }
}
