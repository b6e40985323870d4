//! The folder that a trial works in: hidden, and removed again, if need be by the next trial.
//!
//! Who works in one has the kernel's lock on the folder itself. One that nobody has a lock on was left behind by a
//! process that died.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use straightway_core::{Error, Kind, Result};

use super::{
    saver::fresh_run,
    store::{Store, remove_folder},
};

/// What such folders begin with.
const PREFIX: &str = ".straightway-trial-";

/// How often a folder is made anew that a trial which began at the same time took for a dead one's.
const TRIES: usize = 8;

/// A folder that is removed again.
#[derive(Debug)]
pub(crate) struct Yard {
    store: Store,
    _lock: fs::File,
}

impl Yard {
    /// One inside `parent`. What trials that died left there is removed first.
    pub(crate) fn new(parent: &Path) -> Result<Self> {
        sweep(parent);
        for _ in 0..TRIES {
            let folder = parent.join(format!("{PREFIX}{}", fresh_run()));
            let store = Store::create(&folder)?;
            if let Some(lock) = taken(&folder)? {
                return Ok(Self { store, _lock: lock });
            }
        }
        let message = "others remove what is made there";
        Err(Error::new(
            Kind::Transient,
            "try checkpoints in",
            parent.display(),
            message,
        ))
    }

    /// The folder of checkpoints.
    pub(crate) fn store(&self) -> &Store {
        &self.store
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        let _ = remove_folder(self.store.folder());
    }
}

/// The lock on a new folder; `None` where another trial is about to remove it, or has.
fn taken(folder: &Path) -> Result<Option<fs::File>> {
    let file = match fs::File::open(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(|e| Error::os("open", folder.display(), e))?,
    };
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        // A file system without locks has nobody who sweeps.
        _ => Ok(folder.exists().then_some(file)),
    }
}

/// Removes the folders that nobody works in. What cannot be looked at or removed is no reason not to begin.
fn sweep(parent: &Path) {
    let Ok(listed) = fs::read_dir(parent) else {
        return;
    };
    let is_ours = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with(PREFIX)) && path.is_dir()
    };
    for path in listed.flatten().map(|entry| entry.path()).filter(is_ours) {
        let Ok(file) = fs::File::open(&path) else {
            continue;
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // While it is locked, so that whoever has just made it sees that it goes.
            let _ = remove_folder(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trial_removes_what_dead_ones_left_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let dead = parent.path().join(format!("{PREFIX}dead"));
        fs::create_dir_all(dead.join("step-1")).unwrap();
        fs::create_dir(parent.path().join("other")).unwrap();
        let one = Yard::new(parent.path()).unwrap();
        assert!(!dead.exists());
        let two = Yard::new(parent.path()).unwrap();
        assert!(one.store().folder().exists());
        drop((one, two));
        let left: Vec<_> = fs::read_dir(parent.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
