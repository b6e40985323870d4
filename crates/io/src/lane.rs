//! A lane: one thread with one engine, one copy stage and its slots of the ring.
//!
//! A lane takes chunks from a job, keeps its engine's queue full, and brings every chunk home: a
//! short transfer is continued, an interrupted one begun again, a staged one copied between its
//! slot and the region, and a copy across turned round and written. Storage and copies are under
//! way at the same time: copies are looked at whenever storage has answered, and waited for only
//! when nothing else is left to do. Nothing on the way of one I/O allocates, locks or logs; what is
//! counted goes into the lane's own [`Tally`]. Portions are inspected in their slot before they are copied on.

mod inspecting;
mod ring;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use straightway_core::{Chunk, Direction, Leg, Result, Route};
use straightway_sys::{
    Buf, By, Slot,
    cuda::{Direction as Heading, Landing},
};

use crate::{
    engine::Engine,
    flight::{Flight, Verdict},
    inspect::Inspect,
    job::Job,
    request::{Done, Io, usize_of},
    settings::RingSize,
    stage::{Copied, Copy, Stage},
    tally::{Tally, record},
    track::Track,
};
use ring::Ring;

/// How long a lane waits before it looks again whether it was asked to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long it waits for storage while copies are under way that the queue is hungry for. A copy of
/// 4 MiB takes 76 us at the 55 GB/s of an H200's bus.
const COPY_PATIENCE: Duration = Duration::from_micros(100);

/// One thread's engine, stage, slots and books.
#[derive(Debug)]
pub(crate) struct Lane {
    track: Track,
    engine: Box<dyn Engine>,
    depth: usize,
    stage: Box<dyn Stage>,
    ring: Ring,
    /// How long it waits for I/Os in flight after a failure.
    settle_max: Duration,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    /// How many I/Os the engine has.
    flying: usize,
    /// I/Os that the engine had no room for; at most one a flight.
    waiting: VecDeque<Io>,
    /// A chunk that no slot was free for.
    parked: Option<Chunk>,
    /// Flights whose I/O was queued since the last poll.
    queued: Vec<u32>,
    done: Vec<Done>,
    copied: Vec<Copied>,
    landings: Vec<Landing>,
    tally: Tally,
}

impl Lane {
    /// A lane for `track`. Its ring is made when first needed.
    pub(crate) fn new(
        track: Track,
        engine: Box<dyn Engine>,
        stage: Box<dyn Stage>,
        ring: RingSize,
        settle_max: Duration,
    ) -> Self {
        let depth = engine.capabilities().depth;
        // Each slot may be in a copy while the queue is full of other I/Os.
        let flights = depth + ring.slots;
        Self {
            track,
            engine,
            depth,
            stage,
            ring: Ring::new(ring),
            settle_max,
            flights: vec![None; flights],
            free: (0..u32::try_from(flights).expect("depths and rings are small"))
                .rev()
                .collect(),
            flying: 0,
            waiting: VecDeque::with_capacity(flights),
            parked: None,
            queued: Vec::with_capacity(depth),
            done: Vec::with_capacity(depth),
            copied: Vec::with_capacity(flights),
            landings: Vec::new(),
            tally: Tally::default(),
        }
    }

    /// Runs its share of `job` and answers what it counted. An error goes to the job.
    ///
    /// After an error I/Os of the job may still be in flight, and [`is_home`](Self::is_home) says so. Such a
    /// lane must not run another job, whose plan says nothing about what those I/Os bring.
    pub(crate) fn run(&mut self, job: &Job) -> Tally {
        assert!(self.is_home(), "a lane runs one job at a time");
        let start = Instant::now();
        self.tally.lanes = 1;
        if let Err(error) = self.prepare(job).and_then(|()| self.drive(job)) {
            job.fail(error);
            self.settle();
        }
        self.parked = None;
        self.ring.put_spare();
        self.engine
            .names()
            .into_iter()
            .for_each(|name| self.tally.name(name));
        if let Some(warning) = self.engine.warning() {
            self.tally.warn(warning);
        }
        if self.is_home() {
            self.engine.rest();
        }
        let mut tally = std::mem::take(&mut self.tally);
        tally.finish(start.elapsed());
        tally
    }

