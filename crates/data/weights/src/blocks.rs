//! Memory blocks that another library allocates for a load, so that it can free them tensor by tensor.
//!
//! A large tensor has a block of its own. Small neighbouring tensors share one: 200,000 allocations would take longer
//! than the load, and each would be rounded up. The library allocates block by block while the load already runs
//! ([`Scattered`]).

use std::{ops::Range, sync::Arc};

use straightway_core::{Error, ErrorKind, Receipt, Result};
use straightway_io::{Region, Scattered, ScatteredPart};
use straightway_sys::cuda::Context;

use super::{
    LARGE_ALIGN_BYTES, LARGE_BYTES, Layout, Loader, Model,
    layout::Placed,
    load::{Jobs, Target},
};

/// The maximum size of a block that small tensors share. A tensor that is kept keeps its whole block alive; smaller
/// blocks cost more allocations. 6.7 GB of small tensors take 400 blocks of this size.
pub const GROUP_BYTES_MAX: u64 = 16 << 20;

/// One allocation of a load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryBlock {
    /// The indices of its tensors in the load.
    pub tensors: Range<usize>,
    /// The offset of its first tensor in the layout.
    pub from: u64,
    /// The offset of its first tensor in the block. Tensors have the same alignment there as in the layout.
    pub at: u64,
    /// Its length in bytes; 0 for a tensor without bytes.
    pub bytes: u64,
}

impl MemoryBlock {
    /// The offset of one of its tensors in the block.
    pub fn offset_of(&self, tensor: &Placed) -> u64 {
        self.at + (tensor.at - self.from)
    }
}

/// A load into blocks, ready to run. It ends once all blocks were allocated and all bytes have arrived.
#[derive(Debug)]
pub struct PreparedBlocks {
    jobs: Jobs,
    /// The tensors that the blocks hold.
    pub tensors: Arc<Vec<Placed>>,
    /// The blocks, in order; none if the load goes into regions that existed before it.
    pub blocks: Vec<MemoryBlock>,
    /// The regions of the blocks that have bytes; `None` if no block has any.
    pub target: Option<Arc<Scattered>>,
}

impl Loader {
    /// Prepares a load whose blocks the caller allocates later, on the GPU of `context`.
    pub fn prepare_blocks(&self, model: &Model, layout: Layout, context: &Context) -> Result<PreparedBlocks> {
        let blocks = divide(&layout.tensors);
        let (bytes, tensors) = (layout.bytes, Arc::new(layout.tensors));
        let part = |block: &MemoryBlock| ScatteredPart {
            from: block.from,
            at: block.at,
            region: Arc::new(Region::deferred(context, block.bytes)),
        };
        let parts: Vec<_> = blocks.iter().filter(|b| b.bytes > 0).map(part).collect();
        let target = match parts.len() {
            0 => None,
            _ => Some(Arc::new(Scattered::new(parts, bytes)?)),
        };
        Ok(PreparedBlocks {
            jobs: Jobs::new(self, model, layout.moves),
            tensors,
            blocks,
            target,
        })
    }

    /// Prepares a load into regions that exist already, one for each tensor of the layout, on one GPU. Each is exactly
    /// as long as its tensor.
    pub fn prepare_into(&self, model: &Model, layout: Layout, regions: Vec<Arc<Region>>) -> Result<PreparedBlocks> {
        let refuse = |message: String| Error::new(ErrorKind::Invalid, "load", model.path.display(), message);
        if regions.len() != layout.tensors.len() {
            let (given, needed) = (regions.len(), layout.tensors.len());
            return Err(refuse(format!("{given} regions were given for {needed} tensors")));
        }
        let mut parts = Vec::with_capacity(regions.len());
        for (placed, region) in layout.tensors.iter().zip(regions) {
            if placed.bytes == 0 {
                continue;
            }
            if region.bytes() != placed.bytes {
                let (name, given) = (&placed.name, region.bytes());
                let message = format!(
                    "the memory for tensor {name} has {given} bytes, and it needs {}",
                    placed.bytes
                );
                return Err(refuse(message));
            }
            parts.push(ScatteredPart {
                from: placed.at,
                at: 0,
                region,
            });
        }
        let count = parts.len();
        let target = match count {
            0 => None,
            _ => Some(Arc::new(Scattered::new(parts, layout.bytes)?)),
        };
        if let Some(target) = &target {
            target.open(count);
        }
        Ok(PreparedBlocks {
            jobs: Jobs::new(self, model, layout.moves),
            tensors: Arc::new(layout.tensors),
            blocks: Vec::new(),
            target,
        })
    }
}

