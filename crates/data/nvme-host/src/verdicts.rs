//! The verification results of a controller, by the opening of a namespace.
//!
//! A result is needed only while the namespace is open. [`History`](crate::history::History) removes it when the last
//! handle is closed and no thread verifies it.

use std::{
    collections::BTreeMap,
    sync::{Arc, MutexGuard},
};

use straightway_core::Lock;

/// The maximum number of results per controller. Beyond it, all results but pending ones are forgotten: they can be
/// found out again.
const VERDICTS_MAX: usize = 4096;

/// The result of verifying a namespace on a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A thread is verifying it.
    Pending,
    /// It is the same namespace.
    Same,
    /// It is another namespace or another version, or it does not exist. The text is the reason.
    Other(Arc<str>),
}

/// The verification results of a controller.
#[derive(Debug, Default)]
pub(crate) struct Verdicts(Lock<Known>);

#[derive(Debug, Default)]
struct Known {
    /// The number of times that the results were cleared.
    changes: u64,
    /// The results, by the number of the opening.
    all: BTreeMap<u64, Verdict>,
}

impl Verdicts {
    fn lock(&self) -> MutexGuard<'_, Known> {
        self.0.lock()
    }

    /// Clears all results after a change. Results of verifications that began before are ignored.
    pub(crate) fn clear(&self) {
        let mut known = self.lock();
        known.changes += 1;
        known.all.clear();
    }

    /// The result for an opening. An unknown opening becomes pending, and the error is the change count to pass to
    /// `set`.
    pub(crate) fn get(&self, opening: u64) -> Result<Verdict, u64> {
        let mut known = self.lock();
        if let Some(verdict) = known.all.get(&opening) {
            return Ok(verdict.clone());
        }
        if known.all.len() >= VERDICTS_MAX {
            // A pending one is waited for.
            known.all.retain(|_, verdict| matches!(verdict, Verdict::Pending));
        }
        if known.all.len() >= VERDICTS_MAX {
            known.all.pop_first();
        }
        known.all.insert(opening, Verdict::Pending);
        Err(known.changes)
    }

    /// Stores a result. It is ignored if `changes` is not the current change count.
    pub(crate) fn set(&self, opening: u64, verdict: Verdict, changes: u64) {
        let mut known = self.lock();
        if known.changes == changes
            && let Some(pending) = known.all.get_mut(&opening)
        {
            *pending = verdict;
        }
    }

    /// Removes the result for an opening that has ended.
    pub(crate) fn remove(&self, opening: u64) {
        self.lock().all.remove(&opening);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_from_before_a_change_is_ignored() {
        let verdicts = Verdicts::default();
        let asked = verdicts.get(1).unwrap_err();
        assert_eq!(verdicts.get(1), Ok(Verdict::Pending));
        verdicts.clear();
        let again = verdicts.get(1).unwrap_err();
        verdicts.set(1, Verdict::Same, asked);
        assert_eq!(verdicts.get(1), Ok(Verdict::Pending));
        let other = Verdict::Other("another".into());
        verdicts.set(1, other.clone(), again);
        assert_eq!(verdicts.get(1), Ok(other));
    }

    #[test]
    fn beyond_the_limit_openings_are_verified_again_and_pending_ones_are_kept() {
        let verdicts = Verdicts::default();
        let pending = verdicts.get(0).unwrap_err();
        for opening in 1..=VERDICTS_MAX as u64 {
            let changes = verdicts.get(opening).unwrap_err();
            verdicts.set(opening, Verdict::Same, changes);
        }
        assert!(verdicts.get(1).is_err());
        // Two old openings that are asked for in turn do not push each other out.
        assert!(verdicts.get(2).is_err());
        assert_eq!(verdicts.get(1), Ok(Verdict::Pending));
        verdicts.set(0, Verdict::Same, pending);
        assert_eq!(verdicts.get(0), Ok(Verdict::Same));
    }
}
