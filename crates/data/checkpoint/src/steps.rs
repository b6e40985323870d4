//! The checkpoints in a store: lists steps, reads manifests, and sweeps leftovers.
//!
//! A step is the set of objects below `step-N/`, once a manifest is among them. Everything here needs only
//! put-if-absent, get, list and remove; what a kind of store can do beyond that is in its [`Coordination`].

use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use straightway_core::{Error, ErrorKind, Result, Scheme, Uri};
use straightway_io::store::{Durability, Files, Location, Missing, Registry, Store, StoreExt, with_meant};

use super::{
    coordination::{self, Coordination, Lock},
    manifest::{MANIFEST_BYTES_MAX, Manifest},
    name::{Attempt, MANIFEST, step_folder, step_of},
    records::{if_there, names, put},
    removal::{self, Ledger, StepIdentity},
    sum::Sum,
};

/// The maximum length of a record.
const RECORD_BYTES_MAX: u64 = 4096;

/// The checkpoints in a store.
#[derive(Clone, Debug)]
pub struct Steps {
    root: Arc<dyn Store>,
    coordination: Arc<dyn Coordination>,
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
        let found = store.below(&name, missing).map(Self::in_store);
        found.map_err(|error| with_meant(error, &Location::from((store, name))))
    }

    /// The checkpoints in a store.
    pub fn in_store(root: Arc<dyn Store>) -> Self {
        let coordination = coordination::of(&root);
        Self { root, coordination }
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

    /// The coordination with other processes.
    pub(crate) fn coordination(&self) -> &dyn Coordination {
        &*self.coordination
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
            if self.coordination.is_complete(step) && !removal::is_removed(self, &names, step)? {
                steps.push(step);
            }
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// The latest complete step.
    pub fn latest(&self) -> Result<u64> {
        self.steps()?.pop().ok_or_else(|| self.none())
    }

    /// The error for a folder without a complete step. A folder that is itself a step was probably named by mistake.
    pub fn none(&self) -> Error {
        let folder = self.folder();
        let step = folder.file_name().and_then(|name| step_of(name.to_str()?));
        let error = |kind, message| Error::new(kind, "find the latest step of", folder.display(), message);
        if !Manifest::is_in(&folder) {
            return error(ErrorKind::NotFound, "no complete checkpoint is in it");
        }
        let above = folder.parent().unwrap_or(Path::new("."));
        let above = if above.as_os_str().is_empty() {
            Path::new(".")
        } else {
            above
        };
        let step = step.map_or_else(String::new, |step| format!(" ⟦step={step}⟧"));
        error(ErrorKind::Invalid, "it is a single step, not a folder of checkpoints")
            .with_hint(format!("did you mean {}{step}?", above.display()))
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

    /// Opens a step.
    pub(crate) fn step(&self, step: u64) -> Result<Arc<dyn Store>> {
        self.coordination.open(step)
    }

    /// Removes the attempts and records of crashed jobs, except the attempts of `run`.
    pub(crate) fn sweep(&self, lock: &Lock, run: Option<&str>, age: Duration) -> Result<Vec<String>> {
        let mut swept = self.coordination.clear_left(lock, run, age)?;
        swept.extend(removal::settle(self, None)?);
        Ok(swept)
    }

    /// Removes the leftovers of crashed jobs: attempts, records, and incomplete uploads. In a store without locks,
    /// these are the ones to which nothing was added for `age`. Returns the removed names.
    pub fn sweep_left(&self, age: Duration) -> Result<Vec<String>> {
        let lock = self.coordination.lock("sweep", Duration::ZERO)?;
        let mut swept = self.sweep(&lock, None, age)?;
        swept.extend(self.coordination.sweep_drafts(age)?);
        Ok(swept)
    }

    /// The existing attempts of a run.
    pub(crate) fn attempts(&self, run: &str) -> Result<Vec<Attempt>> {
        let names = names(self.root())?;
        let attempts = names.iter().filter_map(|name| Attempt::of(name));
        Ok(attempts.filter(|attempt| attempt.run == run).collect())
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
        let inode = self.coordination.number(&**held)?;
        Ok(StepIdentity { inode, manifest })
    }

    fn tags(&self, held: &Self::Held) -> Result<Vec<String>> {
        Self::tags_in(&**held)
    }

    fn dependant(&self, step: u64) -> Result<Option<String>> {
        Ok(self.survey()?.need(step))
    }

    fn erase(&self, step: u64, held: &Self::Held, identity: &StepIdentity) -> Result<()> {
        self.coordination.erase(step, &**held, identity)
    }
}