    /// Makes the ring, if there is none yet or its slots are shorter than `slot_bytes`.
    pub(crate) fn make_ring(&mut self, slot_bytes: usize) -> Result<()> {
        self.ring.make(self.stage.as_ref(), slot_bytes)
    }

    fn prepare(&mut self, job: &Job) -> Result<()> {
        if job.needs_ring(self.track) {
            self.make_ring(usize_of(job.plan().slot_bytes()))?;
        }
        self.ring.book(&mut self.tally);
        if job.inspect().is_some_and(Inspect::unpacks) {
            self.ring.set_spare_aside()?;
        }
        Ok(())
    }

    /// Fills the queue, waits, brings home what is done; until nothing is left.
    fn drive(&mut self, job: &Job) -> Result<()> {
        loop {
            self.fill(job)?;
            if self.is_home() {
                return Ok(());
            }
            let storage_idles = self.flying == 0 && self.waiting.is_empty();
            let came = if storage_idles {
                0
            } else {
                self.poll_storage(job)?
            };
            // What came makes room in the queue, and that is filled before a copy is made by hand. What was checked is
            // copied at once, as long as it is in the processor's cache.
            let by_hand = self.stage.is_by_hand() && (came == 0 || self.track == Track::Checked);
            self.poll_copies(job, storage_idles || by_hand)?;
        }
    }

    /// Takes what storage has done, waiting for it. Answers how many I/Os that were.
    fn poll_storage(&mut self, job: &Job) -> Result<usize> {
        // A queue that is half full can be waited for; a hungrier one is fed by the copies. Those
        // that are to be made by hand are made instead of waiting.
        let hungry = self.flying * 2 < self.depth;
        let patience = match (self.stage.in_flight() > 0, self.stage.is_by_hand()) {
            (true, true) => Duration::ZERO,
            (true, false) if hungry => COPY_PATIENCE,
            _ => PATIENCE,
        };
        let start = Instant::now();
        self.stamp_queued(start);
        let mut done = std::mem::take(&mut self.done);
        let polled = self.engine.poll(&mut done, patience);
        let now = Instant::now();
        self.spend(now - start);
        let came = done.len();
        self.flying -= came;
        // Every completion is brought home, even after one of them failed: each has a slot.
        let outcome = done
            .drain(..)
            .map(|completion| self.complete(job, completion, now))
            .fold(Ok(()), Result::and);
        self.done = done;
        polled.and(outcome).map(|()| came)
    }

