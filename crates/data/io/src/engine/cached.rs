//! The engine for files through the page cache: each I/O runs on the lane's own thread, and several lanes run in
//! parallel.
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
pub struct Cached {
    done: Vec<Done>,
    depth: usize,
}

impl Cached {
    /// An engine with queue depth `depth`.
    pub fn new(depth: usize) -> Self {
        Self {
            done: Vec::with_capacity(depth),
            depth,
        }
    }
}

impl Default for Cached {
    /// One I/O at a time.
    fn default() -> Self {
        Self::new(1)
    }
}

impl Engine for Cached {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.done.len() == self.depth {
            return Err(io);
        }
        self.done.push(run_on_file(io, blocking::run));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, _timeout: Duration) -> Result<usize> {
        let count = self.done.len();
        done.append(&mut self.done);
        Ok(count)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "pread",
            depth: self.depth,
        }
    }
}
