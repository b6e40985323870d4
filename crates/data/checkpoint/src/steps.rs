//! The checkpoints in a store: lists steps, reads manifests, and sweeps leftovers.
//!
//! A step is the set of objects below `step-N/`, once a manifest is among them. Everything here needs only
//! put-if-absent, get, list and remove. A local folder may have been prepared by an attacker, so it is accessed through
//! descriptors, and no link is followed. Its lock, inode numbers and rename are used too (`docs/architecture.md` says
//! what for).

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use straightway_core::{Error, ErrorKind, Result, Scheme, Uri};
use straightway_io::store::{
    Condition, Durability, Files, Folder, Handle, Location, Missing, Registry, Store, Verb, list_all, open_one,
    read_whole,
};

use super::{
    lock::Lock,
    manifest::{MANIFEST_BYTES_MAX, Manifest},
    name::{Attempt, Hold, MANIFEST, step_folder, step_of, tag_of, trashed},
    removal::{self, Ledger, StepIdentity},
    sum::Sum,
};

#[cfg(test)]
mod tests;

/// The maximum number of times that a step's folder is emptied while another process writes to it.
const ERASE_TRIES: usize = 16;

/// In a store without locks: the age of an attempt's last record from which on it counts as a leftover of a crashed
/// job.
pub(crate) const LEFT_AFTER: Duration = Duration::from_hours(7 * 24);

/// The maximum time that a store's clock may be ahead of this machine's.
const CLOCK_SKEW_MAX: Duration = Duration::from_hours(1);

/// The maximum length of a record.
const RECORD_BYTES_MAX: u64 = 4096;

