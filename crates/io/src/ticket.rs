//! A job that was started: it can be waited for, asked about and stopped.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, TryRecvError},
    },
    time::Instant,
};

use straightway_core::{Direction, Error, Kind, Rate, Receipt, Result};
use straightway_sys::cufile::Counters;

use crate::{
    books::{Books, Running},
    job::Job,
    tally::Tally,
};

/// A job that was started. Dropping it stops the job.
#[derive(Debug)]
pub struct Ticket {
    pub(crate) job: Arc<Job>,
    /// Jobs of the same transfer that are over: the trial of two ways.
    pub(crate) earlier: Vec<Ticket>,
    /// Where its lanes answer. It is closed when all have.
    pub(crate) inbox: Receiver<Tally>,
    /// What they counted so far.
    pub(crate) lanes: Option<Tally>,
    /// cuFile's counters before it began.
    pub(crate) counted: Option<Counters>,
    /// The rate that it is held to.
    pub(crate) limit: Option<Rate>,
    /// That it is there.
    pub(crate) _running: Running,
}

impl Ticket {
    /// Waits until its bytes are in place, and durable where it wrote, unless it leaves that to another.
    pub fn wait(self) -> Result<Receipt> {
        let first = self.earlier.first().map_or(&self.job, |first| &first.job);
        let mut books = Books::since(first.opening);
        self.enter(&mut books)?;
        Ok(books.close())
    }

    /// Whether its lanes are through with it, well or not. What it wrote is made durable by [`wait`](Self::wait).
    pub fn is_done(&mut self) -> bool {
        loop {
            match self.inbox.try_recv() {
                Ok(lane) => self.add(lane),
                Err(error) => return error == TryRecvError::Disconnected,
            }
        }
    }

    /// Asks it to stop. What is in flight is waited for by [`wait`](Self::wait); nothing more is begun.
    pub fn cancel(&self) {
        self.job.cancel();
    }

    /// Waits as [`wait`](Self::wait) does, and enters the job in the books of something larger.
    pub fn enter(mut self, books: &mut Books) -> Result<()> {
        for earlier in std::mem::take(&mut self.earlier) {
            earlier.enter(books)?;
        }
        self.join();
        let job = &self.job;
        tracing::trace!("all lanes are through with a job");
        job.outcome()?;
        if let (Some(pass), Some(lanes)) = (&job.pass, &mut self.lanes) {
            // Jobs by cuFile that ran beside this one are counted with it. Bytes count as direct only where all were.
            for &leg in job.legs() {
                let proof = pass.proof_since(self.counted, leg);
                job.check_route(proof)?;
                lanes.attribute(leg, proof);
            }
            pass.enter(books);
        }
        check_all_moved(job, self.lanes.as_ref())?;
        let synced = Instant::now();
        settle(job)?;
        books.add(job, self.lanes.as_ref(), synced.elapsed(), self.limit);
        Ok(())
    }

    /// Waits until its lanes are through with it.
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
        // Nobody can learn of it any more. One that is through does not notice.
        self.job.cancel();
    }
}

/// Every byte must have been counted once on each leg. A lane that panicked is missing here, and
/// its job must not pass for done.
fn check_all_moved(job: &Job, lanes: Option<&Tally>) -> Result<()> {
    let wanted = job.arrived_bytes();
    for &leg in job.legs() {
        let rows = lanes.map(Tally::routes).unwrap_or_default();
        let moved: u64 = rows.iter().filter(|r| r.leg == leg).map(|r| r.bytes).sum();
        if moved != wanted {
            let name = job.objects.name();
            let message = format!("a lane ended early, after {moved} of {wanted} bytes");
            return Err(Error::new(Kind::Transient, "finish with", name, message));
        }
    }
    Ok(())
}

/// What is left when all bytes have moved: objects that were read must not have changed, and those that were written are
/// made durable, unless a later job sees to that.
fn settle(job: &Job) -> Result<()> {
    if job.direction() != Direction::Out {
        let read = job.objects.handles();
        read.iter()
            .filter(|object| !object.pins_reads())
            .try_for_each(|object| object.check_unchanged())?;
    }
    match job.written().filter(|_| job.ask.syncs) {
        Some(written) => written.store().sync(written.handles()),
        None => Ok(()),
    }
}
