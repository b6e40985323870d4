//! Checks each chunk of a checkpoint after it was read: unpacks it and compares its checksum.

use std::sync::atomic::{AtomicU64, Ordering};

use straightway_core::{Error, Lock};
use straightway_io::{Image, Inspect};

use super::{codec::Codec, opened::Checkpoint};

/// A chunk that could not be read: its number in the list, and the error.
pub(crate) type BadChunk = (usize, Error);

/// A chunk to read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) shard: usize,
    pub(crate) chunk: usize,
    pub(crate) codec: Codec,
}

/// Checks chunks.
#[derive(Debug)]
pub(crate) struct Inspector {
    checkpoint: Checkpoint,
    targets: Vec<Target>,
    /// Whether reading continues after a bad chunk.
    continue_on_error: bool,
    good: AtomicU64,
    bad: Lock<Vec<BadChunk>>,
}

impl Inspector {
    pub(crate) fn new(checkpoint: &Checkpoint, targets: Vec<Target>, continue_on_error: bool) -> Self {
        Self {
            checkpoint: checkpoint.clone(),
            targets,
            continue_on_error,
            good: AtomicU64::new(0),
            bad: Lock::default(),
        }
    }

    /// The number of chunks whose checksum matched.
    pub(crate) fn good(&self) -> u64 {
        self.good.load(Ordering::Relaxed)
    }

    /// The bad chunks in list order, so that the first error is always the same.
    pub(crate) fn take_bad(&self) -> Vec<BadChunk> {
        let mut bad = std::mem::take(&mut *self.bad.lock());
        bad.sort_by_key(|(number, _)| *number);
        bad
    }
}

impl Inspect for Inspector {
    fn unpacks(&self) -> bool {
        self.targets.iter().any(|target| target.codec != Codec::Raw)
    }

    fn inspect(&self, number: usize, stored: &[u8], unpacked: &mut [u8]) -> Result<Image, Error> {
        let target = self.targets[number];
        let (shard, chunk) = (target.shard, target.chunk);
        let (bytes, image) = match target.codec {
            Codec::Raw => (stored, Image::Stored),
            codec => {
                let restored = codec.restore(stored, unpacked);
                restored.map_err(|why| self.checkpoint.damaged(shard, chunk, &why))?;
                (&*unpacked, Image::Unpacked)
            }
        };
        self.checkpoint.check(shard, chunk, bytes)?;
        self.good.fetch_add(1, Ordering::Relaxed);
        Ok(image)
    }

    fn refuse(&self, number: usize, error: Error) -> bool {
        let mut bad = self.bad.lock();
        bad.push((number, error));
        self.continue_on_error
    }
}
