//! A lane: one thread with one engine and its slots of the ring.
//!
//! A lane takes chunks from a job, keeps its engine's queue full, and brings every chunk home: a
//! short transfer is continued, an interrupted one begun again, a staged one trimmed into the
//! region, and a copy across turned round and written. Nothing on the way of one I/O allocates,
//! locks or logs; what is counted goes into the lane's own [`Tally`].

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use straightway_core::{Chunk, Direction, Leg, Result, Route};
use straightway_sys::{Buf, Done, Io, Slot, Window};

use crate::{
    engine::Engine,
    flight::{Flight, Verdict, usize_of},
    job::{Job, Track},
    tally::{Tally, record},
};

/// How long a lane waits before it looks again whether it was asked to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// How often a failed job's lane waits that long for what is still in flight.
const SETTLE_TRIES: u32 = 600;

/// One thread's engine, slots and books.
#[derive(Debug)]
pub(crate) struct Lane {
    track: Track,
    engine: Box<dyn Engine>,
    slots: Vec<Slot>,
    slot_count: usize,
    slot_bytes: usize,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    /// I/Os that the engine had no room for; at most one a flight.
    waiting: VecDeque<Io>,
    /// A chunk that no slot was free for.
    parked: Option<Chunk>,
    /// Flights whose I/O was queued since the last poll.
    queued: Vec<u32>,
    done: Vec<Done>,
    tally: Tally,
}

impl Lane {
    /// A lane for `track` with a ring of `slot_count` slots, made when first needed.
    pub(crate) fn new(
        track: Track,
        engine: Box<dyn Engine>,
        slot_count: usize,
        slot_bytes: usize,
    ) -> Self {
        let depth = engine.capabilities().depth;
        Self {
            track,
            engine,
            slots: Vec::new(),
            slot_count,
            slot_bytes,
            flights: vec![None; depth],
            free: (0..u32::try_from(depth).expect("depths are small"))
                .rev()
                .collect(),
            waiting: VecDeque::with_capacity(depth),
            parked: None,
            queued: Vec::with_capacity(depth),
            done: Vec::with_capacity(depth),
            tally: Tally::new(),
        }
    }

