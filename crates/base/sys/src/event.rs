//! An event: a descriptor that becomes readable once something has happened, for `poll(2)` and event loops.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::{
    event::{EventfdFlags, eventfd},
    io::write,
};
use straightway_core::{Error, Result};

/// An `eventfd(2)` that is raised once and stays readable.
#[derive(Debug)]
pub struct Event(OwnedFd);

impl Event {
    /// Makes an event that was not raised.
    pub fn new() -> Result<Self> {
        let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        made.map(Self).map_err(|e| {
            let error = Error::os("make", "an eventfd", e.into());
            error.with_hint("raise the limit of open files (`ulimit -n`)")
        })
    }

    /// Makes its descriptor readable.
    pub fn raise(&self) {
        // It fails only if other code closed the descriptor, or after 2^64 - 2 calls.
        let _ = write(&self.0, &1_u64.to_ne_bytes());
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
