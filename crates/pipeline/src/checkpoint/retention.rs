//! Which steps are kept, and how the others are removed.
//!
//! `removal` has the protocol by which one step goes. Steps that refer to others go before those, so that whenever
//! pruning is broken off, what is listed is whole.
//!
//! An unreadable step is kept, and so is every lower-numbered step it might refer to; all others can be pruned.

use std::{collections::BTreeSet, time::Duration};

use straightway_core::{Error, Kind, Result};

use super::{
    lock::Lock,
    manifest::Manifest,
    name::{fresh_nonce, is_plain_shard},
    removal::{self, Outcome},
    steps::{Steps, names},
};

/// Which steps are kept. Those with a tag always are, and so are those that a kept one refers to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The last so many by their numbers; at least one.
    pub last: usize,
    /// And those that are multiples of this.
    pub every: Option<u64>,
    /// What the job at work has saved, in that order: the last so many of these stay as well, or a job that went
    /// back to an early step would lose each that it saves to the late ones of before.
    pub saved: Vec<u64>,
    /// The steps that were there when that was said. What came since stays: whose it is, is not known here.
    pub known: Option<Vec<u64>>,
}

/// What pruning does, or did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Steps that go.
    pub removed: Vec<u64>,
    /// Steps that stay.
    pub kept: Vec<u64>,
    /// Steps that stay because they could not be looked at or removed, and why.
    pub left: Vec<(u64, String)>,
    /// What crashed saves and removals had left behind.
    pub swept: Vec<String>,
}

/// The steps of a folder.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    manifests: Vec<Manifest>,
    /// Those whose manifest cannot be read, and why.
    damaged: Vec<(u64, String)>,
    /// The highest of the damaged that may lie in other steps too.
    heir: Option<u64>,
}

impl Survey {
    /// The steps that can be read, in order.
    fn steps(&self) -> Vec<u64> {
        self.manifests.iter().map(|m| m.step).collect()
    }

    /// Why a step is needed, if another refers to it or may do so.
    pub(crate) fn need(&self, step: u64) -> Option<String> {
        let mut heirs = self.manifests.iter();
        if let Some(heir) = heirs.find(|m| m.referenced().contains(&step)) {
            return Some(format!("step {} refers to it", heir.step));
        }
        let heir = self.heir.filter(|heir| step < *heir)?;
        Some(format!("step {heir} cannot be read and may refer to it"))
    }
}

impl Steps {
    /// What pruning would do.
    pub fn plan_prune(&self, retention: &Retention) -> Result<Pruned> {
        let (pruned, _) = self.divide(retention)?;
        Ok(pruned)
    }

    /// Removes the steps that need not be kept, and where no job saves here, what crashed ones left.
    pub fn prune(&self, retention: &Retention) -> Result<Pruned> {
        let mut swept = Vec::new();
        // First, as what a crashed save held, or 0.1.0 had put aside, may be what is to be kept or removed.
        if let Ok(lock) = Lock::take(self.root(), "prune", Duration::ZERO)
            && lock.is_held()
        {
            swept = self.sweep(None)?;
        }
        let (mut pruned, manifests) = self.divide(retention)?;
        pruned.swept = swept;
        for step in removal_order(&pruned.removed, &manifests)? {
            let why = match removal::remove(self, step, fresh_nonce) {
                Ok(Outcome::Removed) => continue,
                // Somebody tagged it meanwhile, or saved what refers to it.
                Ok(Outcome::Kept(_)) => None,
                // It went by another hand.
                Err(error) if error.kind() == Kind::NotFound => continue,
                // One that will not go is no reason for the others to stay.
                Err(error) => Some(error.to_string()),
            };
            pruned.removed.retain(|gone| *gone != step);
            pruned.kept.push(step);
            pruned.left.extend(why.map(|why| (step, why)));
        }
        pruned.kept.sort_unstable();
        Ok(pruned)
    }

