//! The commit: merges the reports of all ranks into a manifest, and makes a step of their shards.
//!
//! `rendezvous` describes how reports reach the coordinator. The commit protects the steps that the new one references
//! from removal, and puts the manifest. Of several commits of one step, only one can put it.
//!
//! Objects cannot be renamed, so ranks write them below the step's name from the start, each with a mark in its name,
//! and the manifest lists those that belong to the step. In a local folder they are written into the folder of the
//! attempt, which the commit renames: a folder with a step's name is complete.

use std::ffi::OsStr;

use hashbrown::{HashMap, HashSet};
use straightway_core::{Error, ErrorDetail, ErrorKind, Result};
use straightway_io::store::{Durability, Missing};
use straightway_sys::Folder;

use super::{
    home::Home,
    manifest::{Manifest, ObjectVersion},
    name::{Attempt, BEGUN, MANIFEST, UNDECIDED, mark, shard_draft, step_folder, writer_file, writer_of},
    parity, removal,
    shard_report::{ShardReport, merge},
    steps::{Steps, if_there, names, put},
    versions::version_of,
};

/// A written shard, and its final name.
struct Shard {
    draft: String,
    file: String,
}

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
    /// Begins an attempt, which another rank may have begun already.
    pub(crate) fn begin(&self, attempt: &Attempt) -> Result<()> {
        let records = self.root().below(attempt.folder().as_ref(), Missing::Create)?;
        if records.folder().is_none() {
            // In an object store, a folder exists only as the prefix of an object.
            put(&*records, BEGUN, "", Durability::Unsynced)?;
        }
        Ok(())
    }

    /// Returns an error if the step exists. If its removal was decided but interrupted, the removal is finished first.
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
        Error::new(ErrorKind::Invalid, "save", target, message)
            .with_detail(ErrorDetail::Exists)
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
        let is_folder = self.root().folder().is_some();
        let shard = |report: &ShardReport| Shard {
            draft: if is_folder {
                shard_draft(report.shard.rank, &report.writer)
            } else {
                report.shard.file.clone()
            },
            file: report.shard.file.clone(),
        };
        let shards: Vec<_> = reports.iter().map(shard).collect();
        let writers: HashSet<_> = reports.iter().map(|report| report.writer.clone()).collect();
        let mut manifest = merge(reports, metadata)?;
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
        if self.root().folder().is_none() {
            // Ranks look for the manifest, so leftover records do no harm.
            let _ = self.clear_records(&attempt, |writer| writers.contains(writer));
        }
        drop(held);
        Ok(manifest)
    }

    /// Makes the objects in an attempt's home a step.
    fn publish(&self, attempt: &Attempt, home: &Home, manifest: &Manifest) -> Result<()> {
        let step = attempt.step;
        let put_manifest = || put(&*home.store, MANIFEST, &manifest.text(), Durability::Synced);
        let Some(root) = self.root().folder() else {
            self.check_new(step)?;
            let is_first = put_manifest().inspect_err(|error| {
                // A request that got no response may still be carried out. The shards must outlive that.
                if error.kind() == ErrorKind::Transient {
                    self.note_undecided(attempt);
                }
            })?;
            if !is_first {
                return Err(self.taken(step));
            }
            return Ok(());
        };
        put_manifest()?;
        // Checked again, which stops a late removal of an earlier step with this number.
        self.check_new(step)?;
        let renamed = root.rename_new(&home.name, &step_folder(step));
        renamed.map_err(|error| match error.kind() {
            ErrorKind::Invalid => self.check_new(step).err().unwrap_or(error),
            _ => error,
        })?;
        root.sync()
    }

    /// Records that the manifest of an attempt may still appear. Only a sweep by age removes such an attempt.
    pub(crate) fn note_undecided(&self, attempt: &Attempt) {
        let folder = self.root().below(attempt.folder().as_ref(), Missing::Refuse);
        // Without the record the same service would have to answer the requests that remove the objects.
        let _ = folder.and_then(|folder| put(&*folder, UNDECIDED, "", Durability::Synced));
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
        let abandon = || {
            let records = self.records(attempt)?;
            if is_undecided(&records) {
                return Ok(());
            }
            if self.root().folder().is_none() {
                self.abandon_objects(attempt, records.iter().filter_map(|name| writer_of(name)))?;
            }
            self.root().clear(attempt.folder().as_ref())
        };
        // Leftovers are never read again, and a sweep removes them later.
        let _: Result<()> = abandon();
    }

    /// Removes everything that an attempt wrote, even if its manifest may still appear. On a store without folders, a
    /// sweep finds objects by the records of their writers, so the records go last.
    pub(crate) fn erase_attempt(&self, attempt: &Attempt) -> Result<()> {
        if self.root().folder().is_none() {
            self.abandon_all_objects(attempt)?;
        }
        self.root().clear(attempt.folder().as_ref())
    }

    /// As [`abandon`](Self::abandon), by the coordinator `own` while other ranks may still write. They find that the
    /// attempt is over, and [`withdraw`](Self::withdraw) their objects.
    pub(crate) fn give_up(&self, attempt: &Attempt, own: &str) {
        if self.root().folder().is_some() {
            return self.abandon(attempt);
        }
        let give_up = || {
            let records = self.records(attempt)?;
            if is_undecided(&records) {
                return Ok(());
            }
            self.abandon_objects(attempt, records.iter().filter_map(|name| writer_of(name)))?;
            self.remove_records(attempt, &records, |writer| writer == own)
        };
        // Leftovers are never read again, and a sweep removes them later.
        let _: Result<()> = give_up();
    }

    /// Removes the objects of one writer if its attempt is over. Until then the coordinator may still commit them.
    pub(crate) fn withdraw(&self, attempt: &Attempt, writer: &str) {
        if self.root().folder().is_some() {
            return;
        }
        let withdraw = || {
            if self.records(attempt)?.iter().any(|name| name == BEGUN) {
                return Ok(());
            }
            self.abandon_objects(attempt, std::iter::once(writer))?;
            let folder = attempt.folder();
            let folder = self.root().below(folder.as_ref(), Missing::Refuse)?;
            folder.remove(writer_file(writer).as_ref(), Durability::Unsynced)
        };
        // Objects that cannot be removed now are swept by the record of their writer.
        let _: Result<()> = withdraw();
    }

    /// The names of an attempt's records.
    fn records(&self, attempt: &Attempt) -> Result<Vec<String>> {
        let folder = attempt.folder();
        let folder = self.root().below(folder.as_ref(), Missing::Refuse);
        Ok(if_there(folder.and_then(|folder| names(&*folder)))?.unwrap_or_default())
    }

    /// Removes the records of an attempt that is over, in a store without folders, as `remove_records` does.
    fn clear_records(&self, attempt: &Attempt, is_done: impl Fn(&str) -> bool) -> Result<()> {
        let records = self.records(attempt)?;
        if records.iter().any(|name| stays(name, &is_done)) {
            return self.remove_records(attempt, &records, is_done);
        }
        // Some stores remove many objects by one request.
        self.root().clear(attempt.folder().as_ref())
    }

    /// Removes these records of an attempt that is over. The records of writers that may still write stay: if such a
    /// writer is killed, a sweep finds its objects by its record.
    fn remove_records(&self, attempt: &Attempt, records: &[String], is_done: impl Fn(&str) -> bool) -> Result<()> {
        let folder = attempt.folder();
        let folder = self.root().below(folder.as_ref(), Missing::Refuse)?;
        for name in records.iter().filter(|name| !stays(name, &is_done)) {
            folder.remove(name.as_ref(), Durability::Unsynced)?;
        }
        Ok(())
    }

    /// Removes the objects of all writers of an attempt.
    fn abandon_all_objects(&self, attempt: &Attempt) -> Result<()> {
        let records = self.records(attempt)?;
        self.abandon_objects(attempt, records.iter().filter_map(|name| writer_of(name)))
    }

    /// Removes the objects that these writers of an attempt put below its step, except those that the step's manifest
    /// names: a process that was killed, or did not get its last response, may have committed the attempt.
    fn abandon_objects<'a>(&self, attempt: &Attempt, writers: impl Iterator<Item = &'a str>) -> Result<()> {
        let marks: Vec<_> = writers.map(|w| format!("-{}.", mark(w, attempt))).collect();
        let step = step_folder(attempt.step);
        let step = self.root().below(step.as_ref(), Missing::Refuse)?;
        // If it cannot be read, nothing is removed.
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

/// Whether an attempt with these records may still get its manifest.
fn is_undecided(records: &[String]) -> bool {
    records.iter().any(|name| name == UNDECIDED)
}

/// Whether a record is that of a writer that is not done.
fn stays(record: &str, is_done: impl Fn(&str) -> bool) -> bool {
    writer_of(record).is_some_and(|writer| !is_done(writer))
}

/// Checks the shards of all ranks, and returns their versions. In an attempt's folder, also removes other files (left
/// by a dead process of the same run) and renames the shards to their final names.
fn collect(home: &Home, manifest: &Manifest, shards: &[Shard]) -> Result<Vec<ObjectVersion>> {
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

/// The error of a save that references a step which is gone.
fn lost(attempt: &Attempt, step: u64, what: &str) -> Error {
    let message = format!("step {step}, which it refers to, {what}");
    attempt.failed(message).with_hint("save it again")
}
