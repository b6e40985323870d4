//! The options of a job: route, progress and sync.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use straightway_core::{Choice, Delivery, Portion, Receipt, Result};
use straightway_sys::Region;

use crate::{inspect::Inspect, objects::Objects, progress::Progress};

/// The options of a job. A [`Choice`] alone converts to one with that route.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The route of its bytes. Checked reads ignore it and take the best route.
    pub choice: Choice,
    /// Counts its bytes as they arrive, and can stop it. Several jobs may share it.
    pub progress: Arc<Progress>,
    /// Whether the job syncs what it writes when it ends. If not, a later job that writes to the same objects has to: a
    /// sync covers all of an object.
    pub syncs: bool,
    /// Whether a write leaves the bytes of its objects around each move unchanged. Otherwise it zeroes the rest of the
    /// pages at the edges of a move, which is right if one job writes all of an object.
    pub keeps_edges: bool,
    /// Whether the transfer may be the trial of two methods. Its beginning then waits for the runs of the trial.
    pub may_try: bool,
    /// Called at the end of the job.
    pub at_end: Option<AtEnd>,
}

impl Ask {
    /// Options with a route and a progress.
    pub fn new(choice: Choice, progress: &Arc<Progress>) -> Self {
        Self {
            choice,
            progress: Arc::clone(progress),
            syncs: true,
            keeps_edges: false,
            may_try: true,
            at_end: None,
        }
    }

    /// The same options with a function that is called once with the outcome of the job, after its checks and its sync
    /// and before its ticket says that it has ended. If the transfer cannot be begun, it is not called.
    ///
    /// It runs on a thread of the executor, of which there are few: it should be short, and must not wait for another
    /// job. If it panics, the job fails.
    #[must_use]
    pub fn then(self, function: impl Fn(&Result<Receipt>) + Send + Sync + 'static) -> Self {
        Self {
            at_end: Some(AtEnd(Arc::new(function))),
            ..self
        }
    }
}

/// A function that is called with the outcome of a job.
type Function = dyn Fn(&Result<Receipt>) + Send + Sync;

/// A function that is called at the end of a job: [`Ask::then`].
#[derive(Clone)]
pub struct AtEnd(Arc<Function>);

impl AtEnd {
    /// Calls it with the outcome. An error means that it panicked: its message is on stderr.
    pub(crate) fn call(&self, outcome: &Result<Receipt>) -> thread::Result<()> {
        catch_unwind(AssertUnwindSafe(|| (self.0)(outcome)))
    }
}

impl fmt::Debug for AtEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AtEnd")
    }
}

impl From<Choice> for Ask {
    fn from(choice: Choice) -> Self {
        Self::new(choice, &Arc::default())
    }
}

/// A read whose portions are inspected before any byte of them goes to a region.
#[derive(Debug)]
pub struct Checked {
    /// The objects to read.
    pub from: Objects,
    /// The parts of them to read.
    pub portions: Vec<Portion>,
    /// The destinations: the deliveries of the first portion, then those of the second, and so on.
    pub deliveries: Vec<Delivery>,
    /// The regions that the deliveries refer to.
    pub to: Vec<Arc<Region>>,
    /// The inspector of each portion.
    pub inspect: Arc<dyn Inspect>,
}
