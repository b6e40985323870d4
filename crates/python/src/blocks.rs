//! Loads into memory that a library of Python's allocates: its tensors count as its own, and are freed one by one.
//!
//! The load runs from the start, and the interpreter allocates beside it, block by block. A mark in the library's stream
//! says from when a block may be written to; copies wait for it on the device.

use std::{mem::ManuallyDrop, sync::Arc};

use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyDict, PyTuple},
};
use straightway_core::Result;
use straightway_pipeline::weights::{Block, Layout, Loader, Placed, PreparedBlocks};
use straightway_sys::cuda::{Context, DeviceMemory, Fence, Owner};

use crate::{
    error::OrRaise,
    handover::{Pause, let_go_aside, made},
    memory::{Allocated, Memory},
    model::Model,
    waiting::Work,
};

/// What is asked of the library: bytes, and the type and shape where the block is for one tensor.
type Wanted<'py> = (u64, Option<&'static str>, Option<Bound<'py, PyTuple>>);

/// What it gives: an object that owns the memory, its address, and whether it is the tensor already.
type Given = (Py<PyAny>, u64, bool);

/// Blocks that are asked for at once: at first few, so that the load begins; then more, for each call and each mark in the
/// stream costs some microseconds.
const ASKED_MAX: usize = 64;

/// Tensors in memory of a library's.
#[derive(Debug, Default)]
pub(crate) struct Blocks {
    tensors: Arc<Vec<Placed>>,
    blocks: Vec<(Block, Lent)>,
}

/// A block's memory: the tensor itself, or memory that tensors are made in.
#[derive(Debug)]
enum Lent {
    Tensor(Arc<Py<PyAny>>),
    Memory(Memory),
}

/// A load into blocks that has begun.
pub(crate) type Begun = (Blocks, Work<straightway_core::Receipt>);

impl Drop for Blocks {
    fn drop(&mut self) {
        let_go_aside(&self.tensors, self.tensors.len());
    }
}

impl Blocks {
    /// Begins a load into blocks that `allocate` gives. It is called with a list of what is wanted, and answers with what
    /// it has allocated and the stream that this was done for.
    pub(crate) fn begin(
        py: Python<'_>,
        model: &Model,
        layout: Layout,
        (loader, context): (&Loader, &Context),
        allocate: &Bound<'_, PyAny>,
    ) -> PyResult<Begun> {
        let prepared = py
            .detach(|| loader.prepare_blocks(&model.0, layout, context))
            .or_raise()?;
        let (tensors, blocks) = (Arc::clone(&prepared.tensors), prepared.blocks.clone());
        let target = prepared.target.clone();
        let work =
            Work::begin(&loader.progress, move || PreparedBlocks::run(prepared)).or_raise()?;
        let mut own = Self {
            tensors,
            blocks: Vec::with_capacity(blocks.len()),
        };
        let (mut asked, mut filled) = (1, 0);
        let mut rest = blocks.as_slice();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(asked.min(rest.len()));
            rest = later;
            asked = (asked * 2).min(ASKED_MAX);
            let wanted = now.iter().map(|block| own.wanted(py, block));
            let wanted = wanted.collect::<PyResult<Vec<_>>>()?;
            let (given, stream): (Vec<Given>, u64) = allocate.call1((wanted,))?.extract()?;
            if given.len() != now.len() {
                let message = "the library gave another number of blocks than it was asked for";
                return Err(PyValueError::new_err(message));
            }
            // SAFETY: the package's allocators answer with the current stream of their library on that device.
            let fence = unsafe { Fence::record(context, stream) }.or_raise()?;
            let fence = Arc::new(fence);
            for (block, given) in now.iter().zip(given) {
                let (lent, memory) = lend(block, given, context, &fence).or_raise()?;
                if let (Some(target), Some(memory)) = (&target, memory) {
                    target.regions()[filled].give(memory).or_raise()?;
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

    fn wanted<'py>(&self, py: Python<'py>, block: &Block) -> PyResult<Wanted<'py>> {
        Ok(match &self.tensors[block.tensors.clone()] {
            [tensor] if block.at == 0 => {
                let shape = PyTuple::new(py, tensor.shape.iter())?;
                (block.bytes, Some(tensor.dtype.name()), Some(shape))
            }
            _ => (block.bytes, None, None),
        })
    }

    /// How many bytes its tensors have.
    pub(crate) fn bytes(&self) -> u64 {
        self.tensors.iter().map(|placed| placed.bytes).sum()
    }

    /// Adds the tensors to `tensors`, as `Loading.fill` has them.
    pub(crate) fn add<'py>(
        &self,
        tensors: &Bound<'py, PyDict>,
        take: Option<&Bound<'py, PyAny>>,
        convert: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let py = tensors.py();
        let _pause = Pause::new(py);
        for (block, lent) in &self.blocks {
            for placed in &self.tensors[block.tensors.clone()] {
                let tensor = match lent {
                    Lent::Tensor(tensor) => tensor.bind(py).clone(),
                    Lent::Memory(memory) => {
                        let place = (memory, block.offset_of(placed));
                        made(py, place, placed, take, convert)?
                    }
                };
                tensors.set_item(&*placed.name, tensor)?;
            }
        }
        Ok(())
    }
}

/// A block's memory, for the tensors and for the load. One without bytes has none for the load.
fn lend(
    block: &Block,
    (object, address, is_tensor): Given,
    context: &Context,
    fence: &Arc<Fence>,
) -> Result<(Lent, Option<DeviceMemory>)> {
    let object = Arc::new(object);
    let bytes = usize::try_from(block.bytes).expect("a layout fits into memory");
    let owner: Owner = Arc::clone(&object) as Owner;
    let memory = if block.bytes == 0 {
        None
    } else {
        // SAFETY: the object owns the memory, and is kept; nobody else has it before the load is over. The driver says
        // whether it is there.
        let lent = unsafe { DeviceMemory::lend(context, address, bytes, owner) }?;
        Some(lent.after(fence))
    };
    if is_tensor {
        return Ok((Lent::Tensor(object), memory));
    }
    let allocated = Allocated {
        gpu: context.device().ordinal(),
        address,
        bytes: block.bytes,
        owner: ManuallyDrop::new(object),
    };
    Ok((Lent::Memory(Memory::Block(Arc::new(allocated))), memory))
}
