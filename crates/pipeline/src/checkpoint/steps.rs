//! The checkpoints in a store: which there are, and what their manifests say.
//!
//! A step is the objects below `step-N/`, once a manifest is among them. All that is done here needs put-if-absent, list
//! and remove alone. Where the store is a local folder, which may have been prepared by a stranger, all is reached
//! through descriptors and no link is followed; the folder's safeguards are used as well: its lock, its number and its
//! rename (`docs/architecture.md` says what for).

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use straightway_core::{Error, Kind, Result, Scheme, Uri};
use straightway_io::store::{
    Condition, Durability, Files, Folder, Handle, Missing, Registry, Store, Verb, list_all,
    open_one, read_whole,
};

use super::{
    lock::Lock,
    manifest::{MANIFEST_BYTES_MAX, Manifest},
    name::{Attempt, Hold, MANIFEST, step_folder, step_of, tag_of, trashed},
    removal::{self, Identity, Ledger},
    sum::Sum,
};

#[cfg(test)]
mod tests;

/// How often a step's folder is emptied that somebody writes to while it is deleted.
const ERASE_TRIES: usize = 16;

/// How long nothing is added to an attempt before it counts as left by a job that crashed, where no lock tells.
pub(crate) const LEFT_AFTER: Duration = Duration::from_hours(7 * 24);

/// How far the clock of a store may be ahead of this machine's.
const CLOCK_SKEW_MAX: Duration = Duration::from_hours(1);

/// The longest record.
const RECORD_BYTES_MAX: u64 = 4096;

