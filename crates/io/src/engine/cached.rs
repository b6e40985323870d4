//! Files through the page cache: each I/O runs on the lane's own thread, and several lanes run side
//! by side.
//!
//! What is resident needs no queue: the kernel copies it at the speed of memory, and the only way
//! to go faster is another core, and a copy that leaves the processor's cache alone
//! (`straightway_sys::blocking`).

use std::time::Duration;

use straightway_core::Result;
use straightway_sys::blocking;

use super::{Capabilities, Engine};
use crate::request::{Done, Io, run_on_file};

/// Runs each I/O at once, and holds `depth` of them until they are asked for.
#[derive(Debug)]
pub struct Cached {
    done: Vec<Done>,
    depth: usize,
}

impl Cached {
    /// An engine that takes `depth` I/Os at a time.
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
