//! The identity and state of a file, which show whether it was written to during a read.
//!
//! The kernel updates a file's timestamps before a write changes its bytes. Equal timestamps before the first
//! and after the last byte of a read therefore mean that no write began in between. Two kinds of writes do not
//! update the timestamps and cannot be detected: writes through a mapping whose page is already dirty, and the
//! rest of a write that began before the file was opened.
//!
//! Timestamps come from a clock that ticks every 1 to 10 ms, and two writes within one tick look the same. If
//! the last timestamp may be of the current tick, the file is therefore checked again after a tick. Since Linux
//! 6.13 ext4, XFS, btrfs and tmpfs need no second check: after a query of a file's timestamps, its next change
//! gets a new timestamp (`FS_MGTIME`).

use std::{
    os::fd::{AsFd, BorrowedFd},
    thread,
    time::Duration,
};

use rustix::{
    fs::{Stat, fstat},
    io::Errno,
    time::{ClockId, Timespec, clock_getres, clock_gettime},
};

use crate::{
    file_system::{BTRFS, EXT, TMPFS, XFS, file_system},
    kernel::is_since,
};

/// The number of checks until a file's timestamps stay the same for a tick. A file that is written to for longer
/// is refused.
const LOOKS_MAX: u32 = 16;

/// The identity of a file, its length, and the times of its last changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    /// Seconds and nanoseconds of the last write. A program can set it to an earlier time.
    pub(crate) modified: (i64, i64),
    /// Seconds and nanoseconds of the last change of bytes or attributes. It cannot be set.
    pub(crate) changed: (i64, i64),
}

impl Identity {
    /// Returns this identity, which was just read, once it is certain that a later write would change it. `None` if the
    /// file is being written to.
    pub(crate) fn settled(self, file: impl AsFd) -> Result<Option<Self>, Errno> {
        let file = file.as_fd();
        let now = seconds_and_ns(clock_gettime(ClockId::RealtimeCoarse));
        if self.changed < now || stamps_every_change(file) {
            return Ok(Some(self));
        }
        self.settled_by_ticks(|| Ok(Self::of(&fstat(file)?)))
    }

    /// Whether both are of the same file, in any state.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// As `settled`, by repeated checks: after a whole tick without a write, the next write gets a new timestamp,
    /// even on a file server with its own clock.
    fn settled_by_ticks(self, mut look: impl FnMut() -> Result<Self, Errno>) -> Result<Option<Self>, Errno> {
        let mut identity = self;
        for _ in 0..LOOKS_MAX {
            thread::sleep(tick());
            let again = look()?;
            if again == identity {
                return Ok(Some(identity));
            }
            identity = again;
        }
        Ok(None)
    }

    /// The identity from a result of `fstat(2)`.
    pub(crate) fn of(stat: &Stat) -> Self {
        let ns = |ns| i64::try_from(ns).unwrap_or(0);
        Self {
            device: stat.st_dev,
            inode: stat.st_ino,
            bytes: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, ns(stat.st_mtime_nsec)),
            changed: (stat.st_ctime, ns(stat.st_ctime_nsec)),
        }
    }
}

/// The first kernel with multigrain timestamps.
const MULTIGRAIN: (u32, u32) = (6, 13);

/// Whether the first change after a query of a file's timestamps gets a new timestamp.
fn stamps_every_change(file: BorrowedFd<'_>) -> bool {
    let file_systems = [EXT, XFS, BTRFS, TMPFS];
    is_since(MULTIGRAIN) && file_systems.contains(&file_system(file))
}

/// The period of the clock of file timestamps.
fn tick() -> Duration {
    let period = clock_getres(ClockId::RealtimeCoarse);
    let ns = u64::try_from(period.tv_nsec).unwrap_or(0);
    // 10 ms is the longest tick of Linux. The timestamp may be from the end of a tick.
    Duration::from_nanos(ns.clamp(1_000_000, 10_000_000)) + Duration::from_micros(100)
}

fn seconds_and_ns(time: Timespec) -> (i64, i64) {
    (time.tv_sec, time.tv_nsec)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, os::unix::fs::FileExt};

    use super::*;
    use crate::{kernel::major_minor, status::Status};

    #[test]
    fn a_write_right_after_the_check_is_detected() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(b"old").unwrap();
        for _ in 0..200 {
            let Some(before) = Status::of(&file).unwrap().identity.settled(&file).unwrap() else {
                panic!("nobody else writes to it");
            };
            file.write_all_at(b"new", 0).unwrap();
            assert_ne!(Identity::of(&fstat(&file).unwrap()), before);
        }
    }

    #[test]
    fn a_file_that_is_written_to_constantly_does_not_settle_and_an_idle_one_does() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let file = fs::File::options().read(true).write(true).open(&path).unwrap();
        let now = || Identity::of(&fstat(&file).unwrap());
        let settled = now().settled_by_ticks(|| Ok(now())).unwrap().unwrap();
        assert_eq!(settled, now());
        let mut writes = 0;
        let unsettled = now().settled_by_ticks(|| {
            file.write_all_at(b"new", 0).unwrap();
            writes += 1;
            Ok(now())
        });
        assert_eq!(unsettled.unwrap(), None);
        assert_eq!(writes, LOOKS_MAX);
    }

    #[test]
    fn kernel_versions_are_compared_by_their_release() {
        for release in ["6.13.0", "6.18.44-fc-v310", "7.0-rc1", "6.130"] {
            assert!(major_minor(release) >= Some(MULTIGRAIN), "{release}");
        }
        for release in ["6.12.9", "5.15.0-91-generic", "6", "", "x"] {
            assert!(major_minor(release) < Some(MULTIGRAIN), "{release}");
        }
    }

    #[test]
    fn a_write_that_resets_its_modification_time_is_detected() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let file = fs::File::open(&path).unwrap();
        let before = Status::of(&file).unwrap().identity.settled(&file).unwrap().unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        fs::write(&path, "new").unwrap();
        let writer = fs::File::options().write(true).open(&path).unwrap();
        writer.set_modified(modified).unwrap();
        let after = Identity::of(&fstat(&file).unwrap());
        assert_eq!(after.modified, before.modified);
        assert_ne!(after, before);
    }
}
