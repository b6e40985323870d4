//! Retention: which steps are kept, and how the others are removed.
//!
//! `removal` has the protocol that removes one step. Steps that reference others are removed before those, so that all
//! listed steps are complete even if pruning is interrupted.
//!
//! An unreadable step is kept, and so is every lower-numbered step it might reference; all others can be pruned.

use std::{collections::BTreeSet, time::Duration};

use straightway_core::{Error, ErrorKind, Result};

use super::{
    manifest::Manifest,
    name::{fresh_nonce, is_plain_shard},
    records::names,
    removal::{self, Outcome},
    steps::Steps,
};

/// The rule for which steps are kept. Tagged steps are always kept, and so are steps that a kept one references.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// The number of highest-numbered steps to keep; at least one.
    pub last: usize,
    /// Also keep the steps that are multiples of this.
    pub every: Option<u64>,
    /// The steps that the running job has saved, in order. The last `last` of these are kept too: otherwise a job that
    /// went back to an early step would lose its new steps to the higher-numbered old ones.
    pub saved: Vec<u64>,
    /// The steps that existed when `saved` was recorded. Newer steps are kept, because their owner is not known here.
    pub known: Option<Vec<u64>>,
}

/// The result, or the plan, of pruning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Removed steps.
    pub removed: Vec<u64>,
    /// Kept steps.
    pub kept: Vec<u64>,
    /// Steps that are kept because they could not be read or removed, and why.
    pub left: Vec<(u64, String)>,
    /// Leftovers of crashed saves and removals that were removed.
    pub swept: Vec<String>,
}

/// The manifests of all steps of a folder.
#[derive(Debug, Default)]
pub(crate) struct StepSurvey {
    manifests: Vec<Manifest>,
    /// The steps whose manifest cannot be read, and why.
    damaged: Vec<(u64, String)>,
    /// The highest damaged step that may reference other steps.
    unreadable_dependent: Option<u64>,
}

impl StepSurvey {
    /// The steps that can be read, in order.
    fn steps(&self) -> Vec<u64> {
        self.manifests.iter().map(|m| m.step).collect()
    }

    /// The reason why a step is needed, if another one references it or may do so.
    pub(crate) fn need(&self, step: u64) -> Option<String> {
        let mut dependents = self.manifests.iter();
        if let Some(dependent) = dependents.find(|m| m.referenced().contains(&step)) {
            return Some(format!("step {} refers to it", dependent.step));
        }
        let dependent = self.unreadable_dependent.filter(|dependent| step < *dependent)?;
        Some(format!("step {dependent} cannot be read and may refer to it"))
    }
}

impl Steps {
    /// Plans a pruning without removing anything.
    pub fn plan_prune(&self, retention: &Retention) -> Result<Pruned> {
        let (pruned, _) = self.divide(retention)?;
        Ok(pruned)
    }

    /// Removes the steps that need not be kept. If no job saves here, also removes the leftovers of crashed jobs.
    pub fn prune(&self, retention: &Retention) -> Result<Pruned> {
        let mut swept = Vec::new();
        // Swept first, because the sweep releases steps that a crashed save held.
        if let Ok(lock) = self.coordination().lock("prune", Duration::ZERO)
            && lock.is_held()
        {
            swept = self.sweep(&lock, None, Duration::ZERO)?;
            self.coordination().sweep_drafts(Duration::ZERO)?;
        }
        let (mut pruned, manifests) = self.divide(retention)?;
        pruned.swept = swept;
        for step in removal_order(&pruned.removed, &manifests)? {
            let why = match removal::remove(self, step, fresh_nonce) {
                Ok(Outcome::Removed) => continue,
                // Another process tagged it meanwhile, or saved a step that references it.
                Ok(Outcome::Kept(_)) => None,
                // Another process removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                // A step that cannot be removed does not stop the others.
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
                Err(Error::new(ErrorKind::Invalid, "remove", path.display(), why)
                    .with_hint("remove its tags and the steps that refer to it first"))
            }
        }
    }

    /// Reads the manifests of all steps.
    pub(crate) fn survey(&self) -> Result<StepSurvey> {
        let mut survey = StepSurvey::default();
        for step in self.steps()? {
            match self.read_manifest(step) {
                Ok(manifest) => survey.manifests.push(manifest),
                // Removed meanwhile.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    if error.kind() == ErrorKind::Unsupported || !self.is_plain(step) {
                        survey.unreadable_dependent = Some(step);
                    }
                    survey.damaged.push((step, error.to_string()));
                }
            }
        }
        Ok(survey)
    }

    /// Whether all shards of a step are plain files, which reference nothing. Its manifest is not read.
    fn is_plain(&self, step: u64) -> bool {
        let names = self.step(step).and_then(|held| names(&*held));
        names.is_ok_and(|names| names.iter().all(|name| is_plain_shard(name)))
    }

    /// Divides the steps into those to keep and those to remove.
    fn divide(&self, retention: &Retention) -> Result<(Pruned, Vec<Manifest>)> {
        let survey = self.survey()?;
        let steps = survey.steps();
        let own: Vec<_> = retention.saved.iter().filter(|step| steps.contains(step)).collect();
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
            let is_needed = survey.unreadable_dependent.is_some_and(|dependent| step < dependent);
            if is_mth || is_tagged || is_new || is_needed {
                kept.insert(step);
            }
        }
        let dependents = survey.manifests.iter().filter(|m| kept.contains(&m.step));
        let needed: Vec<_> = dependents.flat_map(Manifest::referenced).collect();
        kept.extend(needed);
        let (mut kept, removed): (Vec<_>, Vec<_>) = steps.into_iter().partition(|step| kept.contains(step));
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

/// The steps to remove, in an order in which each comes after those that reference it.
fn removal_order(removed: &[u64], manifests: &[Manifest]) -> Result<Vec<u64>> {
    let mut left: Vec<_> = manifests.iter().filter(|m| removed.contains(&m.step)).collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        let is_free = |step: u64| !left.iter().any(|m| m.referenced().contains(&step));
        let Some(at) = left.iter().rposition(|m| is_free(m.step)) else {
            let steps = "steps that refer to each other";
            let message = "no save makes such a cycle: a manifest was tampered with";
            return Err(Error::new(ErrorKind::Corrupt, "remove", steps, message));
        };
        order.push(left.remove(at).step);
    }
    Ok(order)
}