/// The names in a store that are valid UTF-8.
pub(crate) fn names(store: &dyn Store) -> Result<Vec<String>> {
    let all = list_all(store)?;
    let objects = all.objects.into_iter().map(|object| object.name);
    let names = objects.chain(all.folders);
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

/// Puts an object if its name is free. Returns whether it was put.
pub(crate) fn put(store: &dyn Store, name: &str, text: &str, how: Durability) -> Result<bool> {
    store.put(name.as_ref(), text.as_bytes(), &Condition::IfAbsent, how)
}

/// Turns a `NotFound` error into `None`.
pub(crate) fn if_there<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// The checkpoints in a store.
#[derive(Clone, Debug)]
pub struct Steps {
    root: Arc<dyn Store>,
}

impl Steps {
    /// The checkpoints in an existing folder.
    pub fn open(folder: &Path) -> Result<Self> {
        Files::below_path(folder, Missing::Refuse).map(|files| Self::in_store(Arc::new(files)))
    }

    /// The checkpoints in a folder, which is created if it does not exist.
    pub fn create(folder: &Path) -> Result<Self> {
        Files::below_path(folder, Missing::Create).map(|files| Self::in_store(Arc::new(files)))
    }

    /// The checkpoints at a URI.
    pub fn find(stores: &Registry, uri: &Uri, missing: Missing) -> Result<Self> {
        let (store, name) = stores.find(uri)?;
        if uri.scheme() != Scheme::Path && name.is_empty() {
            return Ok(Self::in_store(store));
        }
        store.below(&name, missing).map(Self::in_store)
    }

    /// The checkpoints in a store.
    pub fn in_store(root: Arc<dyn Store>) -> Self {
        Self { root }
    }

    /// Their location, for messages.
    pub fn folder(&self) -> PathBuf {
        self.root.describe(OsStr::new("")).into()
    }

    /// Their location.
    pub fn location(&self) -> Location {
        Location {
            store: Arc::clone(&self.root),
            name: PathBuf::new(),
        }
    }

    /// The store.
    pub(crate) fn root(&self) -> &dyn Store {
        &*self.root
    }

    /// The store, shared.
    pub(crate) fn shared(&self) -> &Arc<dyn Store> {
        &self.root
    }

    /// The complete steps, in order.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let names = names(self.root())?;
        let mut steps = Vec::new();
        for step in names.iter().filter_map(|name| step_of(name)) {
            // A folder that cannot be opened is not a step.
            let is_complete = self.step(step).is_ok_and(|step| has_manifest(&*step));
            if is_complete && !removal::is_removed(self, &names, step)? {
                steps.push(step);
            }
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// The latest complete step.
    pub fn latest(&self) -> Result<u64> {
        self.steps()?.pop().ok_or_else(|| {
            let message = "no complete checkpoint is in it";
            let store = self.root.describe(OsStr::new(""));
            Error::new(ErrorKind::NotFound, "find the latest step of", store, message)
        })
    }

    /// The manifest of a step.
    pub fn manifest(&self, step: u64) -> Result<Manifest> {
        if removal::is_removed(self, &names(self.root())?, step)? {
            return Err(self.unknown(step));
        }
        self.read_manifest(step)
    }

    /// The manifest of a step, if it exists. Ranks poll for it, so this makes as few requests as possible.
    pub(crate) fn find_manifest(&self, step: u64) -> Result<Option<Manifest>> {
        if removal::is_removed(self, &names(self.root())?, step)? {
            return Ok(None);
        }
        if_there(self.checked_manifest(step))
    }

    /// The manifest of a step that is known to be listed.
    pub(crate) fn read_manifest(&self, step: u64) -> Result<Manifest> {
        let read = self.checked_manifest(step);
        read.map_err(|error| match error.kind() {
            ErrorKind::NotFound => self.unknown(step),
            _ => error,
        })
    }

    fn checked_manifest(&self, step: u64) -> Result<Manifest> {
        let manifest = Manifest::read(&*self.step(step)?)?;
        if manifest.step != step {
            let path = self.step_path(step).join(MANIFEST);
            let message = format!("it says that it is step {}", manifest.step);
            return Err(Error::new(ErrorKind::Corrupt, "read", path.display(), message));
        }
        Ok(manifest)
    }

    /// The error for a step that does not exist.
    fn unknown(&self, step: u64) -> Error {
        let steps = self.steps().unwrap_or_default();
        let target = format!("step {step} of {}", self.folder().display());
        let known = match (steps.first(), steps.last()) {
            (Some(first), Some(last)) => format!("its {} steps are {first} to {last}", steps.len()),
            _ => "it has no complete step".to_owned(),
        };
        Error::new(ErrorKind::NotFound, "find", target, known).with_hint("`straightway checkpoint ls` lists the steps")
    }

    /// The path of a step, for messages.
    pub fn step_path(&self, step: u64) -> PathBuf {
        self.root.describe(step_folder(step).as_ref()).into()
    }

    /// Opens a step. A local folder stays open even if it is renamed or removed; in other stores a step exists as long
    /// as its manifest.
    pub(crate) fn step(&self, step: u64) -> Result<Arc<dyn Store>> {
        let name = step_folder(step);
        let held = self.root.below(name.as_ref(), Missing::Refuse)?;
        if held.folder().is_none() {
            open_one(&*held, MANIFEST.as_ref())?;
        }
        Ok(held)
    }

    /// Whether nothing has the name of a step.
    pub(crate) fn is_free(&self, step: u64) -> Result<bool> {
        match self.root.folder() {
            Some(root) => Ok(root.kind(&step_folder(step))?.is_none()),
            None => Ok(if_there(self.step(step))?.is_none()),
        }
    }

    /// Removes the leftovers of crashed jobs. The caller holds the lock, so no save is under way except those of `run`,
    /// whose other ranks may have begun already.
    pub(crate) fn sweep(&self, run: Option<&str>) -> Result<Vec<String>> {
        let mut swept = self.sweep_trash()?;
        for name in names(self.root())? {
            let is_left = match Attempt::of(&name) {
                Some(attempt) => Some(attempt.run.as_str()) != run,
                // Only a coordinator puts holds, and only one coordinator can hold the lock.
                None => Hold::of(&name).is_some(),
            };
            if is_left {
                self.root.clear(name.as_ref())?;
                swept.push(name);
            }
        }
        swept.extend(removal::settle(self, None)?);
        // A killed process may have left the draft of a tag in the step.
        let steps = names(self.root())?.into_iter().filter_map(|name| step_of(&name));
        let steps = steps.filter_map(|step| self.step(step).ok());
        for store in steps.chain([Arc::clone(&self.root)]) {
            store.sweep();
        }
        Ok(swept)
    }

    /// The sweep of a store without locks, where only age identifies leftovers: removes attempts to which nothing was
    /// added for `age_min`, and the holds of attempts that are gone.
    pub(crate) fn sweep_aged(&self, now: SystemTime, age_min: Duration) -> Result<Vec<String>> {
        let mut swept = Vec::new();
        let all = names(self.root())?;
        let records = |attempt: &Attempt| {
            let folder = self.root.below(attempt.folder().as_ref(), Missing::Refuse)?;
            list_all(&*folder).map(|all| all.objects)
        };
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
                self.discard(&hold.name())?;
                swept.push(hold.name());
            }
        }
        Ok(swept)
    }

    /// Removes the leftovers of crashed jobs: attempts, records, and incomplete uploads. In a store without locks,
    /// these are the ones to which nothing was added for `age`. Returns the removed names.
    pub fn sweep_left(&self, age: Duration) -> Result<Vec<String>> {
        if self.root.folder().is_some() {
            let lock = Lock::take(self.root(), "sweep", Duration::ZERO)?;
            if !lock.is_held() {
                let message = "its file system has no locks, which tell whether a job saves there";
                let folder = self.folder();
                return Err(Error::new(ErrorKind::Unsupported, "sweep", folder.display(), message)
                    .with_hint("remove by hand what begins with `.step-`, when no job saves there"));
            }
            return self.sweep(None);
        }
        // The store's clock may be ahead of this one's, and an age of 0 must include everything.
        let ahead = if age.is_zero() { CLOCK_SKEW_MAX } else { Duration::ZERO };
        let mut swept = self.sweep_aged(SystemTime::now() + ahead, age)?;
        swept.extend(removal::settle(self, None)?);
        swept.extend(self.root.sweep_drafts(age)?);
        Ok(swept)
    }

    /// The existing attempts of a run.
    pub(crate) fn attempts(&self, run: &str) -> Result<Vec<Attempt>> {
        let names = names(self.root())?;
        let attempts = names.iter().filter_map(|name| Attempt::of(name));
        Ok(attempts.filter(|attempt| attempt.run == run).collect())
    }

    /// Finishes the removals that version 0.1.0 began. It renamed a step before it looked for references to it, so a
    /// step that is tagged, or that a listed step needs, is restored.
    fn sweep_trash(&self) -> Result<Vec<String>> {
        let names = names(self.root())?.into_iter();
        let mut trash: Vec<_> = names.filter(|name| trashed(name).is_some()).collect();
        let Some(root) = self.root.folder().filter(|_| !trash.is_empty()) else {
            return Ok(Vec::new());
        };
        // A restored step may need another one.
        while let Some(at) = self.needed_trash(&trash)? {
            let name = trash.swap_remove(at);
            let step = trashed(&name).expect("only such names are in the list");
            root.rename_new(&name, &step_folder(step))?;
            root.sync()?;
        }
        for name in &trash {
            root.remove_tree(name)?;
        }
        Ok(trash)
    }

    /// The index of the first of these that must be restored.
    fn needed_trash(&self, trash: &[String]) -> Result<Option<usize>> {
        let survey = self.survey()?;
        let is_needed = |name: &String| {
            let step = trashed(name)?;
            let is_free = self.is_free(step).unwrap_or(false);
            let folder = self.root.below(name.as_ref(), Missing::Refuse).ok()?;
            // An unreadable tag file counts as a tag.
            let is_tagged = Self::tags_in(&*folder).map_or(true, |tags| !tags.is_empty());
            Some(is_free && (is_tagged || survey.need(step).is_some()))
        };
        Ok(trash.iter().position(|name| is_needed(name) == Some(true)))
    }

    /// Deletes the objects of a step in an object store. The manifest is deleted last, because it names the step's
    /// objects; until then the decision to remove the step is valid. Objects of a save under way have other names and
    /// are not touched.
    ///
    /// Several processes may erase one step, and it may be saved and tagged again before the last of them is done. So
    /// the manifest and the tags are deleted only in the versions that were seen while the step had this identity.
    fn erase_objects(held: &dyn Store, identity: &StepIdentity) -> Result<()> {
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
            let shards = manifest.shards.into_iter().map(|shard| shard.file);
            let parity = manifest.parity.into_iter().map(|parity| parity.file);
            for name in shards.chain(parity) {
                held.remove(name.as_ref(), Durability::Unsynced)?;
            }
        }
        for (name, seen) in tags {
            remove_version(held, &name, &*seen, Durability::Unsynced)?;
        }
        remove_version(held, MANIFEST, &*seen, Durability::Synced)
    }
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