impl PreparedBlocks {
    /// Runs it and waits for the last byte.
    pub fn run(self) -> Result<Receipt> {
        let target = self.target.map(Target::Scattered);
        self.jobs.run(target.as_ref())
    }
}

/// Divides tensors, in layout order, into blocks.
fn divide(tensors: &[Placed]) -> Vec<MemoryBlock> {
    let mut blocks: Vec<MemoryBlock> = Vec::new();
    let mut is_open = false;
    for (number, tensor) in tensors.iter().enumerate() {
        let is_large = tensor.bytes >= LARGE_BYTES;
        let end = tensor.at + tensor.bytes;
        if let Some(last) = blocks.last_mut().filter(|_| is_open && !is_large)
            && last.at + (end - last.from) <= GROUP_BYTES_MAX
        {
            last.tensors.end = number + 1;
            last.bytes = last.at + (end - last.from);
            continue;
        }
        // A block with one empty tensor needs no memory.
        let at = match tensor.bytes {
            0 => 0,
            _ => tensor.at % LARGE_ALIGN_BYTES,
        };
        blocks.push(MemoryBlock {
            tensors: number..number + 1,
            from: tensor.at,
            at,
            bytes: at + tensor.bytes,
        });
        is_open = !is_large && tensor.bytes > 0;
    }
    blocks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Dtype, Shape, TensorName};

    fn placed(sizes: &[(u64, u64)]) -> Vec<Placed> {
        let mut at = 0;
        let one = |&(gap, bytes): &(u64, u64)| {
            at += gap;
            let start = at;
            at += bytes;
            Placed {
                name: TensorName::from("t"),
                dtype: Dtype::U8,
                shape: Shape::from_iter([bytes]),
                at: start,
                bytes,
            }
        };
        sizes.iter().map(one).collect()
    }

    #[test]
    fn large_tensors_are_alone_and_small_ones_together() {
        let sizes = [
            (0, 100),
            (0, 4 << 20),
            (0, 8),
            (0, 8),
            (0, 0),
            (0, LARGE_BYTES),
            (0, 0),
            (0, 7),
        ];
        let groups: Vec<_> = divide(&placed(&sizes)).into_iter().map(|b| b.tensors).collect();
        assert_eq!(groups, [0..1, 1..2, 2..5, 5..6, 6..7, 7..8]);
    }

    proptest! {
        #[test]
        fn every_tensor_is_in_one_block_as_aligned_as_in_the_layout(
            sizes in prop::collection::vec((0_u64..300, prop_oneof![0_u64..5000, 0_u64..9 << 20]), 1..60),
        ) {
            let tensors = placed(&sizes);
            let mut next = 0;
            for block in divide(&tensors) {
                prop_assert_eq!(block.tensors.start, next);
                next = block.tensors.end;
                let is_alone = block.tensors.len() == 1;
                prop_assert!(is_alone || block.bytes <= GROUP_BYTES_MAX);
                for tensor in &tensors[block.tensors.clone()] {
                    let offset = block.offset_of(tensor);
                    prop_assert!(block.bytes == 0 || offset % LARGE_ALIGN_BYTES == tensor.at % LARGE_ALIGN_BYTES);
                    prop_assert!(offset + tensor.bytes <= block.bytes);
                    prop_assert!(is_alone || tensor.bytes < LARGE_BYTES);
                }
            }
            prop_assert_eq!(next, tensors.len());
        }
    }
}
