//! A lane: one thread with one engine, one copy stage and its slots of the ring.
//!
//! A lane takes chunks of the jobs on its board, keeps its engine's queue full, and brings every chunk home: a
//! short transfer is continued, an interrupted one begun again, a staged one copied between its
//! slot and the region, and a copy across turned round and written. Storage and copies are under
//! way at the same time: copies are looked at whenever storage has answered, and waited for only
//! when nothing else is left to do. Nothing on the way of one I/O allocates or logs, and only where several jobs share
//! the board does it lock; what is counted goes into the lane's own [`Tally`](crate::tally::Tally) of the job.
//! Portions are inspected in their slot before they are copied on. An error stops the job that it happened to, and no other.

mod inspecting;
mod jobs;
mod ring;
mod taking;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use straightway_core::{Chunk, Direction, Error, Leg, Result, Route};
use straightway_sys::{
    Buf, By, Slot,
    cuda::{Direction as Heading, Landing},
};

use crate::{
    board::Board,
    engine::Engine,
    flight::{Flight, Verdict},
    job::Job,
    request::{Done, Io},
    stage::{Copied, Copy, Stage},
    tally::record,
    tenant::now_s,
    track::Track,
};
use jobs::Jobs;
pub(crate) use ring::Ring;

/// How long a lane waits before it looks again whether a job was asked to stop.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long it waits for storage while copies are under way that the queue is hungry for. A copy of
/// 4 MiB takes 76 us at the 55 GB/s of an H200's bus.
const COPY_PATIENCE: Duration = Duration::from_micros(100);

/// What a lane is made of.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Its number in its crew.
    pub(crate) number: usize,
    pub(crate) track: Track,
    pub(crate) engine: Box<dyn Engine>,
    /// How many I/Os fewer than the engine takes there may be in flight: where a job only writes, and where none does.
    pub(crate) depths_unused: [usize; 2],
    pub(crate) stage: Box<dyn Stage>,
    pub(crate) ring: Ring,
    /// How long it waits for the I/Os of a job that was stopped.
    pub(crate) settle_max: Duration,
}

/// One thread's engine, stage, slots and books.
#[derive(Debug)]
pub(crate) struct Lane {
    number: usize,
    track: Track,
    engine: Box<dyn Engine>,
    /// How many I/Os it may have in flight: where a job only writes, and where none does.
    depths: [usize; 2],
    /// Which of the two holds now.
    depth: usize,
    stage: Box<dyn Stage>,
    ring: Ring,
    settle_max: Duration,
    jobs: Jobs,
    /// The job that has the board for itself, up to this count of the board's changes.
    alone: Option<(u32, u64)>,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    /// How many I/Os the engine has.
    flying: usize,
    /// I/Os that the engine had no room for; at most one a flight.
    waiting: VecDeque<Io>,
    /// I/Os that a limit does not let go yet.
    held: VecDeque<Io>,
    /// A chunk that no slot was free for, and its job.
    parked: Option<(u32, Chunk)>,
    /// Flights whose I/O was queued since the last poll.
    queued: Vec<u32>,
    done: Vec<Done>,
    copied: Vec<Copied>,
    landings: Vec<Landing>,
}

impl Lane {
    /// A lane. Its ring is made when first needed.
    pub(crate) fn new(parts: Parts) -> Self {
        let depth = parts.engine.capabilities().depth;
        let within = |unused: usize| depth.saturating_sub(unused).max(1);
        let depths = parts.depths_unused.map(within);
        // Each slot may be in a copy while the queue is full of other I/Os.
        let flights = depth + parts.ring.slots_max();
        Self {
            number: parts.number,
            track: parts.track,
            engine: parts.engine,
            depths,
            depth,
            stage: parts.stage,
            ring: parts.ring,
            settle_max: parts.settle_max,
            jobs: Jobs::default(),
            alone: None,
            flights: vec![None; flights],
            free: (0..u32::try_from(flights).expect("depths and rings are small"))
                .rev()
                .collect(),
            flying: 0,
            waiting: VecDeque::with_capacity(flights),
            held: VecDeque::new(),
            parked: None,
            queued: Vec::with_capacity(depth),
            done: Vec::with_capacity(depth),
            copied: Vec::with_capacity(flights),
            landings: Vec::new(),
        }
    }

