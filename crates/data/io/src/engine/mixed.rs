//! Two engines behind one queue.
//!
//! For lanes that check what they read: the drive and the page cache. The I/O's descriptor selects the engine. Resident
//! bytes are copied on submission and completed by the next poll, so that they are checked while they are in the CPU
//! cache; the drive works on its queue meanwhile.
//!
//! For copies between stores of two families: one engine reads, the other writes.
//!
//! For files and GPU memory: cuFile runs direct I/Os, the drive's engine the staged ones. One transfer has both: the
//! aligned interior of an extent is direct, and its edges are staged.
//!
//! An engine is made when the first I/O needs it.

use std::{
    fmt, io,
    time::{Duration, Instant},
};

use straightway_core::{Place, Result};
use straightway_sys::{Buf, IoPath, Op};

use super::{Capabilities, Engine, EngineReport, cufile::CuFileCalls, inline::Inline};
use crate::{
    gds::Gds,
    request::{Done, Io},
};

/// Poll timeout for one engine while the other has I/Os in flight too: nothing can wait for both at once.
const POLL_SLICE: Duration = Duration::from_millis(1);

/// Makes an engine.
type Make = Box<dyn Fn() -> Result<Box<dyn Engine>> + Send>;

/// Two engines.
pub struct Mixed {
    name: &'static str,
    depth: usize,
    sides: [Side; 2],
    /// The index of the engine for an I/O.
    choose: fn(&Io) -> usize,
    /// I/Os whose engine could not be made.
    failed: Vec<Done>,
    /// Where files are registered with cuFile. Planning registers them too, so they are forgotten at every rest.
    gds: Option<Gds>,
}

struct Side {
    make: Make,
    engine: Option<Box<dyn Engine>>,
    in_flight: usize,
    /// Whether it was used since the last rest. Receipts name the engines that were.
    is_used: bool,
    /// Whether receipts name it even if it was not used.
    is_always_named: bool,
}

impl Mixed {
    /// An engine with queue depth `depth + 1`, for the drive, whose engine `make` makes, and the page cache.
    pub fn new(depth: u32, make: impl Fn() -> Result<Box<dyn Engine>> + Send + 'static) -> Self {
        let depth = depth as usize + 1;
        let cached = Side::new(Box::new(move || Ok(Box::new(Inline::files(depth)))));
        let choose = |io: &Io| usize::from(io.by != IoPath::Direct);
        Self::of("io_uring + pread", depth, [Side::new(Box::new(make)), cached], choose)
    }

    /// Reads with one engine and writes with the other.
    pub fn of_legs(read: Box<dyn Engine>, write: Box<dyn Engine>) -> Self {
        let [reads, writes] = [&read, &write].map(|engine| engine.capabilities());
        let choose = |io: &Io| usize::from(io.op == Op::Write);
        let depth = reads.depth.min(writes.depth);
        Self::of(reads.name, depth, [Side::made(read), Side::made(write)], choose)
    }

    /// Runs I/Os with GPU memory by up to `calls_max` concurrent calls of cuFile, and all others with `engine`.
    pub fn with_cufile(engine: Box<dyn Engine>, gds: Gds, calls_max: u32) -> Self {
        let Capabilities { name, depth } = engine.capabilities();
        let engine = Side {
            is_always_named: true,
            ..Side::made(engine)
        };
        let own = gds.clone();
        let cufile = Side::new(Box::new(move || Ok(Box::new(CuFileCalls::new(&own, calls_max)?))));
        let choose = |io: &Io| {
            let is_direct = match &io.buf {
                Buf::Window(window) => matches!(window.region().place(), Place::Gpu(_)),
                Buf::Slot(_) | Buf::File(_) => false,
            };
            usize::from(is_direct)
        };
        Self {
            gds: Some(gds),
            ..Self::of(name, depth + calls_max as usize, [engine, cufile], choose)
        }
    }

    fn of(name: &'static str, depth: usize, sides: [Side; 2], choose: fn(&Io) -> usize) -> Self {
        Self {
            name,
            depth,
            sides,
            choose,
            failed: Vec::new(),
            gds: None,
        }
    }

    fn in_flight(&self) -> usize {
        self.sides.iter().map(|side| side.in_flight).sum()
    }
}

impl Side {
    fn new(make: Make) -> Self {
        Self {
            make,
            engine: None,
            in_flight: 0,
            is_used: false,
            is_always_named: false,
        }
    }

    fn made(engine: Box<dyn Engine>) -> Self {
        Self {
            engine: Some(engine),
            ..Self::new(Box::new(|| unreachable!("it is there")))
        }
    }

    fn engine(&mut self) -> Result<&mut Box<dyn Engine>> {
        if self.engine.is_none() {
            self.engine = Some((self.make)()?);
        }
        Ok(self.engine.as_mut().expect("just made"))
    }
}

impl Engine for Mixed {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.failed.len() + self.in_flight() >= self.depth {
            return Err(io);
        }
        let side = &mut self.sides[(self.choose)(&io)];
        side.is_used = true;
        match side.engine() {
            Ok(engine) => engine.submit(io)?,
            Err(error) => {
                self.failed.push(Done::new(io, Err(io::Error::other(error))));
                return Ok(());
            }
        }
        side.in_flight += 1;
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        if !self.failed.is_empty() {
            let count = self.failed.len();
            done.append(&mut self.failed);
            return Ok(count);
        }
        let start = Instant::now();
        let is_shared = self.sides.iter().all(|side| side.in_flight > 0);
        let mut wait = if is_shared { Duration::ZERO } else { timeout };
        loop {
            // The page cache and cuFile before the drive, and writes before reads: that frees slots.
            for side in self.sides.iter_mut().rev().filter(|side| side.in_flight > 0) {
                let count = side.engine()?.poll(done, wait)?;
                side.in_flight -= count;
                if count > 0 {
                    return Ok(count);
                }
            }
            let left = timeout.saturating_sub(start.elapsed());
            if left.is_zero() || self.in_flight() == 0 {
                return Ok(0);
            }
            wait = left.min(POLL_SLICE);
        }
    }

    fn capabilities(&self) -> Capabilities {
        let Self { name, depth, .. } = *self;
        Capabilities { name, depth }
    }

    fn report(&mut self) -> EngineReport {
        let mut report = EngineReport::default();
        for side in &mut self.sides {
            let Some(engine) = &mut side.engine else { continue };
            let mut of_side = engine.report();
            if !side.is_used && !side.is_always_named {
                of_side.names.clear();
            }
            report.add(of_side);
        }
        report
    }

    fn cancel(&mut self, is_unwanted: &dyn Fn(u32) -> bool) {
        let engines = self.sides.iter_mut().filter_map(|side| side.engine.as_mut());
        engines.into_iter().for_each(|engine| engine.cancel(is_unwanted));
    }

    fn rest(&mut self) {
        for side in &mut self.sides {
            side.is_used = false;
            if let Some(engine) = &mut side.engine {
                engine.rest();
            }
        }
        if let Some(gds) = &self.gds {
            gds.forget_files();
        }
    }
}

impl fmt::Debug for Mixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let engines = self.sides.iter().map(|side| &side.engine);
        f.debug_list().entries(engines).finish()
    }
}
