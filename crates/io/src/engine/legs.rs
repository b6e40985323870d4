//! One engine for each leg of a copy between stores of two families: what is read goes to the source's engine, what is
//! written to the target's.

use std::time::{Duration, Instant};

use straightway_core::Result;
use straightway_sys::Op;

use super::{Capabilities, Engine};
use crate::request::{Done, Io};

/// How long one engine is waited for while the other has I/Os in flight too: nothing waits for both at once.
const TURN: Duration = Duration::from_millis(1);

/// An engine that reads and one that writes.
#[derive(Debug)]
pub struct Legs {
    read: Leg,
    write: Leg,
}

#[derive(Debug)]
struct Leg {
    engine: Box<dyn Engine>,
    in_flight: usize,
}

impl Leg {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        self.engine.submit(io)?;
        self.in_flight += 1;
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        if self.in_flight == 0 {
            return Ok(0);
        }
        let count = self.engine.poll(done, timeout)?;
        self.in_flight -= count;
        Ok(count)
    }
}

impl Legs {
    /// Reads by one engine and writes by the other.
    pub fn new(read: Box<dyn Engine>, write: Box<dyn Engine>) -> Self {
        let leg = |engine| Leg {
            engine,
            in_flight: 0,
        };
        Self {
            read: leg(read),
            write: leg(write),
        }
    }
}

impl Engine for Legs {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.read.in_flight + self.write.in_flight >= self.capabilities().depth {
            return Err(io);
        }
        match io.op {
            Op::Read => self.read.submit(io),
            Op::Write => self.write.submit(io),
        }
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        let start = Instant::now();
        // What is done already comes at once.
        let mut wait = Duration::ZERO;
        loop {
            let count = self.read.poll(done, wait)? + self.write.poll(done, wait)?;
            let left = timeout.saturating_sub(start.elapsed());
            if count > 0 || left.is_zero() || self.read.in_flight + self.write.in_flight == 0 {
                return Ok(count);
            }
            let is_shared = self.read.in_flight > 0 && self.write.in_flight > 0;
            wait = if is_shared { left.min(TURN) } else { left };
        }
    }

    fn capabilities(&self) -> Capabilities {
        let [read, write] = [&self.read, &self.write].map(|leg| leg.engine.capabilities());
        Capabilities {
            depth: read.depth.min(write.depth),
            ..read
        }
    }

    fn names(&self) -> Vec<&'static str> {
        let mut names = self.read.engine.names();
        names.extend(self.write.engine.names());
        names.dedup();
        names
    }

    fn warning(&self) -> Option<&str> {
        let read = self.read.engine.warning();
        read.or_else(|| self.write.engine.warning())
    }

    fn rest(&mut self) {
        self.read.engine.rest();
        self.write.engine.rest();
    }
}
