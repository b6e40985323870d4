//! The engine for files and GPU memory: cuFile for direct I/Os, the drive's engine for staged ones.
//!
//! One transfer has both: the aligned interior of an extent is direct, and its edges are staged. So this engine wraps
//! another: it runs I/Os with GPU memory itself and passes the rest on. A cuFile call blocks its thread until the bytes
//! have moved, so there is a pool of threads, started with the first such I/O.

use std::{io, sync::Arc, time::Duration};

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

/// Poll timeout for one side while the other has I/Os in flight too.
const POLL_SLICE: Duration = Duration::from_millis(1);

/// cuFile for GPU memory, another engine for slots.
#[derive(Debug)]
pub struct Direct {
    gds: Gds,
    /// The threads that call cuFile; `None` until the first direct I/O.
    pool: Option<Pool>,
    pool_depth: u32,
    pool_in_flight: usize,
    engine: Box<dyn Engine>,
    engine_in_flight: usize,
    /// Direct I/Os for which there is no thread.
    failed: Vec<Done>,
}

impl Direct {
    /// Wraps `engine`, with up to `depth` concurrent cuFile calls.
    pub fn new(engine: Box<dyn Engine>, gds: Gds, depth: u32) -> Self {
        Self {
            gds,
            pool: None,
            pool_depth: depth,
            pool_in_flight: 0,
            engine,
            engine_in_flight: 0,
            failed: Vec::new(),
        }
    }

    fn submit_direct(&mut self, io: Io) -> Result<(), Io> {
        if self.pool.is_none() {
            let gds = self.gds.clone();
            let run: Arc<Run> = Arc::new(move |io| run_on_file(io, |io| gds.run(io)));
            match Pool::running("cuFile", self.pool_depth, &run) {
                Ok(pool) => self.pool = Some(pool),
                Err(error) => {
                    self.failed.push(Done::new(io, Err(io::Error::other(error))));
                    return Ok(());
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
        if !self.failed.is_empty() {
            let count = self.failed.len();
            done.append(&mut self.failed);
            return Ok(count);
        }
        match (self.pool_in_flight > 0, self.engine_in_flight > 0) {
            (true, false) => self.poll_pool(done, timeout),
            (false, _) => self.poll_engine(done, timeout),
            (true, true) => {
                let count = self.poll_pool(done, Duration::ZERO)?;
                let slice = if count > 0 { Duration::ZERO } else { POLL_SLICE };
                Ok(count + self.poll_engine(done, slice.min(timeout))?)
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