    /// Removes a step, whatever retention says, unless it has a tag or another step refers to it.
    pub fn remove(&self, step: u64) -> Result<()> {
        match removal::remove(self, step, fresh_nonce)? {
            Outcome::Removed => Ok(()),
            Outcome::Kept(why) => {
                let path = self.step_path(step);
                Err(Error::new(Kind::Invalid, "remove", path.display(), why)
                    .with_hint("take its tags away and remove the steps first that refer to it"))
            }
        }
    }

    /// Looks at all steps.
    pub(crate) fn survey(&self) -> Result<Survey> {
        let mut survey = Survey::default();
        for step in self.steps()? {
            match self.read_manifest(step) {
                Ok(manifest) => survey.manifests.push(manifest),
                // Removed meanwhile.
                Err(error) if error.kind() == Kind::NotFound => {}
                Err(error) => {
                    if error.kind() == Kind::Unsupported || !self.is_plain(step) {
                        survey.heir = Some(step);
                    }
                    survey.damaged.push((step, error.to_string()));
                }
            }
        }
        Ok(survey)
    }

    /// Whether all shards of a step are plain files, which refer to nothing. Its manifest is not asked.
    fn is_plain(&self, step: u64) -> bool {
        let names = self.step(step).and_then(|held| names(&*held));
        names.is_ok_and(|names| names.iter().all(|name| is_plain_shard(name)))
    }

    /// Divides the steps into those that stay and those that go.
    fn divide(&self, retention: &Retention) -> Result<(Pruned, Vec<Manifest>)> {
        let survey = self.survey()?;
        let steps = survey.steps();
        let own: Vec<_> = retention
            .saved
            .iter()
            .filter(|step| steps.contains(step))
            .collect();
        let newest = |all: usize| all.saturating_sub(retention.last.max(1));
        let mut kept: BTreeSet<u64> = steps[newest(steps.len())..].iter().copied().collect();
        kept.extend(own[newest(own.len())..].iter().copied());
        let mut left = survey.damaged.clone();
        for &step in &steps {
            let is_mth = retention
                .every
                .is_some_and(|every| every > 0 && step.is_multiple_of(every));
            let tags = self.tags(step);
            left.extend(tags.as_ref().err().map(|error| (step, error.to_string())));
            let is_tagged = tags.map_or(true, |tags| !tags.is_empty());
            let is_new = retention.known.as_ref().is_some_and(|k| !k.contains(&step));
            let is_needed = survey.heir.is_some_and(|heir| step < heir);
            if is_mth || is_tagged || is_new || is_needed {
                kept.insert(step);
            }
        }
        let heirs = survey.manifests.iter().filter(|m| kept.contains(&m.step));
        let needed: Vec<_> = heirs.flat_map(Manifest::referenced).collect();
        kept.extend(needed);
        let (mut kept, removed): (Vec<_>, Vec<_>) =
            steps.into_iter().partition(|step| kept.contains(step));
        kept.extend(survey.damaged.iter().map(|(step, _)| *step));
        kept.sort_unstable();
        let pruned = Pruned {
            removed,
            kept,
            left,
            swept: Vec::new(),
        };
        Ok((pruned, survey.manifests))
    }
}

/// The steps to remove in an order in which none goes before those that refer to it.
fn removal_order(removed: &[u64], manifests: &[Manifest]) -> Result<Vec<u64>> {
    let mut left: Vec<_> = manifests
        .iter()
        .filter(|m| removed.contains(&m.step))
        .collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let is_free = |step: u64| !left.iter().any(|m| m.referenced().contains(&step));
        let Some(at) = left.iter().rposition(|m| is_free(m.step)) else {
            let steps = "steps that refer to each other";
            let message = "a circle is not possible by itself: a manifest was tampered with";
            return Err(Error::new(Kind::Corrupt, "remove", steps, message));
        };
        order.push(left.remove(at).step);
    }
    Ok(order)
}
