//! The difference between two steps.

use std::{collections::BTreeSet, sync::Arc};

use straightway_core::{Error, ErrorKind, Result};
use straightway_io::Region;
use straightway_weights::quoted;

use super::{
    manifest::{Manifest, Saved},
    opened::Checkpoint,
    restorer::Restorer,
    scatter::Wanted,
};

/// A change of a tensor between two steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepChange {
    /// Only the second step has it.
    Added,
    /// Only the first step has it.
    Removed,
    /// Its dtype or shape differs: before and after, as text.
    Reshaped(String, String),
    /// Some of its bytes differ.
    Bytes {
        /// The number of bytes that differ.
        different: u64,
        /// The size of the tensor in bytes.
        of: u64,
    },
}

/// The difference between two steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference {
    /// The tensors that differ, by name.
    pub changes: Vec<(String, StepChange)>,
    /// The number of tensors that do not differ.
    pub same: usize,
}

impl Restorer {
    /// Compares two checkpoints, tensor by tensor. A tensor is read and checked unless the digests of both show that it
    /// is the same. Needs memory for two copies of the largest tensor.
    pub fn diff(&self, before: &Checkpoint, after: &Checkpoint) -> Result<Difference> {
        let (old, new) = (before.manifest(), after.manifest());
        let names: BTreeSet<_> = old.tensors.iter().chain(&new.tensors).map(|t| &t.name).collect();
        let mut difference = Difference::default();
        for name in names {
            let change = match (old.tensor(name), new.tensor(name)) {
                (None, _) => Some(StepChange::Added),
                (_, None) => Some(StepChange::Removed),
                (Some(a), Some(b)) if (a.dtype, &a.shape) != (b.dtype, &b.shape) => {
                    let words = |t: &Saved| format!("{} {}", t.dtype, t.shape);
                    Some(StepChange::Reshaped(words(a), words(b)))
                }
                (Some(a), Some(b)) if chunk_digests(old, a).is_some_and(|m| Some(m) == chunk_digests(new, b)) => None,
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

    /// The bytes of a value that is not a tensor.
    pub fn opaque(&self, checkpoint: &Checkpoint, name: &str) -> Result<Vec<u8>> {
        let tensor = checkpoint.manifest().tensor(name).filter(|t| t.opaque);
        let tensor = tensor.ok_or_else(|| {
            let step = checkpoint.manifest().step;
            let message = format!("step {step} has no bytes of that name");
            Error::new(ErrorKind::NotFound, "restore", quoted(name), message)
        })?;
        Ok(self.whole(checkpoint, tensor)?.as_slice().to_vec())
    }

    /// Restores a whole tensor into host memory.
    pub(crate) fn whole(&self, checkpoint: &Checkpoint, tensor: &Saved) -> Result<Region> {
        let region = Arc::new(Region::host(tensor.bytes())?);
        let wanted = Wanted::whole(&tensor.name, &tensor.shape, &region, 0);
        self.restore(checkpoint, &[wanted])?;
        Ok(Arc::into_inner(region).expect("the restore has ended"))
    }
}

/// Identifies a tensor's bytes without reading them: the offsets of its parts in their chunks, and the digests of
/// those. `None` if there are no digests.
fn chunk_digests(manifest: &Manifest, tensor: &Saved) -> Option<Vec<(u64, u64, Vec<u128>)>> {
    let digests_of = |part: &super::manifest::SavedPart| {
        let digests = &manifest.shards[part.shard as usize].digests;
        let bytes = part.rectangle.elements() * tensor.dtype.bits() / 8;
        let first = usize::try_from(part.offset / manifest.chunk_bytes).ok()?;
        let end = (part.offset + bytes).div_ceil(manifest.chunk_bytes);
        let end = usize::try_from(end).ok()?.max(first);
        let digests = digests.get(first..end)?.iter().map(|d| d.0).collect();
        Some((part.offset % manifest.chunk_bytes, bytes, digests))
    };
    tensor.parts.iter().map(digests_of).collect()
}

fn compare(mut left: Region, mut right: Region) -> Option<StepChange> {
    let (left, right) = (left.as_slice(), right.as_slice());
    // The tensors are compared at memory speed; bytes are counted only if they differ.
    if left == right {
        return None;
    }
    let different = left.iter().zip(right).filter(|(a, b)| a != b).count();
    Some(StepChange::Bytes {
        different: different as u64,
        of: left.len() as u64,
    })
}
