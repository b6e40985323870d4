//! The lock that a job holds on the folder it saves to: two jobs in one folder would each remove
//! what the other needs.
//!
//! It is the kernel's, on an open file, and so goes when its process does, however that ends. A child that was forked
//! meanwhile has the file open too: so it is let go of in so many words, and only by the process that took it.

use std::{
    fs,
    io::{Read, Seek, Write},
    os::unix::fs::MetadataExt,
    time::{Duration, Instant},
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use straightway_core::{Error, Kind, Result};
use straightway_io::store::Store;
use straightway_sys::folder::Access;

use super::name::LOCK;

/// How often a lock that somebody has is asked for again.
const RETRY: Duration = Duration::from_millis(20);

/// A lock on a folder, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    /// The locked file and the process that locked it; `None` where the store or its file system has no locks. The
    /// commit protects what is there all the same.
    held: Option<(fs::File, u32)>,
}

impl Lock {
    /// Takes the lock on a store for `run`, within `patience`. An error names who has it.
    pub(crate) fn take(store: &dyn Store, run: &str, patience: Duration) -> Result<Self> {
        let start = Instant::now();
        loop {
            match Self::try_take(store, run)? {
                Ok(lock) => return Ok(lock),
                Err(_) if start.elapsed() < patience => std::thread::sleep(RETRY),
                Err(busy) => return Err(busy),
            }
        }
    }

    /// Whether it is held: some stores and network file systems have no locks.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// The lock, or inside an error that says who has it.
    fn try_take(store: &dyn Store, run: &str) -> Result<Result<Self>> {
        let Some(folder) = store.folder() else {
            return Ok(Ok(Self { held: None }));
        };
        // A link to somebody's file is refused, as is anything but a regular file.
        let mut file = folder.open_file(LOCK, Access::Keep)?;
        Ok(
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    // Who it is, for the message above all; a folder that is full still takes the lock.
                    let process = std::process::id();
                    let who = format!("run {run}, process {process}\n");
                    // A file with another name elsewhere may be somebody's: it is locked and not written to.
                    if file.metadata().is_ok_and(|meta| meta.nlink() == 1) {
                        let _ = file.set_len(0).and_then(|()| file.rewind());
                        let _ = file.write_all(who.as_bytes());
                    }
                    let held = Some((file, process));
                    Ok(Self { held })
                }
                Err(Errno::WOULDBLOCK) => {
                    let mut who = String::new();
                    let _ = file.take(200).read_to_string(&mut who);
                    let message = format!("another job saves there: {}", who.trim_end());
                    let path = folder.path().display();
                    Err(Error::new(Kind::Invalid, "save to", path, message)
                        .with_hint("wait for it to end, or save to another folder"))
                }
                Err(_) => Ok(Self { held: None }),
            },
        )
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some((file, process)) = &self.held
            && *process == std::process::id()
        {
            // Closing the file does it as well, where nobody else has it.
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}
