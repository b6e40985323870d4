//! An engine that records its I/Os.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Lock, Result};
use straightway_sys::{IoPath, Op};

use super::{Around, Wrapped};
use crate::{
    engine::Engine,
    request::{Done, Io},
};

/// The most events that a trace keeps.
pub const EVENTS_MAX: usize = 1 << 20;

/// One completed I/O.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceEvent {
    /// The file's path.
    pub path: String,
    /// Read or write.
    pub op: Op,
    /// The descriptor that was used.
    pub by: IoPath,
    /// The offset in the file.
    pub offset: u64,
    /// The number of bytes requested.
    pub bytes: usize,
    /// Time from the start of the trace to submission.
    pub submitted: Duration,
    /// Time from submission to completion.
    pub took: Duration,
    /// The number of bytes moved, or the error.
    pub moved: Result<usize, String>,
}

/// A list of events that several engines add to.
#[derive(Clone, Debug)]
pub struct Trace {
    start: Instant,
    events: Arc<Lock<Vec<TraceEvent>>>,
}

impl Default for Trace {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            events: Arc::default(),
        }
    }
}

impl Trace {
    /// Removes and returns all events recorded so far.
    pub fn take(&self) -> Vec<TraceEvent> {
        std::mem::take(&mut self.events.lock())
    }
}

/// An engine whose I/Os are recorded.
pub type Traced = Wrapped<Tracing>;

/// Records the I/Os of an engine.
#[derive(Debug)]
pub struct Tracing {
    trace: Trace,
    /// When each I/O in flight was submitted, by tag.
    submitted: Vec<(u32, Instant)>,
}

impl Traced {
    /// Adds what `engine` does to `trace`.
    pub fn new(engine: Box<dyn Engine>, trace: Trace) -> Self {
        let around = Tracing {
            trace,
            submitted: Vec::new(),
        };
        Self { engine, around }
    }
}

impl Tracing {
    fn event(&mut self, done: &Done) -> TraceEvent {
        let now = Instant::now();
        let io = &done.io;
        let at = self.submitted.iter().position(|(tag, _)| *tag == io.tag);
        let submitted = at.map_or(now, |at| self.submitted.swap_remove(at).1);
        TraceEvent {
            path: io.object.object().name,
            op: io.op,
            by: io.by,
            offset: io.offset,
            bytes: io.bytes,
            submitted: submitted.saturating_duration_since(self.trace.start),
            took: now.saturating_duration_since(submitted),
            moved: done.result.as_ref().copied().map_err(ToString::to_string),
        }
    }
}

impl Around for Tracing {
    fn submit(&mut self, engine: &mut dyn Engine, io: Io) -> Result<(), Io> {
        let tag = io.tag;
        engine.submit(io)?;
        self.submitted.push((tag, Instant::now()));
        Ok(())
    }

    fn poll(&mut self, engine: &mut dyn Engine, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        let before = done.len();
        let count = engine.poll(done, timeout)?;
        let events: Vec<_> = done[before..].iter().map(|d| self.event(d)).collect();
        let mut kept = self.trace.events.lock();
        let room = EVENTS_MAX.saturating_sub(kept.len());
        kept.extend(events.into_iter().take(room));
        Ok(count)
    }
}
