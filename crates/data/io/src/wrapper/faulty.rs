//! An engine that fails on purpose: I/O errors, short transfers, late and reordered completions.
//!
//! The seed alone determines which I/Os are affected, so a failed run can be repeated.

use std::{io, time::Duration};

use straightway_core::{
    Result,
    random::{Rng, Seed},
};

use super::{Around, Wrapped};
use crate::{
    engine::Engine,
    request::{Done, Io, block_bytes, usize_of},
};

/// The rate of each fault, per 1000 I/Os.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The seed of the random numbers.
    pub seed: u64,
    /// I/Os that fail with `error_code`.
    pub error_per_mille: u32,
    /// Their error number, such as `EIO` or `ENOSPC`.
    pub error_code: i32,
    /// I/Os that move only part of their bytes.
    pub short_per_mille: u32,
    /// Completions that are a few polls late, and so out of order.
    pub late_per_mille: u32,
}

/// An engine that fails.
pub type Faulty = Wrapped<Failing>;

/// Makes an engine fail.
#[derive(Debug)]
pub struct Failing {
    faults: Faults,
    rng: Rng,
    /// Completions held back.
    held: Vec<Done>,
    /// The lengths of I/Os that were shortened, by tag.
    shortened: Vec<(u32, usize)>,
}

impl Faulty {
    /// Makes `engine` fail according to `faults`.
    pub fn new(engine: Box<dyn Engine>, faults: Faults) -> Self {
        let around = Failing {
            faults,
            rng: Seed(faults.seed).rng(),
            held: Vec::new(),
            shortened: Vec::new(),
        };
        Self { engine, around }
    }
}

impl Failing {
    /// Returns true with a probability of `per_mille` in 1000.
    fn chance(&mut self, per_mille: u32) -> bool {
        self.rng.below(1000) < u64::from(per_mille)
    }
}

impl Around for Failing {
    fn submit(&mut self, engine: &mut dyn Engine, mut io: Io) -> Result<(), Io> {
        if self.chance(self.faults.error_per_mille) {
            let result = Err(io::Error::from_raw_os_error(self.faults.error_code));
            self.held.push(Done::new(io, result));
            return Ok(());
        }
        let whole = io.bytes;
        let tag = io.tag;
        // A short direct I/O ends at a whole block.
        let block = usize_of(block_bytes(&io)).max(512);
        let blocks = whole / block;
        let short = blocks > 1 && self.chance(self.faults.short_per_mille);
        if short {
            io.bytes = (1 + self.rng.index(blocks - 1)) * block;
        }
        match engine.submit(io) {
            Ok(()) => {
                if short {
                    self.shortened.push((tag, whole));
                }
                Ok(())
            }
            Err(io) => Err(Io { bytes: whole, ..io }),
        }
    }

    fn poll(&mut self, engine: &mut dyn Engine, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        let before = done.len();
        let mut fresh = std::mem::take(&mut self.held);
        let timeout = if fresh.is_empty() { timeout } else { Duration::ZERO };
        let ready = fresh.len();
        engine.poll(&mut fresh, timeout)?;
        for (i, mut completion) in fresh.into_iter().enumerate() {
            let tag = completion.io.tag;
            if let Some(at) = self.shortened.iter().position(|(t, _)| *t == tag) {
                completion.io.bytes = self.shortened.swap_remove(at).1;
            }
            // A completion is held back only once.
            if i >= ready && self.chance(self.faults.late_per_mille) {
                self.held.push(completion);
            } else {
                done.push(completion);
            }
        }
        if self.faults.late_per_mille > 0 {
            self.rng.shuffle(&mut done[before..]);
        }
        Ok(done.len() - before)
    }
}
