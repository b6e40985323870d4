//! The end of a job, after its lanes have left it: the checks, the sync, cuFile's proof, and the completion function.
//!
//! It runs on the thread of the last lane if nothing in it can block, and otherwise on a thread of the executor's own:
//! a sync may take seconds, and on broken storage it never returns. What it publishes is final.

use std::{
    ffi::OsStr,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use straightway_core::{Direction, Error, ErrorKind, Rate, Result};
use straightway_sys::{File, cufile::Counters};

use crate::{
    ask::AtEnd, books::Books, completion::Completion, direct_path::DirectPath, handle::Handle, job::Job,
    opening::Running, request::Op, tally::Tally, threads::ThreadLimits,
};

/// The threads of an executor that finish jobs. If four file systems or services hang, a fifth is still served. A
/// journal commits once for several syncs that wait.
pub(crate) const THREADS: ThreadLimits = ThreadLimits {
    threads: 20,
    per_key: 4,
    name: "straightway-finish",
};

/// The file system or the store on which the end of a job may have to wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FinishKey {
    /// The device of a file system.
    Device(u64),
    /// The name of a store.
    Store(String),
}

/// What is left to do for a job once its lanes have left it.
#[derive(Debug)]
pub(crate) struct Finish {
    pub(crate) job: Arc<Job>,
    /// The completion function.
    pub(crate) at_end: Option<AtEnd>,
    /// The books of earlier jobs of the same transfer: the trial of two methods.
    pub(crate) earlier: Option<Books>,
    /// cuFile's counters before it began.
    pub(crate) counted: Option<Counters>,
    /// Its rate limit.
    pub(crate) limit: Option<Rate>,
    /// Counts it as running.
    pub(crate) running: Running,
    pub(crate) completion: Arc<Completion<Result<Books>>>,
}

impl Finish {
    /// Where its end may have to wait; `None` if nothing in it can block. The file systems of this machine answer what
    /// is asked about an open file from memory.
    pub(crate) fn waits_on(&self) -> Option<FinishKey> {
        let job = &self.job;
        if job.is_stopped() && self.at_end.is_none() {
            return None;
        }
        let synced = job.synced();
        let asked = |handle: &&Arc<dyn Handle>| {
            let is_local = handle.file().is_some_and(File::is_on_local_file_system);
            !handle.pins_reads() && !is_local
        };
        let is_read = job.direction() != Direction::Out;
        let asked = job.objects.handles().iter().filter(|_| is_read).find(asked);
        let uses_cufile = matches!(job.direct_path, Some(DirectPath::CuFile(_)));
        let runs_code = self.at_end.is_some() || uses_cufile;
        if synced.is_none() && asked.is_none() && !runs_code {
            return None;
        }
        let objects = synced.filter(|_| asked.is_none()).unwrap_or(&job.objects);
        let first = asked.or_else(|| objects.handles().first());
        let device = first.and_then(|handle| handle.file()).map(File::device_id);
        Some(device.map_or_else(
            || FinishKey::Store(objects.store().describe(OsStr::new(""))),
            FinishKey::Device,
        ))
    }

    /// Finishes the job, and then says that it has ended.
    pub(crate) fn run(self, lanes: Option<Tally>) {
        let Self {
            job,
            at_end,
            earlier,
            counted,
            limit,
            running,
            completion,
        } = self;
        tracing::trace!("all lanes are through with a job");
        let panicked = |what: &'static str| {
            let error = Error::new(ErrorKind::Transient, "finish with", job.objects.name(), what);
            Err(error.with_hint("the panic's message is on stderr: please report it"))
        };
        let settled = catch_unwind(AssertUnwindSafe(|| settle(&job, lanes, counted, limit, earlier)));
        let mut outcome = settled.unwrap_or_else(|_| panicked("its end panicked"));
        if let Some(at_end) = &at_end {
            let receipt = outcome.as_ref().map(Books::receipt).map_err(Error::again);
            let called = at_end.call(&receipt);
            outcome = called.map_or_else(|_| panicked("its completion function panicked"), |()| outcome);
        }
        // Whoever learns of the end finds the memory of the job unused.
        drop((job, running));
        completion.publish(outcome);
    }
}

/// Checks and syncs a job whose bytes have moved, and enters it into books.
fn settle(
    job: &Job,
    mut lanes: Option<Tally>,
    counted: Option<Counters>,
    limit: Option<Rate>,
    earlier: Option<Books>,
) -> Result<Books> {
    job.outcome()?;
    let mut books = earlier.unwrap_or_else(|| Books::since(job.opening));
    if let (Some(direct_path), Some(lanes)) = (&job.direct_path, &mut lanes) {
        // Other cuFile jobs that ran at the same time are counted too. Bytes count as direct only if all were.
        for &leg in job.legs() {
            let proof = direct_path.proof_since(counted, leg);
            job.check_route(proof)?;
            lanes.attribute(leg, proof);
        }
        if let DirectPath::CuFile(lease) = direct_path {
            books.register(lease.registration_s);
            books.name("cuFile");
        }
    }
    check_all_moved(job, lanes.as_ref())?;
    let began = Instant::now();
    check_unchanged(job)?;
    if let Some(written) = job.synced() {
        written.store().settle(Op::Write, written.handles())?;
    }
    books.add(job, lanes.as_ref(), began.elapsed(), limit);
    books.seal();
    Ok(books)
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

/// Checks that the objects that were read have not changed.
fn check_unchanged(job: &Job) -> Result<()> {
    if job.direction() == Direction::Out {
        return Ok(());
    }
    let read = job.objects.handles().iter();
    let checked: Vec<_> = read.filter(|object| !object.pins_reads()).cloned().collect();
    job.objects.store().settle(Op::Read, &checked)
}
