//! Makes several files durable.
//!
//! `syncfs(2)` makes all files of a file system durable at once: one journal commit instead of one for each file. It is
//! used only where it is known to write everything and to report every error:
//!
//! | file system | `syncfs` |
//! |---|---|
//! | ext4, XFS, btrfs, tmpfs | yes, since Linux 5.8, which reports errors of earlier writes |
//! | ext2, ext3 | no: the driver of ext2 does not flush the drive's cache |
//! | overlay | no: errors of the file system below are not reported |
//! | FUSE, SMB, 9p | no: it is not passed on |
//! | others | not known |
//!
//! Elsewhere each file is synced, several at a time: a file system with a journal commits once for all that wait.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use rustix::fs::{fstat, ioctl_getflags, syncfs};
use straightway_core::{Lock, Result};

use crate::{
    direct::EXTENTS,
    file::{File, IoPath},
    file_system::{BTRFS, EXT, TMPFS, XFS, file_system},
    kernel,
};

/// From this number of files on, syncing their whole file system is cheaper than syncing each file.
const TOGETHER_MIN: usize = 8;

/// The number of files that are synced at a time. The threads only wait.
const THREADS_MAX: usize = 8;

impl File {
    /// Makes written data of all `files` durable.
    pub fn sync_all(files: &[Arc<Self>]) -> Result<()> {
        let [first, ..] = files else { return Ok(()) };
        if files.len() < TOGETHER_MIN {
            return files.iter().try_for_each(|f| f.sync());
        }
        if !syncs_together(first) {
            return sync_each(files);
        }
        let device = |f: &Self| fstat(f.descriptor(IoPath::PageCache)).map(|s| s.st_dev).ok();
        let own = device(first);
        let (together, alone): (Vec<_>, Vec<_>) =
            files.iter().cloned().partition(|f| own.is_some() && device(f) == own);
        if !together.is_empty() {
            for file in &together {
                file.check_descriptors()?;
                file.note_synced();
            }
            let synced = syncfs(first.descriptor(IoPath::PageCache));
            synced.map_err(|e| first.error("sync", e.into()))?;
        }
        sync_each(&alone)
    }
}

/// Whether `syncfs` on the file system of a file makes all its files durable, and reports every error.
fn syncs_together(file: &File) -> bool {
    let file = file.descriptor(IoPath::PageCache);
    kernel::is_since((5, 8))
        && match file_system(file) {
            XFS | BTRFS | TMPFS => true,
            // ext2 and ext3 have the same number, but no extents.
            EXT => ioctl_getflags(file).is_ok_and(|flags| flags.bits() & EXTENTS != 0),
            _ => false,
        }
}

/// Syncs each file. Of several errors, one is returned.
fn sync_each(files: &[Arc<File>]) -> Result<()> {
    let next = AtomicUsize::new(0);
    let outcome = Lock::new(Ok(()));
    let run = || {
        while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = file.sync() {
                *outcome.lock() = Err(error);
            }
        }
    };
    std::thread::scope(|scope| {
        (1..THREADS_MAX.min(files.len())).for_each(|_| drop(scope.spawn(run)));
        run();
    });
    outcome.into_inner()
}
