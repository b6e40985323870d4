//! A fetch: which chunks of what, with which settings, and what the threads that fetch them share.
//!
//! Lanes do not serve here: they move bytes to one region as they come, while a chunk has to be looked at
//! before any byte of it goes anywhere, and may feed a hundred tensors in as many places. The
//! engines are the same, with their limits, faults and traces.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, AtomicU64, AtomicUsize},
};

use straightway_core::{Alignment, Error, Result};
use straightway_io::{Progress, Settings};
use straightway_sys::cuda::Context;

use super::{
    opened::Checkpoint,
    ring::{Ring, Rings},
    scatter::{Scatter, Task},
};

/// A chunk that could not be had: which task, and why.
pub(crate) type Bad = (usize, Error);

/// What fetches.
#[derive(Debug)]
pub(crate) struct Fetch<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) scatter: &'a Scatter,
    pub(crate) settings: &'a Settings,
    pub(crate) rings: &'a Rings,
    pub(crate) progress: &'a Arc<Progress>,
    /// Whether all chunks are fetched even when some are bad.
    pub(crate) is_patient: bool,
}

/// What all threads share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The task that is next.
    pub(crate) next: AtomicUsize,
    /// Whether to stop.
    pub(crate) stop: AtomicBool,
    /// Chunks that were read and checked.
    pub(crate) chunks: AtomicU64,
    pub(crate) bad: Mutex<Vec<Bad>>,
}

impl Shared {
    pub(crate) fn bad(&self) -> MutexGuard<'_, Vec<Bad>> {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fetch<'_> {
    /// The GPU that chunks go to, if they do.
    fn context(&self) -> Option<&Context> {
        let memory = self.scatter.regions.iter().find_map(|r| r.device_memory());
        memory.map(|memory| memory.context())
    }

    /// How many threads fetch at most. To a GPU a quarter more than a load has lanes: so much time goes into
    /// checking what it only copies.
    pub(crate) fn threads(&self) -> usize {
        let lanes = match self.context() {
            Some(_) => self.settings.gpu_lanes.saturating_mul(5).div_ceil(4),
            None => self.settings.cached_lanes,
        };
        lanes as usize
    }

    /// A ring for one thread. All of them together stay within the memory that is set for rings: what is more
    /// falls out of the processor's cache.
    pub(crate) fn ring(&self) -> Result<Ring> {
        let context = self.context();
        let all = match context {
            Some(_) => self.settings.pinned_bytes,
            None => self.settings.staging_bytes,
        };
        let own = usize::try_from(all).unwrap_or(usize::MAX) / self.threads();
        self.rings.take(self.slot_bytes(), own, context)
    }

    /// How long the slots are: a chunk, and on either side what direct I/O has to read beside it.
    fn slot_bytes(&self) -> usize {
        let bytes = self.checkpoint.manifest().chunk_bytes + 2 * Alignment::PAGE_BYTES;
        usize::try_from(bytes).expect("a chunk fits into memory")
    }

    /// How many bytes are wanted of a chunk: where nothing is copied anywhere, all are, to be checked.
    pub(crate) fn wanted_bytes(&self, task: &Task) -> u64 {
        match task.copies.as_slice() {
            [] => self.checkpoint.chunk_len(task.shard, task.chunk) as u64,
            copies => copies.iter().map(|copy| copy.bytes as u64).sum(),
        }
    }
}
