//! A raw read or write in progress: it can be waited for, polled, awaited and cancelled.
//!
//! The file keeps its transfers until they have ended, so dropping one does not cancel it.

use std::{
    os::fd::{AsFd, AsRawFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use pyo3::{
    exceptions::{PyRuntimeError, PyTimeoutError},
    import_exception,
    prelude::*,
};
use straightway_core::{Error, ErrorKind, Lock, Receipt as CoreReceipt, Result};
use straightway_io::{Completion, Ticket};
use straightway_sys::{Event, Process};

use super::{export::release_ended, trace};
use crate::{
    error::{OrRaise, exception},
    log,
    receipt::Receipt,
    waiting::SIGNAL_CHECK_INTERVAL,
};

import_exception!(concurrent.futures, CancelledError);

/// A raw read or write in progress.
#[pyclass(frozen, module = "straightway", name = "Transfer", weakref)]
#[derive(Debug)]
pub(crate) struct Transfer(pub(crate) Arc<Running>);

/// The jobs of one call.
#[derive(Debug)]
pub(crate) struct Running {
    /// Each with the seconds from the start of the call to its own.
    jobs: Vec<(Ticket, f64)>,
    /// The end of all jobs, if there are several.
    all: Option<Arc<Together>>,
    /// Readable from the start, if there is no job.
    event: OnceLock<Event>,
    outcome: Lock<Option<Result<CoreReceipt>>>,
    is_taken: OnceLock<()>,
    traces: Option<Py<PyAny>>,
    bytes: u64,
    process: Process,
}

/// Counts the jobs of a call that have not ended.
#[derive(Debug)]
pub(crate) struct Together {
    left: AtomicUsize,
    completion: Completion<()>,
}

impl Together {
    pub(crate) fn new(jobs: usize) -> Arc<Self> {
        Arc::new(Self {
            left: AtomicUsize::new(jobs),
            completion: Completion::default(),
        })
    }

    /// Counts jobs that have ended, or could not be begun.
    pub(crate) fn end(&self, jobs: usize) {
        if jobs > 0 && self.left.fetch_sub(jobs, Ordering::AcqRel) == jobs {
            self.completion.publish(());
        }
    }
}

impl Running {
    /// A call whose jobs were begun.
    pub(crate) fn new(
        jobs: Vec<(Ticket, f64)>,
        all: Option<Arc<Together>>,
        bytes: u64,
        traces: Option<Py<PyAny>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            jobs,
            all,
            event: OnceLock::new(),
            outcome: Lock::default(),
            is_taken: OnceLock::new(),
            traces,
            bytes,
            process: Process::this(),
        })
    }

    /// A call that has ended.
    pub(crate) fn ended(receipt: CoreReceipt, traces: Option<Py<PyAny>>) -> Arc<Self> {
        let bytes = receipt.bytes;
        let ended = Self::new(Vec::new(), None, bytes, traces);
        *ended.outcome.lock() = Some(Ok(receipt));
        ended
    }

    /// Whether all jobs have ended. Their memory is then unused.
    pub(crate) fn is_done(&self) -> bool {
        self.jobs.iter().all(|(ticket, _)| ticket.is_done())
    }

    pub(crate) fn cancel(&self) {
        self.jobs.iter().for_each(|(ticket, _)| ticket.cancel());
    }

    /// Waits for the end, at most `timeout`. Returns whether it came.
    pub(crate) fn wait_for(&self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        let mut waited = self.jobs.iter().map(|(ticket, _)| {
            let left = end.saturating_duration_since(Instant::now());
            ticket.wait_for(left)
        });
        waited.all(|is_done| is_done)
    }

    /// Waits for the end, and checks for signals. If a handler raises, the transfer is cancelled and waited for.
    pub(crate) fn wait(&self, py: Python<'_>) -> PyResult<()> {
        while !self.is_done() {
            self.check_own()?;
            py.detach(|| self.wait_for(SIGNAL_CHECK_INTERVAL));
            if let Err(raised) = py.check_signals() {
                self.cancel();
                // I/O in flight uses memory that is about to be the caller's again.
                py.detach(|| while !self.wait_for(SIGNAL_CHECK_INTERVAL) {});
                return Err(raised);
            }
        }
        Ok(())
    }

    /// Its receipt, or the error that ended it. It has ended.
    pub(crate) fn result(&self, py: Python<'_>) -> PyResult<CoreReceipt> {
        self.check_own()?;
        let found = py.detach(|| {
            let mut outcome = self.outcome.lock();
            let known = outcome.get_or_insert_with(|| self.collect());
            match known {
                Ok(receipt) => Ok(receipt.clone()),
                Err(error) => Err(error.again()),
            }
        });
        if self.is_taken.set(()).is_ok() {
            log::flush(py);
            release_ended(py);
            if let (Some(traces), Ok(receipt)) = (&self.traces, &found) {
                trace::add(py, traces, receipt)?;
            }
        }
        found.map_err(|error| match error.kind() {
            ErrorKind::Cancelled => CancelledError::new_err(error.to_string()),
            _ => exception(&error),
        })
    }

    fn collect(&self) -> Result<CoreReceipt> {
        let missing = || {
            Err(Error::new(
                ErrorKind::Invalid,
                "wait for",
                "a transfer",
                "its result was taken",
            ))
        };
        let mut receipts = Vec::with_capacity(self.jobs.len());
        let mut failed = None;
        for (ticket, begun_s) in &self.jobs {
            // All are waited for, so that the memory of all is unused.
            match ticket.take().unwrap_or_else(missing) {
                Ok(receipt) => receipts.push((receipt, *begun_s)),
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        if receipts.len() == 1 {
            return Ok(receipts.remove(0).0);
        }
        let ends = receipts.iter().map(|(receipt, begun_s)| begun_s + receipt.seconds);
        let seconds = ends.fold(0.0, f64::max);
        Ok(CoreReceipt::sum(receipts.iter().map(|(receipt, _)| receipt), seconds))
    }

    fn check_own(&self) -> PyResult<()> {
        if self.process.is_this() {
            return Ok(());
        }
        let number = self.process.number();
        let message = format!("it belongs to process {number}, from which this one was forked\nhint: begin it here");
        Err(PyRuntimeError::new_err(message))
    }
}

#[pymethods]
impl Transfer {
    /// Whether it has ended. Its array is then unused.
    fn done(&self) -> bool {
        self.0.is_done()
    }

    /// Waits for the end, at most `timeout` seconds, and returns the receipt. Raises what made it fail, or
    /// `TimeoutError`: the transfer then goes on.
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Receipt> {
        let Some(timeout) = timeout else {
            self.0.wait(py)?;
            return self.0.result(py).map(Receipt);
        };
        let limit = Duration::try_from_secs_f64(timeout.max(0.0)).unwrap_or(Duration::MAX);
        let begun = Instant::now();
        while !self.0.is_done() {
            self.0.check_own()?;
            let left = limit.saturating_sub(begun.elapsed());
            if left.is_zero() {
                let message = format!("the transfer takes longer than {timeout} s");
                return Err(PyTimeoutError::new_err(message));
            }
            py.detach(|| self.0.wait_for(left.min(SIGNAL_CHECK_INTERVAL)));
            py.check_signals()?;
        }
        self.0.result(py).map(Receipt)
    }

    /// What made it fail; `None` if it succeeded. Waits like `result`.
    #[pyo3(signature = (timeout=None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        match self.result(py, timeout) {
            Ok(_) => Ok(None),
            Err(raised) if !self.0.is_done() => Err(raised),
            Err(raised) => Ok(Some(raised.into_value(py).into_any())),
        }
    }

    /// Asks it to stop. I/O in flight is waited for by `result`, which then raises `CancelledError`, unless the transfer
    /// had ended. A new file of which a write was cancelled cannot be completed any more.
    fn cancel(&self) {
        self.0.cancel();
    }

    /// The number of bytes to move.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.bytes
    }

    /// A descriptor that becomes readable when the transfer has ended: for `select`, `poll` and event loops. It is
    /// closed with the transfer. Nothing has to be read from it.
    fn fileno(&self) -> PyResult<i32> {
        self.0.check_own()?;
        if let Some(all) = &self.0.all {
            return all.completion.event().map(|event| event.as_fd().as_raw_fd()).or_raise();
        }
        if let Some((ticket, _)) = self.0.jobs.first() {
            return ticket.descriptor().map(|fd| fd.as_raw_fd()).or_raise();
        }
        if self.0.event.get().is_none() {
            let event = Event::new().or_raise()?;
            event.raise();
            // Another thread may have been faster.
            let _ = self.0.event.set(event);
        }
        Ok(self.0.event.get().expect("it was set above").as_fd().as_raw_fd())
    }

    fn __await__(slf: Bound<'_, Self>) -> PyResult<Bound<'_, PyAny>> {
        let waiting = slf.py().import("straightway._awaiting")?;
        waiting.call_method1("receipt_of", (slf,))?.call_method0("__await__")
    }

    fn __repr__(&self) -> String {
        let state = if self.0.is_done() { "ended" } else { "running" };
        format!("<Transfer of {} bytes, {state}>", self.0.bytes)
    }
}
