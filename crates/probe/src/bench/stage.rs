//! The stages of a route, each measured alone: what the drive does with the ring's memory, how fast the kernel fills
//! the page cache, and what the CPU copies.
//!
//! `plan compare` predicts a route from its stages. A stage has the I/O size, the depth and the lanes of its route, and
//! leaves out all the others: the drive copies nothing to the region, the page cache is filled and not read, copies wait
//! for no drive.

use std::{
    os::fd::OwnedFd,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice},
};
use serde::{Deserialize, Serialize};
use straightway_core::{Error, Extent, Kind, Result};
use straightway_io::{File, Region};
use straightway_sys::{Buf, By, Io, Op, Slot, Uring, Window};

use super::work::fill;

/// How often a lane looks whether an I/O is done, at the least.
const POLL: std::time::Duration = std::time::Duration::from_secs(1);

/// A stage, or a whole route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Whole: a read through the ring.
    RingRead,
    /// The drive into the slots of a ring, over and over, by O_DIRECT.
    DriveToRing,
    /// The CPU out of a ring into memory.
    RingToMemory,
    /// Whole: a read through the page cache, which holds nothing of it.
    CacheRead,
    /// The drive into the page cache by the kernel's readahead; nothing is copied.
    DriveToCache,
    /// The CPU out of the page cache, as the drive has just filled it, into memory.
    CacheToMemory,
    /// Whole: a write through the ring, synced.
    RingWrite,
    /// The CPU from memory into a ring.
    MemoryToRing,
    /// The slots of a ring to the drive, over and over, by O_DIRECT, synced.
    RingToDrive,
    /// Whole: a write through the page cache, synced.
    CacheWrite,
    /// The CPU from memory into the page cache of a new file; not synced.
    MemoryToCache,
    /// Memory to the drive by O_DIRECT in large I/Os, synced.
    MemoryToDrive,
}

impl Stage {
    /// Its name, for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::RingRead => "read through the ring",
            Self::DriveToRing => "· drive to ring",
            Self::RingToMemory => "· ring to memory",
            Self::CacheRead => "read through the page cache, cold",
            Self::DriveToCache => "· drive to page cache (readahead)",
            Self::CacheToMemory => "· page cache to memory",
            Self::RingWrite => "write through the ring, synced",
            Self::MemoryToRing => "· memory to ring",
            Self::RingToDrive => "· ring to drive, synced",
            Self::CacheWrite => "write through the page cache, synced",
            Self::MemoryToCache => "· memory to page cache, not synced",
            Self::MemoryToDrive => "· memory to drive, synced",
        }
    }
}

/// With what a stage is measured: that of its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// The size of an I/O or a copy.
    pub block_bytes: u64,
    /// I/Os in flight on each lane.
    pub depth: u32,
    /// Threads side by side.
    pub lanes: u32,
    /// How much is moved.
    pub bytes: u64,
}

impl Shape {
    fn block(&self) -> usize {
        usize::try_from(self.block_bytes).expect("a block fits into memory")
    }

    /// Runs a lane on each of its threads: `make` before the clock starts, `work` while it runs, block by block.
    /// Answers the rate.
    fn run<T>(
        &self,
        make: impl Fn() -> Result<T> + Sync,
        work: impl Fn(T, &Blocks) -> Result<()> + Sync,
        after: impl FnOnce() -> Result<()>,
    ) -> Result<f64> {
        let blocks = Blocks {
            next: AtomicU64::new(0),
            shape: *self,
        };
        let ready = Barrier::new(self.lanes as usize + 1);
        let lane = || {
            let made = make();
            ready.wait();
            work(made?, &blocks)
        };
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..self.lanes).map(|_| scope.spawn(lane)).collect();
            ready.wait();
            let start = Instant::now();
            let ended: Vec<_> = lanes.into_iter().map(|lane| lane.join()).collect();
            for lane in ended {
                lane.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            after()?;
            Ok(self.bytes as f64 / start.elapsed().as_secs_f64().max(1e-9))
        })
    }
}

/// The blocks that are not begun yet.
struct Blocks {
    next: AtomicU64,
    shape: Shape,
}

impl Blocks {
    /// The next one. A rest that fills no block is left out by who made the shape.
    fn next(&self) -> Option<Extent> {
        let bytes = self.shape.block_bytes;
        let at = self.next.fetch_add(bytes, Ordering::Relaxed);
        (at + bytes <= self.shape.bytes).then(|| Extent::new(at, bytes))
    }
}

/// The drive with a ring's slots, by io_uring: what a ring does without its copies. Writes are synced.
pub(super) fn drive(file: &Arc<File>, op: Op, shape: &Shape) -> Result<f64> {
    let make = || {
        let mut slots = Slot::ring(shape.depth as usize, shape.block())?;
        if op == Op::Write {
            for (number, slot) in slots.iter_mut().enumerate() {
                fill(slot.as_mut_slice(), number as u64);
            }
        }
        Ok((Uring::new(shape.depth)?, slots))
    };
    let sync = || match op {
        Op::Read => Ok(()),
        Op::Write => file.sync(),
    };
    let lane = |made, blocks: &Blocks| drive_lane(made, blocks, file, op);
    shape.run(make, lane, sync)
}

