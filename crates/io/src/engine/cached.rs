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

/// What receipts call reads and writes by system calls of a lane's own thread.
pub(super) const NAME: &str = "pread";

/// Runs one I/O at a time, at once.
#[derive(Debug, Default)]
pub struct Cached {
    done: Option<Done>,
}

impl Engine for Cached {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.done.is_some() {
            return Err(io);
        }
        self.done = Some(run_on_file(io, blocking::run));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, _timeout: Duration) -> Result<usize> {
        let before = done.len();
        done.extend(self.done.take());
        Ok(done.len() - before)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: NAME,
            depth: 1,
        }
    }
}
