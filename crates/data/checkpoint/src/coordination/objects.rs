//! Coordination in an object store, by put-if-absent, get, list and remove alone.
//!
//! Objects cannot be renamed, so ranks write them below the step's name from the start, each with a mark in its name,
//! and the manifest lists those that belong to the step. Of several commits of one step, only one can put it. There are
//! no locks: only age tells the leftovers of a crashed job from the records of a running one.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use hashbrown::HashSet;
use straightway_core::{ErrorKind, Result};
use straightway_io::{
    Objects,
    store::{Durability, Handle, Like, Missing, Store, StoreExt, Sweep, Verb, list_all, open_one, read_whole},
};

use super::{Coordination, Home, Lock, Records, ShardDraft, ShardNames};
use crate::{
    manifest::{MANIFEST_BYTES_MAX, Manifest},
    name::{Attempt, BEGUN, Hold, MANIFEST, UNDECIDED, mark, step_folder, tag_of, writer_file, writer_of},
    records::{if_there, names, put},
    removal::StepIdentity,
    sum::Sum,
};

#[cfg(test)]
mod tests;

/// The age of an attempt's last record from which on it counts as a leftover of a crashed job.
pub(crate) const LEFT_AFTER: Duration = Duration::from_hours(7 * 24);

/// The maximum time that a store's clock may be ahead of this machine's.
const CLOCK_SKEW_MAX: Duration = Duration::from_hours(1);

/// Coordination in an object store.
#[derive(Debug)]
pub(crate) struct ObjectCoordination {
    pub(crate) root: Arc<dyn Store>,
}

impl Coordination for ObjectCoordination {
    /// Existing steps are protected by the commit.
    fn lock(&self, _: &str, _: Duration) -> Result<Lock> {
        Ok(Lock::none())
    }

    fn clear_left(&self, _: &Lock, _: Option<&str>, age: Duration) -> Result<Vec<String>> {
        // The store's clock may be ahead of this one's, and an age of 0 must include everything.
        let ahead = if age.is_zero() { CLOCK_SKEW_MAX } else { Duration::ZERO };
        self.clear_aged(SystemTime::now() + ahead, age)
    }

    /// Unfinished uploads below a folder of checkpoints are those of killed savers.
    fn sweep_drafts(&self, age: Duration) -> Result<Vec<String>> {
        self.root.sweep(Sweep::OlderThan(age))
    }

    /// A folder exists only as the prefix of an object.
    fn begin(&self, attempt: &Attempt) -> Result<()> {
        put(&*self.folder(attempt)?, BEGUN, "", Durability::Unsynced).map(drop)
    }

    /// They exist as long as the record that each rank puts first: later records of a slow rank do not bring the
    /// attempt back.
    fn records(&self, attempt: &Attempt) -> Result<Option<Records>> {
        let store = self.folder(attempt)?;
        let is_open = names(&*store)?.iter().any(|name| name == BEGUN);
        Ok(is_open.then_some(Records {
            store,
            may_be_committed: true,
        }))
    }

    fn home(&self, attempt: &Attempt, writer: &str) -> Result<Home> {
        Ok(Home {
            attempt: attempt.clone(),
            name: step_folder(attempt.step),
            store: self.below(attempt.step)?,
            writer: writer.to_owned(),
            mark: Some(mark(writer, attempt)),
        })
    }

    fn draft_name(&self, _: u32, _: &str, file: &str) -> String {
        file.to_owned()
    }

    fn create_shard(&self, home: &Home, _: u32, file: &str, bytes: u64) -> Result<ShardDraft> {
        // This record finds the objects again if the attempt is abandoned.
        let records = self.folder(&home.attempt)?;
        put(&*records, &writer_file(&home.writer), "", Durability::Unsynced)?;
        let draft = home.store.create(file.as_ref(), bytes, &Like::Replaced)?;
        Ok(ShardDraft {
            object: Objects::new(Arc::clone(&home.store), vec![draft.handle()]),
            draft: Some(draft),
        })
    }

    fn sync(&self, _: &Home) -> Result<()> {
        Ok(())
    }

    /// They have their final names, and the manifest does not list others.
    fn collect(&self, _: &Home, _: &[ShardNames]) -> Result<()> {
        Ok(())
    }

    /// A manifest is visible once it is put.
    fn stage(&self, _: &Home, _: &str) -> Result<()> {
        Ok(())
    }