    /// The name of its engine.
    pub(crate) fn engine_name(&self) -> &'static str {
        self.engine.capabilities().name
    }

    /// Runs its share of `job` and answers what it counted. An error goes to the job.
    pub(crate) fn run(&mut self, job: &Job) -> Tally {
        let start = Instant::now();
        self.tally.lanes = 1;
        if let Err(error) = self.prepare(job).and_then(|()| self.drive(job)) {
            job.fail(error);
            self.settle();
        }
        self.parked = None;
        self.engine.rest();
        let mut tally = std::mem::replace(&mut self.tally, Tally::new());
        let spent = tally.drive + tally.page_cache + tally.copying;
        tally.rest = start.elapsed().saturating_sub(spent);
        tally
    }

    /// Makes the ring, if this job needs one and there is none yet.
    fn prepare(&mut self, job: &Job) -> Result<()> {
        let needed = match self.track {
            Track::Drive => job.plan().drive().iter().any(|c| needs_slot(job, c)),
            Track::Cached => false,
        };
        if needed && self.slots.is_empty() {
            self.slots = Slot::ring(self.slot_count, self.slot_bytes)?;
        }
        self.tally.pinned_bytes = (self.slots.len() * self.slot_bytes) as u64;
        Ok(())
    }

    /// Fills the queue, waits, brings home what is done; until nothing is left.
    fn drive(&mut self, job: &Job) -> Result<()> {
        loop {
            self.fill(job);
            if self.free.len() == self.flights.len() {
                return Ok(());
            }
            let start = Instant::now();
            self.stamp_queued(start);
            let mut done = std::mem::take(&mut self.done);
            let polled = self.engine.poll(&mut done, PATIENCE);
            let now = Instant::now();
            self.spend(now - start);
            // Every completion is brought home, even after one of them failed: each has a slot.
            let outcome = done
                .drain(..)
                .map(|completion| self.complete(job, completion, now))
                .fold(Ok(()), Result::and);
            self.done = done;
            polled.and(outcome)?;
        }
    }

    /// Books what was queued since the last poll as handed over now.
    fn stamp_queued(&mut self, now: Instant) {
        for tag in self.queued.drain(..) {
            if let Some(flight) = &mut self.flights[tag as usize] {
                record(&mut self.tally.queueing, now - flight.taken);
                flight.submitted = now;
            }
        }
    }

    /// Books time that storage took.
    fn spend(&mut self, time: Duration) {
        match self.track {
            Track::Drive => self.tally.drive += time,
            Track::Cached => self.tally.page_cache += time,
        }
    }

    /// Takes up chunks until the queue is full, no slot is free, or none is left.
    fn fill(&mut self, job: &Job) {
        if job.is_stopped() {
            while let Some(io) = self.waiting.pop_front() {
                self.land(io);
            }
        }
        while let Some(io) = self.waiting.pop_front() {
            if !self.submit(io) {
                return;
            }
        }
        while let Some(&tag) = self.free.last() {
            let Some(chunk) = self.parked.take().or_else(|| job.take(self.track)) else {
                return;
            };
            let needs_slot = needs_slot(job, &chunk);
            if needs_slot && self.slots.is_empty() {
                self.parked = Some(chunk);
                return;
            }
            self.free.pop();
            let flight = Flight::new(chunk, job.direction(), Instant::now());
            self.flights[tag as usize] = Some(flight);
            let io = if needs_slot {
                let slot = self.load_slot(job, &flight);
                flight.slot_io(job, Buf::Slot(slot), tag)
            } else {
                flight.window_io(job, tag)
            };
            if !self.submit(io) {
                return;
            }
        }
    }

    /// Hands an I/O to the engine; one that does not fit waits. Answers whether it fit.
    fn submit(&mut self, io: Io) -> bool {
        let tag = io.tag;
        if self.track == Track::Cached {
            // This engine runs the I/O while it is submitted.
            let start = Instant::now();
            self.queued.push(tag);
            self.stamp_queued(start);
            let refused = self.engine.submit(io).err();
            self.spend(start.elapsed());
            self.waiting.extend(refused);
        } else {
            match self.engine.submit(io) {
                Ok(()) => self.queued.push(tag),
                Err(io) => self.waiting.push_back(io),
            }
        }
        self.waiting.is_empty()
    }

    /// A free slot, filled with the region's bytes where it is to be written.
    fn load_slot(&mut self, job: &Job, flight: &Flight) -> Slot {
        let mut slot = self
            .slots
            .pop()
            .expect("it was looked for before the chunk was taken up");
        let used = ((self.slot_count - self.slots.len()) * self.slot_bytes) as u64;
        self.tally.staging_bytes_peak = self.tally.staging_bytes_peak.max(used);
        if job.direction() == Direction::Out {
            let start = Instant::now();
            let extent = flight.chunk.extent;
            // What lies between the pieces is zero in the new file.
            slot.as_mut_slice()[..usize_of(extent.bytes)].fill(0);
            for piece in job.plan().pieces(&flight.chunk) {
                let window = Window::new(job.region(), piece.at, usize_of(piece.extent.bytes));
                window.spill_into(&mut slot, usize_of(piece.extent.offset - extent.offset));
            }
            self.book_copy(start);
        }
        slot
    }

    fn book_copy(&mut self, start: Instant) {
        let took = start.elapsed();
        record(&mut self.tally.copy, took);
        self.tally.copying += took;
    }

    /// Brings an I/O that came back one step on: again, onward or home.
    fn complete(&mut self, job: &Job, done: Done, now: Instant) -> Result<()> {
        let tag = done.io.tag as usize;
        let mut flight = self.flights[tag].expect("an I/O in flight has its flight");
        record(&mut self.tally.storage, now - flight.submitted);
        self.tally.ios += 1;
        self.tally.storage_bytes += *done.result.as_ref().unwrap_or(&0) as u64;
        match flight.judge(job, done.io, done.result) {
            Verdict::Failed(io, error) => {
                self.land(io);
                return Err(error);
            }
            Verdict::Again(io) => {
                self.flights[tag] = Some(flight);
                self.submit(io);
            }
            Verdict::Whole(io) => self.onward(job, flight, io, now),
        }
        Ok(())
    }

    /// After a whole I/O: the next piece, the write of what was read, or home.
    fn onward(&mut self, job: &Job, mut flight: Flight, io: Io, now: Instant) {
        let tag = io.tag;
        let chunk = flight.chunk;
        let buffered = flight.route() == Route::Buffered;
        let bytes = if buffered {
            flight.piece(job).extent.bytes
        } else {
            job.plan()
                .pieces(&chunk)
                .iter()
                .map(|p| p.extent.bytes)
                .sum()
        };
        let (route, reason) = match (flight.leg, chunk.onward) {
            (Leg::Write, Some(onward)) => onward,
            _ => (chunk.route, chunk.reason),
        };
        self.tally.count(flight.leg, route, reason, bytes);

        let across = job.direction() == Direction::Across;
        if across && flight.leg == Leg::Read {
            flight.turn_round(now);
            let mut buf = io.buf;
            pad(job, &flight, &mut buf);
            let io = flight.slot_io(job, buf, tag);
            self.flights[tag as usize] = Some(flight);
            self.submit(io);
            return;
        }
        job.progress().add(bytes);
        if let (Buf::Slot(slot), Direction::In) = (&io.buf, job.direction()) {
            let start = Instant::now();
            for piece in job.plan().pieces(&chunk) {
                let window = Window::new(job.region(), piece.at, usize_of(piece.extent.bytes));
                window.fill_from(slot, usize_of(piece.extent.offset - chunk.extent.offset));
            }
            self.book_copy(start);
        }
        if buffered && !across && flight.next_piece(job, now) {
            self.flights[tag as usize] = Some(flight);
            self.submit(flight.window_io(job, tag));
            return;
        }
        self.land(io);
    }

    /// Ends a flight and takes its slot back.
    fn land(&mut self, io: Io) {
        self.flights[io.tag as usize] = None;
        self.free.push(io.tag);
        if let Buf::Slot(slot) = io.buf {
            self.slots.push(slot);
        }
    }

    /// After a failure: waits for what is still in flight, for it owns slots and parts of regions.
    fn settle(&mut self) {
        while let Some(io) = self.waiting.pop_front() {
            self.land(io);
        }
        self.queued.clear();
        for _ in 0..SETTLE_TRIES {
            if self.free.len() == self.flights.len() {
                return;
            }
            let mut done = std::mem::take(&mut self.done);
            // The job has its error already; a second one says nothing new.
            let _ = self.engine.poll(&mut done, PATIENCE);
            done.drain(..)
                .for_each(|completion| self.land(completion.io));
            self.done = done;
        }
    }
}

/// Whether a chunk goes by way of the ring.
fn needs_slot(job: &Job, chunk: &Chunk) -> bool {
    job.direction() == Direction::Across || chunk.route == Route::Staged
}

/// Zeroes what an aligned write of a ragged piece writes besides it.
fn pad(job: &Job, flight: &Flight, buf: &mut Buf) {
    let extent = flight.chunk.extent;
    let piece = flight.piece(job).extent;
    if let (Buf::Slot(slot), true) = (buf, piece != extent) {
        let bytes = &mut slot.as_mut_slice()[..usize_of(extent.bytes)];
        bytes[..usize_of(piece.offset - extent.offset)].fill(0);
        bytes[usize_of(piece.end() - extent.offset)..].fill(0);
    }
}