    /// Takes part in the jobs on the board until there are none. An error goes to its job.
    ///
    /// I/Os of a job that was stopped may still be in flight then, and [`is_home`](Self::is_home) says so. Such a lane
    /// must serve no more: storage does not answer it.
    pub(crate) fn serve(&mut self, board: &Board) {
        let mut seen = u64::MAX;
        loop {
            let changes = board.changes();
            if seen != changes {
                seen = changes;
                self.answer_for_ring(board);
            }
            let due_s = self.fill(board);
            self.leave_jobs();
            if !self.jobs.has_live() && due_s.is_none() {
                break;
            }
            let patience = due_s.map_or(PATIENCE, |due_s| {
                Duration::from_secs_f64((due_s - now_s()).clamp(0.0, PATIENCE.as_secs_f64()))
            });
            let storage_idles = self.flying == 0 && self.waiting.is_empty();
            if storage_idles && self.stage.in_flight() == 0 {
                // All that is there is held by a limit or by its class, or was taken by another lane just now.
                let start = Instant::now();
                board.wait_for_change(seen, patience);
                self.jobs.book_all(start.elapsed(), |tally| &mut tally.idle);
                continue;
            }
            let came = if storage_idles {
                0
            } else {
                self.poll_storage(patience, board)
            };
            // What came makes room in the queue, and that is filled before a copy is made by hand. What was checked is
            // copied at once, as long as it is in the processor's cache.
            let by_hand = self.stage.is_by_hand() && (came == 0 || self.track == Track::Checked);
            self.poll_copies(storage_idles || by_hand, board);
        }
        self.ring.put_spare();
        if self.is_home() {
            self.engine.rest();
        }
    }

    /// Makes the ring, if there is none yet; of one that grows slot by slot, one more slot.
    pub(crate) fn make_ring(&mut self) -> Result<()> {
        self.ring.make_more(self.stage.as_ref())
    }

    fn answer_for_ring(&mut self, board: &Board) {
        if let Some(answer) = board.ring_of(self.number) {
            // Nobody may be waiting any more.
            let _ = answer.send(self.make_ring());
        }
    }

    /// Fails all jobs that it takes part in.
    pub(crate) fn fail_jobs(&self, error: &Error) {
        for joined in self.jobs.live() {
            joined.posted.job.fail(error.again());
        }
    }

    /// Answers for the jobs that it is through with, and for those that were stopped and whose I/Os stay away.
    fn leave_jobs(&mut self) {
        for number in self.jobs.numbers() {
            let Some(joined) = self.jobs.get(number) else {
                continue;
            };
            let is_through = joined.chunks == 0 && joined.posted.job.is_over(self.track);
            if !is_through && !joined.is_given_up(self.settle_max) {
                continue;
            }
            self.alone = None;
            let (engine, ring) = (&mut self.engine, &self.ring);
            self.jobs.leave(number, |tally| {
                let seen = engine.sockets().into_iter();
                seen.for_each(|seen| tally.watch(seen));
                engine.names().into_iter().for_each(|name| tally.name(name));
                if let Some(warning) = engine.warning() {
                    tally.warn(warning);
                }
                ring.book(tally);
            });
            self.set_depth();
        }
    }

