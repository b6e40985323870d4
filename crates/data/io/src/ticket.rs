//! A running job, which can be waited for, polled and cancelled.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, TryRecvError},
    },
    time::Instant,
};

use straightway_core::{Direction, Error, ErrorKind, Rate, Receipt, Result};
use straightway_sys::cufile::Counters;

use crate::{
    books::{Books, Running},
    job::Job,
    request::Op,
    tally::Tally,
};

/// A running job. Dropping it cancels the job.
#[derive(Debug)]
pub struct Ticket {
    pub(crate) job: Arc<Job>,
    /// Finished jobs of the same transfer: the trial of two methods.
    pub(crate) earlier: Vec<Ticket>,
    /// Receives the tallies of its lanes. It is closed when all have sent theirs.
    pub(crate) inbox: Receiver<Tally>,
    /// The sum of the tallies so far.
    pub(crate) lanes: Option<Tally>,
    /// cuFile's counters before it began.
    pub(crate) counted: Option<Counters>,
    /// Its rate limit.
    pub(crate) limit: Option<Rate>,
    /// Counts it as running.
    pub(crate) _running: Running,
}

impl Ticket {
    /// Waits until its bytes are in place, and durable if it wrote, unless a later job syncs them.
    pub fn wait(self) -> Result<Receipt> {
        let first = self.earlier.first().map_or(&self.job, |first| &first.job);
        let mut books = Books::since(first.opening);
        self.enter(&mut books)?;
        Ok(books.close())
    }

    /// Whether its lanes have finished, successfully or not. [`wait`](Self::wait) makes the written bytes durable.
    pub fn is_done(&mut self) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(lane) => self.add(lane),
                Err(error) => return error == TryRecvError::Disconnected,
            }
        }
    }

    /// Asks it to stop. [`wait`](Self::wait) waits for I/Os in flight; no more are begun.
    pub fn cancel(&self) {
        self.job.cancel();
    }

    /// Waits like [`wait`](Self::wait), and adds the job to the books of a larger operation.
    pub fn enter(mut self, books: &mut Books) -> Result<()> {
        for earlier in std::mem::take(&mut self.earlier) {
            earlier.enter(books)?;
        }
        self.join();
        let job = &self.job;
        tracing::trace!("all lanes are through with a job");
        job.outcome()?;
        if let (Some(direct_path), Some(lanes)) = (&job.direct_path, &mut self.lanes) {
            // Other cuFile jobs that ran at the same time are counted too. Bytes count as direct only if all were.
            for &leg in job.legs() {
                let proof = direct_path.proof_since(self.counted, leg);
                job.check_route(proof)?;
                lanes.attribute(leg, proof);
            }
            direct_path.enter(books);
        }
        check_all_moved(job, self.lanes.as_ref())?;
        let synced = Instant::now();
        settle(job)?;
        books.add(job, self.lanes.as_ref(), synced.elapsed(), self.limit);
        Ok(())
    }

    /// Waits until its lanes have finished.
    pub(crate) fn join(&mut self) {
        while let Ok(lane) = self.inbox.recv() {
            self.add(lane);
        }
    }

    fn add(&mut self, lane: Tally) {
        match &mut self.lanes {
            Some(all) => all.add(&lane),
            None => self.lanes = Some(lane),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Nobody can get its result any more. A finished job is not affected.
        self.job.cancel();
    }
}

/// Checks that every byte was counted once on each leg. A lane that panicked sends no tally, and its job must not count
/// as done.
fn check_all_moved(job: &Job, lanes: Option<&Tally>) -> Result<()> {
    let wanted = job.arrived_bytes();
    for &leg in job.legs() {
        let rows = lanes.map(Tally::routes).unwrap_or_default();
        let moved: u64 = rows.iter().filter(|r| r.leg == leg).map(|r| r.bytes).sum();
        if moved != wanted {
            let name = job.objects.name();
            let message = format!("a lane ended early, after {moved} of {wanted} bytes");
            return Err(Error::new(ErrorKind::Transient, "finish with", name, message));
        }
    }
    Ok(())
}

/// Finishes a job after all bytes have moved: checks that the objects that were read have not changed, and syncs those
/// that were written, unless a later job does.
fn settle(job: &Job) -> Result<()> {
    if job.direction() != Direction::Out {
        let read = job.objects.handles().iter();
        let checked: Vec<_> = read.filter(|object| !object.pins_reads()).cloned().collect();
        job.objects.store().settle(Op::Read, &checked)?;
    }
    match job.written().filter(|_| job.ask.syncs) {
        Some(written) => written.store().settle(Op::Write, written.handles()),
        None => Ok(()),
    }
}
