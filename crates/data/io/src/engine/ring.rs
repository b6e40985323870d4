//! The engine for drives: files by io_uring.

use std::time::Duration;

use straightway_core::Result;
use straightway_sys::Uring;

use super::{Capabilities, Engine};
use crate::request::{Done, Io, handle, of_file};

/// An io_uring as an engine.
#[derive(Debug)]
pub struct Ring {
    uring: Uring,
    /// Completions from the ring.
    completed: Vec<straightway_sys::Done>,
    /// I/Os of objects that are not files.
    refused: Vec<Done>,
}

impl Ring {
    /// An engine with queue depth `depth`; `Unsupported` where io_uring is forbidden.
    pub fn new(depth: u32) -> Result<Self> {
        Ok(Self {
            uring: Uring::new(depth)?,
            completed: Vec::with_capacity(depth as usize),
            refused: Vec::new(),
        })
    }
}

impl Engine for Ring {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        match of_file(io) {
            Ok(io) => self.uring.submit(io).map_err(|io| io.map(handle)),
            Err(done) => {
                self.refused.push(*done);
                Ok(())
            }
        }
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        // Waiting for a quarter of what is in flight keeps the queue three quarters full and makes
        // one system call serve several I/Os.
        let want = (self.uring.in_flight() / 4).max(1);
        let refused = self.refused.len();
        done.append(&mut self.refused);
        let count = self.uring.poll(&mut self.completed, want, timeout);
        done.extend(self.completed.drain(..).map(|one| one.map(handle)));
        count.map(|count| count + refused)
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
