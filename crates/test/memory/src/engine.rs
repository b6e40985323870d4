//! The engine of the memory store, for tests. Each I/O completes during its submission.

use std::{any::Any, io, sync::Arc, time::Duration};

use straightway_core::Result;
use straightway_io::{
    engine::{Capabilities, Engine},
    request::{Done, Io, Op},
};

use crate::object::MemoryObject;

/// Copies between the buffers of I/Os and the objects' bytes.
#[derive(Debug)]
pub struct MemoryEngine {
    done: Vec<Done>,
    depth: usize,
}

impl MemoryEngine {
    /// An engine with a queue depth of `depth`.
    pub fn new(depth: u32) -> Self {
        Self {
            done: Vec::new(),
            depth: depth.max(1) as usize,
        }
    }
}

impl Engine for MemoryEngine {
    fn submit(&mut self, mut io: Io) -> Result<(), Io> {
        if self.done.len() == self.depth {
            return Err(io);
        }
        let object: Arc<dyn Any + Send + Sync> = Arc::clone(&io.object) as _;
        let Ok(object) = object.downcast::<MemoryObject>() else {
            let error = io::Error::other("it is not an object of the memory store");
            self.done.push(Done::new(io, Err(error)));
            return Ok(());
        };
        let content = &object.content;
        let moved = match io.op {
            Op::Write => {
                content.write_at(io.offset, io.bytes, |there| io.spill(there));
                io.bytes
            }
            Op::Read => content.read_at(io.offset, |there| {
                let moved = there.len().min(io.bytes);
                io.fill(&there[..moved]);
                moved
            }),
        };
        self.done.push(Done::new(io, Ok(moved)));
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, _timeout: Duration) -> Result<usize> {
        let count = self.done.len();
        done.append(&mut self.done);
        Ok(count)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "memory",
            depth: self.depth,
        }
    }
}
