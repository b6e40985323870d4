//! Files by io_uring: the engine for drives.

use std::time::Duration;

use straightway_core::Result;
use straightway_sys::{Done, Io, Uring};

use super::{Capabilities, Engine};

/// An io_uring as an engine.
#[derive(Debug)]
pub struct Ring {
    uring: Uring,
}

impl Ring {
    /// An engine for `depth` I/Os at a time; `Unsupported` where io_uring is forbidden.
    pub fn new(depth: u32) -> Result<Self> {
        Ok(Self {
            uring: Uring::new(depth)?,
        })
    }
}

impl Engine for Ring {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        self.uring.submit(io)
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        // Waiting for a quarter of what is in flight keeps the queue three quarters full and makes
        // one system call serve several I/Os.
        let want = (self.uring.in_flight() / 4).max(1);
        self.uring.poll(done, want, timeout)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "io_uring",
            depth: self.uring.depth(),
        }
    }

    fn rest(&mut self) {
        self.uring.forget_files();
    }
}
