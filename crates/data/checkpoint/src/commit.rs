//! The commit: merges the reports of all ranks into a manifest, and makes a step of their shards.
//!
//! `rendezvous` describes how reports reach the coordinator. The commit protects the steps that the new one references
//! from removal, and puts the manifest. Of several commits of one step, only one can put it.
//!
//! [`Coordination`](super::coordination::Coordination) says how an attempt becomes a step in a folder and in an object
//! store.

use std::ffi::OsStr;

use hashbrown::{HashMap, HashSet};
use straightway_core::{Error, ErrorKind, Result};
use straightway_io::StoreExt;

use super::{
    coordination::{Home, ShardNames},
    manifest::{Manifest, ObjectVersion},
    name::Attempt,
    parity, removal,
    shard_report::{ShardReport, merge},
    steps::Steps,
    versions::version_of,
};

/// Holds on the steps that a save references. Dropping this releases them.
struct Held<'a> {
    store: &'a Steps,
    attempt: &'a Attempt,
    steps: Vec<u64>,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // A hold that stays is void once the attempt's folder is gone, and is swept later.
        let _ = removal::release(self.store, self.attempt, &self.steps);
    }
}

impl Steps {
    /// Returns an error if the step exists. If its removal was decided but interrupted, the removal is finished first.
    pub(crate) fn check_new(&self, step: u64) -> Result<()> {
        removal::settle(self, Some(step))?;
        if self.coordination().is_free(step)? {
            return Ok(());
        }
        Err(self.taken(step))
    }

    fn taken(&self, step: u64) -> Error {
        let target = format!("step {step} to {}", self.folder().display());
        let message = "that step is there already";
        Error::new(ErrorKind::AlreadyExists, "save", target, message)
            .with_hint("remove it first, or save under another number")
    }

    /// Commits an attempt whose shards are all durable, from the reports of all ranks.
    ///
    /// With `parity`, that many parity files are computed from the shards first.
    pub fn commit(&self, mut reports: Vec<ShardReport>, metadata: &str, parity: usize) -> Result<Manifest> {
        reports.sort_by_key(|report| report.shard.rank);
        let Some(attempt) = reports.first().map(|report| report.attempt.clone()) else {
            let message = "it has no parts";
            return Err(Error::new(ErrorKind::Invalid, "commit", "a step", message));
        };
        let step = attempt.step;
        let writer = reports[0].writer.clone();
        let coordination = self.coordination();
        let shard = |report: &ShardReport| ShardNames {
            draft: coordination.draft_name(report.shard.rank, &report.writer, &report.shard.file),
            file: report.shard.file.clone(),
        };
        let shards: Vec<_> = reports.iter().map(shard).collect();
        let writers: HashSet<_> = reports.iter().map(|report| report.writer.clone()).collect();
        let mut manifest = merge(reports, metadata)?;
        self.check_new(step)?;
        let home = coordination.home(&attempt, &writer)?;
        let mut versions = check_shards(&home, &manifest, &shards)?;
        coordination.collect(&home, &shards)?;
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
        let text = manifest.text();
        coordination.stage(&home, &text)?;
        // Checked again, which stops a late removal of an earlier step with this number.
        self.check_new(step)?;
        if !coordination.publish(&home, &text, &writers)? {
            return Err(self.taken(step));
        }
        drop(held);
        Ok(manifest)
    }

    /// Protects the steps that a manifest references from removal.
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

    /// Checks that each chunk in another step exists and is the same: that step may have been removed and saved anew
    /// since the comparison. Returns the versions of the objects that hold the chunks.
    fn check_references(&self, attempt: &Attempt, manifest: &Manifest) -> Result<Vec<ObjectVersion>> {
        let (mut versions, store) = (Vec::new(), self.root().address());
        for step in manifest.referenced() {
            let there = match self.read_manifest(step) {
                Ok(there) => there,
                Err(error) if error.kind() == ErrorKind::NotFound => {
                    return Err(lost(attempt, step, "was removed meanwhile"));
                }
                // The new manifest has the checksums of its chunks too.
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

    /// Removes everything that an attempt wrote. It will not be committed. Removes nothing if its manifest may still
    /// appear, or if its records cannot be listed.
    pub fn abandon(&self, attempt: &Attempt) {
        // Leftovers are never read again, and a sweep removes them later.
        let _ = self.coordination().abandon(attempt);
    }
}

/// Checks the lengths of the shards of all ranks, and returns their versions.
fn check_shards(home: &Home, manifest: &Manifest, shards: &[ShardNames]) -> Result<Vec<ObjectVersion>> {
    let drafts: Vec<_> = shards.iter().map(|shard| shard.draft.as_str()).collect();
    let mut versions = Vec::new();
    home.look_at(&drafts, |number, handle| {
        let wanted = manifest.shards[number].file_bytes(manifest.step);
        let (found, file) = (handle.object().bytes, &shards[number].file);
        if found != wanted {
            let message = format!("it has {found} bytes, expected {wanted}");
            let object = home.store.describe(file.as_ref());
            return Err(Error::new(ErrorKind::Corrupt, "commit", object, message));
        }
        versions.extend(version_of(manifest.step, file, handle));
        Ok(())
    })?;
    Ok(versions)
}

/// The error of a save that references a step which is gone.
fn lost(attempt: &Attempt, step: u64, what: &str) -> Error {
    let message = format!("step {step}, which it refers to, {what}");
    attempt.failed(message).with_hint("save it again")
}
