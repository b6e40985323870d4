//! What differs between two steps.

use std::{collections::BTreeSet, sync::Arc};

use straightway_core::{Error, Kind, Result};
use straightway_io::Region;

use super::{
    manifest::{Manifest, Saved},
    opened::Checkpoint,
    restorer::Restorer,
    scatter::Wanted,
};
use crate::weights::quoted;

/// How a tensor differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Only the second step has it.
    Added,
    /// Only the first step has it.
    Removed,
    /// Its dtype or shape is another: before and after, in words.
    Reshaped(String, String),
    /// So many of its bytes are others.
    Bytes {
        /// How many differ.
        different: u64,
        /// Of how many.
        of: u64,
    },
}

/// What differs between two steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// The tensors that differ, by name.
    pub changes: Vec<(String, Change)>,
    /// How many do not.
    pub same: usize,
}

impl Restorer {
    /// Compares two checkpoints, tensor by tensor. Each is read and checked, unless both say by
    /// digests that it is the same; memory is taken for two copies of the longest.
    pub fn diff(&self, before: &Checkpoint, after: &Checkpoint) -> Result<Difference> {
        let (old, new) = (before.manifest(), after.manifest());
        let names: BTreeSet<_> = old
            .tensors
            .iter()
            .chain(&new.tensors)
            .map(|t| &t.name)
            .collect();
        let mut difference = Difference::default();
        for name in names {
            let change = match (old.tensor(name), new.tensor(name)) {
                (None, _) => Some(Change::Added),
                (_, None) => Some(Change::Removed),
                (Some(a), Some(b)) if (a.dtype, &a.shape) != (b.dtype, &b.shape) => {
                    let words = |t: &Saved| format!("{} {}", t.dtype, t.shape);
                    Some(Change::Reshaped(words(a), words(b)))
                }
                (Some(a), Some(b)) if marks(old, a).is_some_and(|m| Some(m) == marks(new, b)) => {
                    None
                }
                (Some(a), Some(_)) => {
                    let left = self.whole(before, a)?;
                    let right = self.whole(after, a)?;
                    compare(left, right)
                }
            };
            match change {
                Some(change) => difference.changes.push((name.to_string(), change)),
                None => difference.same += 1,
            }
        }
        Ok(difference)
    }

    /// Bytes that were saved as no tensor.
    pub fn opaque(&self, checkpoint: &Checkpoint, name: &str) -> Result<Vec<u8>> {
        let tensor = checkpoint.manifest().tensor(name).filter(|t| t.opaque);
        let tensor = tensor.ok_or_else(|| {
            let step = checkpoint.manifest().step;
            let message = format!("step {step} has no bytes of that name");
            Error::new(Kind::NotFound, "restore", quoted(name), message)
        })?;
        Ok(self.whole(checkpoint, tensor)?.as_slice().to_vec())
    }

    /// All of a tensor, in host memory.
    pub(crate) fn whole(&self, checkpoint: &Checkpoint, tensor: &Saved) -> Result<Region> {
        let region = Arc::new(Region::host(tensor.bytes())?);
        let wanted = Wanted::whole(&tensor.name, &tensor.shape, &region, 0);
        self.restore(checkpoint, &[wanted])?;
        Ok(Arc::into_inner(region).expect("nothing is under way"))
    }
}

/// What says without reading what a tensor's bytes are: where its parts lie in their chunks, and
/// the digests of those. `None` where there are none.
fn marks(manifest: &Manifest, tensor: &Saved) -> Option<Vec<(u64, u64, Vec<u128>)>> {
    let mark = |part: &super::manifest::SavedPart| {
        let digests = &manifest.shards[part.shard as usize].digests;
        let bytes = part.rectangle.elements() * tensor.dtype.bits() / 8;
        let first = usize::try_from(part.offset / manifest.chunk_bytes).ok()?;
        let end = (part.offset + bytes).div_ceil(manifest.chunk_bytes);
        let end = usize::try_from(end).ok()?.max(first);
        let digests = digests.get(first..end)?.iter().map(|d| d.0).collect();
        Some((part.offset % manifest.chunk_bytes, bytes, digests))
    };
    tensor.parts.iter().map(mark).collect()
}

fn compare(mut left: Region, mut right: Region) -> Option<Change> {
    let (left, right) = (left.as_slice(), right.as_slice());
    // The whole is compared at memory speed; bytes are counted only where it differs.
    if left == right {
        return None;
    }
    let different = left.iter().zip(right).filter(|(a, b)| a != b).count();
    Some(Change::Bytes {
        different: different as u64,
        of: left.len() as u64,
    })
}
