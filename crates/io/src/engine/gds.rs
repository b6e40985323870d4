//! Files straight into GPU memory, by cuFile; what goes by way of the ring, by the drive's engine.
//!
//! One transfer has both: the aligned interior of an extent goes straight, its edges are staged. So
//! this engine stands before another, takes what is about GPU memory for itself and hands the rest
//! on. A call of cuFile's takes its thread until the bytes are there, hence a pool of them, started
//! when the first such I/O comes.

use std::{sync::Arc, time::Duration};

use straightway_core::{Place, Result};
use straightway_sys::Buf;

use super::{
    Capabilities, Engine,
    pool::{Pool, Run},
};
use crate::{
    gauge::SocketTally,
    gds::Gds,
    request::{Done, Io, run_on_file},
};

/// How long one side is waited for while the other has I/Os in flight too.
const TURN: Duration = Duration::from_millis(1);

/// cuFile for GPU memory, another engine for slots.
#[derive(Debug)]
pub struct Direct {
    gds: Gds,
    /// The threads that call cuFile; `None` until the first I/O for them.
    pool: Option<Pool>,
    pool_depth: u32,
    pool_in_flight: usize,
    engine: Box<dyn Engine>,
    engine_in_flight: usize,
}

impl Direct {
    /// Stands before `engine`, with up to `depth` calls of cuFile at a time.
    pub fn new(engine: Box<dyn Engine>, gds: Gds, depth: u32) -> Self {
        Self {
            gds,
            pool: None,
            pool_depth: depth,
            pool_in_flight: 0,
            engine,
            engine_in_flight: 0,
        }
    }

    fn submit_direct(&mut self, io: Io) -> Result<(), Io> {
        if self.pool.is_none() {
            let gds = self.gds.clone();
            let run: Arc<Run> = Arc::new(move |io| run_on_file(io, |io| gds.run(io)));
            match Pool::running("cuFile", self.pool_depth, &run) {
                Ok(pool) => self.pool = Some(pool),
                Err(error) => {
                    // Without a thread it waits, and the next attempt may find one.
                    tracing::warn!(%error, "cuFile has no threads");
                    return Err(io);
                }
            }
        }
        let pool = self.pool.as_mut().expect("just made");
        pool.submit(io)?;
        self.pool_in_flight += 1;
        Ok(())
    }

    fn poll_pool(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        let Some(pool) = &mut self.pool else {
            return Ok(0);
        };
        let count = pool.poll(done, timeout)?;
        self.pool_in_flight -= count;
        Ok(count)
    }

    fn poll_engine(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        let count = self.engine.poll(done, timeout)?;
        self.engine_in_flight -= count;
        Ok(count)
    }
}

impl Engine for Direct {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        let is_direct = match &io.buf {
            Buf::Window(window) => matches!(window.region().place(), Place::Gpu(_)),
            Buf::Slot(_) | Buf::File(_) => false,
        };
        if is_direct {
            return self.submit_direct(io);
        }
        self.engine.submit(io)?;
        self.engine_in_flight += 1;
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        match (self.pool_in_flight > 0, self.engine_in_flight > 0) {
            (true, false) => self.poll_pool(done, timeout),
            (false, _) => self.poll_engine(done, timeout),
            (true, true) => {
                let count = self.poll_pool(done, Duration::ZERO)?;
                let turn = if count > 0 { Duration::ZERO } else { TURN };
                Ok(count + self.poll_engine(done, turn.min(timeout))?)
            }
        }
    }

    fn capabilities(&self) -> Capabilities {
        let engine = self.engine.capabilities();
        Capabilities {
            depth: engine.depth + self.pool_depth as usize,
            ..engine
        }
    }

    fn names(&self) -> Vec<&'static str> {
        self.engine.names()
    }

    fn warning(&self) -> Option<&str> {
        self.engine.warning()
    }

    fn sockets(&mut self) -> Vec<SocketTally> {
        self.engine.sockets()
    }

    fn rest(&mut self) {
        self.engine.rest();
        self.gds.forget_files();
    }
}
