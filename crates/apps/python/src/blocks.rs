//! Loads into memory that a Python library allocates: its tensors count as its own, and are freed one by one.
//!
//! The load starts at once, while the interpreter allocates block by block. An event in the library's stream marks when
//! a block may be written to; copies wait for it on the device.

use std::{mem::ManuallyDrop, sync::Arc};

use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyDict, PyTuple},
};
use straightway_core::Result;
use straightway_sys::cuda::{Context, DeviceMemory, Fence, Owner};
use straightway_weights::{Layout, Loader, MemoryBlock, Phase, Placed, PreparedBlocks, Selection};

use crate::{
    error::OrRaise,
    handover::{PausedCollector, convert_tensor, drop_in_background},
    memory::{LibraryMemory, Memory},
    model::Model,
    waiting::Work,
};

/// A request to the library: bytes, and the dtype and shape if the block is for one tensor.
type BlockRequest<'py> = (u64, Option<&'static str>, Option<Bound<'py, PyTuple>>);

/// An allocation: the object that owns the memory, its address, and whether the object is the tensor itself.
type AllocatedBlock = (Py<PyAny>, u64, bool);

/// The maximum number of blocks per request. The first requests are small, so that the load can start; later ones are
/// larger, because each call and each event costs some microseconds.
const REQUEST_BLOCKS_MAX: usize = 64;

/// Tensors in memory that a library allocated.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    tensors: Arc<Vec<Placed>>,
    blocks: Vec<(MemoryBlock, BlockOwner)>,
}

/// The owner of a block's memory: the tensor itself, or memory in which tensors are made.
#[derive(Debug)]
enum BlockOwner {
    Tensor(Arc<Py<PyAny>>),
    Memory(Memory),
}

/// A load into blocks that has begun.
pub(crate) type BegunLoad = (Blocks, Work<straightway_core::Receipt>);

impl Drop for Blocks {
    fn drop(&mut self) {
        drop_in_background(&self.tensors, self.tensors.len());
    }
}

impl Blocks {
    /// Begins a load into blocks from `allocate`. It is called with a list of requests, and returns the allocations and
    /// the stream that they are for.
    pub(crate) fn begin(
        py: Python<'_>,
        model: &Model,
        selection: &Selection,
        (loader, context): (&Loader, &Context),
        allocate: &Bound<'_, PyAny>,
    ) -> PyResult<BegunLoad> {
        let prepare = || {
            // The library decides where a block begins. DMA never goes straight into it.
            let layout = Layout::new(&model.0, selection, Phase::Free);
            loader.prepare_blocks(&model.0, layout, context)
        };
        let prepared = py.detach(prepare).or_raise()?;
        let (tensors, blocks) = (Arc::clone(&prepared.tensors), prepared.blocks.clone());
        let target = prepared.target.clone();
        let work = Work::begin(&loader.progress, move || PreparedBlocks::run(prepared)).or_raise()?;
        let mut own = Self {
            tensors,
            blocks: Vec::with_capacity(blocks.len()),
        };
        let (mut asked, mut filled) = (1, 0);
        let mut rest = blocks.as_slice();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(asked.min(rest.len()));
            rest = later;
            asked = (asked * 2).min(REQUEST_BLOCKS_MAX);
            let wanted = now.iter().map(|block| own.wanted(py, block));
            let wanted = wanted.collect::<PyResult<Vec<_>>>()?;
            let (given, stream): (Vec<AllocatedBlock>, u64) = allocate.call1((wanted,))?.extract()?;
            if given.len() != now.len() {
                let message = "the allocator returned a different number of blocks than requested";
                return Err(PyValueError::new_err(message));
            }
            // SAFETY: the package's allocators return the current stream of their library on that device.
            let fence = unsafe { Fence::record(context, stream) }.or_raise()?;
            let fence = Arc::new(fence);
            for (block, given) in now.iter().zip(given) {
                let (lent, memory) = lend(block, given, context, &fence).or_raise()?;
                if let (Some(target), Some(memory)) = (&target, memory) {
                    target.regions()[filled].provide(memory).or_raise()?;
                    filled += 1;
                }
                own.blocks.push((block.clone(), lent));
            }
            if let Some(target) = &target {
                target.open(filled);
                tracing::trace!(filled, "blocks are allocated");
            }
        }
        Ok((own, work))
    }

    fn wanted<'py>(&self, py: Python<'py>, block: &MemoryBlock) -> PyResult<BlockRequest<'py>> {
        Ok(match &self.tensors[block.tensors.clone()] {
            [tensor] if block.at == 0 => {
                let shape = PyTuple::new(py, tensor.shape.iter())?;
                (block.bytes, Some(tensor.dtype.name()), Some(shape))
            }
            _ => (block.bytes, None, None),
        })
    }

    /// The total size of its tensors.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|placed| placed.bytes).sum()
    }

    /// Adds the tensors to `tensors`, as `Loading.fill` does.
    pub(crate) fn add<'py>(
        &self,
        tensors: &Bound<'py, PyDict>,
        take: Option<&Bound<'py, PyAny>>,
        convert: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let py = tensors.py();
        let _pause = PausedCollector::new(py);
        for (block, lent) in &self.blocks {
            for placed in &self.tensors[block.tensors.clone()] {
                let tensor = match lent {
                    BlockOwner::Tensor(tensor) => tensor.bind(py).clone(),
                    BlockOwner::Memory(memory) => {
                        let place = (memory, block.offset_of(placed));
                        convert_tensor(py, place, placed, take, convert)?
                    }
                };
                tensors.set_item(&*placed.name, tensor)?;
            }
        }
        Ok(())
    }
}

/// A block's memory, for the tensors and for the load. An empty block has none for the load.
fn lend(
    block: &MemoryBlock,
    (object, address, is_tensor): AllocatedBlock,
    context: &Context,
    fence: &Arc<Fence>,
) -> Result<(BlockOwner, Option<DeviceMemory>)> {
    let object = Arc::new(object);
    let bytes = usize::try_from(block.bytes).expect("a layout fits into memory");
    let owner: Owner = Arc::clone(&object) as Owner;
    let memory = if block.bytes == 0 {
        None
    } else {
        // SAFETY: the object owns the memory and is kept alive; nothing else uses the memory before the load ends. The
        // driver checks that the range is allocated.
        let lent = unsafe { DeviceMemory::lend(context, address, bytes, owner) }?;
        Some(lent.after(fence))
    };
    if is_tensor {
        return Ok((BlockOwner::Tensor(object), memory));
    }
    let allocated = LibraryMemory {
        gpu: context.device().ordinal(),
        address,
        bytes: block.bytes,
        owner: ManuallyDrop::new(object),
    };
    Ok((BlockOwner::Memory(Memory::Block(Arc::new(allocated))), memory))
}
