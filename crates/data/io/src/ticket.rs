//! A running job, which can be waited for, polled and cancelled.
//!
//! A job ends once: its bytes are in place, the objects that it read were checked, those that it wrote are durable, and
//! its completion function has returned. Only then does the ticket say so, in each of four ways:
//!
//! - [`wait`](Ticket::wait) returns the receipt. [`wait_for`](Ticket::wait_for) waits for a limited time.
//! - [`is_done`](Ticket::is_done) polls.
//! - [`descriptor`](Ticket::descriptor) becomes readable: for `poll(2)`, an event loop, or asyncio.
//! - A function in the job's [`Ask`](crate::Ask) is called ([`Ask::then`](crate::Ask::then)).
//!
//! No thread waits for a job. Ends that may block run on a few threads of the executor.

use std::{
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use straightway_core::{Receipt, Result};
use straightway_sys::{Event, Process};

use crate::{books::Books, completion::Completion};

/// A running job. Dropping it cancels the job, and does not wait for it.
#[derive(Debug)]
pub struct Ticket {
    completion: Arc<Completion<Result<Books>>>,
    /// The job's stop flag.
    cancelled: Arc<AtomicBool>,
    event: OnceLock<Arc<Event>>,
    /// The process whose threads run the job. A forked child does not have them.
    process: Process,
}

impl Ticket {
    pub(crate) fn new(completion: Arc<Completion<Result<Books>>>, cancelled: Arc<AtomicBool>) -> Self {
        Self {
            completion,
            cancelled,
            event: OnceLock::new(),
            process: Process::this(),
        }
    }

    /// The ticket of a job that has ended already.
    pub(crate) fn ended(outcome: Result<Books>) -> Self {
        let completion = Completion::default();
        completion.publish(outcome);
        Self::new(Arc::new(completion), Arc::default())
    }

    /// Waits for the end. Its bytes are then in place, and durable if it wrote, unless a later job syncs them.
    ///
    /// # Errors
    ///
    /// The first error of the job, `Cancelled` if it was stopped, and `Invalid` in a forked child, which does not have
    /// the threads that run it.
    pub fn wait(self) -> Result<Receipt> {
        self.outcome().map(Books::close)
    }

    /// Waits for the end, at most `timeout`. Returns whether the job has ended.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        self.is_own() && self.completion.wait_for(timeout)
    }

    /// Whether the job has ended, successfully or not. [`wait`](Self::wait) then returns at once.
    pub fn is_done(&self) -> bool {
        self.is_own() && self.completion.is_ended()
    }

    /// A descriptor that becomes readable when the job has ended, and stays readable. It is an `eventfd(2)`, made by
    /// the first call and closed with the ticket. Nothing has to be read from it.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        self.check_own()?;
        if self.event.get().is_none() {
            let event = self.completion.event()?;
            return Ok(self.event.get_or_init(|| event).as_fd());
        }
        Ok(self.event.get().expect("it was found above").as_fd())
    }

    /// Asks it to stop. [`wait`](Self::wait) waits for I/Os in flight; no more are begun. A sync that has begun is
    /// finished.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Waits like [`wait`](Self::wait), and adds the job to the books of a larger operation.
    pub fn enter(self, books: &mut Books) -> Result<()> {
        self.outcome().map(|own| books.merge(&own))
    }

    /// Waits like [`wait`](Self::wait), for one of several owners of the ticket. `None` if another has taken the receipt.
    pub fn take(&self) -> Option<Result<Receipt>> {
        if let Err(error) = self.check_own() {
            return Some(Err(error));
        }
        self.completion.take().map(|outcome| outcome.map(Books::close))
    }

    /// Waits for the end and returns the books of the job.
    pub(crate) fn outcome(self) -> Result<Books> {
        self.check_own()?;
        let outcome = self.completion.take();
        outcome.expect("a ticket is used up by taking its outcome")
    }

    fn is_own(&self) -> bool {
        self.process.is_this()
    }

    fn check_own(&self) -> Result<()> {
        let remedy = "make an executor in the child, and begin the transfer there";
        self.process.check("a transfer", remedy)
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        // Nobody can get its result any more. A finished job is not affected.
        self.cancel();
        // In a forked child, a thread of the parent may hold the lock for ever.
        if self.event.get().is_some() && self.is_own() {
            self.completion.forget_event();
        }
    }
}