/// Whether a step is complete.
fn has_manifest(step: &dyn Store) -> bool {
    match step.folder() {
        Some(folder) => folder.has_file(MANIFEST).unwrap_or(false),
        // `Steps::step` fails without a manifest.
        None => true,
    }
}

impl Ledger for Steps {
    type Held = Arc<dyn Store>;

    fn names(&self) -> Result<Vec<String>> {
        names(self.root())
    }

    fn put(&self, name: &str, text: &str, durability: Durability) -> Result<bool> {
        put(self.root(), name, text, durability)
    }

    fn get(&self, name: &str) -> Result<Option<String>> {
        let text = if_there(self.root.get(name.as_ref(), RECORD_BYTES_MAX))?;
        Ok(text.map(|text| String::from_utf8_lossy(&text).into_owned()))
    }

    fn discard(&self, name: &str) -> Result<()> {
        self.root.remove(name.as_ref(), Durability::Unsynced)
    }

    fn open(&self, step: u64) -> Result<Option<Self::Held>> {
        if_there(self.step(step))
    }

    fn identity(&self, held: &Self::Held) -> Result<StepIdentity> {
        let manifest = if_there(held.get(MANIFEST.as_ref(), MANIFEST_BYTES_MAX))?;
        let manifest = manifest.map(|text| Sum::of(&text));
        let inode = held.folder().map_or(Ok(0), Folder::inode)?;
        Ok(StepIdentity { inode, manifest })
    }

    fn tags(&self, held: &Self::Held) -> Result<Vec<String>> {
        Self::tags_in(&**held)
    }

    fn dependant(&self, step: u64) -> Result<Option<String>> {
        Ok(self.survey()?.need(step))
    }

    fn erase(&self, step: u64, held: &Self::Held, identity: &StepIdentity) -> Result<()> {
        let Some((root, own)) = self.root.folder().zip(held.folder()) else {
            return Self::erase_objects(&**held, identity);
        };
        // Without its manifest it is not a step, whatever files a power loss brings back.
        own.remove(MANIFEST)?;
        own.sync()?;
        let name = step_folder(step);
        for _ in 0..ERASE_TRIES {
            own.clear()?;
            let is_gone = match if_there(root.open_folder(&name))? {
                // Otherwise the name belongs to another step now.
                Some(now) => now.inode()? != own.inode()? || root.remove_empty(&name)?,
                None => true,
            };
            if is_gone {
                return root.sync();
            }
        }
        let message = "somebody writes to it while it is removed";
        let path = own.path().display();
        Err(Error::new(ErrorKind::Transient, "remove", path, message))
    }
}
