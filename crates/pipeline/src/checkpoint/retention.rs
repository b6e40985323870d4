//! Which steps are kept, and how the others are removed.
//!
//! A step leaves every list by one rename, and is deleted then: whoever has it open reads on. Steps that
//! refer to others go before those, so that whenever removal is broken off, what is listed is whole.

use std::{collections::BTreeSet, time::Duration};

use straightway_core::{Error, Kind, Result};
use straightway_io::draft::sync_folder;

use super::{
    commit::write_file,
    lock::Lock,
    manifest::{Manifest, read_bounded},
    name::{TAGS, TRASH},
    saver::fresh_run,
    store::{Store, remove_folder, rename_new},
};

/// The longest tag.
const TAG_CHARS_MAX: usize = 64;

/// Which steps are kept. Those with a tag always are, and so are those that a kept one refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention {
    /// The last so many; at least one.
    pub last: usize,
    /// And those that are multiples of this.
    pub every: Option<u64>,
}

/// What pruning does, or did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Steps that go.
    pub removed: Vec<u64>,
    /// Steps that stay.
    pub kept: Vec<u64>,
    /// What crashed saves and removals had left behind.
    pub swept: Vec<String>,
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
            self.remove(step)?;
        }
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
        let heir = self
            .manifests()?
            .into_iter()
            .find(|m| m.referenced().contains(&step));
        if let Some(heir) = heir {
            rename_new(&trash, &path)?;
            let message = format!("step {} refers to it", heir.step);
            let target = path.display();
            return Err(Error::new(Kind::Invalid, "remove", target, message)
                .with_hint("remove that step first"));
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

    /// The manifests of all steps.
    pub fn manifests(&self) -> Result<Vec<Manifest>> {
        let mut manifests = Vec::new();
        for step in self.steps()? {
            match self.manifest(step) {
                // Removed meanwhile.
                Err(error) if error.kind() == Kind::NotFound => {}
                manifest => manifests.push(manifest?),
            }
        }
        Ok(manifests)
    }

    /// Divides the steps into those that stay and those that go.
    fn divide(&self, retention: &Retention) -> Result<(Pruned, Vec<Manifest>)> {
        let manifests = self.manifests()?;
        let steps: Vec<_> = manifests.iter().map(|m| m.step).collect();
        let last = steps.len().saturating_sub(retention.last.max(1));
        let mut kept: BTreeSet<u64> = steps[last..].iter().copied().collect();
        for &step in &steps {
            let is_mth = retention
                .every
                .is_some_and(|every| every > 0 && step.is_multiple_of(every));
            if is_mth || !self.tags(step)?.is_empty() {
                kept.insert(step);
            }
        }
        let heirs = manifests.iter().filter(|m| kept.contains(&m.step));
        let needed: Vec<_> = heirs.flat_map(Manifest::referenced).collect();
        kept.extend(needed);
        let removed = steps
            .iter()
            .copied()
            .filter(|s| !kept.contains(s))
            .collect();
        let pruned = Pruned {
            removed,
            kept: steps.into_iter().filter(|s| kept.contains(s)).collect(),
            swept: Vec::new(),
        };
        Ok((pruned, manifests))
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
