//! Blocks: memory that another library allocates for a load, so that it can be freed tensor by tensor.
//!
//! A large tensor is a block of its own. Small neighbours share one: an allocation for each of two hundred thousand tensors
//! would take longer than to load them, and each would be rounded up. The library allocates block by block while the load
//! already runs ([`Scattered`]).

use std::{ops::Range, sync::Arc};

use straightway_core::{Receipt, Result};
use straightway_io::{Part, Region, Scattered};
use straightway_sys::cuda::Context;

use super::{
    LARGE_ALIGN_BYTES, LARGE_BYTES, Layout, Loader, Model,
    layout::Placed,
    load::{Jobs, Target},
};

/// Small tensors share blocks of at most this many bytes. One that is kept keeps so many alive; smaller blocks cost
/// allocations: 6.7 GB of small tensors are 400 of these.
pub const GROUP_BYTES_MAX: u64 = 16 << 20;

/// Memory that is allocated at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Which of the load's tensors are in it.
    pub tensors: Range<usize>,
    /// Where its first tensor begins in the layout.
    pub from: u64,
    /// Where its first tensor begins in the block: tensors are as aligned there as they are in the layout.
    pub at: u64,
    /// How long it is; 0 where it is for a tensor without bytes.
    pub bytes: u64,
}

impl Block {
    /// Where a tensor of it begins in it.
    pub fn offset_of(&self, tensor: &Placed) -> u64 {
        self.at + (tensor.at - self.from)
    }
}

/// A load into blocks, ready to run. Its receipt is given when all blocks were, and all bytes are there.
#[derive(Debug)]
pub struct PreparedBlocks {
    jobs: Jobs,
    /// What the blocks are for.
    pub tensors: Arc<Vec<Placed>>,
    /// The blocks, in order.
    pub blocks: Vec<Block>,
    /// The regions of those that have bytes; `None` where none has.
    pub target: Option<Arc<Scattered>>,
}

impl Loader {
    /// Makes a load ready whose blocks are allocated by somebody else, on the GPU of `context`.
    pub fn prepare_blocks(
        &self,
        model: &Model,
        layout: Layout,
        context: &Context,
    ) -> Result<PreparedBlocks> {
        let blocks = divide(&layout.tensors);
        let (bytes, tensors) = (layout.bytes, Arc::new(layout.tensors));
        let part = |block: &Block| Part {
            from: block.from,
            at: block.at,
            region: Arc::new(Region::late(context, block.bytes)),
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
}

impl PreparedBlocks {
    /// Runs it and waits for the last byte.
    pub fn run(self) -> Result<Receipt> {
        let target = self.target.map(Target::Scattered);
        self.jobs.run(target.as_ref())
    }
}

/// Divides tensors that lie behind each other into blocks.
fn divide(tensors: &[Placed]) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
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
        // A tensor without bytes that is alone needs no memory.
        let at = match tensor.bytes {
            0 => 0,
            _ => tensor.at % LARGE_ALIGN_BYTES,
        };
        blocks.push(Block {
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
    use crate::weights::{Dtype, Name, Shape};

    fn placed(sizes: &[(u64, u64)]) -> Vec<Placed> {
        let mut at = 0;
        let one = |&(gap, bytes): &(u64, u64)| {
            at += gap;
            let start = at;
            at += bytes;
            Placed {
                name: Name::from("t"),
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
        let groups: Vec<_> = divide(&placed(&sizes))
            .into_iter()
            .map(|b| b.tensors)
            .collect();
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
