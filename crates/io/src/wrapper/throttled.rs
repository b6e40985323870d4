//! An engine held to a rate: for saving a checkpoint without starving the job beside it.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use straightway_core::{Rate, Result};

use crate::{
    engine::{Capabilities, Engine},
    request::{Done, Io},
};

/// Time that was not used may be caught up with, but no more than this much of it: a lane that
/// slept for an hour must not then burst for one.
const CREDIT: Duration = Duration::from_millis(50);

/// When the next I/O may go, of all engines that are held to one rate together. Clones are the same meter.
#[derive(Clone, Debug)]
pub struct Meter(Arc<Mutex<Instant>>);

impl Default for Meter {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Instant::now())))
    }
}

impl Meter {
    fn due(&self) -> MutexGuard<'_, Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the time that an I/O costs, if it may go now.
    fn take(&self, cost: Duration) -> bool {
        let mut due = self.due();
        let now = Instant::now();
        if *due > now {
            return false;
        }
        *due = (*due).max(now.checked_sub(CREDIT).unwrap_or(now)) + cost;
        true
    }

    /// Gives the time back of an I/O that did not go.
    fn give_back(&self, cost: Duration) {
        let mut due = self.due();
        *due = due.checked_sub(cost).unwrap_or(*due);
    }

    fn until_due(&self) -> Duration {
        self.due().saturating_duration_since(Instant::now())
    }
}

/// Wraps an engine and lets I/Os through at a bounded rate.
#[derive(Debug)]
pub struct Throttled<E> {
    engine: E,
    rate: Rate,
    meter: Meter,
}

impl<E: Engine> Throttled<E> {
    /// Holds `engine` and all others with this meter to `rate`.
    pub fn new(engine: E, rate: Rate, meter: Meter) -> Self {
        assert!(rate.0 > 0.0, "a rate of nothing moves nothing");
        Self {
            engine,
            rate,
            meter,
        }
    }
}

impl<E: Engine> Engine for Throttled<E> {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        let cost = Duration::from_secs_f64(io.bytes as f64 / self.rate.0);
        if !self.meter.take(cost) {
            return Err(io);
        }
        // An engine may run the I/O right here, so others must not have to wait for the meter.
        self.engine
            .submit(io)
            .inspect_err(|_| self.meter.give_back(cost))
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        // No longer than until the next I/O may go, or the lane would sleep past its turn.
        let until_due = self.meter.until_due();
        let wait = if until_due.is_zero() {
            timeout
        } else {
            timeout.min(until_due)
        };
        let count = self.engine.poll(done, wait)?;
        if count == 0 && !until_due.is_zero() {
            std::thread::sleep(self.meter.until_due().min(timeout));
        }
        Ok(count)
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn names(&self) -> Vec<&'static str> {
        self.engine.names()
    }

    fn warning(&self) -> Option<&str> {
        self.engine.warning()
    }

    fn rest(&mut self) {
        self.engine.rest();
    }
}
