//! An engine held to a rate: for saving a checkpoint without starving the job beside it.

use std::time::{Duration, Instant};

use straightway_core::{Rate, Result};
use straightway_sys::{Done, Io};

use crate::engine::{Capabilities, Engine};

/// Time that was not used may be caught up with, but no more than this much of it: a lane that
/// slept for an hour must not then burst for one.
const CREDIT: Duration = Duration::from_millis(50);

/// Wraps an engine and lets I/Os through at a bounded rate.
#[derive(Debug)]
pub struct Throttled<E> {
    engine: E,
    rate: Rate,
    /// When the next I/O may go.
    due: Instant,
}

impl<E: Engine> Throttled<E> {
    /// Holds `engine` to `rate`.
    pub fn new(engine: E, rate: Rate) -> Self {
        assert!(rate.0 > 0.0, "a rate of nothing moves nothing");
        Self {
            engine,
            rate,
            due: Instant::now(),
        }
    }
}

impl<E: Engine> Engine for Throttled<E> {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        let now = Instant::now();
        if self.due > now {
            return Err(io);
        }
        let cost = Duration::from_secs_f64(io.bytes as f64 / self.rate.0);
        self.engine.submit(io)?;
        self.due = self.due.max(now.checked_sub(CREDIT).unwrap_or(now)) + cost;
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        // No longer than until the next I/O may go, or the lane would sleep past its turn.
        let until_due = self.due.saturating_duration_since(Instant::now());
        let wait = if until_due.is_zero() {
            timeout
        } else {
            timeout.min(until_due)
        };
        let count = self.engine.poll(done, wait)?;
        if count == 0 && !until_due.is_zero() {
            let left = self.due.saturating_duration_since(Instant::now());
            std::thread::sleep(left.min(timeout));
        }
        Ok(count)
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn rest(&mut self) {
        self.engine.rest();
    }
}
