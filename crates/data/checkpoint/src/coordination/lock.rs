//! The lock that a job holds on the folder it saves to: two jobs in one folder would each remove files of the other.
//!
//! It is a kernel lock on an open file, so it ends with its process. A forked child has the file open too, so `drop`
//! unlocks explicitly, and only in the process that took the lock.

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
use straightway_core::{Error, ErrorKind, Result};
use straightway_sys::{Folder, Process, folder::Access};

use crate::name::LOCK;

/// The interval between attempts to take a lock that is held.
const RETRY: Duration = Duration::from_millis(20);

/// A lock on a folder, until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    /// The locked file and the process that locked it; `None` if the store or its file system has no locks. Existing
    /// steps are still protected by the commit.
    held: Option<(fs::File, Process)>,
}

impl Lock {
    /// A lock that is not held, of a store without locks.
    pub(crate) fn none() -> Self {
        Self { held: None }
    }

    /// Takes the lock on a folder for `run`, within `timeout`. The error names the holder.
    pub(crate) fn take(folder: &Folder, run: &str, timeout: Duration) -> Result<Self> {
        let start = Instant::now();
        loop {
            match Self::try_take(folder, run)? {
                Ok(lock) => return Ok(lock),
                Err(_) if start.elapsed() < timeout => std::thread::sleep(RETRY),
                Err(busy) => return Err(busy),
            }
        }
    }

    /// Whether the lock is held: some stores and network file systems have no locks.
    pub(crate) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Tries to take the lock. The inner error names the holder.
    fn try_take(folder: &Folder, run: &str) -> Result<Result<Self>> {
        // Links, and everything but a regular file, are refused.
        let mut file = folder.open_file(LOCK, Access::Keep)?;
        Ok(match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // The holder's name is only for messages, so the lock also works on a full file system.
                let process = Process::this();
                let who = format!("run {run}, process {}\n", process.number());
                // A hard-linked file may belong to somebody else: it is locked but not written to.
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
                Err(Error::new(ErrorKind::Busy, "save to", path, message)
                    .with_hint("wait for it to end, or save to another folder"))
            }
            Err(_) => Ok(Self::none()),
        })
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some((file, process)) = &self.held
            && process.is_this()
        {
            // Closing the file would unlock it only if no child has it open.
            let _ = flock(file, FlockOperation::Unlock);
        }
    }
}
