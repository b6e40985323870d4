//! A folder of checkpoints: which there are, and what their manifests say.
//!
//! The folder may have been prepared by a stranger. All that is in it is reached through the folder's descriptor: a
//! step or a file of one that is a symbolic link is not followed.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use straightway_core::{Error, Kind, Result};
use straightway_io::draft;
use straightway_sys::{Folder, folder::Durability};

use super::{
    manifest::{MANIFEST_BYTES_MAX, Manifest},
    name::{Attempt, Hold, MANIFEST, step_folder, step_of, trashed},
    removal::{self, Identity, Ledger},
    sum::Sum,
};

/// How often a step's folder is emptied that somebody writes to while it is deleted.
const ERASE_TRIES: usize = 16;

/// The longest record.
const RECORD_BYTES_MAX: u64 = 4096;

/// A folder of checkpoints.
#[derive(Clone, Debug)]
pub struct Store {
    root: Arc<Folder>,
}

impl Store {
    /// A folder that is there.
    pub fn open(folder: &Path) -> Result<Self> {
        let root = Arc::new(Folder::open(folder)?);
        Ok(Self { root })
    }

    /// A folder that is made where it is missing.
    pub fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|e| Error::os("create", folder.display(), e))?;
        Self::open(folder)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        self.root.path()
    }

    /// It, open.
    pub(crate) fn root(&self) -> &Folder {
        &self.root
    }

    /// The steps that are complete, in order.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let names = self.root.list()?;
        let mut steps = Vec::new();
        for step in names.iter().filter_map(|name| step_of(name)) {
            // One that cannot be entered, or is a link, is none.
            let is_complete = self.step(step).and_then(|folder| folder.has_file(MANIFEST));
            if is_complete.unwrap_or(false) && !removal::is_removed(self, &names, step)? {
                steps.push(step);
            }
        }
        steps.sort_unstable();
        Ok(steps)
    }

    /// The latest step that is complete.
    pub fn latest(&self) -> Result<u64> {
        self.steps()?.pop().ok_or_else(|| {
            let folder = self.folder().display();
            let message = "no complete checkpoint is in it";
            Error::new(Kind::NotFound, "find the latest step of", folder, message)
        })
    }

    /// The manifest of a step.
    pub fn manifest(&self, step: u64) -> Result<Manifest> {
        if removal::is_removed(self, &self.root.list()?, step)? {
            return Err(self.unknown(step));
        }
        self.read_manifest(step)
    }

    /// The manifest of a step that is listed.
    pub(crate) fn read_manifest(&self, step: u64) -> Result<Manifest> {
        let read = self.step(step).and_then(|folder| Manifest::read(&folder));
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

    /// The folder of a step.
    pub fn step_path(&self, step: u64) -> PathBuf {
        self.folder().join(step_folder(step))
    }

    /// The folder of a step, open.
    pub(crate) fn step(&self, step: u64) -> Result<Folder> {
        self.root.open_folder(&step_folder(step))
    }

    /// Removes what jobs that crashed left behind. Whoever calls this has the lock: no save is
    /// under way but those of `run`, whose other ranks may have begun already.
    pub(crate) fn sweep(&self, run: Option<&str>) -> Result<Vec<String>> {
        let mut swept = self.sweep_trash()?;
        for name in self.root.list()? {
            let is_left = match Attempt::of(&name) {
                Some(attempt) => Some(attempt.run.as_str()) != run,
                // Only a coordinator puts holds, and whoever has the lock is the only one.
                None => Hold::of(&name).is_some(),
            };
            if is_left {
                self.root.remove_tree(&name)?;
                swept.push(name);
            }
        }
        swept.extend(removal::settle(self, None)?);
        draft::sweep(self.folder());
        Ok(swept)
    }

    /// The attempts of a run that are there.
    pub(crate) fn attempts(&self, run: &str) -> Result<Vec<Attempt>> {
        let names = self.root.list()?;
        let attempts = names.iter().filter_map(|name| Attempt::of(name));
        Ok(attempts.filter(|attempt| attempt.run == run).collect())
    }

    /// Finishes the removals that 0.1.0 had begun. It renamed a step before it looked for those that refer to it: a
    /// step that is tagged, or that a listed one needs, is put back.
    fn sweep_trash(&self) -> Result<Vec<String>> {
        let names = self.root.list()?;
        let mut trash: Vec<_> = names
            .into_iter()
            .filter(|name| trashed(name).is_some())
            .collect();
        // One that is put back may need another.
        while let Some(at) = self.needed_trash(&trash)? {
            let name = trash.swap_remove(at);
            let step = trashed(&name).expect("only such names are in the list");
            self.root.rename_new(&name, &step_folder(step))?;
            self.root.sync()?;
        }
        for name in &trash {
            self.root.remove_tree(name)?;
        }
        Ok(trash)
    }

    /// The first of these that must be put back.
    fn needed_trash(&self, trash: &[String]) -> Result<Option<usize>> {
        if trash.is_empty() {
            return Ok(None);
        }
        let survey = self.survey()?;
        let is_needed = |name: &String| {
            let step = trashed(name)?;
            let is_free = matches!(self.root.kind(&step_folder(step)), Ok(None));
            let folder = self.root.open_folder(name).ok()?;
            // Tags that cannot be read are taken for tags.
            let is_tagged = Self::tags_in(&folder).map_or(true, |tags| !tags.is_empty());
            Some(is_free && (is_tagged || survey.need(step).is_some()))
        };
        Ok(trash.iter().position(|name| is_needed(name) == Some(true)))
    }
}