    fn publish(&self, home: &Home, manifest: &str, writers: &HashSet<String>) -> Result<bool> {
        let is_first = put(&*home.store, MANIFEST, manifest, Durability::Synced).inspect_err(|error| {
            // A request that got no response may still be carried out. The shards must outlive that.
            if error.kind() == ErrorKind::Transient {
                self.note_undecided(&home.attempt);
            }
        })?;
        if is_first {
            // Ranks look for the manifest, so leftover records do no harm.
            let _ = self.clear_records(&home.attempt, |writer| writers.contains(writer));
        }
        Ok(is_first)
    }

    fn abandon(&self, attempt: &Attempt) -> Result<()> {
        match self.abandonable(attempt)? {
            None => Ok(()),
            Some(_) => self.root.clear(attempt.folder().as_ref()),
        }
    }

    fn give_up(&self, attempt: &Attempt, own: &str) -> Result<()> {
        match self.abandonable(attempt)? {
            None => Ok(()),
            Some(records) => self.remove_records(attempt, &records, |writer| writer == own),
        }
    }

    /// Objects that cannot be removed now are swept by the record of their writer.
    fn withdraw(&self, attempt: &Attempt, writer: &str) -> Result<()> {
        let records = self.folder(attempt)?;
        if names(&*records)?.iter().any(|name| name == BEGUN) {
            return Ok(());
        }
        self.remove_objects(attempt, std::iter::once(writer))?;
        records.remove(writer_file(writer).as_ref(), Durability::Unsynced)
    }

    /// A step exists as long as its manifest.
    fn open(&self, step: u64) -> Result<Arc<dyn Store>> {
        let held = self.below(step)?;
        open_one(&*held, MANIFEST.as_ref())?;
        Ok(held)
    }

    fn is_free(&self, step: u64) -> Result<bool> {
        Ok(if_there(self.open(step))?.is_none())
    }

    fn is_complete(&self, step: u64) -> bool {
        self.open(step).is_ok()
    }

    fn number(&self, _: &dyn Store) -> Result<u64> {
        Ok(0)
    }

    /// The manifest is deleted last, because it names the step's objects; until then the decision to remove the step is
    /// valid. Objects of a save under way have other names and are not touched.
    ///
    /// Several processes may erase one step, and it may be saved and tagged again before the last of them is done. So
    /// the manifest and the tags are deleted only in the versions that were seen while the step had this identity.
    fn erase(&self, _: u64, held: &dyn Store, identity: &StepIdentity) -> Result<()> {
        let mut tags = Vec::new();
        for name in names(held)?.into_iter().filter(|name| tag_of(name).is_some()) {
            tags.extend(if_there(open_one(held, name.as_ref()))?.map(|tag| (name, tag)));
        }
        let Some(seen) = if_there(open_one(held, MANIFEST.as_ref()))? else {
            return Ok(());
        };
        let text = read_whole(held, &*seen, MANIFEST.as_ref(), MANIFEST_BYTES_MAX)?;
        if identity.manifest != Some(Sum::of(&text)) {
            return Ok(());
        }
        // An unreadable manifest does not name the step's objects.
        if let Ok(manifest) = Manifest::parse(&held.describe(MANIFEST.as_ref()), &text) {
            for name in manifest.files() {
                held.remove(name.as_ref(), Durability::Unsynced)?;
            }
        }
        for (name, seen) in tags {
            remove_version(held, &name, &*seen, Durability::Unsynced)?;
        }
        remove_version(held, MANIFEST, &*seen, Durability::Synced)
    }
}

impl ObjectCoordination {
    /// The objects below a step's name.
    fn below(&self, step: u64) -> Result<Arc<dyn Store>> {
        self.root.below(step_folder(step).as_ref(), Missing::Refuse)
    }

    /// The records of an attempt.
    fn folder(&self, attempt: &Attempt) -> Result<Arc<dyn Store>> {
        self.root.below(attempt.folder().as_ref(), Missing::Refuse)
    }

    /// Records that the manifest of an attempt may still appear. Only a sweep by age removes such an attempt.
    pub(crate) fn note_undecided(&self, attempt: &Attempt) {
        // Without the record the same service would have to answer the requests that remove the objects.
        let _ = self
            .folder(attempt)
            .and_then(|folder| put(&*folder, UNDECIDED, "", Durability::Synced));
    }

    /// Removes the objects of an attempt, and returns its records. Removes nothing if its manifest may still appear, or
    /// if its records cannot be listed.
    fn abandonable(&self, attempt: &Attempt) -> Result<Option<Vec<String>>> {
        let records = names(&*self.folder(attempt)?)?;
        if records.iter().any(|name| name == UNDECIDED) {
            return Ok(None);
        }
        self.remove_objects(attempt, records.iter().filter_map(|name| writer_of(name)))?;
        Ok(Some(records))
    }

