//! A batch: loads or stores that run in the background.

use std::{
    fmt,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use straightway_core::{Error, Lock, Receipt, Result, receipt::Percentiles};
use straightway_io::{Completion, Ticket};
use straightway_sys::Event;

use crate::{
    receipt::{BatchKind, KvReceipt, Misses, Outcome, Prefill, SCHEMA},
    space::Shared,
};

/// The most warnings of a receipt.
const WARNINGS_MAX: usize = 8;

/// The result of a batch.
#[derive(Debug)]
pub struct Done {
    /// The receipt.
    pub receipt: KvReceipt,
    /// What became of each chunk, in the order of the call.
    pub outcomes: Vec<Outcome>,
    /// The first error of a store. The chunks that it concerns were not stored.
    pub error: Option<Error>,
}

/// A running batch. Dropping it cancels it, and does not wait.
pub struct Batch {
    running: Arc<Running>,
    tickets: Vec<Ticket>,
    event: OnceLock<Arc<Event>>,
}

/// What the jobs of a batch share.
pub(crate) struct Running {
    pub(crate) shared: Arc<Shared>,
    operation: BatchKind,
    prefill: Option<Prefill>,
    began: Instant,
    /// The jobs that have not ended, and the call that begins them.
    open: AtomicUsize,
    gathered: Lock<Gathered>,
    completion: Completion<Result<Done>>,
}

#[derive(Debug, Default)]
struct Gathered {
    outcomes: Vec<Outcome>,
    receipts: Vec<Receipt>,
    /// The error of a load, or the cancellation of a batch.
    failed: Option<Error>,
    error: Option<Error>,
    warnings: Vec<String>,
}

impl Running {
    /// A batch of chunks whose outcomes are these until they are [set](Self::set).
    pub(crate) fn new(
        shared: &Arc<Shared>,
        operation: BatchKind,
        outcomes: Vec<Outcome>,
        prefill: Option<Prefill>,
        began: Instant,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared: Arc::clone(shared),
            operation,
            prefill,
            began,
            open: AtomicUsize::new(1),
            gathered: Lock::new(Gathered {
                outcomes,
                ..Gathered::default()
            }),
            completion: Completion::default(),
        })
    }

    /// Counts a job that is about to begin. [`leave`](Self::leave) has to follow.
    pub(crate) fn enter(&self) {
        self.open.fetch_add(1, Ordering::Relaxed);
    }

    /// Sets the outcome of a chunk.
    pub(crate) fn set(&self, number: usize, outcome: Outcome) {
        self.gathered.lock().outcomes[number] = outcome;
    }

    /// Adds the receipt of a job.
    pub(crate) fn add(&self, receipt: &Receipt) {
        self.gathered.lock().receipts.push(receipt.clone());
    }

    /// Records that the batch has failed.
    pub(crate) fn fail(&self, error: &Error) {
        self.gathered.lock().failed.get_or_insert_with(|| error.again());
    }

    /// Records the error of a store.
    pub(crate) fn note(&self, error: &Error) {
        let mut gathered = self.gathered.lock();
        gathered.error.get_or_insert_with(|| error.again());
    }

    /// Adds a warning.
    pub(crate) fn warn(&self, warning: String) {
        let warnings = &mut self.gathered.lock().warnings;
        if warnings.len() < WARNINGS_MAX {
            warnings.push(warning);
        }
    }

    /// Ends a job, or the call. The last one ends the batch.
    pub(crate) fn leave(&self) {
        if self.open.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let gathered = std::mem::take(&mut *self.gathered.lock());
        self.completion.publish(match gathered.failed {
            Some(error) => Err(error),
            None => Ok(self.done(gathered)),
        });
    }

    fn done(&self, gathered: Gathered) -> Done {
        let chunk_bytes = self.shared.geometry.chunk_bytes();
        let count = |wanted: Outcome| gathered.outcomes.iter().filter(|one| **one == wanted).count() as u64;
        let (hits, stored) = (count(Outcome::Hit), count(Outcome::Stored));
        let mut misses = Misses::default();
        for outcome in &gathered.outcomes {
            if let Outcome::Miss(reason) = outcome {
                misses.add(*reason);
            }
        }
        let bytes = (hits + stored) * chunk_bytes;
        let seconds = self.began.elapsed().as_secs_f64();
        let slowest = |a: Percentiles, b: Percentiles| if b.p99_us > a.p99_us { b } else { a };
        let latencies = gathered.receipts.iter().map(|receipt| receipt.latency.storage);
        let mut warnings = gathered.warnings;
        let more = gathered
            .receipts
            .iter()
            .flat_map(|receipt| receipt.warnings.iter().cloned());
        warnings.extend(more.take(WARNINGS_MAX));
        warnings.dedup();
        let receipt = KvReceipt {
            schema: SCHEMA,
            operation: self.operation,
            chunks: gathered.outcomes.len() as u64,
            hits,
            misses,
            stored,
            present: count(Outcome::Present),
            not_stored: count(Outcome::NotStored),
            bytes,
            seconds,
            rate_bytes_per_s: if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 },
            routes: routes(&gathered.receipts),
            latency: latencies.fold(Percentiles::default(), slowest),
            encrypted: self.shared.key.is_some(),
            seconds_saved: self.prefill.map(|prefill| {
                let computing = hits as f64 * prefill.tokens_per_chunk / prefill.tokens_per_s;
                computing - seconds
            }),
            warnings,
        };
        self.shared.counters.add(&receipt);
        Done {
            receipt,
            outcomes: gathered.outcomes,
            error: gathered.error,
        }
    }
}

