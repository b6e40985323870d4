//! Fetching chunks: several threads read them into their rings, check them there, and copy what is wanted of
//! each to where it goes.
//!
//! Lanes do not serve here: they move bytes to one region as they come, while a chunk has to be looked at
//! before any byte of it goes anywhere, and may feed a hundred tensors in as many places. The
//! engines are the same, with their limits, faults and traces.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use straightway_core::{
    Alignment, Error, Extent, Kind, Result,
    extent::{down, up},
};
use straightway_io::{File, Progress, Settings, engine::Engine};
use straightway_sys::{Buf, By, Done, Io, Op, Slot, cuda::Context, residency};

use super::{
    codec::Codec,
    manifest::Stored,
    opened::Checkpoint,
    ring::{Ring, Rings},
    scatter::{Scatter, Task},
};

/// How long a thread waits before it looks again whether it was asked to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// How often an I/O that the kernel broke off is begun again.
const RETRIES: u32 = 16;

/// What was fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Bytes that were wanted, and are where they go.
    pub bytes: u64,
    /// Bytes that were read for that.
    pub read_bytes: u64,
    /// Chunks that were read and checked.
    pub chunks: u64,
    /// Chunks that were damaged or lost and made anew from parity, in words.
    pub rebuilt: Vec<String>,
}

/// A chunk that could not be had: which task, and why.
pub(crate) type Bad = (usize, Error);

/// What fetches.
#[derive(Debug)]
pub(crate) struct Fetch<'a> {
    pub(crate) checkpoint: &'a Checkpoint,
    pub(crate) scatter: &'a Scatter,
    pub(crate) settings: &'a Settings,
    pub(crate) rings: &'a Rings,
    pub(crate) progress: &'a Arc<Progress>,
    /// Whether all chunks are fetched even when some are bad.
    pub(crate) is_patient: bool,
}

/// What all threads share.
#[derive(Debug, Default)]
struct Shared {
    next: AtomicUsize,
    stop: AtomicBool,
    read_bytes: AtomicU64,
    chunks: AtomicU64,
    bad: Mutex<Vec<Bad>>,
}

impl Shared {
    fn bad(&self) -> std::sync::MutexGuard<'_, Vec<Bad>> {
        self.bad.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Fetch<'_> {
    /// Fetches everything. Answers with the chunks that could not be had.
    pub(crate) fn run(&self) -> Result<(Fetched, Vec<Bad>)> {
        let threads = self.threads().min(self.scatter.tasks.len());
        let shared = Shared::default();
        let outcome = std::thread::scope(|scope| {
            let spawn = |_| scope.spawn(|| self.serve(&shared));
            let threads: Vec<_> = (0..threads).map(spawn).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                thread
                    .join()
                    .expect("what is wrong with a file is an error, not a panic")
            };
            threads.into_iter().map(join).fold(Ok(()), Result::and)
        });
        outcome?;
        if self.progress.is_cancelled() {
            let target = format!("step {}", self.checkpoint.manifest().step);
            let message = "it was interrupted";
            return Err(Error::new(Kind::Cancelled, "read", target, message));
        }
        let fetched = Fetched {
            bytes: self.scatter.bytes,
            read_bytes: shared.read_bytes.into_inner(),
            chunks: shared.chunks.into_inner(),
            rebuilt: Vec::new(),
        };
        let bad = shared
            .bad
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        Ok((fetched, bad))
    }

    /// The GPU that chunks go to, if they do.
    fn context(&self) -> Option<&Context> {
        let memory = self.scatter.regions.iter().find_map(|r| r.device_memory());
        memory.map(|memory| memory.context())
    }

    /// How many threads fetch at most. To a GPU a quarter more than a load has lanes: so much time goes into
    /// checking what it only copies.
    fn threads(&self) -> usize {
        let lanes = match self.context() {
            Some(_) => self.settings.gpu_lanes.saturating_mul(5).div_ceil(4),
            None => self.settings.cached_lanes,
        };
        lanes as usize
    }

    /// A ring for one thread. All of them together stay within the memory that is set for rings: what is more
    /// falls out of the processor's cache.
    pub(crate) fn ring(&self) -> Result<Ring> {
        let context = self.context();
        let all = match context {
            Some(_) => self.settings.pinned_bytes,
            None => self.settings.staging_bytes,
        };
        let own = usize::try_from(all).unwrap_or(usize::MAX) / self.threads();
        self.rings.take(self.slot_bytes(), own, context)
    }

    /// How long the slots are: a chunk, and on either side what direct I/O has to read beside it.
    fn slot_bytes(&self) -> usize {
        let bytes = self.checkpoint.manifest().chunk_bytes + 2 * Alignment::PAGE_BYTES;
        usize::try_from(bytes).expect("a chunk fits into memory")
    }

    fn serve(&self, shared: &Shared) -> Result<()> {
        let mut thread = Thread {
            fetch: self,
            shared,
            drive: None,
            cached: self.settings.cached_engine(),
            ring: self.ring()?,
            flights: Vec::new(),
            flying: 0,
            waiting: None,
        };
        let outcome = thread.run();
        if outcome.is_err() {
            shared.stop.store(true, Ordering::Relaxed);
        }
        let settled = thread.settle();
        self.rings.give_back(thread.ring);
        outcome.and(settled)
    }
}