    /// Removes attempts to which nothing was added for `age_min`, and the holds of attempts that are gone.
    pub(crate) fn clear_aged(&self, now: SystemTime, age_min: Duration) -> Result<Vec<String>> {
        let mut swept = Vec::new();
        let all = names(&*self.root)?;
        let records = |attempt: &Attempt| list_all(&*self.folder(attempt)?).map(|all| all.objects);
        for attempt in all.iter().filter_map(|name| Attempt::of(name)) {
            let records = records(&attempt)?.into_iter();
            let times: Option<Vec<_>> = records.map(|record| record.modified).collect();
            let last = times.and_then(|times| times.into_iter().max());
            let age = last.and_then(|last| now.duration_since(last).ok());
            // What cannot be removed now stays for the next sweep.
            if age.is_some_and(|age| age >= age_min) && self.erase_attempt(&attempt).is_ok() {
                swept.push(attempt.folder());
            }
        }
        for hold in all.iter().filter_map(|name| Hold::of(name)) {
            // Read after the hold was listed, because an attempt exists before its holds.
            if records(&hold.attempt)?.is_empty() {
                self.root.remove(hold.name().as_ref(), Durability::Unsynced)?;
                swept.push(hold.name());
            }
        }
        Ok(swept)
    }

    /// Removes everything that an attempt wrote, even if its manifest may still appear. A sweep finds objects by the
    /// records of their writers, so the records go last.
    fn erase_attempt(&self, attempt: &Attempt) -> Result<()> {
        let records = names(&*self.folder(attempt)?)?;
        self.remove_objects(attempt, records.iter().filter_map(|name| writer_of(name)))?;
        self.root.clear(attempt.folder().as_ref())
    }

    /// Removes the records of an attempt that is over, as `remove_records` does.
    fn clear_records(&self, attempt: &Attempt, is_done: impl Fn(&str) -> bool) -> Result<()> {
        let records = names(&*self.folder(attempt)?)?;
        if records.iter().any(|name| stays(name, &is_done)) {
            return self.remove_records(attempt, &records, is_done);
        }
        // Some stores remove many objects by one request.
        self.root.clear(attempt.folder().as_ref())
    }

    /// Removes these records of an attempt that is over. The records of writers that may still write stay: if such a
    /// writer is killed, a sweep finds its objects by its record.
    fn remove_records(&self, attempt: &Attempt, records: &[String], is_done: impl Fn(&str) -> bool) -> Result<()> {
        let folder = self.folder(attempt)?;
        for name in records.iter().filter(|name| !stays(name, &is_done)) {
            folder.remove(name.as_ref(), Durability::Unsynced)?;
        }
        Ok(())
    }

    /// Removes the objects that these writers of an attempt put below its step, except those that the step's manifest
    /// names: a process that was killed, or did not get its last response, may have committed the attempt.
    fn remove_objects<'a>(&self, attempt: &Attempt, writers: impl Iterator<Item = &'a str>) -> Result<()> {
        let marks: Vec<_> = writers.map(|w| format!("-{}.", mark(w, attempt))).collect();
        let step = self.below(attempt.step)?;
        // If it cannot be read, nothing is removed.
        let committed = if_there(Manifest::read(&*step))?;
        let files: HashSet<_> = committed.iter().flat_map(Manifest::files).collect();
        for name in names(&*step)? {
            if !files.contains(name.as_str()) && marks.iter().any(|mark| name.contains(mark)) {
                step.remove(name.as_ref(), Durability::Unsynced)?;
            }
        }
        Ok(())
    }
}

/// Whether a record is that of a writer that is not done.
fn stays(record: &str, is_done: impl Fn(&str) -> bool) -> bool {
    writer_of(record).is_some_and(|writer| !is_done(writer))
}

/// Removes an object if it still has the version that was seen. In a store without remove-if-match there is a gap
/// between the check and the removal.
fn remove_version(held: &dyn Store, name: &str, seen: &dyn Handle, how: Durability) -> Result<()> {
    match seen.tag() {
        Some(tag) if held.verbs().has(Verb::RemoveIfMatch) => held.remove_if_match(name.as_ref(), &tag, how).map(drop),
        _ if seen.check_unchanged().is_ok() => held.remove(name.as_ref(), how),
        _ => Ok(()),
    }
}
