//! Engines, which run I/Os.
//!
//! An engine has two main operations. [`submit`](Engine::submit) accepts an I/O, or returns it if the queue is full;
//! [`poll`](Engine::poll) returns completed ones. An I/O owns its buffer throughout, so an engine cannot outlive or
//! lose it. [`cancel`](Engine::cancel) aborts the I/Os of a stopped job. What an engine can do is data
//! ([`Capabilities`]), and so is what it has done ([`EngineReport`]). Behaviour common to all engines (faults, traces) is
//! in wrappers.

pub mod cufile;
pub mod inline;
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

    /// What it adds to the receipts of jobs since the last rest. An engine that wraps another passes its report on.
    fn report(&mut self) -> EngineReport {
        EngineReport::of(self.capabilities().name)
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

/// What an engine adds to a receipt.
#[derive(Clone, Debug, Default)]
pub struct EngineReport {
    /// The names of the engines that took part.
    pub names: Vec<&'static str>,
    /// A warning about a fallback, and the reason for it.
    pub warning: Option<String>,
    /// The measurements of its connections.
    pub sockets: Vec<SocketTally>,
}

impl EngineReport {
    /// The report of one engine.
    pub fn of(name: &'static str) -> Self {
        Self {
            names: vec![name],
            ..Self::default()
        }
    }

    /// Adds the report of another engine behind the same queue. The first warning is kept.
    pub(crate) fn add(&mut self, other: Self) {
        self.names.extend(other.names);
        self.sockets.extend(other.sockets);
        self.warning = self.warning.take().or(other.warning);
    }
}
