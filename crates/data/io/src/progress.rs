//! The progress of a transfer and its stop flag, shared between the lanes and the caller.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The progress of a job, and its stop flag.
#[derive(Debug, Default)]
pub struct Progress {
    moved_bytes: AtomicU64,
    cancelled: AtomicBool,
}

impl Progress {
    /// Bytes in place so far.
    pub fn moved_bytes(&self) -> u64 {
        self.moved_bytes.load(Ordering::Relaxed)
    }

    /// Asks the job to stop. I/Os in flight are waited for; no more are begun.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Whether the job was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// Counts bytes that are in place.
    pub fn add(&self, bytes: u64) {
        self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}
