//! A look at each chunk of a checkpoint when it has been read: it is unpacked and its checksum is compared.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use straightway_core::Error;
use straightway_io::{Image, Inspect};

use super::{codec::Codec, opened::Checkpoint};

/// A chunk that could not be had: its number in the list, and why.
pub(crate) type Bad = (usize, Error);

/// A chunk that is read.
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
    /// Whether all chunks are read even when some are bad.
    is_patient: bool,
    good: AtomicU64,
    bad: Mutex<Vec<Bad>>,
}

impl Inspector {
    pub(crate) fn new(checkpoint: &Checkpoint, targets: Vec<Target>, is_patient: bool) -> Self {
        Self {
            checkpoint: checkpoint.clone(),
            targets,
            is_patient,
            good: AtomicU64::new(0),
            bad: Mutex::default(),
        }
    }

    /// How many chunks are what they were.
    pub(crate) fn good(&self) -> u64 {
        self.good.load(Ordering::Relaxed)
    }

    /// Those that could not be had, in the order of the list: of several errors it is always the same that is told first.
    pub(crate) fn take_bad(&self) -> Vec<Bad> {
        let mut bad = std::mem::take(&mut *self.bad.lock().unwrap_or_else(PoisonError::into_inner));
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
        let mut bad = self.bad.lock().unwrap_or_else(PoisonError::into_inner);
        bad.push((number, error));
        self.is_patient
    }
}
