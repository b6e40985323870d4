//! Behaviour that can be added to any engine: faults and traces.

pub mod faulty;
pub mod traced;

use std::{fmt, time::Duration};

use straightway_core::Result;

use crate::{
    engine::{Capabilities, Engine, EngineReport},
    request::{Done, Io},
};

/// What a wrapper does around an engine's two main operations.
pub trait Around: fmt::Debug + Send {
    /// Accepts `io`, as [`Engine::submit`] does.
    fn submit(&mut self, engine: &mut dyn Engine, io: Io) -> Result<(), Io>;

    /// Appends completed I/Os to `done`, as [`Engine::poll`] does.
    fn poll(&mut self, engine: &mut dyn Engine, done: &mut Vec<Done>, timeout: Duration) -> Result<usize>;
}

/// An engine with added behaviour.
#[derive(Debug)]
pub struct Wrapped<A> {
    engine: Box<dyn Engine>,
    around: A,
}

impl<A: Around> Engine for Wrapped<A> {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        self.around.submit(&mut *self.engine, io)
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        self.around.poll(&mut *self.engine, done, timeout)
    }

    fn capabilities(&self) -> Capabilities {
        self.engine.capabilities()
    }

    fn report(&mut self) -> EngineReport {
        self.engine.report()
    }

    fn cancel(&mut self, is_unwanted: &dyn Fn(u32) -> bool) {
        self.engine.cancel(is_unwanted);
    }

    fn rest(&mut self) {
        self.engine.rest();
    }
}
