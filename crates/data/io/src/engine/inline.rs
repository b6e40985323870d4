//! An engine without a queue: each I/O runs on the lane's own thread, and several lanes run in parallel.
//!
//! Resident pages need no queue: the kernel copies them at the speed of memory. Only more cores, and a copy that
//! bypasses the CPU cache (`straightway_sys::blocking`), make it faster.

use std::time::Duration;

use straightway_core::Result;
use straightway_sys::blocking;

use super::{Capabilities, Engine};
use crate::request::{Done, Io, run_on_file};

/// Runs each I/O on submission, and holds up to `depth` completions until they are polled.
#[derive(Debug)]
pub struct Inline {
    name: &'static str,
    done: Vec<Done>,
    depth: usize,
    run: fn(Io) -> Done,
}

impl Inline {
    /// An engine with queue depth `depth` that calls `run`.
    pub fn new(name: &'static str, depth: usize, run: fn(Io) -> Done) -> Self {
        let depth = depth.max(1);
        Self {
            name,
            done: Vec::with_capacity(depth),
            depth,
            run,
        }
    }

    /// The engine for files through the page cache.
    pub fn files(depth: usize) -> Self {
        Self::new("pread", depth, |io| run_on_file(io, blocking::run))
    }
}

impl Engine for Inline {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.done.len() == self.depth {
            return Err(io);
        }
        self.done.push((self.run)(io));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, _timeout: Duration) -> Result<usize> {
        let count = self.done.len();
        done.append(&mut self.done);
        Ok(count)
    }

    fn capabilities(&self) -> Capabilities {
        let Self { name, depth, .. } = *self;
        Capabilities { name, depth }
    }
}