    /// Takes what storage has done, waiting for it. Answers how many I/Os that were.
    fn poll_storage(&mut self, most: Duration, board: &Board) -> usize {
        // A queue that is half full can be waited for; a hungrier one is fed by the copies. Those
        // that are to be made by hand are made instead of waiting.
        let hungry = self.flying * 2 < self.depth;
        let patience = match (self.stage.in_flight() > 0, self.stage.is_by_hand()) {
            (true, true) => Duration::ZERO,
            (true, false) if hungry => COPY_PATIENCE.min(most),
            _ => most,
        };
        let start = Instant::now();
        self.stamp_queued(start);
        let mut done = std::mem::take(&mut self.done);
        let polled = self.engine.poll(&mut done, patience);
        let now = Instant::now();
        self.jobs.book_all(now - start, |tally| match self.track {
            // Portions through the page cache are booked where they are submitted.
            Track::Drive | Track::Checked => &mut tally.drive,
            Track::Cached => &mut tally.page_cache,
        });
        let came = done.len();
        self.flying -= came;
        for completion in done.drain(..) {
            self.complete(completion, now, board);
        }
        self.done = done;
        if let Err(error) = polled {
            // The engine itself fails: nobody's I/Os come back by it.
            self.fail_jobs(&error);
            std::thread::sleep(patience);
        }
        came
    }

    /// Takes the copies that are done; where `wait` is set, waits for the oldest.
    fn poll_copies(&mut self, wait: bool, board: &Board) {
        if self.stage.in_flight() == 0 {
            return;
        }
        let start = Instant::now();
        let mut copied = std::mem::take(&mut self.copied);
        self.stage.poll(&mut copied, wait);
        let now = Instant::now();
        match copied.first() {
            Some(copy) if wait => {
                let own = self.flight(copy.tag).job;
                self.jobs.book(own, now - start, |tally| &mut tally.copying);
            }
            _ => self.jobs.book_all(now - start, |tally| &mut tally.copying),
        }
        for copy in copied.drain(..) {
            self.arrive(copy, now, board);
        }
        self.copied = copied;
    }

    /// Books what was queued since the last poll as handed over now.
    fn stamp_queued(&mut self, now: Instant) {
        for tag in self.queued.drain(..) {
            if let Some(flight) = &mut self.flights[tag as usize] {
                let tally = &mut self.jobs[flight.job].tally;
                record(&mut tally.queueing, now - flight.taken);
                flight.submitted = now;
            }
        }
    }

    /// Sends a chunk on the first step of its way.
    fn begin(&mut self, job: &Job, flight: Flight, tag: u32, board: &Board) {
        self.flights[tag as usize] = Some(flight);
        if !job.needs_slot(&flight.chunk) {
            self.submit(flight.window_io(job, tag));
            return;
        }
        let slot = self.ring.take();
        let mut slot = slot.expect("it was looked for before the chunk was begun");
        let used = self.ring.used_bytes();
        let peak = &mut self.jobs[flight.job].tally.staging_bytes_peak;
        *peak = used.max(*peak);
        if job.direction() == Direction::Out {
            flight.clear_gaps(job, &mut slot);
            self.copy(job, tag, slot, Heading::ToHost);
            return self.poll_copies(false, board);
        }
        self.submit(flight.slot_io(job, slot, tag));
    }

    /// Hands an I/O to the engine; one that does not fit, or may not go yet, waits. Answers whether the engine has room.
    fn submit(&mut self, io: Io) -> bool {
        let (tag, number) = (io.tag, self.flight(io.tag).job);
        let tenant = &self.jobs[number].posted.tenant;
        if !tenant.admits(io.bytes, now_s) {
            self.held.push_back(io);
            return true;
        }
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
            let took = start.elapsed();
            self.jobs.book(number, took, |tally| &mut tally.page_cache);
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
        let number = flight.job;
        flight.landings(job, &mut self.landings);
        let copy = Copy {
            tag,
            slot,
            direction: heading,
        };
        self.stage.start(copy, job.regions(), &self.landings);
        let took = start.elapsed();
        self.jobs.book(number, took, |tally| &mut tally.copying);
    }

