//! Waits for background work without holding the interpreter's lock, and checks for Ctrl-C.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use pyo3::prelude::*;
use straightway_core::{Error, ErrorKind, Result};
use straightway_io::{Completion, Progress, ThreadLimits, Threads};
use straightway_sys::PerProcess;

use crate::{error::OrRaise, log};

/// The interval between checks for signals such as Ctrl-C: below what a person notices.
pub(crate) const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The maximum wait for a load that is stopped after its timeout.
const STOP_MAX: Duration = Duration::from_secs(1);

/// The threads that run the work of all calls: one for each call in progress, each of which has a caller. With fewer,
/// calls on storage that hangs would hold up all others.
const THREADS: ThreadLimits = ThreadLimits {
    threads: usize::MAX,
    per_key: usize::MAX,
    name: "straightway-work",
};

/// The threads of this process. A forked child starts its own.
static WORKERS: PerProcess<Option<Threads<()>>> = PerProcess::new();

/// Work on a background thread. Dropping this asks it to stop, and does not wait.
#[derive(Debug)]
pub(crate) struct Work<T> {
    completion: Arc<Completion<Result<T>>>,
    progress: Arc<Progress>,
}

impl<T: Send + 'static> Work<T> {
    /// Begins `work` on a background thread.
    pub(crate) fn begin(progress: &Arc<Progress>, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Self> {
        let completion = Arc::<Completion<Result<T>>>::default();
        let publishes = Arc::clone(&completion);
        let run = move || {
            let outcome = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
                let message = "it panicked: the message is on stderr, please report it";
                Err(Error::new(ErrorKind::Transient, "finish", "the transfer", message))
            });
            publishes.publish(outcome);
        };
        let mut workers = WORKERS.lock();
        let given = workers.get_or_insert_with(|| Threads::new(THREADS)).run((), run);
        given.map_err(|(error, _)| error)?;
        Ok(Self {
            completion,
            progress: Arc::clone(progress),
        })
    }

    /// Waits for the result. If a signal handler raises (as on Ctrl-C), the work is stopped first.
    pub(crate) fn wait(self, py: Python<'_>) -> PyResult<T> {
        loop {
            if let Some(outcome) = self.wait_briefly(py)? {
                return Ok(outcome);
            }
        }
    }

    /// Waits like [`wait`](Self::wait), at most [`SIGNAL_CHECK_INTERVAL`]. Returns `None` if the work is still running.
    pub(crate) fn wait_briefly(&self, py: Python<'_>) -> PyResult<Option<T>> {
        if py.detach(|| self.completion.wait_for(SIGNAL_CHECK_INTERVAL)) {
            log::flush(py);
            let outcome = self.completion.take().unwrap_or_else(|| {
                let message = "its result was taken before";
                Err(Error::new(ErrorKind::Invalid, "wait for", "the transfer", message))
            });
            return outcome.or_raise().map(Some);
        }
        // A record may say why the work takes long.
        if let Err(raised) = log::flush_or_stop(py).and_then(|()| py.check_signals()) {
            self.progress.cancel();
            // I/O in flight writes to memory that is about to be freed: wait for it.
            py.detach(|| drop(self.completion.take()));
            return Err(raised);
        }
        Ok(None)
    }

    /// Asks the work to stop, and waits at most [`STOP_MAX`]. Its thread keeps the memory alive that it still writes
    /// to.
    pub(crate) fn stop(&self, py: Python<'_>) {
        self.progress.cancel();
        py.detach(|| self.completion.wait_for(STOP_MAX));
        log::flush(py);
    }

    /// The progress of the work.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }
}

impl<T> Drop for Work<T> {
    fn drop(&mut self) {
        self.progress.cancel();
    }
}

/// Runs `work` on a thread and waits for it like [`Work::wait`].
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    progress: &Arc<Progress>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    Work::begin(progress, work).or_raise()?.wait(py)
}
