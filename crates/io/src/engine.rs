//! Engines: what runs an I/O.
//!
//! An engine has two verbs. [`submit`](Engine::submit) takes an I/O on, or gives it back when the
//! queue is full; [`poll`](Engine::poll) gives back what is done. An I/O owns its buffer all the
//! while, so an engine cannot outlive or mislay it. [`cancel`](Engine::cancel) gives up the I/Os of a stopped job. What
//! an engine can do is data ([`Capabilities`]); what cuts across all engines (faults, limits, traces) is a wrapper.

pub mod cached;
pub mod gds;
pub mod mixed;
pub mod pool;
pub mod ring;

use std::{fmt, time::Duration};

use straightway_core::Result;

use crate::{
    gauge::SocketTally,
    request::{Done, Io},
};

/// Runs I/Os.
pub trait Engine: fmt::Debug + Send {
    /// Takes `io` on. A full queue gives it back.
    fn submit(&mut self, io: Io) -> Result<(), Io>;

    /// Appends what is done to `done`, waiting up to `timeout` for the first. Answers how many.
    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize>;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// The names of what took part since the last rest, as receipts have them.
    fn names(&self) -> Vec<&'static str> {
        vec![self.capabilities().name]
    }

    /// What it does another way than it should, and why.
    fn warning(&self) -> Option<&str> {
        None
    }

    /// What its connections saw since the last rest.
    fn sockets(&mut self) -> Vec<SocketTally> {
        Vec::new()
    }

    /// Gives up the I/Os whose tags are unwanted, because their job was stopped. Each still comes back by
    /// [`poll`](Self::poll), done or failed, and soon. May be called again for the same ones. An engine whose I/Os are done
    /// in moments anyway does nothing.
    fn cancel(&mut self, is_unwanted: &dyn Fn(u32) -> bool) {
        let _ = is_unwanted;
    }

    /// Called between transfers, with nothing in flight: lets go of what only the last one needed.
    fn rest(&mut self) {}
}

const _: [&dyn Engine; 0] = [];

/// What an engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name, as receipts have it.
    pub name: &'static str,
    /// How many I/Os it takes at once.
    pub depth: usize,
}
