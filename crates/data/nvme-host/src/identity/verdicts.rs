//! The verification results of one opening, by association.

use std::sync::{Arc, Weak};

use crate::session::association::Association;

/// The result of verifying a namespace on an association.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A thread is verifying it.
    Pending,
    /// It is the same namespace.
    Same,
    /// It is another namespace or another version, or it does not exist. The text is the reason.
    Other(Arc<str>),
}

/// The verification results of one opening.
#[derive(Debug, Default)]
pub(crate) struct Verdicts(Vec<Known>);

#[derive(Debug)]
struct Known {
    association: Weak<Association>,
    /// The number of reported changes when the verification began. After another change, the result is void.
    changes: u64,
    verdict: Verdict,
    /// The boot of the target's machine; 0 if it is not known.
    boot: u64,
}

impl Verdicts {
    /// The result on an association. An unknown one becomes pending, and the error is the change count to pass to
    /// `set`.
    pub(crate) fn get(&mut self, association: &Arc<Association>) -> Result<Verdict, u64> {
        let changes = association.namespace_changes();
        if let Some(known) = self.find(association)
            && known.changes == changes
        {
            return Ok(known.verdict.clone());
        }
        // The machine stays the same while its namespace is verified again: writes must not change machines meanwhile.
        let boot = self.boot(association);
        let own = Arc::downgrade(association);
        // Each reconnect brings a new association.
        let is_other = |known: &Known| !known.association.ptr_eq(&own);
        self.0
            .retain(|known| known.association.strong_count() > 0 && is_other(known));
        self.0.push(Known {
            association: own,
            changes,
            verdict: Verdict::Pending,
            boot,
        });
        Err(changes)
    }

    /// Stores a result, with the boot of the target's machine, or 0 if the verification did not learn it. It is ignored
    /// if `changes` is not that of the pending one.
    pub(crate) fn set(&mut self, association: &Arc<Association>, changes: u64, verdict: Verdict, boot: u64) {
        if let Some(known) = self.find(association)
            && known.changes == changes
        {
            known.verdict = verdict;
            if boot > 0 {
                known.boot = boot;
            }
        }
    }

    /// The boot of the machine of an association; 0 if it is not known.
    pub(crate) fn boot(&mut self, association: &Arc<Association>) -> u64 {
        self.find(association).map_or(0, |known| known.boot)
    }

    fn find(&mut self, association: &Arc<Association>) -> Option<&mut Known> {
        let mut all = self.0.iter_mut();
        all.find(|known| known.association.as_ptr() == Arc::as_ptr(association))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_from_before_a_change_is_ignored() {
        let (mut verdicts, association) = (Verdicts::default(), Arc::new(Association::default()));
        let asked = verdicts.get(&association).unwrap_err();
        assert_eq!(verdicts.get(&association), Ok(Verdict::Pending));
        association.count_namespace_change();
        verdicts.set(&association, asked, Verdict::Same, 7);
        let again = verdicts.get(&association).unwrap_err();
        verdicts.set(&association, asked, Verdict::Same, 7);
        assert_eq!(verdicts.get(&association), Ok(Verdict::Pending));
        let other = Verdict::Other("another".into());
        verdicts.set(&association, again, other.clone(), 8);
        assert_eq!(verdicts.get(&association), Ok(other));
        assert_eq!(verdicts.boot(&association), 8);
    }

    #[test]
    fn the_machine_stays_known_while_its_namespace_is_verified_again() {
        let (mut verdicts, association) = (Verdicts::default(), Arc::new(Association::default()));
        let asked = verdicts.get(&association).unwrap_err();
        verdicts.set(&association, asked, Verdict::Same, 7);
        association.count_namespace_change();
        let again = verdicts.get(&association).unwrap_err();
        assert_eq!(verdicts.boot(&association), 7);
        verdicts.set(&association, again, Verdict::Other("it is gone".into()), 0);
        assert_eq!(verdicts.boot(&association), 7);
    }

    #[test]
    fn associations_have_their_own_results_and_ended_ones_are_forgotten() {
        let (mut verdicts, last) = (Verdicts::default(), Arc::new(Association::default()));
        for _ in 0..100 {
            let association = Arc::new(Association::default());
            let changes = verdicts.get(&association).unwrap_err();
            verdicts.set(&association, changes, Verdict::Same, 1);
            assert_eq!(verdicts.get(&association), Ok(Verdict::Same));
        }
        assert!(verdicts.get(&last).is_err());
        assert_eq!((verdicts.0.len(), verdicts.boot(&last)), (1, 0));
    }
}
