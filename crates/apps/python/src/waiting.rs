//! Waits for background threads without holding the interpreter's lock, and checks for Ctrl-C.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use pyo3::prelude::*;
use straightway_core::{Error, ErrorKind, Lock, Result};
use straightway_io::Progress;

use crate::{error::OrRaise, log};

/// The interval between checks for signals such as Ctrl-C: below what a person notices.
pub(crate) const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The maximum wait for a load that is stopped after its timeout.
const STOP_MAX: Duration = Duration::from_secs(1);

/// Work on a background thread. Dropping this asks it to stop, and does not wait.
#[derive(Debug)]
pub(crate) struct Work<T> {
    /// The lock is there only because Python objects may be shared between threads.
    outcome: Lock<Receiver<Result<T>>>,
    progress: Arc<Progress>,
}

impl<T: Send + 'static> Work<T> {
    /// Begins `work` on a thread of its own.
    pub(crate) fn begin(progress: &Arc<Progress>, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<Self> {
        let (answer, outcome) = channel();
        let run = move || {
            // Sending fails if the work was dropped.
            let _ = answer.send(work());
        };
        thread::Builder::new()
            .name("straightway-work".to_owned())
            .spawn(run)
            .map_err(|e| Error::os("start", "a thread", e))?;
        Ok(Self {
            outcome: Lock::new(outcome),
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
        match py.detach(|| self.listen(SIGNAL_CHECK_INTERVAL)) {
            Ok(outcome) => {
                log::flush(py);
                return outcome.or_raise().map(Some);
            }
            Err(RecvTimeoutError::Disconnected) => {
                let message = "its thread ended without a result";
                let error = Error::new(ErrorKind::Transient, "finish", "the transfer", message);
                return Err(error).or_raise();
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        // A record may say why the work takes long.
        if let Err(raised) = log::flush_or_stop(py).and_then(|()| py.check_signals()) {
            self.progress.cancel();
            // I/O in flight writes to memory that is about to be freed: wait for it.
            let _ = py.detach(|| self.listen(Duration::MAX));
            return Err(raised);
        }
        Ok(None)
    }

    /// Asks the work to stop, and waits at most [`STOP_MAX`]. Its thread keeps the memory alive that it still writes
    /// to.
    pub(crate) fn stop(&self, py: Python<'_>) {
        self.progress.cancel();
        let _ = py.detach(|| self.listen(STOP_MAX));
        log::flush(py);
    }

    /// The progress of the work.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    fn listen(&self, timeout: Duration) -> std::result::Result<Result<T>, RecvTimeoutError> {
        self.outcome.lock().recv_timeout(timeout)
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
