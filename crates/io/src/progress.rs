//! How far a transfer has come, and the switch that stops it: shared by who runs it and who watches.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How far a job has come, and the switch that stops it.
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

    /// Asks the job to stop. What is in flight is waited for; nothing more is begun.
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
