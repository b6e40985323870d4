//! The temporary folder of a trial: hidden, and removed at the end, or by the next trial after a crash.
//!
//! A trial holds a lock (flock) on its folder. A folder without a lock was left behind by a process that died.

use std::path::Path;

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use straightway_checkpoint::{Steps, fresh_run};
use straightway_core::{Error, ErrorKind, Result};
use straightway_sys::Folder;

/// The prefix of such folders.
const PREFIX: &str = ".straightway-trial-";

/// The number of attempts to create a folder. A concurrent trial may take a new one for a leftover and remove it.
const TRIES: usize = 8;

/// A folder that is removed when this is dropped.
#[derive(Debug)]
pub(super) struct TrialDir {
    parent: Folder,
    name: String,
    store: Steps,
    /// Holds the lock while it is open.
    _lock: Folder,
}

impl TrialDir {
    /// Creates a folder inside `parent`. Leftovers of dead trials are removed first.
    pub(super) fn new(parent: &Path) -> Result<Self> {
        let parent = Folder::open(parent)?;
        sweep(&parent);
        for _ in 0..TRIES {
            let name = format!("{PREFIX}{}", fresh_run());
            let store = Steps::create(&parent.path().join(&name))?;
            if let Some(lock) = lock(&parent, &name)? {
                return Ok(Self {
                    parent,
                    name,
                    store,
                    _lock: lock,
                });
            }
        }
        let why = "other processes remove the new folder";
        let target = format!("checkpoints in {}", parent.path().display());
        Err(Error::new(ErrorKind::Transient, "try", target, why))
    }

    /// The folder of checkpoints.
    pub(super) fn store(&self) -> &Steps {
        &self.store
    }
}

impl Drop for TrialDir {
    fn drop(&mut self) {
        let _ = self.parent.remove_tree(&self.name);
    }
}

/// Locks a new folder. Returns `None` if another trial has removed it or is about to.
fn lock(parent: &Folder, name: &str) -> Result<Option<Folder>> {
    let folder = match parent.open_folder(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        // On a file system without locks nothing is swept.
        _ => Ok(parent.kind(name)?.is_some().then_some(folder)),
    }
}

/// Removes folders without a lock. Errors are ignored.
fn sweep(parent: &Folder) {
    let names = parent.list().unwrap_or_default();
    for name in names.iter().filter(|name| name.starts_with(PREFIX)) {
        let Ok(folder) = parent.open_folder(name) else {
            continue;
        };
        if flock(&folder, FlockOperation::NonBlockingLockExclusive).is_ok() {
            // Removed under the lock, so that a trial that has just created it notices.
            let _ = parent.remove_tree(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_trial_removes_the_folders_of_dead_trials_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let dead = parent.path().join(format!("{PREFIX}dead"));
        fs::create_dir_all(dead.join("step-1")).unwrap();
        fs::create_dir(parent.path().join("other")).unwrap();
        let one = TrialDir::new(parent.path()).unwrap();
        assert!(!dead.exists());
        let two = TrialDir::new(parent.path()).unwrap();
        assert!(one.store().folder().exists());
        drop((one, two));
        let left: Vec<_> = fs::read_dir(parent.path()).unwrap().flatten().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}
