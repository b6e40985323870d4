//! Where the lanes of a job leave their tallies, and the start of the job's end.

use std::{fmt, sync::Arc};

use straightway_core::Lock;

use crate::tally::Tally;

/// The tallies of a job's lanes. The board and each lane of the job have a clone. When the last clone is dropped, all
/// lanes have left the job, and its end begins.
#[derive(Clone, Debug)]
pub(crate) struct Tallies(Arc<Inner>);

/// What happens once all lanes have left the job, with the sum of their tallies.
type AtEnd = Box<dyn FnOnce(Option<Tally>) + Send>;

struct Inner {
    sum: Lock<Option<Tally>>,
    /// The lock is there only because clones are on several threads.
    at_end: Lock<Option<AtEnd>>,
}

impl Tallies {
    /// No tallies yet. `at_end` runs on the thread that drops the last clone, so it must not block.
    pub(crate) fn new(at_end: impl FnOnce(Option<Tally>) + Send + 'static) -> Self {
        Self(Arc::new(Inner {
            sum: Lock::new(None),
            at_end: Lock::new(Some(Box::new(at_end))),
        }))
    }

    /// Adds the tally of a lane.
    pub(crate) fn add(&self, lane: Tally) {
        let mut sum = self.0.sum.lock();
        match &mut *sum {
            Some(sum) => sum.add(&lane),
            None => *sum = Some(lane),
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let sum = self.sum.get_mut().take();
        if let Some(at_end) = self.at_end.get_mut().take() {
            at_end(sum);
        }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tallies").finish_non_exhaustive()
    }
}
