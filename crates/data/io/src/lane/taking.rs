//! What a lane starts next: I/Os that waited, a parked chunk, or a chunk from the board.

use std::{collections::VecDeque, time::Instant};

use straightway_core::{Chunk, Error, Result, Route};

use super::Lane;
use crate::{
    board::{Board, Grant, Next},
    flight::Flight,
    inspect::Inspect,
    job::Job,
    request::{Io, usize_of},
    tenant::now_s,
    track::Track,
};

impl Lane {
    /// Starts chunks until the queue is full, no slot is free, or no chunk is left. Returns when there is more to do,
    /// if that is known.
    pub(super) fn fill(&mut self, board: &Board) -> Option<f64> {
        self.drop_stopped(board);
        if self.broken().is_some() {
            // Its jobs have failed, and the next ones need another lane.
            return None;
        }
        while let Some(io) = self.waiting.pop_front() {
            if !self.submit(io) {
                return None;
            }
        }
        for _ in 0..self.held.len() {
            let io = self.held.pop_front().expect("it was counted");
            self.submit(io);
        }
        while self.waiting.is_empty() && self.in_flight < self.depth {
            let Some(&tag) = self.free.last() else {
                break;
            };
            let (number, chunk) = match self.parked.take() {
                Some(parked) => parked,
                None => match self.find(board) {
                    Ok(found) => found,
                    Err(due_s) => return due_s,
                },
            };
            let job = self.jobs.job(number);
            match self.is_ready_for(&job, &chunk) {
                Ok(true) => {}
                Ok(false) => {
                    self.parked = Some((number, chunk));
                    break;
                }
                Err(error) => {
                    job.fail(error);
                    self.end_chunk(number, &chunk, board);
                    continue;
                }
            }
            self.free.pop();
            let flight = Flight::new(chunk, number, &job, Instant::now());
            self.begin(&job, flight, tag, board);
            if self.track == Track::Checked && chunk.route == Route::Buffered {
                // Its bytes are resident. They are checked before anything evicts them from the CPU cache.
                break;
            }
        }
        self.held_until()
    }

    /// When the rate limits admit the first held I/O.
    fn held_until(&self) -> Option<f64> {
        let due = |io: &Io| {
            let flight = self.flight(io.tag);
            self.jobs[flight.job].posted.tenant.due().limit_s
        };
        self.held.iter().map(due).reduce(f64::min)
    }

    /// The next chunk, and its job, which the lane joins. Without a chunk, the time when there may be one.
    fn find(&mut self, board: &Board) -> Result<(u32, Chunk), Option<f64>> {
        if let Some((number, changes)) = self.alone
            && changes == board.changes()
        {
            let posted = &self.jobs[number].posted;
            let is_held = posted.is_background() && board.traffic().holds_back(now_s());
            if !is_held && let Some(chunk) = posted.job.take(self.track) {
                self.begin_chunk(number, &chunk, board);
                return Ok((number, chunk));
            }
        }
        self.alone = None;
        self.equip(board)?;
        let (grant, chunk) = match board.take(self.number, now_s()) {
            Next::Run(grant, chunk) => (grant, chunk),
            Next::NotBefore(due_s) => return Err(Some(due_s)),
            Next::Idle => return Err(self.held_until()),
        };
        let Grant { posted, tallies, alone } = grant;
        let number = self.jobs.find(&posted).unwrap_or_else(|| {
            tracing::trace!(lane = self.number, "a lane takes its first chunk of a job");
            let number = self.jobs.join(&posted, tallies);
            self.set_depth();
            number
        });
        self.alone = alone.map(|changes| (number, changes));
        self.begin_chunk(number, &chunk, board);
        Ok((number, chunk))
    }

    /// Sets the queue depth. Writes have a deeper queue than reads, and reads at the same time share it.
    pub(super) fn set_depth(&mut self) {
        let [writing, reading] = self.depths;
        let writes = self.jobs.live().any(|joined| joined.posted.writes());
        self.depth = if writes { writing } else { reading };
    }

    /// Counts a chunk as in progress.
    fn begin_chunk(&mut self, number: u32, chunk: &Chunk, board: &Board) {
        let joined = &mut self.jobs[number];
        let bytes = joined.posted.job.plan().io_bytes(chunk);
        joined.chunks += 1;
        joined.chunk_bytes += bytes;
        if joined.posted.is_background() {
            board.traffic().begin(bytes);
        }
    }

    /// Counts a chunk as no longer in progress.
    pub(super) fn end_chunk(&mut self, number: u32, chunk: &Chunk, board: &Board) {
        let joined = &mut self.jobs[number];
        let bytes = joined.posted.job.plan().io_bytes(chunk);
        joined.chunks -= 1;
        joined.chunk_bytes -= bytes;
        if joined.posted.is_background() {
            board.traffic().end(bytes);
        }
    }

    /// Fails all jobs of a lane that panicked, and drops it. Its chunks no longer count as in progress: background jobs
    /// would wait for them for ever.
    pub(crate) fn abandon(self, error: &Error, board: &Board) {
        self.fail_jobs(error);
        let background_bytes = self.jobs.background_bytes();
        // This waits for the I/Os in flight.
        drop(self);
        board.traffic().end(background_bytes);
    }

    /// Whether a chunk can be begun: it has a slot if it needs one, and one to unpack into.
    fn is_ready_for(&mut self, job: &Job, chunk: &Chunk) -> Result<bool> {
        if !job.needs_slot(chunk) {
            return Ok(true);
        }
        let slot_bytes = usize_of(job.plan().slot_bytes());
        if !self.ring.holds(slot_bytes) {
            // Slots can be cut again only when none is in use. Until then packed portions in flight need the spare one.
            if !self.ring.is_idle() {
                return Ok(false);
            }
            self.ring.make(self.stage.as_ref(), slot_bytes)?;
        }
        if job.inspect().is_some_and(Inspect::unpacks) && !self.ring.has_spare(self.stage.as_ref())? {
            return Ok(false);
        }
        if self.ring.is_empty() {
            self.ring.grow(self.stage.as_ref())?;
        }
        Ok(!self.ring.is_empty())
    }

    /// Drops the I/Os of stopped jobs that were not submitted yet, and cancels the rest in the engine.
    fn drop_stopped(&mut self, board: &Board) {
        let mut dropped = Vec::new();
        for number in self.jobs.numbers() {
            let Some(joined) = self.jobs.get_mut(number) else {
                continue;
            };
            if !joined.note_stop() {
                continue;
            }
            for queue in [&mut self.waiting, &mut self.held] {
                let (of_it, others): (VecDeque<_>, _) = queue.drain(..).partition(|io| {
                    let flight = self.flights[io.tag as usize];
                    flight.is_some_and(|flight| flight.job == number)
                });
                *queue = others;
                dropped.extend(of_it);
            }
            for io in dropped.drain(..) {
                self.end_flight(io, board);
            }
            if let Some((_, chunk)) = self.parked.take_if(|(job, _)| *job == number) {
                self.end_chunk(number, &chunk, board);
            }
            let flights = &self.flights;
            let is_unwanted = |tag: u32| {
                let flight = flights.get(tag as usize).copied().flatten();
                flight.is_some_and(|flight| flight.job == number)
            };
            self.engine.cancel(&is_unwanted);
        }
    }
}
