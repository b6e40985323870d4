//! A folder of checkpoints: which there are, and what their manifests say.

use std::{
    fs,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{RenameFlags, renameat, renameat_with},
    io::Errno,
};
use straightway_core::{Error, Kind, Result};

use super::{
    manifest::Manifest,
    name::{Attempt, MANIFEST, TRASH, step_folder, step_of},
};

/// A folder of checkpoints.
#[derive(Clone, Debug)]
pub struct Store {
    folder: PathBuf,
}

impl Store {
    /// A folder that is there.
    pub fn open(folder: &Path) -> Result<Self> {
        let meta = fs::metadata(folder).map_err(|e| Error::os("open", folder.display(), e))?;
        if !meta.is_dir() {
            let message = "it is no folder";
            return Err(Error::new(Kind::Invalid, "open", folder.display(), message));
        }
        let folder = folder.to_owned();
        Ok(Self { folder })
    }

    /// A folder that is made where it is missing.
    pub fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder).map_err(|e| Error::os("create", folder.display(), e))?;
        Self::open(folder)
    }

    /// Where it is.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The steps that are complete, in order.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let names = self.names()?;
        let steps = names.iter().filter_map(|name| step_of(name));
        let is_complete = |step: &u64| Manifest::is_in(&self.step_path(*step));
        let mut steps: Vec<_> = steps.filter(is_complete).collect();
        steps.sort_unstable();
        Ok(steps)
    }

    /// The latest step that is complete.
    pub fn latest(&self) -> Result<u64> {
        self.steps()?.pop().ok_or_else(|| {
            let folder = self.folder.display();
            let message = "no complete checkpoint is in it";
            Error::new(Kind::NotFound, "find the latest step of", folder, message)
        })
    }

    /// The manifest of a step.
    pub fn manifest(&self, step: u64) -> Result<Manifest> {
        let path = self.step_path(step).join(MANIFEST);
        let manifest = Manifest::read(&path).map_err(|error| match error.kind() {
            Kind::NotFound => {
                let steps = self.steps().unwrap_or_default();
                let target = format!("step {step} of {}", self.folder.display());
                let known = match (steps.first(), steps.last()) {
                    (Some(first), Some(last)) => {
                        format!("its {} steps are {first} to {last}", steps.len())
                    }
                    _ => "it has no complete one".to_owned(),
                };
                Error::new(Kind::NotFound, "find", target, known)
                    .with_hint("`straightway checkpoint ls` lists the steps")
            }
            _ => error,
        })?;
        if manifest.step != step {
            let message = format!("it says that it is step {}", manifest.step);
            return Err(Error::new(Kind::Corrupt, "read", path.display(), message));
        }
        Ok(manifest)
    }

    /// The folder of a step.
    pub fn step_path(&self, step: u64) -> PathBuf {
        self.folder.join(step_folder(step))
    }

    /// Everything in the folder, by name.
    pub(crate) fn names(&self) -> Result<Vec<String>> {
        let failed = |e| Error::os("list", self.folder.display(), e);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            // What is not even text is not ours.
            names.extend(name.into_string().ok());
        }
        Ok(names)
    }

    /// Removes what jobs that crashed left behind. Whoever calls this has the lock: no save is
    /// under way but those of `run`, whose other ranks may have begun already.
    pub(crate) fn sweep(&self, run: Option<&str>) -> Result<Vec<String>> {
        let mut swept = Vec::new();
        for name in self.names()? {
            let is_left = match Attempt::of(&name) {
                Some(attempt) => Some(attempt.run.as_str()) != run,
                None => name.starts_with(TRASH),
            };
            if is_left {
                remove_folder(&self.folder.join(&name))?;
                swept.push(name);
            }
        }
        Ok(swept)
    }
}

/// Removes a folder and all that is in it; one that is gone already is removed.
pub(crate) fn remove_folder(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::os("remove", path.display(), error))
        }
        _ => Ok(()),
    }
}

/// Gives a folder another name, which nothing may have yet.
pub(crate) fn rename_new(from: &Path, to: &Path) -> Result<()> {
    let root = rustix::fs::CWD;
    let renamed = match renameat_with(root, from, root, to, RenameFlags::NOREPLACE) {
        // Some network file systems lack the flag. A folder that is not empty is safe from a rename
        // without it, and a step's never is.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => renameat(root, from, root, to),
        renamed => renamed,
    };
    renamed.map_err(|errno| match errno {
        Errno::EXIST | Errno::NOTEMPTY => {
            Error::new(Kind::Invalid, "create", to.display(), "it exists already")
        }
        _ => Error::os("rename", to.display(), errno.into()),
    })
}
