//! Engines, which run I/Os.
//!
//! An engine has two main operations. [`submit`](Engine::submit) accepts an I/O, or returns it if the queue is full;
//! [`poll`](Engine::poll) returns completed ones. An I/O owns its buffer throughout, so an engine cannot outlive or
//! lose it. [`cancel`](Engine::cancel) aborts the I/Os of a stopped job. What an engine can do is data
//! ([`Capabilities`]). Behaviour common to all engines (faults, traces) is in wrappers.

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
    /// Accepts `io`. A full queue returns it.
    fn submit(&mut self, io: Io) -> Result<(), Io>;

    /// Appends completed I/Os to `done`, waiting up to `timeout` for the first. Returns their number. After an error no
    /// I/O in flight completes any more, and the engine is dropped.
    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize>;

    /// Its capabilities.
    fn capabilities(&self) -> Capabilities;

    /// The names of the engines that took part since the last rest, as shown in receipts.
    fn names(&self) -> Vec<&'static str> {
        vec![self.capabilities().name]
    }

    /// A warning about a fallback, and the reason for it.
    fn warning(&self) -> Option<&str> {
        None
    }

    /// The measurements of its connections since the last rest.
    fn sockets(&mut self) -> Vec<SocketTally> {
        Vec::new()
    }

    /// Aborts the I/Os whose tags are unwanted, because their job was stopped. Each still completes through
    /// [`poll`](Self::poll) soon, successfully or not. May be called repeatedly for the same I/Os. An engine whose I/Os
    /// complete quickly anyway does nothing.
    fn cancel(&mut self, is_unwanted: &dyn Fn(u32) -> bool) {
        let _ = is_unwanted;
    }

    /// Releases the resources of the last transfer. Called between transfers, with nothing in flight.
    fn rest(&mut self) {}
}

const _: [&dyn Engine; 0] = [];

/// The capabilities of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Its name, as shown in receipts.
    pub name: &'static str,
    /// The most I/Os in flight.
    pub depth: usize,
}
