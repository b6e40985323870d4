//! Passes the library's log records to Python's `logging`.
//!
//! Records come from threads that must not wait for the interpreter's lock. They go to a short queue, and the thread
//! that called from Python passes them to the logger `straightway` while it waits, and when its call returns. The
//! queue's lock is only tried: a record that finds it locked is dropped. So a thread never waits here, not even in a
//! child that was forked while another thread had the lock, and nothing calls into an interpreter that is shutting
//! down.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, TryLockError},
};

use pyo3::{exceptions::PyException, prelude::*, types::PyModule};
use straightway_stores::log::{self, Level, LogFilter, Record};
use straightway_sys::monotonic_s;

/// The environment variable with the filter. `logging` filters again.
const VARIABLE: &str = "STRAIGHTWAY_LOG";

/// The capacity of the queue. The oldest records are dropped.
const QUEUE_MAX: usize = 256;

/// Queued records: the level of `logging`, and the text.
static QUEUE: Mutex<VecDeque<(u8, String)>> = Mutex::new(VecDeque::new());

/// Installs the listener. A second call has no effect.
pub(crate) fn begin() {
    let text = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let filter = text.map(|text| text.parse::<LogFilter>()).transpose();
    let wrong = filter.as_ref().err().map(ToString::to_string);
    let filter = filter.ok().flatten();
    log::listen(filter.unwrap_or(LogFilter::from_level(Level::DEBUG)), enqueue);
    if let Some(text) = wrong {
        let (level, source) = (Level::WARN, "straightway");
        enqueue(Record {
            level,
            source,
            text: &text,
        });
    }
}

fn enqueue(record: Record<'_>) {
    let level = match record.level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        // Below all named levels of `logging`.
        Level::TRACE => 5,
    };
    // Trace records form a timeline. They reach `logging` later, so each has its own time.
    let text = match record.level {
        Level::TRACE => format!("{:.6} s: {}", monotonic_s(), record.text),
        _ => record.text.to_owned(),
    };
    if let Some(mut queue) = queue() {
        if queue.len() == QUEUE_MAX {
            queue.pop_front();
        }
        queue.push_back((level, text));
    }
}

/// Passes the queued records to `logging`. An exception of a handler is reported but not raised: the call that returns
/// has its own result.
pub(crate) fn flush(py: Python<'_>) {
    if let Err(error) = pass_on(py) {
        error.write_unraisable(py, None);
    }
}

/// As [`flush`], while a call waits. What is no `Exception` is raised: a signal handler ran meanwhile, as on Ctrl-C.
pub(crate) fn flush_or_stop(py: Python<'_>) -> PyResult<()> {
    match pass_on(py) {
        Err(error) if !error.is_instance_of::<PyException>(py) => Err(error),
        Err(error) => {
            error.write_unraisable(py, None);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn pass_on(py: Python<'_>) -> PyResult<()> {
    let records = match queue() {
        Some(mut queue) if !queue.is_empty() => std::mem::take(&mut *queue),
        _ => return Ok(()),
    };
    let logger = PyModule::import(py, "logging")?.call_method1("getLogger", ("straightway",))?;
    for (level, text) in records {
        // As an argument, so that a `%` in a path is not taken for a format.
        logger.call_method1("log", (level, "%s", text))?;
    }
    Ok(())
}

fn queue() -> Option<MutexGuard<'static, VecDeque<(u8, String)>>> {
    match QUEUE.try_lock() {
        Ok(queue) => Some(queue),
        Err(TryLockError::Poisoned(queue)) => Some(queue.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
