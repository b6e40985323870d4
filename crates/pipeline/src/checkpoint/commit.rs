//! The commit: all ranks' parts become a manifest, and what they wrote becomes a step.
//!
//! `meeting` has how the parts of ranks come to the coordinator. The commit keeps the steps that the new one refers to
//! from being removed, and puts the manifest, which only one of several commits of a step can.
//!
//! Objects have no rename, so ranks write them below the step's name at once, each with a mark of its own, and the
//! manifest says which belong to the step. In a local folder they are written into the folder of the attempt, which the
//! commit renames: what has a step's name is whole, and each step is a folder of its own.

use std::ffi::OsStr;

use hashbrown::{HashMap, HashSet};
use straightway_core::{Error, Kind, Result};
use straightway_io::store::{Durability, Missing};
use straightway_sys::Folder;

use super::{
    home::Home,
    manifest::{Manifest, ObjectVersion},
    name::{Attempt, BEGUN, MANIFEST, mark, shard_draft, step_folder, writer_of},
    parity,
    part::{Part, merge},
    removal,
    steps::{Steps, if_there, names, put},
    versions::version_of,
};

/// A shard that was written, and the name that it gets.
struct Shard {
    draft: String,
    file: String,
}

/// Steps that a save refers to, kept until this is dropped.
struct Held<'a> {
    store: &'a Steps,
    attempt: &'a Attempt,
    steps: Vec<u64>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // What stays is over with the attempt's folder, and swept.
        let _ = removal::release(self.store, self.attempt, &self.steps);
    }
}

impl Steps {
    /// Begins an attempt; another rank may have done so.
    pub(crate) fn begin(&self, attempt: &Attempt) -> Result<()> {
        let records = self
            .root()
            .below(attempt.folder().as_ref(), Missing::Create)?;
        if records.folder().is_none() {
            // Without an object nothing is there.
            put(&*records, BEGUN, "", Durability::Unsynced)?;
        }
        Ok(())
    }

    /// Refuses a step that is there. One whose removal was decided and broken off is removed first.
    pub(crate) fn check_new(&self, step: u64) -> Result<()> {
        removal::settle(self, Some(step))?;
        if self.is_free(step)? {
            return Ok(());
        }
        Err(self.taken(step))
    }

    fn taken(&self, step: u64) -> Error {
        let target = format!("step {step} to {}", self.folder().display());
        let message = "that step is there already";
        Error::new(Kind::Invalid, "save", target, message)
            .with_hint("remove it first, or save under another number")
    }

    /// Makes a step of an attempt whose shards are all durable, from the parts of all ranks.
    ///
    /// With `parity`, that many parity files are made of the shards first.
    pub fn commit(&self, mut parts: Vec<Part>, metadata: &str, parity: usize) -> Result<Manifest> {
        parts.sort_by_key(|part| part.shard.rank);
        let Some(attempt) = parts.first().map(|part| part.attempt.clone()) else {
            let message = "it has no parts";
            return Err(Error::new(Kind::Invalid, "commit", "a step", message));
        };
        let step = attempt.step;
        let writer = parts[0].writer.clone();
        let is_folder = self.root().folder().is_some();
        let shard = |part: &Part| Shard {
            draft: if is_folder {
                shard_draft(part.shard.rank, &part.writer)
            } else {
                part.shard.file.clone()
            },
            file: part.shard.file.clone(),
        };
        let shards: Vec<_> = parts.iter().map(shard).collect();
        let mut manifest = merge(parts, metadata)?;
        self.check_new(step)?;
        let home = self.home(&attempt, &writer)?;
        let mut versions = collect(&home, &manifest, &shards)?;
        let held = self.hold(&attempt, &manifest)?;
        versions.extend(self.check_references(&attempt, &manifest)?);
        if parity > 0 {
            manifest.parity = parity::protect(self, &home, &manifest, parity)?;
            let files: Vec<_> = manifest.parity.iter().map(|p| p.file.as_str()).collect();
            home.look_at(&files, |number, handle| {
                versions.extend(version_of(step, files[number], handle));
                Ok(())
            })?;
        }
        manifest.versions = self.versions(versions);
        manifest = manifest.checked(&home.store.describe(OsStr::new("")))?;
        self.publish(&attempt, &home, &manifest)?;
        drop(held);
        Ok(manifest)
    }