/// The bytes of all receipts by route.
fn routes(receipts: &[Receipt]) -> Vec<straightway_core::receipt::RouteBytes> {
    let mut all: Vec<straightway_core::receipt::RouteBytes> = Vec::new();
    for part in receipts.iter().flat_map(|receipt| &receipt.routes) {
        let is_same = |one: &&mut straightway_core::receipt::RouteBytes| {
            (one.leg, one.route, one.reason) == (part.leg, part.route, part.reason)
        };
        match all.iter_mut().find(is_same) {
            Some(one) => one.bytes += part.bytes,
            None => all.push(*part),
        }
    }
    all
}

impl Batch {
    /// A batch with these jobs, once its call has [left](Running::leave).
    pub(crate) fn new(running: Arc<Running>, tickets: Vec<Ticket>) -> Self {
        Self {
            running,
            tickets,
            event: OnceLock::new(),
        }
    }

    /// Waits for the end. The memory of the chunks is then not used any more.
    ///
    /// # Errors
    ///
    /// `Cancelled` if it was cancelled, and the error of the target memory of a load. A chunk that cannot be read is a
    /// miss, and one that cannot be stored is in [`Done::error`].
    pub fn wait(self) -> Result<Done> {
        let Self { running, tickets, .. } = self;
        // The jobs use the memory until their tickets say that they have ended. Their results are in the batch.
        for ticket in tickets {
            let _ = ticket.wait();
        }
        let done = running.completion.take();
        done.expect("a batch is used up by taking its result")
    }

    /// Waits at most `timeout`. Returns whether the batch has ended.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        self.running.completion.wait_for(timeout)
    }

    /// Whether it has ended. [`wait`](Self::wait) then returns at once.
    pub fn is_done(&self) -> bool {
        self.running.completion.is_ended()
    }

    /// A descriptor that becomes readable when the batch has ended, and stays readable: an `eventfd(2)`.
    pub fn descriptor(&self) -> Result<BorrowedFd<'_>> {
        if self.event.get().is_none() {
            let event = self.running.completion.event()?;
            return Ok(self.event.get_or_init(|| event).as_fd());
        }
        Ok(self.event.get().expect("it was found above").as_fd())
    }

    /// Asks it to stop. Chunks that were not begun are not loaded or stored, and a batch of stores that is stopped
    /// publishes none of the rest.
    pub fn cancel(&self) {
        self.tickets.iter().for_each(Ticket::cancel);
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} jobs)", self.tickets.len())
    }
}
