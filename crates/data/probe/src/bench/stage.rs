//! The stages of a route, each measured alone: drive I/O with the ring's memory, fills of the page cache by the
//! kernel, and copies by the CPU.
//!
//! `plan compare` predicts a route from its stages. A stage has the I/O size, the depth and the lanes of its route,
//! and omits the other stages: drive I/O is not copied to the region, the filled page cache is not read, and copies
//! do not wait for the drive.

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
use straightway_core::{Error, ErrorKind, Extent, Result, random::Seed};
use straightway_io::{File, Region};
use straightway_sys::{Buf, Io, IoPath, Op, Slot, Uring, Window};

/// The timeout of one poll for completions.
const POLL: std::time::Duration = std::time::Duration::from_secs(1);

/// The size of a cache line.
const LINE_BYTES: usize = 64;

/// A stage, or a whole route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Whole route: a read through the ring.
    RingRead,
    /// O_DIRECT reads into the slots of a ring. A core reads each slot afterwards but copies nothing.
    DriveToRing,
    /// CPU copies from a ring to memory.
    RingToMemory,
    /// Whole route: a read through the cold page cache.
    CacheRead,
    /// Reads of the drive into the page cache, block by block, without copies.
    DriveToCache,
    /// CPU copies from the page cache, freshly filled by the drive, to memory.
    CacheToMemory,
    /// Whole route: a write through the ring, synced.
    RingWrite,
    /// CPU copies from memory to a ring.
    MemoryToRing,
    /// O_DIRECT writes from the slots of a ring, synced. A core writes to each slot before.
    RingToDrive,
    /// Whole route: a write through the page cache, synced.
    CacheWrite,
    /// CPU copies from memory to the page cache of a new file, not synced.
    MemoryToCache,
    /// O_DIRECT writes from memory in large I/Os, synced.
    MemoryToDrive,
    /// Whole route: a copy of the file on its drive, which reads and writes at once, synced.
    DriveCopy,
}

impl Stage {
    /// The name for display.
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
            Self::DriveCopy => "copy on the drive, synced",
        }
    }
}

/// The load that a stage is measured with: that of its route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageLoad {
    /// The size of an I/O or a copy.
    pub block_bytes: u64,
    /// I/Os in flight on each lane.
    pub depth: u32,
    /// The number of threads.
    pub lanes: u32,
    /// The bytes to move.
    pub bytes: u64,
}

impl StageLoad {
    fn block(&self) -> usize {
        usize::try_from(self.block_bytes).expect("a block fits into memory")
    }

    /// Runs the lanes, one thread each: `make` before the clock starts, then `work` until no block is left. `after`
    /// runs at the end, before the clock stops. Returns the rate.
    fn run<T>(
        &self,
        make: impl Fn() -> Result<T> + Sync,
        work: impl Fn(T, &Blocks) -> Result<()> + Sync,
        after: impl FnOnce() -> Result<()>,
    ) -> Result<f64> {
        let blocks = Blocks {
            next: AtomicU64::new(0),
            load: *self,
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
            let ended: Vec<_> = lanes.into_iter().map(thread::ScopedJoinHandle::join).collect();
            for lane in ended {
                lane.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            }
            after()?;
            Ok(self.bytes as f64 / start.elapsed().as_secs_f64().max(1e-9))
        })
    }
}

/// The blocks that no lane has taken yet.
struct Blocks {
    next: AtomicU64,
    load: StageLoad,
}

impl Blocks {
    /// Takes the next whole block.
    fn next(&self) -> Option<Extent> {
        let bytes = self.load.block_bytes;
        let at = self.next.fetch_add(bytes, Ordering::Relaxed);
        (at + bytes <= self.load.bytes).then(|| Extent::new(at, bytes))
    }
}

/// Measures the drive with a ring of `slots` slots per lane, by io_uring and without copies. Writes are synced.
pub(super) fn drive(file: &Arc<File>, op: Op, slots: usize, load: &StageLoad) -> Result<f64> {
    let make = || {
        let mut slots = Slot::ring(slots, load.block())?;
        if op == Op::Write {
            for (number, slot) in slots.iter_mut().enumerate() {
                Seed(number as u64).rng().fill(slot.as_mut_slice());
            }
        }
        Ok((Uring::new(load.depth)?, slots))
    };
    let sync = || match op {
        Op::Read => Ok(()),
        Op::Write => file.sync(),
    };
    let lane = |made, blocks: &Blocks| drive_lane(made, blocks, file, op);
    load.run(make, lane, sync)
}