/// The names in a store that are text.
pub(crate) fn names(store: &dyn Store) -> Result<Vec<String>> {
    let all = list_all(store)?;
    let objects = all.objects.into_iter().map(|object| object.name);
    let names = objects.chain(all.folders);
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

/// Puts an object unless something has its name. Answers whether it did.
pub(crate) fn put(store: &dyn Store, name: &str, text: &str, how: Durability) -> Result<bool> {
    store.put(name.as_ref(), text.as_bytes(), &Condition::IfAbsent, how)
}

/// `None` for what is not there.
pub(crate) fn if_there<T>(found: Result<T>) -> Result<Option<T>> {
    match found {
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// The checkpoints in a store.
#[derive(Clone, Debug)]
pub struct Steps {
    root: Arc<dyn Store>,
}

impl Steps {
    /// Those in a folder that is there.
    pub fn open(folder: &Path) -> Result<Self> {
        Files::below_path(folder, Missing::Refuse).map(|files| Self::in_store(Arc::new(files)))
    }

    /// Those in a folder that is made where it is missing.
    pub fn create(folder: &Path) -> Result<Self> {
        Files::below_path(folder, Missing::Create).map(|files| Self::in_store(Arc::new(files)))
    }

    /// Those that a URI names.
    pub fn find(stores: &Registry, uri: &Uri, missing: Missing) -> Result<Self> {
        let (store, name) = stores.find(uri)?;
        if uri.scheme() != Scheme::Path && name.is_empty() {
            return Ok(Self::in_store(store));
        }
        store.below(&name, missing).map(Self::in_store)
    }

    /// Those in a store.
    pub fn in_store(root: Arc<dyn Store>) -> Self {
        Self { root }
    }

    /// Where they are, as messages call it.
    pub fn folder(&self) -> PathBuf {
        self.root.describe(OsStr::new("")).into()
    }

    /// The store.
    pub(crate) fn root(&self) -> &dyn Store {
        &*self.root
    }

    /// The same, shared.
    pub(crate) fn shared(&self) -> &Arc<dyn Store> {
        &self.root
    }

    /// The steps that are complete, in order.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let names = names(self.root())?;
        let mut steps = Vec::new();
        for step in names.iter().filter_map(|name| step_of(name)) {
            // One that cannot be entered is none.
            let is_complete = self.step(step).is_ok_and(|step| has_manifest(&*step));
            if is_complete && !removal::is_removed(self, &names, step)? {
                steps.push(step);
            }
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// The latest step that is complete.
    pub fn latest(&self) -> Result<u64> {
        self.steps()?.pop().ok_or_else(|| {
            let message = "no complete checkpoint is in it";
            let store = self.root.describe(OsStr::new(""));
            Error::new(Kind::NotFound, "find the latest step of", store, message)
        })
    }

    /// The manifest of a step.
    pub fn manifest(&self, step: u64) -> Result<Manifest> {
        if removal::is_removed(self, &names(self.root())?, step)? {
            return Err(self.unknown(step));
        }
        self.read_manifest(step)
    }

    /// The manifest of a step that is listed.
    pub(crate) fn read_manifest(&self, step: u64) -> Result<Manifest> {
        let read = self.step(step).and_then(|held| Manifest::read(&*held));
        let manifest = read.map_err(|error| match error.kind() {
            Kind::NotFound => self.unknown(step),
            _ => error,
        })?;
        if manifest.step != step {
            let path = self.step_path(step).join(MANIFEST);
            let message = format!("it says that it is step {}", manifest.step);
            return Err(Error::new(Kind::Corrupt, "read", path.display(), message));
        }
        Ok(manifest)
    }

    /// What is said of a step that is not there.
    fn unknown(&self, step: u64) -> Error {
        let steps = self.steps().unwrap_or_default();
        let target = format!("step {step} of {}", self.folder().display());
        let known = match (steps.first(), steps.last()) {
            (Some(first), Some(last)) => format!("its {} steps are {first} to {last}", steps.len()),
            _ => "it has no complete one".to_owned(),
        };
        Error::new(Kind::NotFound, "find", target, known)
            .with_hint("`straightway checkpoint ls` lists the steps")
    }

    /// Where a step is, as messages call it.
    pub fn step_path(&self, step: u64) -> PathBuf {
        self.root.describe(step_folder(step).as_ref()).into()
    }

    /// What is below a step's name. A local folder is held open, whatever becomes of its name; elsewhere it is there
    /// as long as a manifest is.
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

    /// Removes what jobs that crashed left behind. Whoever calls this has the lock: no save is
    /// under way but those of `run`, whose other ranks may have begun already.
    pub(crate) fn sweep(&self, run: Option<&str>) -> Result<Vec<String>> {
        let mut swept = self.sweep_trash()?;
        for name in names(self.root())? {
            let is_left = match Attempt::of(&name) {
                Some(attempt) => Some(attempt.run.as_str()) != run,
                // Only a coordinator puts holds, and whoever has the lock is the only one.
                None => Hold::of(&name).is_some(),
            };
            if is_left {
                self.root.clear(name.as_ref())?;
                swept.push(name);
            }
        }
        swept.extend(removal::settle(self, None)?);
        // A tagger that was killed leaves its draft in the step.
        let steps = names(self.root())?
            .into_iter()
            .filter_map(|name| step_of(&name));
        let steps = steps.filter_map(|step| self.step(step).ok());
        for store in steps.chain([Arc::clone(&self.root)]) {
            store.sweep();
        }
        Ok(swept)
    }

    /// The same in a store without locks, where only age tells what crashed jobs left: attempts to which nothing was added
    /// for `age`, and the holds of attempts that are gone.
    pub(crate) fn sweep_aged(&self, now: SystemTime, age_min: Duration) -> Result<Vec<String>> {
        let mut swept = Vec::new();
        let all = names(self.root())?;
        let records = |attempt: &Attempt| {
            let folder = self
                .root
                .below(attempt.folder().as_ref(), Missing::Refuse)?;
            list_all(&*folder).map(|all| all.objects)
        };
        for attempt in all.iter().filter_map(|name| Attempt::of(name)) {
            let records = records(&attempt)?.into_iter();
            let times: Option<Vec<_>> = records.map(|record| record.modified).collect();
            let last = times.and_then(|times| times.into_iter().max());
            let age = last.and_then(|last| now.duration_since(last).ok());
            if age.is_some_and(|age| age >= age_min) {
                self.abandon(&attempt);
                swept.push(attempt.folder());
            }
        }
        for hold in all.iter().filter_map(|name| Hold::of(name)) {
            // Looked at after the hold was listed: an attempt is there before its holds.
            if records(&hold.attempt)?.is_empty() {
                self.discard(&hold.name())?;
                swept.push(hold.name());
            }
        }
        Ok(swept)
    }

    /// Removes what jobs that crashed left behind: attempts, records, and uploads that were never completed. Where no lock
    /// tells whether a job is alive, that is what nothing was added to for `age`. Answers what is gone.
    pub fn sweep_left(&self, age: Duration) -> Result<Vec<String>> {
        if self.root.folder().is_some() {
            let lock = Lock::take(self.root(), "sweep", Duration::ZERO)?;
            if !lock.is_held() {
                let message = "its file system has no locks, which tell whether a job saves there";
                let folder = self.folder();
                return Err(
                    Error::new(Kind::Unsupported, "sweep", folder.display(), message).with_hint(
                        "remove by hand what begins with `.step-`, when no job saves there",
                    ),
                );
            }
            return self.sweep(None);
        }
        // The store's clock may be ahead of this one's: who wants all gone gets it.
        let ahead = if age.is_zero() {
            CLOCK_SKEW_MAX
        } else {
            Duration::ZERO
        };
        let mut swept = self.sweep_aged(SystemTime::now() + ahead, age)?;
        swept.extend(removal::settle(self, None)?);
        swept.extend(self.root.sweep_drafts(age)?);
        Ok(swept)
    }

    /// The attempts of a run that are there.
    pub(crate) fn attempts(&self, run: &str) -> Result<Vec<Attempt>> {
        let names = names(self.root())?;
        let attempts = names.iter().filter_map(|name| Attempt::of(name));
        Ok(attempts.filter(|attempt| attempt.run == run).collect())
    }

    /// Finishes the removals that 0.1.0 had begun. It renamed a step before it looked for those that refer to it: a
    /// step that is tagged, or that a listed one needs, is put back.
    fn sweep_trash(&self) -> Result<Vec<String>> {
        let names = names(self.root())?.into_iter();
        let mut trash: Vec<_> = names.filter(|name| trashed(name).is_some()).collect();
        let Some(root) = self.root.folder().filter(|_| !trash.is_empty()) else {
            return Ok(Vec::new());
        };
        // One that is put back may need another.
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

    /// The first of these that must be put back.
    fn needed_trash(&self, trash: &[String]) -> Result<Option<usize>> {
        let survey = self.survey()?;
        let is_needed = |name: &String| {
            let step = trashed(name)?;
            let is_free = self.is_free(step).unwrap_or(false);
            let folder = self.root.below(name.as_ref(), Missing::Refuse).ok()?;
            // Tags that cannot be read are taken for tags.
            let is_tagged = Self::tags_in(&*folder).map_or(true, |tags| !tags.is_empty());
            Some(is_free && (is_tagged || survey.need(step).is_some()))
        };
        Ok(trash.iter().position(|name| is_needed(name) == Some(true)))
    }

    /// Deletes the objects of a step whose store is no folder. The manifest goes last: its names are those of the
    /// objects that belong to it, and until then the decision to remove it stands. Objects of a save under way, which
    /// have names of their own, are not touched.
    ///
    /// Several processes may erase one step, and it may be saved and tagged again before the last of them is done. So
    /// the manifest and the tags go only as the versions that were seen while the step was the one that is meant.
    fn erase_objects(held: &dyn Store, identity: &Identity) -> Result<()> {
        let mut tags = Vec::new();
        for name in names(held)?
            .into_iter()
            .filter(|name| tag_of(name).is_some())
        {
            tags.extend(if_there(open_one(held, name.as_ref()))?.map(|tag| (name, tag)));
        }
        let Some(seen) = if_there(open_one(held, MANIFEST.as_ref()))? else {
            return Ok(());
        };
        let text = read_whole(held, &*seen, MANIFEST.as_ref(), MANIFEST_BYTES_MAX)?;
        if identity.manifest != Some(Sum::of(&text)) {
            return Ok(());
        }
        // One that cannot be read does not say what belongs to it.
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

/// Removes an object if it is the version that was seen. A store without that condition leaves a gap between the look and
/// the removal.
fn remove_version(held: &dyn Store, name: &str, seen: &dyn Handle, how: Durability) -> Result<()> {
    match seen.tag() {
        Some(tag) if held.verbs().has(Verb::RemoveIfMatch) => {
            held.remove_if_match(name.as_ref(), &tag, how).map(drop)
        }
        _ if seen.check_unchanged().is_ok() => held.remove(name.as_ref(), how),
        _ => Ok(()),
    }
}

/// Whether a step is complete.
fn has_manifest(step: &dyn Store) -> bool {
    match step.folder() {
        Some(folder) => folder.has_file(MANIFEST).unwrap_or(false),
        // It would not be there without.
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

    fn identity(&self, held: &Self::Held) -> Result<Identity> {
        let manifest = if_there(held.get(MANIFEST.as_ref(), MANIFEST_BYTES_MAX))?;
        let manifest = manifest.map(|text| Sum::of(&text));
        let inode = held.folder().map_or(Ok(0), Folder::inode)?;
        Ok(Identity { inode, manifest })
    }

    fn tags(&self, held: &Self::Held) -> Result<Vec<String>> {
        Self::tags_in(&**held)
    }

    fn dependant(&self, step: u64) -> Result<Option<String>> {
        Ok(self.survey()?.need(step))
    }

    fn erase(&self, step: u64, held: &Self::Held, identity: &Identity) -> Result<()> {
        let Some((root, own)) = self.root.folder().zip(held.folder()) else {
            return Self::erase_objects(&**held, identity);
        };
        // Without its manifest it is no step, whatever else a loss of power brings back.
        own.remove(MANIFEST)?;
        own.sync()?;
        let name = step_folder(step);
        for _ in 0..ERASE_TRIES {
            own.clear()?;
            let is_gone = match if_there(root.open_folder(&name))? {
                // What has the name now is another step.
                Some(now) => now.inode()? != own.inode()? || root.remove_empty(&name)?,
                None => true,
            };
            if is_gone {
                return root.sync();
            }
        }
        let message = "somebody writes to it while it is removed";
        let path = own.path().display();
        Err(Error::new(Kind::Transient, "remove", path, message))
    }
}
