//! The stages of a route, each measured alone: what the drive does with the ring's memory, how fast the kernel fills
//! the page cache, and what the CPU copies.
//!
//! `plan compare` predicts a route from its stages. A stage has the I/O size, the depth and the lanes of its route, and
//! leaves out all the others: the drive copies nothing to the region, the page cache is filled and not read, copies
//! wait for no drive.

use std::{
    hint::black_box,
    num::NonZero,
    sync::{
        Arc, Barrier, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};
use straightway_core::{Error, Extent, Kind, Result};
use straightway_io::{File, Region};
use straightway_sys::{Buf, By, Io, Op, Slot, Uring, Window};

use super::work::fill;

/// How often a lane looks whether an I/O is done, at the least.
const POLL: std::time::Duration = std::time::Duration::from_secs(1);

/// What a processor's cache holds at once.
const LINE_BYTES: usize = 64;

/// A stage, or a whole route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Whole: a read through the ring.
    RingRead,
    /// The drive into the slots of a ring, over and over, by O_DIRECT; a core reads them in between and copies nothing.
    DriveToRing,
    /// The CPU out of a ring into memory.
    RingToMemory,
    /// Whole: a read through the page cache, which holds nothing of it.
    CacheRead,
    /// The drive into the page cache, block by block; nothing is copied.
    DriveToCache,
    /// The CPU out of the page cache, as the drive has just filled it, into memory.
    CacheToMemory,
    /// Whole: a write through the ring, synced.
    RingWrite,
    /// The CPU from memory into a ring.
    MemoryToRing,
    /// The slots of a ring to the drive, over and over, by O_DIRECT, synced; a core writes to them in between.
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
            Self::DriveToCache => "· drive to page cache",
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
            let tools = make();
            ready.wait();
            work(tools?, &blocks)
        };
        thread::scope(|scope| {
            let lanes: Vec<_> = (0..self.lanes).map(|_| scope.spawn(lane)).collect();
            ready.wait();
            let start = Instant::now();
            let ended: Vec<_> = lanes
                .into_iter()
                .map(thread::ScopedJoinHandle::join)
                .collect();
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

/// The drive with a ring of `slots` slots a lane, by io_uring: what a ring does without its copies. Writes are synced.
pub(super) fn drive(file: &Arc<File>, op: Op, slots: usize, shape: &Shape) -> Result<f64> {
    let make = || {
        let mut slots = Slot::ring(slots, shape.block())?;
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
        while uring.in_flight() < uring.depth()
            && let Some(mut slot) = free.pop()
        {
            let Some(extent) = blocks.next() else { break };
            let bytes = slot.bytes();
            if op == Op::Write {
                write_lines(slot.as_mut_slice());
            }
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
            let slot = match one.io.buf {
                Buf::Slot(slot) if slot.bytes() == moved => slot,
                _ => return Err(short()),
            };
            if op == Op::Read {
                read_lines(slot.as_slice());
            }
            free.push(slot);
        }
    }
}

/// Reads a byte of each cache line, as a copy out of the slot would: a drive that fills memory which a core has read
/// since is slower than one that fills its own again, by a fifth on a virtual machine.
fn read_lines(bytes: &[u8]) {
    let lines = bytes.iter().step_by(LINE_BYTES);
    black_box(lines.fold(0_u8, |sum, byte| sum.wrapping_add(*byte)));
}

/// Writes a byte of each cache line, as a copy into the slot would.
fn write_lines(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().step_by(LINE_BYTES) {
        *byte = byte.wrapping_add(1);
    }
}

/// The drive into the page cache, which is to hold nothing of it: each lane asks for a block and waits for its last
/// byte. Nothing is copied. As in a read by several lanes, no lane's next block follows its last one, so the kernel
/// reads just what it is asked for, into single pages.
pub(super) fn fill_cache(file: &File, shape: &Shape) -> Result<f64> {
    let lane = |(), blocks: &Blocks| {
        while let Some(extent) = blocks.next() {
            let cache = file.descriptor(By::PageCache);
            let bytes = NonZero::new(extent.bytes);
            fadvise(cache, extent.offset, bytes, Advice::WillNeed)
                .map_err(|e| file.error("measure", e.into()))?;
            file.read_exact_at(extent.end() - 1, &mut [0])?;
        }
        Ok(())
    };
    shape.run(|| Ok(()), lane, || Ok(()))
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
        while let Some((number, part)) =
            next().filter(|(n, _)| *n as u64 * shape.block_bytes < shape.bytes)
        {
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

#[cfg(test)]
mod tests {
    use straightway_sys::residency::resident;

    use super::*;

    const SHAPE: Shape = Shape {
        block_bytes: 64 << 10,
        depth: 4,
        lanes: 3,
        bytes: 8 << 20,
    };

    /// A file of noise, opened to read, with what is in it.
    fn noise(folder: &tempfile::TempDir) -> (Arc<File>, Vec<u8>) {
        let mut bytes = vec![0; usize::try_from(SHAPE.bytes).unwrap()];
        fill(&mut bytes, 7);
        let path = folder.path().join("noise");
        std::fs::write(&path, &bytes).unwrap();
        (Arc::new(File::open(&path).unwrap()), bytes)
    }

    #[test]
    fn the_page_cache_is_filled_and_then_copied_out_of_whole() {
        let folder = tempfile::tempdir().unwrap();
        let (file, bytes) = noise(&folder);
        file.evict().unwrap();
        let all = Extent::new(0, SHAPE.bytes);
        if !resident(&file, all).is_empty() {
            println!("skipped: this file system keeps what it is told to forget");
            return;
        }
        assert!(fill_cache(&file, &SHAPE).unwrap() > 0.0);
        assert_eq!(resident(&file, all), [all]);
        let mut memory = vec![0; bytes.len()];
        assert!(copy_out(&file, &mut memory, &SHAPE).unwrap() > 0.0);
        assert!(
            memory == bytes,
            "what was copied is not what is in the file"
        );
    }

    #[test]
    fn every_block_is_written_once_by_the_ring_and_by_the_page_cache() {
        let folder = tempfile::tempdir().unwrap();
        let (_, bytes) = noise(&folder);
        let create = |name| Arc::new(File::create(&folder.path().join(name), SHAPE.bytes).unwrap());
        let cached = create("cached");
        copy_in(&cached, &bytes, &SHAPE).unwrap();
        assert!(std::fs::read(cached.path()).unwrap() == bytes);

        let drive_file = create("drive");
        if drive_file.alignment().is_none() {
            println!("skipped: no O_DIRECT here");
            return;
        }
        drive(&drive_file, Op::Write, 6, &SHAPE).unwrap();
        let written = std::fs::read(drive_file.path()).unwrap();
        let empty = written
            .chunks(64 << 10)
            .filter(|block| block.iter().all(|b| *b == 0));
        assert_eq!((written.len() as u64, empty.count()), (SHAPE.bytes, 0));
        drive(&drive_file, Op::Read, 6, &SHAPE).unwrap();
        // A file that ends before its blocks do is an error and not a rate.
        drive_file.truncate(SHAPE.bytes / 2).unwrap();
        assert!(drive(&drive_file, Op::Read, 6, &SHAPE).is_err());
    }

    #[test]
    fn copies_between_ring_and_memory_reach_all_of_it() {
        let mut memory = Arc::new(Region::host(SHAPE.bytes).unwrap());
        Arc::get_mut(&mut memory).unwrap().as_mut_slice().fill(1);
        assert!(copy_ring(&memory, Op::Write, &SHAPE).unwrap() > 0.0);
        assert!(copy_ring(&memory, Op::Read, &SHAPE).unwrap() > 0.0);
        // The slots of a new ring are zero.
        let left = Arc::get_mut(&mut memory).unwrap().as_slice();
        assert!(left.iter().all(|byte| *byte == 0));
    }
}
