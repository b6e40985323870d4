//! The clocks at the start of a job, and the jobs of this process that run.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use straightway_sys::CpuTime;

/// The number of jobs of this process that were begun, and of those that are over.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static OVER: AtomicU64 = AtomicU64::new(0);

/// The clocks at the start of a job or a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Opening {
    start: Instant,
    cpu: CpuTime,
    /// The number of jobs that were over at that time.
    over: u64,
}

impl Opening {
    pub(crate) fn now() -> Self {
        Self {
            cpu: CpuTime::of_process(),
            over: OVER.load(Ordering::Relaxed),
            start: Instant::now(),
        }
    }

    /// The time since then.
    pub(crate) fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// The CPU time of this process since then.
    pub(crate) fn cpu_time(&self) -> CpuTime {
        CpuTime::of_process() - self.cpu
    }

    /// The number of jobs that ran at some time since then.
    pub(crate) fn jobs_since(&self) -> u64 {
        BEGUN.load(Ordering::Relaxed).saturating_sub(self.over)
    }
}

/// Guard that counts a job of this process while it runs.
#[derive(Debug)]
pub(crate) struct Running(());

impl Running {
    pub(crate) fn begin() -> Self {
        BEGUN.fetch_add(1, Ordering::Relaxed);
        Self(())
    }

    /// The number of running jobs.
    pub(crate) fn count() -> u64 {
        let over = OVER.load(Ordering::Relaxed);
        BEGUN.load(Ordering::Relaxed).saturating_sub(over)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        OVER.fetch_add(1, Ordering::Relaxed);
    }
}