    /// Makes a step of what lies in an attempt's home.
    fn publish(&self, attempt: &Attempt, home: &Home, manifest: &Manifest) -> Result<()> {
        let step = attempt.step;
        let put_manifest = || put(&*home.store, MANIFEST, &manifest.text(), Durability::Synced);
        let Some(root) = self.root().folder() else {
            self.check_new(step)?;
            if !put_manifest()? {
                return Err(self.taken(step));
            }
            // Ranks look for the manifest; what stays of the records harms nobody.
            let _ = self.root().clear(attempt.folder().as_ref());
            return Ok(());
        };
        put_manifest()?;
        // Once more: a remover of an earlier step of this number that comes too late finds itself stopped.
        self.check_new(step)?;
        let renamed = root.rename_new(&home.name, &step_folder(step));
        renamed.map_err(|error| match error.kind() {
            Kind::Invalid => self.check_new(step).err().unwrap_or(error),
            _ => error,
        })?;
        root.sync()
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
            Some(step) => Err(lost(attempt, step, "was removed meanwhile")),
        }
    }

    /// Checks that each chunk in another step is there, and is the one that is meant: that step may have been removed
    /// and saved anew since it was compared with. Answers the versions of the objects that they lie in.
    fn check_references(
        &self,
        attempt: &Attempt,
        manifest: &Manifest,
    ) -> Result<Vec<ObjectVersion>> {
        let (mut versions, store) = (Vec::new(), self.root().address());
        for step in manifest.referenced() {
            let there = match self.read_manifest(step) {
                Ok(there) => there,
                Err(error) if error.kind() == Kind::NotFound => {
                    return Err(lost(attempt, step, "was removed meanwhile"));
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
                    return Err(lost(attempt, step, "was saved anew meanwhile"));
                }
            }
            versions.extend(there.own_versions(&store));
        }
        Ok(versions)
    }

    /// Removes all that an attempt wrote that will not be committed.
    pub fn abandon(&self, attempt: &Attempt) {
        // What stays is never looked at again, and in a local folder swept by the next run.
        if self.root().folder().is_none() {
            let _ = self.abandon_objects(attempt);
        }
        let _ = self.root().clear(attempt.folder().as_ref());
    }

    /// Removes the objects that the writers of an attempt put below its step, but for those that the step's manifest
    /// names: a process that was killed, or whose last answer was lost, may have committed the attempt.
    fn abandon_objects(&self, attempt: &Attempt) -> Result<()> {
        let below = |name: String| self.root().below(name.as_ref(), Missing::Refuse);
        let writers = names(&*below(attempt.folder())?)?;
        let marks = writers.iter().filter_map(|name| writer_of(name));
        let marks: Vec<_> = marks.map(|w| format!("-{}.", mark(w, attempt))).collect();
        let step = below(step_folder(attempt.step))?;
        // Where it cannot be read, nothing is removed.
        let committed = if_there(Manifest::read(&*step))?;
        let shards = committed.iter().flat_map(|manifest| &manifest.shards);
        let parity = committed.iter().flat_map(|manifest| &manifest.parity);
        let files = shards.map(|shard| &shard.file);
        let files: HashSet<_> = files.chain(parity.map(|parity| &parity.file)).collect();
        for name in names(&*step)? {
            if !files.contains(&name) && marks.iter().any(|mark| name.contains(mark)) {
                step.remove(name.as_ref(), Durability::Unsynced)?;
            }
        }
        Ok(())
    }
}

/// Checks the shards of all ranks. In the folder of an attempt, drops what else is there (a dead process of the same
/// run may have left it), and gives the shards their names. Answers the versions of the shards.
fn collect(home: &Home, manifest: &Manifest, shards: &[Shard]) -> Result<Vec<ObjectVersion>> {
    let drafts: Vec<_> = shards.iter().map(|shard| shard.draft.as_str()).collect();
    let mut versions = Vec::new();
    home.look_at(&drafts, |number, handle| {
        let wanted = manifest.shards[number].file_bytes(manifest.step);
        let (found, file) = (handle.object().bytes, &shards[number].file);
        if found != wanted {
            let message = format!("it has {found} bytes, and {wanted} are meant");
            let object = home.store.describe(file.as_ref());
            return Err(Error::new(Kind::Corrupt, "commit", object, message));
        }
        versions.extend(version_of(manifest.step, file, handle));
        Ok(())
    })?;
    if let Some(folder) = home.store.folder() {
        settle_folder(folder, shards)?;
    }
    Ok(versions)
}

fn settle_folder(folder: &Folder, shards: &[Shard]) -> Result<()> {
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
fn lost(attempt: &Attempt, step: u64, what: &str) -> Error {
    let message = format!("step {step}, which it refers to, {what}");
    attempt.failed(message).with_hint("save it again")
}
