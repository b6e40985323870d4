//! Which steps are kept, and how the others are removed.
//!
//! A step leaves every list by one rename, and is deleted then: whoever has it open reads on. Steps that
//! refer to others go before those, so that whenever removal is broken off, what is listed is whole.
//!
//! A step that cannot be read stays, and keeps nobody from removing others but those that it may refer to: what its
//! chunks lie in was there before it and has a lower number.

use std::{collections::BTreeSet, fs, time::Duration};

use straightway_core::{Error, Kind, Result};
use straightway_io::draft::sync_folder;

use super::{
    commit::write_file,
    lock::Lock,
    manifest::{Manifest, read_bounded},
    name::{TAGS, TRASH, is_plain_shard},
    saver::fresh_run,
    store::{Store, remove_folder, rename_new},
};

/// The longest tag.
const TAG_CHARS_MAX: usize = 64;

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
struct Survey {
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
    fn need(&self, step: u64) -> Option<String> {
        let mut heirs = self.manifests.iter();
        if let Some(heir) = heirs.find(|m| m.referenced().contains(&step)) {
            return Some(format!("step {} refers to it", heir.step));
        }
        let heir = self.heir.filter(|heir| step < *heir)?;
        Some(format!("step {heir} cannot be read and may refer to it"))
    }
}

impl Store {
    /// What pruning would do.
    pub fn plan_prune(&self, retention: &Retention) -> Result<Pruned> {
        let (pruned, _) = self.divide(retention)?;
        Ok(pruned)
    }

    /// Removes the steps that need not be kept, and where no job saves here, what crashed ones left.
    pub fn prune(&self, retention: &Retention) -> Result<Pruned> {
        let (mut pruned, manifests) = self.divide(retention)?;
        for step in removal_order(&pruned.removed, &manifests)? {
            match self.remove(step) {
                // One that will not go is no reason for the others to stay.
                Err(error) if error.kind() != Kind::NotFound => {
                    pruned.removed.retain(|gone| *gone != step);
                    pruned.kept.push(step);
                    pruned.left.push((step, error.to_string()));
                }
                // It went, by this hand or another.
                _ => {}
            }
        }
        pruned.kept.sort_unstable();
        if let Ok(lock) = Lock::take(self.folder(), "prune", Duration::ZERO)
            && lock.is_held
        {
            pruned.swept = self.sweep(None)?;
        }
        Ok(pruned)
    }

    /// Removes a step, whatever retention says, unless another refers to it.
    pub fn remove(&self, step: u64) -> Result<()> {
        let path = self.step_path(step);
        let trash = self.folder().join(format!("{TRASH}{step}-{}", fresh_run()));
        rename_new(&path, &trash)?;
        // A save may have been committed that refers to it. Looked for after the rename, since
        // the commit looks for its parent after its own: one of the two sees the other.
        let back = |error: Error| match rename_new(&trash, &path) {
            Ok(()) => error,
            Err(worse) => worse,
        };
        if let Some(message) = self.survey().map_err(back)?.need(step) {
            let error = Error::new(Kind::Invalid, "remove", path.display(), message);
            return Err(back(error.with_hint("remove that step first")));
        }
        sync_folder(self.folder())?;
        remove_folder(&trash)
    }

    /// Gives a step a tag, which keeps it from being pruned.
    pub fn tag(&self, step: u64, tag: &str) -> Result<()> {
        let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
        if tag.is_empty() || tag.len() > TAG_CHARS_MAX || !tag.chars().all(fits) {
            let message = "letters, digits, `_`, `-` and `.` are meant";
            return Err(Error::new(
                Kind::Invalid,
                "tag with",
                format!("{tag:?}"),
                message,
            ));
        }
        self.manifest(step)?;
        let mut tags: BTreeSet<_> = self.tags(step)?.into_iter().collect();
        tags.insert(tag.to_owned());
        self.write_tags(step, &tags)
    }

    /// Takes a tag from a step.
    pub fn untag(&self, step: u64, tag: &str) -> Result<()> {
        let mut tags: BTreeSet<_> = self.tags(step)?.into_iter().collect();
        if tags.remove(tag) {
            self.write_tags(step, &tags)?;
        }
        Ok(())
    }

    /// The tags of a step.
    pub fn tags(&self, step: u64) -> Result<Vec<String>> {
        let path = self.step_path(step).join(TAGS);
        if !path.exists() {
            return Ok(Vec::new());
        }
        serde_json::from_slice(&read_bounded(&path)?)
            .map_err(|e| Error::new(Kind::Corrupt, "read", path.display(), e.to_string()))
    }

    fn write_tags(&self, step: u64, tags: &BTreeSet<String>) -> Result<()> {
        let text = serde_json::to_string(tags).expect("strings are always JSON");
        write_file(&self.step_path(step).join(TAGS), &text)
    }

    /// Looks at all steps.
    fn survey(&self) -> Result<Survey> {
        let mut survey = Survey::default();
        for step in self.steps()? {
            match self.manifest(step) {
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
        let Ok(listed) = fs::read_dir(self.step_path(step)) else {
            return false;
        };
        let mut names = listed.flatten().map(|entry| entry.file_name());
        names.all(|name| name.to_str().is_some_and(is_plain_shard))
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
            let is_tagged = self.tags(step).map_or_else(
                |error| {
                    left.push((step, error.to_string()));
                    true
                },
                |tags| !tags.is_empty(),
            );
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
