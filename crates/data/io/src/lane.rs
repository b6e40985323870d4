//! A lane: one thread with one engine, one copy stage and its slots of the ring.
//!
//! A lane takes chunks of the jobs on its board, keeps its engine's queue full, and completes every chunk: it continues
//! short transfers, repeats interrupted ones, copies staged chunks between slot and region, and writes what a copy
//! across has read. Storage I/Os and copies run at the same time: finished copies are collected after every storage
//! poll, and waited for only when nothing else is left to do. The path of one I/O does not allocate or log, and it
//! locks only if several jobs share the board. Portions are inspected in their slot before they are copied on. An error
//! stops its own job and no other.

mod inspecting;
mod jobs;
mod leaving;
mod ring;
mod taking;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use straightway_core::{Chunk, Direction, Error, Leg, Route};
use straightway_sys::{
    Buf, IoPath, Slot,
    cuda::{CopyDirection, RegionSpan},
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
pub(crate) use leaving::Settle;
pub(crate) use ring::Ring;

/// The longest wait before a lane checks again whether a job was stopped.
const POLL_TIMEOUT_MAX: Duration = Duration::from_millis(100);

/// Poll timeout while copies are in flight and the queue is less than half full. A copy of 4 MiB takes 76 us at the 55
/// GB/s of an H200's bus.
const COPY_POLL_TIMEOUT: Duration = Duration::from_micros(100);

/// The parts of a lane.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Its number in its crew.
    pub(crate) number: usize,
    pub(crate) track: Track,
    pub(crate) engine: Box<dyn Engine>,
    /// By how much the queue depth stays below the engine's depth: where a job only writes, and where none does.
    pub(crate) depths_unused: [usize; 2],
    pub(crate) stage: Box<dyn Stage>,
    pub(crate) ring: Ring,
    /// How long it waits for the I/Os of a stopped job.
    pub(crate) settle: Settle,
}

/// One thread's engine, stage, slots and tallies.
#[derive(Debug)]
pub(crate) struct Lane {
    number: usize,
    track: Track,
    engine: Box<dyn Engine>,
    /// The queue depth where a job only writes, and where none does.
    depths: [usize; 2],
    /// The current queue depth.
    depth: usize,
    stage: Box<dyn Stage>,
    ring: Ring,
    settle: Settle,
    /// Why its engine can run no more I/Os. Those in flight never complete.
    broken: Option<Error>,
    jobs: Jobs,
    /// The only job on the board, valid up to this count of the board's changes.
    alone: Option<(u32, u64)>,
    flights: Vec<Option<Flight>>,
    free: Vec<u32>,
    /// The number of I/Os in the engine.
    in_flight: usize,
    /// I/Os that the engine had no room for; at most one per flight.
    waiting: VecDeque<Io>,
    /// I/Os that a rate limit holds back.
    held: VecDeque<Io>,
    /// A chunk that waits for a free slot, and its job.
    parked: Option<(u32, Chunk)>,
    /// Flights whose I/O was submitted since the last poll.
    queued: Vec<u32>,
    done: Vec<Done>,
    copied: Vec<Copied>,
    region_spans: Vec<RegionSpan>,
}

