//! One thread that fetches chunks: reads them into its ring, checks them there, and copies what is wanted of each to where
//! it goes.

use std::{
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use straightway_core::{Alignment, Error, Extent, Kind, Leg, Reason, Result, Route};
use straightway_io::{File, Tally, engine::Engine, tally::record};
use straightway_sys::{Buf, By, Done, Io, Op, Slot, residency};

use super::{
    codec::Codec,
    fetch::{Fetch, Shared},
    manifest::Stored,
    ring::Ring,
    scatter::Task,
};

/// How long a thread waits before it looks again whether it was asked to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// How often an I/O that the kernel broke off is begun again.
const RETRIES: u32 = 16;

/// A chunk on its way.
#[derive(Debug)]
struct Flight {
    task: usize,
    place: Stored,
    /// What is read: the stored bytes, and where direct I/O wants it, some on either side.
    read: Extent,
    way: Way,
    tries: u32,
    /// When it was taken up, and when its I/O was handed over.
    taken: Instant,
    submitted: Instant,
}

/// Which way a chunk is read, and why.
#[derive(Clone, Copy, Debug)]
struct Way {
    by: By,
    route: Route,
    reason: Reason,
}

/// One thread of a fetch: its engines, its ring and its counts.
#[derive(Debug)]
pub(crate) struct Fetcher<'a> {
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
    tally: Tally,
    began: Instant,
}

impl<'a> Fetcher<'a> {
    pub(crate) fn new(fetch: &'a Fetch<'a>, shared: &'a Shared) -> Result<Self> {
        let ring = fetch.ring()?;
        let mut tally = Tally::default();
        (tally.lanes, tally.pinned_bytes) = (1, ring.pinned_bytes());
        tally.note_ring(ring.slots(), ring.wanted());
        Ok(Self {
            fetch,
            shared,
            drive: None,
            cached: fetch.settings.cached_engine(),
            ring,
            flights: Vec::new(),
            flying: 0,
            waiting: None,
            tally,
            began: Instant::now(),
        })
    }

