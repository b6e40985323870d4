//! What the library has to say, for Python's `logging`.
//!
//! Records come from threads that must not wait for the interpreter's lock. They are put into a short queue,
//! and the thread that called from Python hands them to the logger `straightway` when its call returns. The queue's lock is
//! only ever tried: a record that finds it taken is dropped. So a thread never waits here, not even in a child that
//! was forked while another thread had the lock, and nothing calls into an interpreter that is ending.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, TryLockError},
};

use pyo3::{prelude::*, types::PyModule};
use straightway_cli::log::{self, Filter, Level, Record};
use straightway_sys::monotonic_s;

/// The environment: which records are handed over. `logging` chooses among those.
const VARIABLE: &str = "STRAIGHTWAY_LOG";

/// Records that wait. More than this between two calls are dropped, the oldest first.
const WAITING_MAX: usize = 256;

/// Levels of `logging`, and the text.
static WAITING: Mutex<VecDeque<(u8, String)>> = Mutex::new(VecDeque::new());

/// Begins to listen. A second call does nothing.
pub(crate) fn begin() {
    let text = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    let filter = text.map(|text| text.parse::<Filter>()).transpose();
    let wrong = filter.as_ref().err().map(ToString::to_string);
    let filter = filter.ok().flatten();
    log::listen(filter.unwrap_or(Filter::from_level(Level::DEBUG)), keep);
    if let Some(text) = wrong {
        let (level, source) = (Level::WARN, "straightway");
        keep(Record {
            level,
            source,
            text: &text,
        });
    }
}

fn keep(record: Record<'_>) {
    let level = match record.level {
        Level::ERROR => 40,
        Level::WARN => 30,
        Level::INFO => 20,
        Level::DEBUG => 10,
        // Below all that `logging` has a name for.
        Level::TRACE => 5,
    };
    // Records of this level are a timeline: they are handed over later, so each has its time.
    let text = match record.level {
        Level::TRACE => format!("{:.6} s: {}", monotonic_s(), record.text),
        _ => record.text.to_owned(),
    };
    if let Some(mut waiting) = waiting() {
        if waiting.len() == WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back((level, text));
    }
}

/// Hands what waits to `logging`. What a handler raises is reported and raised no further: the call that returns has
/// its own result.
pub(crate) fn hand_over(py: Python<'_>) {
    let records = match waiting() {
        Some(mut waiting) if !waiting.is_empty() => std::mem::take(&mut *waiting),
        _ => return,
    };
    let log = || -> PyResult<()> {
        let logger =
            PyModule::import(py, "logging")?.call_method1("getLogger", ("straightway",))?;
        for (level, text) in records {
            // As an argument, so that a `%` in a path is no format.
            logger.call_method1("log", (level, "%s", text))?;
        }
        Ok(())
    };
    if let Err(error) = log() {
        error.write_unraisable(py, None);
    }
}

fn waiting() -> Option<MutexGuard<'static, VecDeque<(u8, String)>>> {
    match WAITING.try_lock() {
        Ok(waiting) => Some(waiting),
        Err(TryLockError::Poisoned(waiting)) => Some(waiting.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
