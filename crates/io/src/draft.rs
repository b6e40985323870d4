//! A file in the making: written under a temporary name, and given its own when it is whole.
//!
//! The temporary file lies beside the final one (a rename must not cross file systems) and is
//! locked while it is written. What a killed process leaves behind has no lock any more, and the
//! next draft of the same file removes it.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fsync, open};
use straightway_core::{Error, Kind, Result};
use straightway_sys::{By, File};

/// A file in the making. Dropped before its commit, it leaves nothing behind.
#[derive(Debug)]
pub struct Draft {
    file: Arc<File>,
    temporary: PathBuf,
    target: PathBuf,
    committed: bool,
}

/// Tells drafts of one process apart.
static NUMBERS: AtomicU32 = AtomicU32::new(0);

/// What temporary names end in.
const SUFFIX: &str = ".straightway-part";

impl Draft {
    /// Begins `target` with room for `bytes`.
    pub fn new(target: &Path, bytes: u64) -> Result<Self> {
        Self::with(target, |temporary| File::create(temporary, bytes))
    }

    /// Begins `target`, which will be `bytes` long and have holes.
    pub fn sparse(target: &Path, bytes: u64) -> Result<Self> {
        Self::with(target, |temporary| File::create_sparse(temporary, bytes))
    }

    fn with(target: &Path, create: impl Fn(&Path) -> Result<File>) -> Result<Self> {
        let name = target.file_name().ok_or_else(|| {
            Error::new(
                Kind::Invalid,
                "create",
                target.display(),
                "it has no file name",
            )
        })?;
        if target.is_dir() {
            let message = "it is a folder, and a file is meant";
            return Err(Error::new(
                Kind::Invalid,
                "create",
                target.display(),
                message,
            ));
        }
        let folder = folder_of(target);
        remove_abandoned(folder, name);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}-{number}{SUFFIX}", std::process::id()));
        let temporary = folder.join(hidden);
        let file = create(&temporary).inspect_err(|_| {
            // It may have been created before there turned out to be no room.
            let _ = fs::remove_file(&temporary);
        })?;
        // Nobody else knows the name yet, so the lock is free. It only tells the living from the
        // dead: a file system without locks loses the clean-up and nothing else.
        let _ = flock(
            file.descriptor(By::PageCache),
            FlockOperation::NonBlockingLockExclusive,
        );
        Ok(Self {
            file: Arc::new(file),
            temporary,
            target: target.to_owned(),
            committed: false,
        })
    }

    /// The file to write to.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Gives the file its own name, replacing what had it. Its bytes must be synced already.
    pub fn commit(mut self) -> Result<()> {
        fs::rename(&self.temporary, &self.target)
            .map_err(|e| Error::os("replace", self.target.display(), e))?;
        self.committed = true;
        let folder = folder_of(&self.target);
        // The name is durable when its folder is.
        open(
            folder,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .and_then(fsync)
        .or_else(|errno| match errno {
            // Some network file systems do not sync folders; the rename stands all the same.
            rustix::io::Errno::INVAL => Ok(()),
            errno => Err(errno),
        })
        .map_err(|e| Error::os("sync", folder.display(), e.into()))
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing partial stays; if it cannot be removed, it still has no final name.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Removes drafts of `name` whose writer is gone.
fn remove_abandoned(folder: &Path, name: &std::ffi::OsStr) {
    let Ok(entries) = fs::read_dir(folder) else {
        return;
    };
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(".");
    let prefix = prefix.into_encoded_bytes();
    for entry in entries.flatten() {
        let found = entry.file_name().into_encoded_bytes();
        if !(found.starts_with(&prefix) && found.ends_with(SUFFIX.as_bytes())) {
            continue;
        }
        let Ok(file) = open(entry.path(), OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()) else {
            continue;
        };
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_that_is_dropped_leaves_nothing_and_one_that_is_committed_leaves_itself() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        drop(Draft::new(&target, 100).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        Draft::new(&target, 0).unwrap().commit().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"");
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_a_living_one_s_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let abandoned = folder.path().join(".file.1-0.straightway-part");
        fs::write(&abandoned, "half").unwrap();
        let living = Draft::new(&target, 10).unwrap();
        assert!(!abandoned.exists());
        let _second = Draft::new(&target, 10).unwrap();
        assert!(living.temporary.exists());
    }

    #[test]
    fn a_folder_is_no_target() {
        let folder = tempfile::tempdir().unwrap();
        let error = Draft::new(folder.path(), 1).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("it is a folder, and a file is meant"),
            "{error}"
        );
    }
}
