//! Files that are not there: bytes kept in memory by the file's number, for tests.

use std::{collections::HashMap, time::Duration};

use straightway_core::Result;
use straightway_sys::{Done, Io, Op};

use super::{Capabilities, Engine};
use crate::store::memory::Content;

/// Keeps what is written and gives it back. A file never written to is empty.
#[derive(Debug)]
pub struct Memory {
    files: HashMap<u64, Content>,
    done: Vec<Done>,
    depth: usize,
}

impl Memory {
    /// An engine that takes `depth` I/Os at a time.
    pub fn new(depth: u32) -> Self {
        Self {
            files: HashMap::new(),
            done: Vec::new(),
            depth: depth.max(1) as usize,
        }
    }
}

impl Engine for Memory {
    fn submit(&mut self, mut io: Io) -> Result<(), Io> {
        if self.done.len() == self.depth {
            return Err(io);
        }
        let file = self.files.entry(io.file.id()).or_default();
        let moved = match io.op {
            Op::Write => {
                file.write_at(io.offset, io.bytes, |there| io.spill(there));
                io.bytes
            }
            Op::Read => file.read_at(io.offset, |there| {
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