    /// Takes the copies that are done; where `wait` is set, waits for the oldest.
    fn poll_copies(&mut self, job: &Job, wait: bool) -> Result<()> {
        if self.stage.in_flight() == 0 {
            return Ok(());
        }
        let start = Instant::now();
        let mut copied = std::mem::take(&mut self.copied);
        self.stage.poll(&mut copied, wait);
        let now = Instant::now();
        self.tally.copying += now - start;
        let outcome = copied
            .drain(..)
            .map(|copy| self.arrive(job, copy, now))
            .fold(Ok(()), Result::and);
        self.copied = copied;
        outcome
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
            // Portions through the page cache are booked where they are submitted.
            Track::Drive | Track::Checked => self.tally.drive += time,
            Track::Cached => self.tally.page_cache += time,
        }
    }

    /// Takes up chunks until the queue is full, no slot is free, or none is left.
    fn fill(&mut self, job: &Job) -> Result<()> {
        if job.is_stopped() {
            while let Some(io) = self.waiting.pop_front() {
                self.land(io);
            }
        }
        while self.flying < self.depth {
            let Some(io) = self.waiting.pop_front() else {
                break;
            };
            if !self.submit(io) {
                return Ok(());
            }
        }
        while self.waiting.is_empty() && self.flying < self.depth {
            let Some(&tag) = self.free.last() else {
                return Ok(());
            };
            let Some(chunk) = self.parked.take().or_else(|| job.take(self.track)) else {
                return Ok(());
            };
            if job.needs_slot(&chunk) && self.ring.is_empty() {
                self.parked = Some(chunk);
                return Ok(());
            }
            self.free.pop();
            let flight = Flight::new(chunk, job.direction(), Instant::now());
            self.begin(job, flight, tag)?;
            if self.track == Track::Checked && chunk.route == Route::Buffered {
                // It is there already, and is checked before anything pushes it out of the processor's cache.
                return Ok(());
            }
        }
        Ok(())
    }

    /// Sends a chunk on the first step of its way.
    fn begin(&mut self, job: &Job, flight: Flight, tag: u32) -> Result<()> {
        self.flights[tag as usize] = Some(flight);
        if !job.needs_slot(&flight.chunk) {
            self.submit(flight.window_io(job, tag));
            return Ok(());
        }
        let slot = self.ring.take();
        let mut slot = slot.expect("it was looked for before the chunk was taken up");
        let used = self.ring.used_bytes();
        self.tally.staging_bytes_peak = self.tally.staging_bytes_peak.max(used);
        if job.direction() == Direction::Out {
            flight.clear_gaps(job, &mut slot);
            self.copy(job, tag, slot, Heading::ToHost);
            return self.poll_copies(job, false);
        }
        self.submit(flight.slot_io(job, slot, tag));
        Ok(())
    }

    /// Hands an I/O to the engine; one that does not fit waits. Answers whether it fit.
    fn submit(&mut self, io: Io) -> bool {
        let tag = io.tag;
        let is_inline = match self.track {
            Track::Drive => false,
            Track::Cached => true,
            Track::Checked => io.by != By::Direct,
        };
        let refused = if is_inline {
            // The engine runs the I/O while it is submitted.
            let start = Instant::now();
            self.queued.push(tag);
            self.stamp_queued(start);
            let refused = self.engine.submit(io).err();
            self.tally.page_cache += start.elapsed();
            refused
        } else {
            let refused = self.engine.submit(io).err();
            self.queued.extend(refused.is_none().then_some(tag));
            refused
        };
        let fits = refused.is_none();
        self.flying += usize::from(fits);
        self.waiting.extend(refused);
        fits
    }

    /// Starts the copy between a flight's slot and the region.
    fn copy(&mut self, job: &Job, tag: u32, slot: Slot, heading: Heading) {
        let start = Instant::now();
        let flight = self.flights[tag as usize]
            .as_mut()
            .expect("a copy has its flight");
        flight.submitted = start;
        flight.landings(job, &mut self.landings);
        let copy = Copy {
            tag,
            slot,
            direction: heading,
        };
        self.stage.start(copy, job.regions(), &self.landings);
        self.tally.copying += start.elapsed();
    }

    /// Brings a copy that is over one step on: home, or to be written.
    fn arrive(&mut self, job: &Job, copied: Copied, now: Instant) -> Result<()> {
        let tag = copied.tag as usize;
        let flight = self.flights[tag].expect("a copy in flight has its flight");
        record(&mut self.tally.copy, now - flight.submitted);
        match (copied.outcome, copied.slot) {
            (Ok(()), Some(slot)) if flight.leg == Leg::Write => {
                self.submit(flight.slot_io(job, slot, copied.tag));
                Ok(())
            }
            (outcome, slot) => {
                self.ring.put(slot);
                self.release(copied.tag);
                outcome.map(|()| job.progress().add(flight.payload_bytes(job)))
            }
        }
    }

    /// Brings an I/O that came back one step on: again, onward or home.
    fn complete(&mut self, job: &Job, done: Done, now: Instant) -> Result<()> {
        let tag = done.io.tag as usize;
        let mut flight = self.flights[tag].expect("an I/O in flight has its flight");
        let moved = *done.result.as_ref().unwrap_or(&0) as u64;
        self.tally.complete(now - flight.submitted, moved);
        if done.missed {
            flight.miss();
        }
        match flight.judge(job, done.io, done.result) {
            Verdict::Failed(io, error) => {
                self.land(io);
                if job.inspect().is_some() {
                    return job.refuse(&flight.chunk, error);
                }
                return Err(error);
            }
            Verdict::Again(io) => {
                self.flights[tag] = Some(flight);
                self.submit(io);
            }
            Verdict::Whole(io) if job.inspect().is_some() => return self.inspect(job, flight, io),
            Verdict::Whole(io) => self.onward(job, flight, io, now),
        }
        Ok(())
    }

    /// After a whole I/O: the write of what was read, the next piece, the copy, or home.
    fn onward(&mut self, job: &Job, mut flight: Flight, io: Io, now: Instant) {
        let tag = io.tag;
        let across = job.direction() == Direction::Across;
        let buffered = flight.route() == Route::Buffered;
        let bytes = if buffered {
            flight.piece(job).extent.bytes
        } else {
            flight.payload_bytes(job)
        };
        let (route, reason) = flight.route_and_reason();
        self.tally.count(flight.leg, route, reason, bytes);
        match io.buf {
            buf if buffered && flight.has_next_piece(job) => {
                flight.next_piece(now);
                self.flights[tag as usize] = Some(flight);
                let next = match buf {
                    Buf::Slot(slot) => flight.slot_io(job, slot, tag),
                    Buf::Window(_) => {
                        job.progress().add(bytes);
                        flight.window_io(job, tag)
                    }
                };
                self.submit(next);
            }
            Buf::Slot(mut slot) if across && flight.leg == Leg::Read => {
                flight.turn_round(now);
                flight.clear_gaps(job, &mut slot);
                self.flights[tag as usize] = Some(flight);
                self.submit(flight.slot_io(job, slot, tag));
            }
            Buf::Slot(slot) if job.direction() == Direction::In => {
                self.copy(job, tag, slot, Heading::ToDevice);
            }
            buf => {
                // A slot's pieces are counted together, a window's one by one.
                let whole = matches!(buf, Buf::Slot(_)).then(|| flight.payload_bytes(job));
                job.progress().add(whole.unwrap_or(bytes));
                self.land(Io { buf, ..io });
            }
        }
    }

    /// Ends a flight and takes its slot back.
    fn land(&mut self, io: Io) {
        self.release(io.tag);
        if let Buf::Slot(slot) = io.buf {
            self.ring.put(slot);
        }
    }

    fn release(&mut self, tag: u32) {
        self.flights[tag as usize] = None;
        self.free.push(tag);
    }

    /// Whether it has no I/O and no copy in flight.
    pub(crate) fn is_home(&self) -> bool {
        self.free.len() == self.flights.len()
    }

    /// After a failure: waits for what is still in flight, for it owns slots and parts of regions.
    fn settle(&mut self) {
        while let Some(io) = self.waiting.pop_front() {
            self.land(io);
        }
        self.queued.clear();
        let start = Instant::now();
        while !self.bring_home(PATIENCE) && start.elapsed() < self.settle_max {}
    }

    /// Takes what comes back of a job that has failed, without a look at what it brings. Answers whether all of
    /// it has come.
    pub(crate) fn bring_home(&mut self, timeout: Duration) -> bool {
        let mut copied = std::mem::take(&mut self.copied);
        while self.stage.in_flight() > 0 {
            self.stage.poll(&mut copied, true);
        }
        for copy in copied.drain(..) {
            self.release(copy.tag);
            self.ring.put(copy.slot);
        }
        self.copied = copied;
        if self.flying > 0 {
            let mut done = std::mem::take(&mut self.done);
            // The job has its error already; a second one says nothing new.
            if self.engine.poll(&mut done, timeout).is_err() {
                std::thread::sleep(timeout);
            }
            self.flying -= done.len();
            done.drain(..)
                .for_each(|completion| self.land(completion.io));
            self.done = done;
        }
        self.is_home()
    }
}
