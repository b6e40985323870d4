//! Waiting for a thread of ours without holding Python's lock, and with an ear for Ctrl-C.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    thread,
    time::Duration,
};

use pyo3::prelude::*;
use straightway_core::{Error, Kind, Result};
use straightway_io::Progress;

use crate::{error::OrRaise, log};

/// How long Ctrl-C may go unheard: below what a person notices.
pub(crate) const DEAF_MAX: Duration = Duration::from_millis(50);

/// How long a load that is stopped because its time is over may still take.
const STOP_MAX: Duration = Duration::from_secs(1);

/// Work that goes on by itself. Dropping it asks it to stop, and does not wait.
#[derive(Debug)]
pub(crate) struct Work<T> {
    /// Behind a lock only because Python's objects may be shared between threads.
    outcome: Mutex<Receiver<Result<T>>>,
    progress: Arc<Progress>,
}

impl<T: Send + 'static> Work<T> {
    /// Begins `work` on a thread of its own.
    pub(crate) fn begin(
        progress: &Arc<Progress>,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<Self> {
        let (answer, outcome) = channel();
        let run = move || {
            // Nobody listens any more where the work was dropped.
            let _ = answer.send(work());
        };
        thread::Builder::new()
            .name("straightway-work".to_owned())
            .spawn(run)
            .map_err(|e| Error::os("start", "a thread", e))?;
        Ok(Self {
            outcome: Mutex::new(outcome),
            progress: Arc::clone(progress),
        })
    }

    /// Waits for it. On Ctrl-C, or whatever else a signal's handler raises, it is stopped first.
    pub(crate) fn wait(self, py: Python<'_>) -> PyResult<T> {
        loop {
            if let Some(outcome) = self.wait_briefly(py)? {
                return Ok(outcome);
            }
        }
    }

    /// Waits for it as [`wait`](Self::wait) does, but at most [`DEAF_MAX`]; `None` where it is still under way.
    pub(crate) fn wait_briefly(&self, py: Python<'_>) -> PyResult<Option<T>> {
        match py.detach(|| self.listen(DEAF_MAX)) {
            Ok(outcome) => {
                log::hand_over(py);
                return outcome.or_raise().map(Some);
            }
            Err(RecvTimeoutError::Disconnected) => {
                let message = "its thread has ended without an answer";
                let error = Error::new(Kind::Transient, "finish", "the transfer", message);
                return Err(error).or_raise();
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(raised) = py.check_signals() {
            self.progress.cancel();
            // What is in flight writes to memory that is about to go: wait for it.
            let _ = py.detach(|| self.listen(Duration::MAX));
            return Err(raised);
        }
        Ok(None)
    }

    /// Asks it to stop, and waits [`STOP_MAX`] at most. Its thread keeps the memory that is still written to.
    pub(crate) fn stop(&self, py: Python<'_>) {
        self.progress.cancel();
        let _ = py.detach(|| self.listen(STOP_MAX));
        log::hand_over(py);
    }

    /// How far it is.
    pub(crate) fn progress(&self) -> &Progress {
        &self.progress
    }

    fn listen(&self, patience: Duration) -> std::result::Result<Result<T>, RecvTimeoutError> {
        let outcome = self.outcome.lock().unwrap_or_else(PoisonError::into_inner);
        outcome.recv_timeout(patience)
    }
}

impl<T> Drop for Work<T> {
    fn drop(&mut self) {
        self.progress.cancel();
    }
}

/// Does `work` and waits for it as [`Work::wait`] does.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    progress: &Arc<Progress>,
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> PyResult<T> {
    Work::begin(progress, work).or_raise()?.wait(py)
}