impl Ledger for Store {
    type Held = Folder;

    fn names(&self) -> Result<Vec<String>> {
        self.root.list()
    }

    fn put(&self, name: &str, text: &str, durability: Durability) -> Result<bool> {
        self.root.put_if_absent(name, text.as_bytes(), durability)
    }

    fn get(&self, name: &str) -> Result<Option<String>> {
        match self.root.read(name, RECORD_BYTES_MAX) {
            Ok(text) => Ok(Some(String::from_utf8_lossy(&text).into_owned())),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn discard(&self, name: &str) -> Result<()> {
        self.root.remove(name)
    }

    fn open(&self, step: u64) -> Result<Option<Folder>> {
        match self.step(step) {
            Ok(folder) => Ok(Some(folder)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn identity(&self, held: &Folder) -> Result<Identity> {
        let manifest = match held.read(MANIFEST, MANIFEST_BYTES_MAX) {
            Ok(text) => Some(Sum::of(&text)),
            Err(error) if error.kind() == Kind::NotFound => None,
            Err(error) => return Err(error),
        };
        let inode = held.inode()?;
        Ok(Identity { inode, manifest })
    }

    fn tags(&self, held: &Folder) -> Result<Vec<String>> {
        Self::tags_in(held)
    }

    fn dependant(&self, step: u64) -> Result<Option<String>> {
        Ok(self.survey()?.need(step))
    }

    fn erase(&self, step: u64, held: &Folder) -> Result<()> {
        // Without its manifest it is no step, whatever else a loss of power brings back.
        held.remove(MANIFEST)?;
        held.sync()?;
        let name = step_folder(step);
        for _ in 0..ERASE_TRIES {
            held.clear()?;
            let is_gone = match self.step(step) {
                // What has the name now is another step.
                Ok(now) => now.inode()? != held.inode()? || self.root.remove_empty(&name)?,
                Err(error) if error.kind() == Kind::NotFound => true,
                Err(error) => return Err(error),
            };
            if is_gone {
                return self.root.sync();
            }
        }
        let message = "somebody writes to it while it is removed";
        Err(Error::new(
            Kind::Transient,
            "remove",
            held.path().display(),
            message,
        ))
    }
}