/// A chunk on its way.
#[derive(Debug)]
struct Flight {
    task: usize,
    place: Stored,
    /// What is read: the stored bytes, and where direct I/O wants it, some on either side.
    read: Extent,
    tries: u32,
}

/// One thread, its engines and its ring.
#[derive(Debug)]
struct Thread<'a> {
    fetch: &'a Fetch<'a>,
    shared: &'a Shared,
    /// Made when the first chunk has to come from the drive.
    drive: Option<Box<dyn Engine>>,
    cached: Box<dyn Engine>,
    ring: Ring,
    flights: Vec<Option<Flight>>,
    /// How many I/Os the drive's engine has.
    flying: usize,
    /// An I/O that the engine had no room for.
    waiting: Option<Io>,
}

impl Thread<'_> {
    fn run(&mut self) -> Result<()> {
        let mut done = Vec::new();
        loop {
            self.fill()?;
            if self.flying == 0 && self.waiting.is_none() {
                return Ok(());
            }
            let drive = self.drive.as_mut().expect("something is in its queue");
            drive.poll(&mut done, PATIENCE)?;
            for completion in done.drain(..) {
                self.flying -= 1;
                self.complete(completion)?;
            }
        }
    }

    /// Begins chunks as long as there are slots. One slot is kept free for what is compressed.
    fn fill(&mut self) -> Result<()> {
        if let Some(io) = self.waiting.take() {
            self.submit(io)?;
        }
        while self.waiting.is_none() && !self.is_stopped() {
            if self.ring.free() < 2 && self.flying > 0 {
                return Ok(());
            }
            let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
            if number >= self.fetch.scatter.tasks.len() {
                return Ok(());
            }
            self.begin(number)?;
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        self.shared.stop.load(Ordering::Relaxed) || self.fetch.progress.is_cancelled()
    }

    fn begin(&mut self, number: usize) -> Result<()> {
        let task = &self.fetch.scatter.tasks[number];
        let place = self.fetch.checkpoint.place(task.shard, task.chunk);
        let file = match self.fetch.checkpoint.file(place.step, &place.file) {
            Ok(file) => file,
            Err(error) => {
                self.fail(number, error);
                return Ok(());
            }
        };
        let wanted = Extent::new(place.offset, place.bytes);
        let by = way(&file, wanted);
        let read = match by {
            By::Direct => wanted.superset(Alignment::PAGE_BYTES),
            By::PageCache | By::Resident => wanted,
        };
        let slot = self
            .ring
            .slot()?
            .expect("one is free, or in a copy that ends");
        let flight = Flight {
            task: number,
            place,
            read,
            tries: 0,
        };
        let tag = self.board(flight);
        self.submit(Io {
            op: Op::Read,
            file,
            by,
            offset: read.offset,
            buf: Buf::Slot(slot),
            start: 0,
            bytes: usize::try_from(read.bytes).expect("a chunk fits into memory"),
            tag,
        })
    }

    /// Gives a flight a number.
    fn board(&mut self, flight: Flight) -> u32 {
        let free = self.flights.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        self.flights[number] = Some(flight);
        u32::try_from(number).expect("a thread has few slots")
    }

    fn submit(&mut self, io: Io) -> Result<()> {
        if io.by != By::Direct {
            // This engine runs the I/O while it is submitted, unless it is held to a rate.
            let mut waiting = Some(io);
            let mut done = Vec::new();
            while let Some(io) = waiting.take() {
                waiting = self.cached.submit(io).err();
                self.cached.poll(&mut done, PATIENCE)?;
            }
            while done.is_empty() {
                self.cached.poll(&mut done, PATIENCE)?;
            }
            return done.into_iter().try_for_each(|done| self.complete(done));
        }
        if self.drive.is_none() {
            let engine = self
                .fetch
                .settings
                .drive_engine(straightway_core::Place::Host)?;
            self.drive = Some(engine);
        }
        let drive = self.drive.as_mut().expect("just made");
        match drive.submit(io) {
            Ok(()) => self.flying += 1,
            Err(io) => self.waiting = Some(io),
        }
        Ok(())
    }

    /// Brings an I/O that came back one step on: again, or to be checked.
    fn complete(&mut self, done: Done) -> Result<()> {
        let Done { mut io, result, .. } = done;
        let flight = self.flights[io.tag as usize].as_mut();
        let flight = flight.expect("an I/O in flight has its flight");
        let needed =
            Extent::new(flight.place.offset, flight.place.bytes).end() - flight.read.offset;
        let moved = match result {
            Ok(moved) => moved,
            Err(error) => {
                let again = matches!(
                    error.kind(),
                    std::io::ErrorKind::Interrupted | std::io::ErrorKind::WouldBlock
                );
                flight.tries += 1;
                if again && flight.tries < RETRIES {
                    return self.submit(io);
                }
                let error = io.file.error("read", error);
                self.drop_flight(io, error);
                return Ok(());
            }
        };
        self.shared
            .read_bytes
            .fetch_add(moved as u64, Ordering::Relaxed);
        let there = io.start + moved;
        if there as u64 >= needed {
            return self.land(io);
        }
        if moved == 0 {
            let end = flight.read.offset + there as u64;
            let message = format!("it ends at byte {end}: it is truncated");
            let path = io.file.path().display().to_string();
            self.drop_flight(io, Error::new(Kind::Corrupt, "read", path, message));
            return Ok(());
        }
        // Direct I/O goes on at a block; where that is no step forward, the page cache does.
        let block = usize::try_from(Alignment::PAGE_BYTES).expect("a page is small");
        let on = there - there % block;
        let (start, by) = match io.by {
            By::Direct if on > io.start => (on, By::Direct),
            _ => (there, By::PageCache),
        };
        let whole = usize::try_from(flight.read.bytes).expect("a chunk fits into memory");
        io.offset = flight.read.offset + start as u64;
        (io.start, io.by, io.bytes) = (start, by, whole - start);
        self.submit(io)
    }

    /// Checks a chunk that was read, and sends what is wanted of it on.
    fn land(&mut self, io: Io) -> Result<()> {
        let flight = self.flights[io.tag as usize].take();
        let flight = flight.expect("an I/O in flight has its flight");
        let Buf::Slot(slot) = io.buf else {
            unreachable!("chunks are read into slots");
        };
        let length = |bytes: u64| usize::try_from(bytes).expect("a chunk fits into memory");
        let start = length(flight.place.offset - flight.read.offset);
        let task = &self.fetch.scatter.tasks[flight.task];
        let (slot, start) = match flight.place.codec {
            Codec::Raw => (slot, start),
            codec => {
                let name = io.file.path().display().to_string();
                let mut wide = self.ring.slot()?.expect("one is kept free for this");
                let stored = &slot.as_slice()[start..start + length(flight.place.bytes)];
                let len = self.fetch.checkpoint.chunk_len(task.shard, task.chunk);
                let unpacked = codec.restore(&name, stored, &mut wide.as_mut_slice()[..len]);
                self.ring.put(slot);
                if let Err(error) = unpacked {
                    self.ring.put(wide);
                    let why = error.to_string();
                    let error = self.fetch.checkpoint.damaged(task.shard, task.chunk, &why);
                    self.fail(flight.task, error);
                    return Ok(());
                }
                (wide, 0)
            }
        };
        self.judge(flight.task, task, slot, start)
    }

    fn judge(&mut self, number: usize, task: &Task, slot: Slot, start: usize) -> Result<()> {
        let checkpoint = self.fetch.checkpoint;
        let len = checkpoint.chunk_len(task.shard, task.chunk);
        let bytes = &slot.as_slice()[start..start + len];
        if let Err(error) = checkpoint.check(task.shard, task.chunk, bytes) {
            self.ring.put(slot);
            self.fail(number, error);
            return Ok(());
        }
        self.shared.chunks.fetch_add(1, Ordering::Relaxed);
        let moved: usize = match task.copies.as_slice() {
            [] => len,
            copies => copies.iter().map(|copy| copy.bytes).sum(),
        };
        let regions = &self.fetch.scatter.regions;
        self.ring.deliver(slot, start, &task.copies, regions)?;
        self.fetch.progress.add(moved as u64);
        Ok(())
    }

    /// Ends a flight that came to nothing.
    fn drop_flight(&mut self, io: Io, error: Error) {
        let flight = self.flights[io.tag as usize].take();
        if let Buf::Slot(slot) = io.buf {
            self.ring.put(slot);
        }
        if let Some(flight) = flight {
            self.fail(flight.task, error);
        }
    }

    fn fail(&self, number: usize, error: Error) {
        self.shared.bad().push((number, error));
        if !self.fetch.is_patient {
            self.shared.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Waits for what is still under way: it owns slots.
    fn settle(&mut self) -> Result<()> {
        let mut done = Vec::new();
        while self.flying > 0
            && let Some(drive) = &mut self.drive
        {
            self.flying -= drive.poll(&mut done, PATIENCE)?;
        }
        for completion in done {
            if let Buf::Slot(slot) = completion.io.buf {
                self.ring.put(slot);
            }
        }
        self.ring.settle()
    }
}

/// Which way a chunk is read: around the page cache, unless it is there already.
fn way(file: &Arc<File>, wanted: Extent) -> By {
    if file.alignment().is_none() || wanted.end() > file.bytes() {
        return By::PageCache;
    }
    let pages = Extent::between(
        down(wanted.offset, Alignment::PAGE_BYTES),
        up(wanted.end(), Alignment::PAGE_BYTES),
    );
    match residency::resident(file, pages).as_slice() {
        [] => By::Direct,
        _ => By::PageCache,
    }
}
