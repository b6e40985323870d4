//! The engine for direct I/Os between files and GPU memory. A cuFile call blocks its thread until the bytes have moved,
//! so there is a pool of threads.

use std::{sync::Arc, time::Duration};

use straightway_core::Result;

use super::{
    Capabilities, Engine, EngineReport,
    pool::{Pool, Run},
};
use crate::{
    gds::Gds,
    request::{Done, Io, run_on_file},
};

/// Threads that call cuFile.
#[derive(Debug)]
pub struct CuFileCalls {
    pool: Pool,
}

impl CuFileCalls {
    /// An engine with up to `depth` concurrent calls.
    pub fn new(gds: &Gds, depth: u32) -> Result<Self> {
        let own = gds.clone();
        let run: Arc<Run> = Arc::new(move |io| run_on_file(io, |io| own.run(io)));
        Ok(Self {
            pool: Pool::running("cuFile", depth, &run)?,
        })
    }
}

impl Engine for CuFileCalls {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        self.pool.submit(io)
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        self.pool.poll(done, timeout)
    }

    fn capabilities(&self) -> Capabilities {
        self.pool.capabilities()
    }

    /// Nothing: the route in the receipt already says that cuFile moved the bytes.
    fn report(&mut self) -> EngineReport {
        EngineReport::default()
    }
}
