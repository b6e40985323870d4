//! The folder that a trial works in: hidden, and removed again, if need be by the next trial.
//!
//! Who works in one has the kernel's lock on the folder itself. One that nobody has a lock on was left behind by a
//! process that died.

use std::path::Path;

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use straightway_core::{Error, Kind, Result};
use straightway_pipeline::checkpoint::{Steps, fresh_run};
use straightway_sys::Folder;

/// What such folders begin with.
const PREFIX: &str = ".straightway-trial-";

/// How often a folder is made anew that a trial which began at the same time took for a dead one's.
const TRIES: usize = 8;

/// A folder that is removed again.
#[derive(Debug)]
pub(super) struct Yard {
    parent: Folder,
    name: String,
    store: Steps,
    /// Locked as long as it is open.
    _lock: Folder,
}

impl Yard {
    /// One inside `parent`. What trials that died left there is removed first.
    pub(super) fn new(parent: &Path) -> Result<Self> {
        let parent = Folder::open(parent)?;
        sweep(&parent);
        for _ in 0..TRIES {
            let name = format!("{PREFIX}{}", fresh_run());
            let store = Steps::create(&parent.path().join(&name))?;
            if let Some(lock) = taken(&parent, &name)? {
                return Ok(Self {
                    parent,
                    name,
                    store,
                    _lock: lock,
                });
            }
        }
        let why = "others remove what is made there";
        let target = format!("checkpoints in {}", parent.path().display());
        Err(Error::new(Kind::Transient, "try", target, why))
    }

    /// The folder of checkpoints.
    pub(super) fn store(&self) -> &Steps {
        &self.store
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        let _ = self.parent.remove_tree(&self.name);
    }
}

/// The lock on a new folder; `None` where another trial is about to remove it, or has.
fn taken(parent: &Folder, name: &str) -> Result<Option<Folder>> {
    let folder = match parent.open_folder(name) {
        Err(error) if error.kind() == Kind::NotFound => return Ok(None),
        opened => opened?,
    };
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        // A file system without locks has nobody who sweeps.
        _ => Ok(parent.kind(name)?.is_some().then_some(folder)),
    }
}

/// Removes the folders that nobody works in. What cannot be looked at or removed is no reason not to begin.
fn sweep(parent: &Folder) {
    let names = parent.list().unwrap_or_default();
    for name in names.iter().filter(|name| name.starts_with(PREFIX)) {
        let Ok(folder) = parent.open_folder(name) else {
            continue;
        };
        if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // While it is locked, so that whoever has just made it sees that it goes.
            let _ = parent.remove_tree(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

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