    /// Brings a copy that is over one step on: home, or to be written.
    fn arrive(&mut self, copied: Copied, now: Instant, board: &Board) {
        let flight = *self.flight(copied.tag);
        let job = self.jobs.job(flight.job);
        let tally = &mut self.jobs[flight.job].tally;
        record(&mut tally.copy, now - flight.submitted);
        match (copied.outcome, copied.slot) {
            (Ok(()), Some(slot)) if flight.leg == Leg::Write && !job.is_stopped() => {
                self.submit(flight.slot_io(&job, slot, copied.tag));
            }
            (outcome, slot) => {
                self.ring.put(slot);
                self.release(copied.tag, board);
                match outcome {
                    Ok(()) => job.progress().add(flight.payload_bytes(&job)),
                    Err(error) => job.fail(error),
                }
            }
        }
    }

    /// Brings an I/O that came back one step on: again, onward or home.
    fn complete(&mut self, done: Done, now: Instant, board: &Board) {
        let tag = done.io.tag as usize;
        let mut flight = *self.flight(done.io.tag);
        let job = self.jobs.job(flight.job);
        let moved = *done.result.as_ref().unwrap_or(&0) as u64;
        let tally = &mut self.jobs[flight.job].tally;
        tally.complete(now - flight.submitted, moved, done.tries);
        if job.is_stopped() {
            // The first error has been told, and nobody wants what this brings.
            return self.land(done.io, board);
        }
        if done.missed {
            flight.miss();
        }
        if done.is_from_cache {
            flight.add_cached(moved);
        }
        match flight.judge(&job, done.io, done.result) {
            Verdict::Failed(io, error) => {
                self.land(io, board);
                let outcome = match job.inspect() {
                    Some(_) => job.refuse(&flight.chunk, error),
                    None => Err(error),
                };
                outcome.unwrap_or_else(|error| job.fail(error));
            }
            Verdict::Again(io) => {
                self.flights[tag] = Some(flight);
                self.submit(io);
            }
            Verdict::Whole(io) if job.inspect().is_some() => {
                self.inspect(&job, flight, io, board);
            }
            Verdict::Whole(io) => self.onward(&job, flight, io, now, board),
        }
    }

    /// After a whole I/O: the write of what was read, the next piece, the copy, or home.
    fn onward(&mut self, job: &Job, mut flight: Flight, io: Io, now: Instant, board: &Board) {
        let tag = io.tag;
        let across = job.direction() == Direction::Across;
        let buffered = flight.route() == Route::Buffered;
        let bytes = if buffered {
            flight.piece(job).extent.bytes
        } else {
            flight.payload_bytes(job)
        };
        flight.count(job, &mut self.jobs[flight.job].tally, bytes);
        match io.buf {
            buf if buffered && flight.has_next_piece(job) => {
                flight.next_piece(now);
                self.flights[tag as usize] = Some(flight);
                let next = match buf {
                    Buf::Slot(slot) => flight.slot_io(job, slot, tag),
                    Buf::Window(_) | Buf::File(_) => {
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
                self.land(Io { buf, ..io }, board);
            }
        }
    }

    fn flight(&self, tag: u32) -> &Flight {
        let flight = self.flights[tag as usize].as_ref();
        flight.expect("what is under way has its flight")
    }

    /// Ends a flight and takes its slot back.
    fn land(&mut self, io: Io, board: &Board) {
        self.release(io.tag, board);
        if let Buf::Slot(slot) = io.buf {
            self.ring.put(Some(slot));
        }
    }

    fn release(&mut self, tag: u32, board: &Board) {
        let flight = self.flights[tag as usize].take();
        let flight = flight.expect("what is under way has its flight");
        self.free.push(tag);
        self.give_up(flight.job, &flight.chunk, board);
    }

    /// Whether it has no I/O and no copy in flight.
    pub(crate) fn is_home(&self) -> bool {
        self.free.len() == self.flights.len()
    }

    /// For a lane that was set aside: takes what comes back, without a look at what it brings. Answers whether all of
    /// it has come.
    pub(crate) fn bring_home(&mut self, board: &Board) -> bool {
        while self.stage.in_flight() > 0 {
            self.poll_copies(true, board);
        }
        if self.flying > 0 {
            self.poll_storage(Duration::ZERO, board);
        }
        self.leave_jobs();
        self.is_home()
    }
}