fn drive_lane(
    (mut uring, mut free): (Uring, Vec<Slot>),
    blocks: &Blocks,
    file: &Arc<File>,
    op: Op,
) -> Result<()> {
    let short = || {
        let message = "an I/O moved fewer bytes than it was to";
        Error::new(Kind::Corrupt, "measure", file.path().display(), message)
    };
    let mut done = Vec::new();
    loop {
        while let Some(slot) = free.pop() {
            let Some(extent) = blocks.next() else { break };
            let bytes = slot.bytes();
            let io = Io {
                op,
                object: Arc::clone(file),
                by: By::Direct,
                offset: extent.offset,
                buf: Buf::Slot(slot),
                start: 0,
                bytes,
                tag: 0,
            };
            uring.submit(io).map_err(|_| short())?;
        }
        if uring.in_flight() == 0 {
            return Ok(());
        }
        // As the ring's engine waits.
        let want = (uring.in_flight() / 4).max(1);
        uring.poll(&mut done, want, POLL)?;
        for one in done.drain(..) {
            let moved = one.result.map_err(|e| file.error("measure", e))?;
            match one.io.buf {
                Buf::Slot(slot) if slot.bytes() == moved => free.push(slot),
                _ => return Err(short()),
            }
        }
    }
}

/// The kernel's readahead into the page cache, which is to hold nothing of it: the pages are handed to a pipe and on to
/// nowhere, so nothing is copied. The lanes share the file's descriptor, and with it its readahead, as those of a read do.
pub(super) fn fill_cache(file: &File, shape: &Shape) -> Result<f64> {
    let failed = |e: rustix::io::Errno| file.error("measure", e.into());
    let make = || {
        let (from, to) = pipe_with(PipeFlags::CLOEXEC).map_err(failed)?;
        // A pipe of the usual length asks for less at a time than a read does.
        for bytes in [shape.block(), 1 << 20] {
            if fcntl_setpipe_size(&to, bytes).is_ok() {
                break;
            }
        }
        let flags = OFlags::WRONLY | OFlags::CLOEXEC;
        let nowhere = openat(CWD, "/dev/null", flags, Mode::empty()).map_err(failed)?;
        Ok((from, to, nowhere))
    };
    let lane = |(from, to, nowhere): (OwnedFd, OwnedFd, OwnedFd), blocks: &Blocks| {
        let none = SpliceFlags::empty();
        while let Some(extent) = blocks.next() {
            let mut at = extent.offset;
            while at < extent.end() {
                let left = usize::try_from(extent.end() - at).expect("a block fits into memory");
                let cache = file.descriptor(By::PageCache);
                let mut piped = splice(cache, Some(&mut at), &to, None, left, none).map_err(failed)?;
                if piped == 0 {
                    return Err(failed(rustix::io::Errno::IO));
                }
                while piped > 0 {
                    piped -= splice(&from, None, &nowhere, None, piped, none).map_err(failed)?;
                }
            }
        }
        Ok(())
    };
    shape.run(make, lane, || Ok(()))
}

/// Copies by the CPU between a ring's slots and memory.
pub(super) fn copy_ring(memory: &Arc<Region>, op: Op, shape: &Shape) -> Result<f64> {
    let make = || Slot::ring(shape.depth as usize, shape.block());
    let lane = |mut slots: Vec<Slot>, blocks: &Blocks| {
        for number in (0..slots.len()).cycle() {
            let Some(extent) = blocks.next() else { break };
            let window = Window::new(memory, extent.offset, shape.block());
            match op {
                Op::Read => window.fill_from(&slots[number], 0),
                Op::Write => window.spill_into(&mut slots[number], 0),
            }
        }
        Ok(())
    };
    shape.run(make, lane, || Ok(()))
}

/// Copies by the CPU out of the page cache, which holds all of it, into memory.
pub(super) fn copy_out(file: &File, memory: &mut [u8], shape: &Shape) -> Result<f64> {
    let parts = Mutex::new(memory.chunks_exact_mut(shape.block()).enumerate());
    let lane = |(), _: &Blocks| {
        let next = || parts.lock().expect("no lane panics").next();
        while let Some((number, part)) = next().filter(|(n, _)| *n as u64 * shape.block_bytes < shape.bytes) {
            file.read_exact_at(number as u64 * shape.block_bytes, part)?;
        }
        Ok(())
    };
    shape.run(|| Ok(()), lane, || Ok(()))
}

/// Copies by the CPU from memory into the page cache of a file.
pub(super) fn copy_in(file: &File, memory: &[u8], shape: &Shape) -> Result<f64> {
    let lane = |(), blocks: &Blocks| {
        while let Some(extent) = blocks.next() {
            let at = usize::try_from(extent.offset).expect("it lies inside memory");
            file.write_all_at(extent.offset, &memory[at..][..shape.block()])?;
        }
        Ok(())
    };
    shape.run(|| Ok(()), lane, || Ok(()))
}
