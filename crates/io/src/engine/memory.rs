//! Files that are not there: bytes kept in memory by the file's number, for tests.

use std::{collections::HashMap, time::Duration};

use straightway_core::Result;
use straightway_sys::{Done, Io, Op};

use super::{Capabilities, Engine};

/// Keeps what is written and gives it back. A file never written to is empty.
#[derive(Debug)]
pub struct Memory {
    files: HashMap<u64, Vec<u8>>,
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
        let offset = usize::try_from(io.offset).expect("a test's file fits into memory");
        let moved = match io.op {
            Op::Write => {
                let end = offset + io.bytes;
                file.resize(file.len().max(end), 0);
                io.spill(&mut file[offset..end]);
                io.bytes
            }
            Op::Read => {
                let there = file.get(offset..).unwrap_or_default();
                let there = &there[..there.len().min(io.bytes)];
                io.fill(there);
                there.len()
            }
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