    /// Fetches until no chunk is left.
    pub(crate) fn run(&mut self) -> Result<()> {
        let mut done = Vec::new();
        loop {
            self.fill()?;
            if self.flying == 0 && self.waiting.is_none() {
                return Ok(());
            }
            let drive = self.drive.as_mut().expect("something is in its queue");
            let start = Instant::now();
            drive.poll(&mut done, PATIENCE)?;
            self.tally.drive += start.elapsed();
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
        let taken = Instant::now();
        let way = Way::of(&file, wanted);
        let read = match way.by {
            By::Direct => wanted.superset(Alignment::PAGE_BYTES),
            By::PageCache | By::Resident => wanted,
        };
        let slot = self
            .free_slot()?
            .expect("one is free, or in a copy that ends");
        let flight = Flight {
            task: number,
            place,
            read,
            way,
            tries: 0,
            taken,
            submitted: taken,
        };
        let tag = self.board(flight);
        self.submit(Io {
            op: Op::Read,
            file,
            by: way.by,
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

    /// A free slot, if there is one or a copy ends that has one.
    fn free_slot(&mut self) -> Result<Option<Slot>> {
        let start = Instant::now();
        let slot = self.ring.slot();
        self.tally.copying += start.elapsed();
        self.book_landed();
        let used = self.ring.used_bytes();
        self.tally.staging_bytes_peak = self.tally.staging_bytes_peak.max(used);
        slot
    }

    /// Books what has arrived.
    fn book_landed(&mut self) {
        for took in self.ring.landed() {
            record(&mut self.tally.copy, took);
        }
    }

    /// The names of its engines that took part.
    pub(crate) fn engines(&self) -> Vec<&'static str> {
        let is_cached = !self.tally.page_cache.is_zero();
        let cached = is_cached.then(|| self.cached.capabilities().name);
        let drive = self.drive.as_ref().map(|drive| drive.capabilities().name);
        drive.into_iter().chain(cached).collect()
    }

    /// Books an I/O as handed over now.
    fn stamp(&mut self, tag: u32) {
        if let Some(flight) = &mut self.flights[tag as usize] {
            flight.submitted = Instant::now();
            record(&mut self.tally.queueing, flight.submitted - flight.taken);
        }
    }

    fn submit(&mut self, io: Io) -> Result<()> {
        if io.by != By::Direct {
            self.stamp(io.tag);
            let start = Instant::now();
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
            self.tally.page_cache += start.elapsed();
            return done.into_iter().try_for_each(|done| self.complete(done));
        }
        if self.drive.is_none() {
            let engine = self
                .fetch
                .settings
                .drive_engine(straightway_core::Place::Host)?;
            if let Some(warning) = engine.warning() {
                self.tally.warn(warning);
            }
            self.drive = Some(engine);
        }
        let drive = self.drive.as_mut().expect("just made");
        let tag = io.tag;
        match drive.submit(io) {
            Ok(()) => {
                self.flying += 1;
                self.stamp(tag);
            }
            Err(io) => self.waiting = Some(io),
        }
        Ok(())
    }

    /// Brings an I/O that came back one step on: again, or to be checked.
    fn complete(&mut self, done: Done) -> Result<()> {
        let Done { mut io, result, .. } = done;
        let flight = self.flights[io.tag as usize].as_mut();
        let flight = flight.expect("an I/O in flight has its flight");
        let moved = *result.as_ref().unwrap_or(&0) as u64;
        self.tally.complete(flight.submitted.elapsed(), moved);
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
        if io.by != by {
            (flight.way.route, flight.way.reason) = (Route::Buffered, Reason::RaggedEdge);
        }
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
        let landed = Instant::now();
        let length = |bytes: u64| usize::try_from(bytes).expect("a chunk fits into memory");
        let start = length(flight.place.offset - flight.read.offset);
        let task = &self.fetch.scatter.tasks[flight.task];
        let (slot, start) = match flight.place.codec {
            Codec::Raw => (slot, start),
            codec => {
                let name = io.file.path().display().to_string();
                let mut wide = self.free_slot()?.expect("one is kept free for this");
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
        let is_good = self.check(flight.task, &slot, start);
        if !is_good {
            self.ring.put(slot);
            return Ok(());
        }
        self.deliver(task, &flight, slot, start, landed)
    }

    /// Whether a chunk is what it was. One that is not is noted.
    fn check(&self, number: usize, slot: &Slot, start: usize) -> bool {
        let checkpoint = self.fetch.checkpoint;
        let task = &self.fetch.scatter.tasks[number];
        let len = checkpoint.chunk_len(task.shard, task.chunk);
        let bytes = &slot.as_slice()[start..start + len];
        match checkpoint.check(task.shard, task.chunk, bytes) {
            Ok(()) => true,
            Err(error) => {
                self.fail(number, error);
                false
            }
        }
    }

    /// Sends what is wanted of a chunk to where it goes.
    fn deliver(
        &mut self,
        task: &Task,
        flight: &Flight,
        slot: Slot,
        start: usize,
        landed: Instant,
    ) -> Result<()> {
        self.shared.chunks.fetch_add(1, Ordering::Relaxed);
        let wanted = self.fetch.wanted_bytes(task);
        let Way { route, reason, .. } = flight.way;
        self.tally.count(Leg::Read, route, reason, wanted);
        let regions = &self.fetch.scatter.regions;
        let begun = Instant::now();
        let delivered = self
            .ring
            .deliver(slot, start, &task.copies, regions, landed);
        self.tally.copying += begun.elapsed();
        self.fetch.progress.add(wanted);
        delivered
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

    /// Waits for what is still under way, and gives back the ring and what was counted.
    pub(crate) fn end(mut self) -> (Ring, Result<Tally>) {
        let settled = self.settle();
        self.book_landed();
        self.tally.finish(self.began.elapsed());
        (self.ring, settled.map(|()| self.tally))
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
        let start = Instant::now();
        let settled = self.ring.settle();
        self.tally.copying += start.elapsed();
        settled
    }
}

impl Way {
    /// Around the page cache, unless the chunk is there already.
    fn of(file: &Arc<File>, wanted: Extent) -> Self {
        let buffered = |reason| Self {
            by: By::PageCache,
            route: Route::Buffered,
            reason,
        };
        if let Err(reason) = file.survey().usable() {
            return buffered(reason);
        }
        // A file that is too short is read up to its end, which says so.
        if wanted.end() > file.bytes() {
            return buffered(Reason::RaggedEdge);
        }
        let pages = wanted.superset(Alignment::PAGE_BYTES);
        if !residency::resident(file, pages).is_empty() {
            return buffered(Reason::Resident);
        }
        Self {
            by: By::Direct,
            route: Route::Staged,
            reason: Reason::Checked,
        }
    }
}
