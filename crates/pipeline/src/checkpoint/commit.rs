//! The commit: all ranks' parts become a manifest, and the folder that they worked in becomes a step.
//!
//! `meeting` has how the parts of ranks come to the coordinator. The commit moves their shards to their final names,
//! drops all else from the folder, keeps the steps that the new one refers to from being removed, and renames the
//! folder.

use hashbrown::{HashMap, HashSet};
use straightway_core::{Error, Kind, Result};
use straightway_sys::{
    Folder,
    folder::{Access, Durability},
};

use super::{
    manifest::Manifest,
    name::{Attempt, MANIFEST, shard_draft, step_folder},
    parity,
    part::{Part, merge},
    removal,
    store::Store,
};

/// A shard that was written, and the name that it gets.
struct Shard {
    draft: String,
    file: String,
}

/// Steps that a save refers to, kept until this is dropped.
struct Held<'a> {
    store: &'a Store,
    attempt: &'a Attempt,
    steps: Vec<u64>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // What stays is over with the attempt's folder, and swept.
        let _ = removal::release(self.store, self.attempt, &self.steps);
    }
}

impl Store {
    /// Makes the folder that an attempt works in; another rank may have made it.
    pub(crate) fn begin(&self, attempt: &Attempt) -> Result<Folder> {
        self.root().create_folder(&attempt.folder())
    }

    /// Refuses a step that is there. One whose removal was decided and broken off is removed first.
    pub(crate) fn check_new(&self, step: u64) -> Result<()> {
        removal::settle(self, Some(step))?;
        if self.root().kind(&step_folder(step))?.is_none() {
            return Ok(());
        }
        let target = format!("step {step} to {}", self.folder().display());
        let message = "that step is there already";
        Err(Error::new(Kind::Invalid, "save", target, message)
            .with_hint("remove it first, or save under another number"))
    }

    /// Makes a step of an attempt whose shards are all durable, from the parts of all ranks.
    ///
    /// With `parity`, that many parity files are made of the shards first.
    pub fn commit(&self, parts: Vec<Part>, metadata: &str, parity: usize) -> Result<Manifest> {
        let Some(attempt) = parts.first().map(|part| part.attempt.clone()) else {
            let message = "it has no parts";
            return Err(Error::new(Kind::Invalid, "commit", "a step", message));
        };
        let (own, step) = (attempt.folder(), attempt.step);
        let shard = |part: &Part| Shard {
            draft: shard_draft(part.shard.rank, &part.writer),
            file: part.shard.file.clone(),
        };
        let shards: Vec<_> = parts.iter().map(shard).collect();
        let mut manifest = merge(parts, metadata)?;
        self.check_new(step)?;
        let folder = self.root().open_folder(&own)?;
        collect(&folder, &manifest, &shards)?;
        let held = self.hold(&attempt, &manifest)?;
        self.check_references(&manifest)?;
        if parity > 0 {
            manifest.parity = parity::protect(self, &folder, &own, &manifest, parity)?;
            manifest = manifest.checked(&folder.path().display().to_string())?;
        }
        let text = manifest.text();
        folder.put_if_absent(MANIFEST, text.as_bytes(), Durability::Synced)?;
        // Once more: a remover of an earlier step of this number that comes too late finds itself stopped.
        self.check_new(step)?;
        let renamed = self.root().rename_new(&own, &step_folder(step));
        renamed.map_err(|error| match error.kind() {
            Kind::Invalid => self.check_new(step).err().unwrap_or(error),
            _ => error,
        })?;
        self.root().sync()?;
        drop(held);
        Ok(manifest)
    }

    /// Keeps the steps that a manifest refers to.
    fn hold<'a>(&'a self, attempt: &'a Attempt, manifest: &Manifest) -> Result<Held<'a>> {
        let steps = manifest.referenced();
        let held = Held {
            store: self,
            attempt,
            steps,
        };
        match removal::hold(self, attempt, &held.steps)? {
            None => Ok(held),
            Some(step) => Err(lost(manifest, step, "was removed meanwhile")),
        }
    }

    /// Checks that each chunk in another step is there, and is the one that is meant: that step may have been removed
    /// and saved anew since it was compared with.
    fn check_references(&self, manifest: &Manifest) -> Result<()> {
        for step in manifest.referenced() {
            let there = match self.read_manifest(step) {
                Ok(there) => there,
                Err(error) if error.kind() == Kind::NotFound => {
                    return Err(lost(manifest, step, "was removed meanwhile"));
                }
                // Its chunks have checksums here as well.
                Err(_) => continue,
            };
            let mut known = HashMap::new();
            for shard in &there.shards {
                for (number, sum) in shard.chunks.iter().enumerate() {
                    known.insert(shard.place(step, number, there.chunk_bytes), *sum);
                }
            }
            for shard in &manifest.shards {
                let stored = shard.stored.iter().flatten().zip(&shard.chunks);
                let mut inside = stored.filter(|(place, _)| place.step == step);
                if !inside.all(|(place, sum)| known.get(place) == Some(sum)) {
                    return Err(lost(manifest, step, "was saved anew meanwhile"));
                }
            }
        }
        Ok(())
    }

    /// Removes all that an attempt wrote that will not be committed.
    pub fn abandon(&self, attempt: &Attempt) {
        // It is hidden and never looked at again; what stays is swept by the next run.
        let _ = self.root().remove_tree(&attempt.folder());
    }
}

/// Checks the shards of all ranks, drops what else is in the folder (a dead process of the same run may have left it),
/// and gives the shards their names.
fn collect(folder: &Folder, manifest: &Manifest, shards: &[Shard]) -> Result<()> {
    for (shard, record) in shards.iter().zip(&manifest.shards) {
        let wanted = manifest.file_bytes(record);
        let file = folder.open_file(&shard.draft, Access::Read)?;
        let path = folder.path().join(&shard.file);
        let found = file
            .metadata()
            .map_err(|e| Error::os("open", path.display(), e))?;
        if found.len() != wanted {
            let message = format!("it has {} bytes, and {wanted} are meant", found.len());
            return Err(Error::new(Kind::Corrupt, "commit", path.display(), message));
        }
    }
    let own: HashSet<_> = shards.iter().map(|shard| shard.draft.as_str()).collect();
    for name in folder.list()? {
        if !own.contains(name.as_str()) {
            folder.remove_tree(&name)?;
        }
    }
    for shard in shards {
        folder.rename_new(&shard.draft, &shard.file)?;
    }
    Ok(())
}

/// What is said of a save that refers to a step which is not there any more.
fn lost(manifest: &Manifest, step: u64, what: &str) -> Error {
    let target = format!("step {}", manifest.step);
    let message = format!("step {step}, which it refers to, {what}");
    Error::new(Kind::Transient, "commit", target, message).with_hint("save it again")
}