fn drive_lane((mut uring, mut free): (Uring, Vec<Slot>), blocks: &Blocks, file: &Arc<File>, op: Op) -> Result<()> {
    let short = || {
        let message = "an I/O moved fewer bytes than requested";
        Error::new(ErrorKind::Corrupt, "measure", file.path().display(), message)
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
                by: IoPath::Direct,
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
        // The ring's engine waits in the same way.
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

/// Reads a byte of each cache line, as a copy from the slot would. A drive that refills memory which a core has read
/// since is slower than one that refills untouched memory: by a fifth on a virtual machine.
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

/// Measures how fast the drive fills the cold page cache: each lane requests a block and waits for its last byte.
/// Nothing is copied. As in a read by several lanes, a lane's next block does not follow its previous one, so the
/// kernel reads only the requested bytes, into single pages.
pub(super) fn fill_cache(file: &File, load: &StageLoad) -> Result<f64> {
    let lane = |(), blocks: &Blocks| {
        while let Some(extent) = blocks.next() {
            let cache = file.descriptor(IoPath::PageCache);
            let bytes = NonZero::new(extent.bytes);
            fadvise(cache, extent.offset, bytes, Advice::WillNeed).map_err(|e| file.error("measure", e.into()))?;
            file.read_exact_at(extent.end() - 1, &mut [0])?;
        }
        Ok(())
    };
    load.run(|| Ok(()), lane, || Ok(()))
}

/// Measures CPU copies between a ring's slots and memory.
pub(super) fn copy_ring(memory: &Arc<Region>, op: Op, load: &StageLoad) -> Result<f64> {
    let make = || Slot::ring(load.depth as usize, load.block());
    let lane = |mut slots: Vec<Slot>, blocks: &Blocks| {
        for number in (0..slots.len()).cycle() {
            let Some(extent) = blocks.next() else { break };
            let window = Window::new(memory, extent.offset, load.block());
            match op {
                Op::Read => window.fill_from(&slots[number], 0)?,
                Op::Write => window.spill_into(&mut slots[number], 0),
            }
        }
        Ok(())
    };
    load.run(make, lane, || Ok(()))
}

/// Measures CPU copies from the page cache, which must hold the whole file, to memory.
pub(super) fn copy_out(file: &File, memory: &mut [u8], load: &StageLoad) -> Result<f64> {
    let parts = Mutex::new(memory.chunks_exact_mut(load.block()).enumerate());
    let lane = |(), _: &Blocks| {
        let next = || parts.lock().expect("no lane panics").next();
        while let Some((number, part)) = next().filter(|(n, _)| *n as u64 * load.block_bytes < load.bytes) {
            file.read_exact_at(number as u64 * load.block_bytes, part)?;
        }
        Ok(())
    };
    load.run(|| Ok(()), lane, || Ok(()))
}

/// Measures CPU copies from memory to the page cache of a file.
pub(super) fn copy_in(file: &File, memory: &[u8], load: &StageLoad) -> Result<f64> {
    let lane = |(), blocks: &Blocks| {
        while let Some(extent) = blocks.next() {
            let at = usize::try_from(extent.offset).expect("it lies inside memory");
            file.write_all_at(extent.offset, &memory[at..][..load.block()])?;
        }
        Ok(())
    };
    load.run(|| Ok(()), lane, || Ok(()))
}

#[cfg(test)]
mod tests {
    use straightway_sys::residency::resident;

    use super::*;

    const LOAD: StageLoad = StageLoad {
        block_bytes: 64 << 10,
        depth: 4,
        lanes: 3,
        bytes: 8 << 20,
    };

    /// A file of random bytes, opened for reading, and its content.
    fn noise(folder: &tempfile::TempDir) -> (Arc<File>, Vec<u8>) {
        let bytes = Seed(7).bytes(usize::try_from(LOAD.bytes).unwrap());
        let path = folder.path().join("noise");
        std::fs::write(&path, &bytes).unwrap();
        (Arc::new(File::open(&path).unwrap()), bytes)
    }

    #[test]
    fn the_page_cache_is_filled_and_copied_out_in_full() {
        let folder = tempfile::tempdir().unwrap();
        let (file, bytes) = noise(&folder);
        file.evict().unwrap();
        let all = Extent::new(0, LOAD.bytes);
        if !resident(&file, all).is_empty() {
            println!("skipped: this file system does not evict the page cache");
            return;
        }
        assert!(fill_cache(&file, &LOAD).unwrap() > 0.0);
        assert_eq!(resident(&file, all), [all]);
        let mut memory = vec![0; bytes.len()];
        assert!(copy_out(&file, &mut memory, &LOAD).unwrap() > 0.0);
        assert!(memory == bytes, "the copy differs from the file");
    }

    #[test]
    fn every_block_is_written_once_by_the_ring_and_by_the_page_cache() {
        let folder = tempfile::tempdir().unwrap();
        let (_, bytes) = noise(&folder);
        let create = |name| Arc::new(File::create(&folder.path().join(name), LOAD.bytes).unwrap());
        let cached = create("cached");
        copy_in(&cached, &bytes, &LOAD).unwrap();
        assert!(std::fs::read(cached.path()).unwrap() == bytes);

        let drive_file = create("drive");
        if drive_file.alignment().is_none() {
            println!("skipped: no O_DIRECT here");
            return;
        }
        drive(&drive_file, Op::Write, 6, &LOAD).unwrap();
        let written = std::fs::read(drive_file.path()).unwrap();
        let empty = written.chunks(64 << 10).filter(|block| block.iter().all(|b| *b == 0));
        assert_eq!((written.len() as u64, empty.count()), (LOAD.bytes, 0));
        drive(&drive_file, Op::Read, 6, &LOAD).unwrap();
        // A file that ends before its blocks do is an error and not a rate.
        drive_file.truncate(LOAD.bytes / 2).unwrap();
        assert!(drive(&drive_file, Op::Read, 6, &LOAD).is_err());
    }

    #[test]
    fn copies_between_ring_and_memory_reach_all_of_it() {
        let mut memory = Arc::new(Region::host(LOAD.bytes).unwrap());
        Arc::get_mut(&mut memory).unwrap().as_mut_slice().fill(1);
        assert!(copy_ring(&memory, Op::Write, &LOAD).unwrap() > 0.0);
        assert!(copy_ring(&memory, Op::Read, &LOAD).unwrap() > 0.0);
        // The slots of a new ring are zero.
        let left = Arc::get_mut(&mut memory).unwrap().as_slice();
        assert!(left.iter().all(|byte| *byte == 0));
    }
}