impl Lane {
    /// Creates a lane. Its ring is made when first needed.
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
            settle: parts.settle,
            broken: None,
            jobs: Jobs::default(),
            alone: None,
            flights: vec![None; flights],
            free: (0..u32::try_from(flights).expect("depths and rings are small"))
                .rev()
                .collect(),
            in_flight: 0,
            waiting: VecDeque::with_capacity(flights),
            held: VecDeque::new(),
            parked: None,
            queued: Vec::with_capacity(depth),
            done: Vec::with_capacity(depth),
            copied: Vec::with_capacity(flights),
            region_spans: Vec::new(),
        }
    }

    /// Runs the jobs on the board until there are none. An error goes to its job.
    ///
    /// I/Os of a stopped job may still be in flight afterwards; [`is_idle`](Self::is_idle) is then false. Such a lane
    /// must not serve again, because storage does not answer it.
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
            let timeout = due_s.map_or(POLL_TIMEOUT_MAX, |due_s| {
                Duration::from_secs_f64((due_s - now_s()).clamp(0.0, POLL_TIMEOUT_MAX.as_secs_f64()))
            });
            let storage_idles = self.in_flight == 0 && self.waiting.is_empty();
            if storage_idles && self.stage.in_flight() == 0 {
                // Everything is held back by a limit or by its class, or another lane has just taken it.
                let start = Instant::now();
                board.wait_for_change(seen, timeout);
                self.jobs.book_all(start.elapsed(), |tally| &mut tally.idle);
                continue;
            }
            let completed = if storage_idles {
                0
            } else {
                self.poll_storage(timeout, board)
            };
            // Completed I/Os make room in the queue, which is filled before a copy is made on this thread. Checked
            // portions are copied at once, while they are in the CPU cache.
            let copy_now = self.stage.copies_on_poll() && (completed == 0 || self.track == Track::Checked);
            self.poll_copies(storage_idles || copy_now, board);
        }
        self.ring.put_spare();
        self.ring.give_back(self.stage.as_ref());
        self.note_slots(board);
        if self.is_idle() {
            self.engine.rest();
        }
    }

    /// Fails all jobs of this lane.
    pub(crate) fn fail_jobs(&self, error: &Error) {
        for joined in self.jobs.live() {
            joined.posted.job.fail(error.again());
        }
    }

    /// Polls storage for completions and processes them. Returns their number.
    fn poll_storage(&mut self, most: Duration, board: &Board) -> usize {
        // A queue that is half full can be waited for. A shorter one is filled by the copies. Copies on this thread are
        // made instead of waiting.
        let is_underfilled = self.in_flight * 2 < self.depth;
        let timeout = match (self.stage.in_flight() > 0, self.stage.copies_on_poll()) {
            (true, true) => Duration::ZERO,
            (true, false) if is_underfilled => COPY_POLL_TIMEOUT.min(most),
            _ => most,
        };
        let start = Instant::now();
        self.stamp_queued(start);
        let mut done = std::mem::take(&mut self.done);
        let polled = self.engine.poll(&mut done, timeout);
        let now = Instant::now();
        self.jobs.book_all(now - start, |tally| match self.track {
            // Portions through the page cache are counted on submission.
            Track::Drive | Track::Checked => &mut tally.drive,
            Track::Cached => &mut tally.page_cache,
        });
        let completed = done.len();
        self.in_flight -= completed;
        for completion in done.drain(..) {
            self.complete(completion, now, board);
        }
        self.done = done;
        if let Err(error) = polled {
            // The engine itself failed: no job gets its I/Os back.
            self.fail_jobs(&error);
            self.broken.get_or_insert(error);
        }
        completed
    }

    /// Why its engine can run no more I/Os, if that is so. Such a lane must not serve again.
    pub(crate) fn broken(&self) -> Option<&Error> {
        self.broken.as_ref()
    }

    /// Collects finished copies. If `wait` is set, waits for the oldest.
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

    /// Sets the submission time of I/Os queued since the last poll.
    fn stamp_queued(&mut self, now: Instant) {
        for tag in self.queued.drain(..) {
            if let Some(flight) = &mut self.flights[tag as usize] {
                let tally = &mut self.jobs[flight.job].tally;
                record(&mut tally.queueing, now - flight.taken);
                flight.submitted = now;
            }
        }
    }

    /// Starts the first I/O or copy of a chunk.
    fn begin(&mut self, job: &Job, flight: Flight, tag: u32, board: &Board) {
        self.flights[tag as usize] = Some(flight);
        if !job.needs_slot(&flight.chunk) {
            self.submit(flight.window_io(job, tag));
            return;
        }
        let slot = self.ring.take();
        let mut slot = slot.expect("a free slot was found before the chunk was begun");
        let used = self.ring.used_bytes();
        let peak = &mut self.jobs[flight.job].tally.staging_bytes_peak;
        *peak = used.max(*peak);
        if job.direction() == Direction::Out {
            flight.clear_gaps(job, &mut slot);
            self.copy(job, tag, slot, CopyDirection::ToHost);
            return self.poll_copies(false, board);
        }
        self.submit(flight.slot_io(job, slot, tag));
    }

    /// Submits an I/O to the engine. It waits if it does not fit, or if a rate limit holds it back. Returns whether the
    /// engine has room.
    fn submit(&mut self, io: Io) -> bool {
        let (tag, number) = (io.tag, self.flight(io.tag).job);
        let posted = &self.jobs[number].posted;
        // A limit counts each byte of a copy once: half when it is read, half when it is written.
        let is_half = posted.job.direction() == Direction::Across && matches!(io.buf, Buf::Slot(_));
        let bytes = if is_half { io.bytes.div_ceil(2) } else { io.bytes };
        if !posted.tenant.admits(bytes, now_s) {
            self.held.push_back(io);
            return true;
        }
        let is_inline = match self.track {
            Track::Drive => false,
            Track::Cached => true,
            Track::Checked => io.by != IoPath::Direct,
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
        self.in_flight += usize::from(fits);
        self.waiting.extend(refused);
        fits
    }

    /// Starts the copy between a flight's slot and the region.
    fn copy(&mut self, job: &Job, tag: u32, slot: Slot, heading: CopyDirection) {
        let start = Instant::now();
        let flight = self.flights[tag as usize].as_mut().expect("a copy has its flight");
        flight.submitted = start;
        let number = flight.job;
        flight.region_spans(job, &mut self.region_spans);
        let copy = Copy {
            tag,
            slot,
            direction: heading,
        };
        self.stage.start(copy, job.regions(), &self.region_spans);
        let took = start.elapsed();
        self.jobs.book(number, took, |tally| &mut tally.copying);
    }

    /// Continues after a copy: with a write, or by ending the flight.
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

    /// Continues after a completion: repeats the I/O, goes on to the next step, or ends the flight.
    fn complete(&mut self, done: Done, now: Instant, board: &Board) {
        let tag = done.io.tag as usize;
        let mut flight = *self.flight(done.io.tag);
        let job = self.jobs.job(flight.job);
        let moved = *done.result.as_ref().unwrap_or(&0) as u64;
        let tally = &mut self.jobs[flight.job].tally;
        tally.complete(now - flight.submitted, moved, done.tries);
        if job.is_stopped() {
            // The first error is recorded, and this result is not needed.
            return self.end_flight(done.io, board);
        }
        flight.note(&done, moved);
        match flight.judge(&job, done.io, done.result) {
            Verdict::Failed(io, error) => {
                self.end_flight(io, board);
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

    /// Continues after a whole I/O: with the write of a copy across, the next piece, the copy, or the end of the
    /// flight.
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
                flight.switch_to_write(now);
                flight.clear_gaps(job, &mut slot);
                self.flights[tag as usize] = Some(flight);
                match flight.reserve(job) {
                    Ok(()) => {
                        self.submit(flight.slot_io(job, slot, tag));
                    }
                    Err(error) => {
                        self.end_flight(flight.slot_io(job, slot, tag), board);
                        job.fail(error);
                    }
                }
            }
            Buf::Slot(slot) if job.direction() == Direction::In => {
                self.copy(job, tag, slot, CopyDirection::ToDevice);
            }
            buf => {
                // The pieces of a slot are counted together, those of a window one by one.
                let whole = matches!(buf, Buf::Slot(_)).then(|| flight.payload_bytes(job));
                job.progress().add(whole.unwrap_or(bytes));
                self.end_flight(Io { buf, ..io }, board);
            }
        }
    }

    fn flight(&self, tag: u32) -> &Flight {
        let flight = self.flights[tag as usize].as_ref();
        flight.expect("a tag in use has its flight")
    }

    /// Ends a flight and returns its slot to the ring.
    fn end_flight(&mut self, io: Io, board: &Board) {
        self.release(io.tag, board);
        if let Buf::Slot(slot) = io.buf {
            self.ring.put(Some(slot));
        }
    }

    fn release(&mut self, tag: u32, board: &Board) {
        let flight = self.flights[tag as usize].take();
        let flight = flight.expect("a tag in use has its flight");
        self.free.push(tag);
        self.end_chunk(flight.job, &flight.chunk, board);
    }

    /// Whether it has no I/O and no copy in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.free.len() == self.flights.len()
    }

    /// Collects late completions of a lane that was set aside, and discards their data. Returns whether nothing is left
    /// in flight.
    pub(crate) fn drain(&mut self, board: &Board) -> bool {
        while self.stage.in_flight() > 0 {
            self.poll_copies(true, board);
        }
        if self.in_flight > 0 {
            self.poll_storage(Duration::ZERO, board);
        }
        self.leave_jobs();
        self.is_idle()
    }
}
