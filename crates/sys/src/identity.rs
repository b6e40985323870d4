//! Which file it is, and in which state: what tells whether a file was written to in between.
//!
//! The kernel stamps a file before the bytes of a write change, so equal stamps before the first and
//! after the last byte of a read mean that no write began in between. Two kinds of writes leave no
//! stamp, and nobody can see them: those through a mapping whose page is dirty already, and the rest
//! of a write that had begun before the file was opened.
//!
//! Stamps follow a clock that ticks every 1 to 10 ms, and two writes within one tick look the same. A file
//! whose last stamp may be of the running tick is therefore looked at again after a tick. Since Linux 6.13
//! ext4, XFS, btrfs and tmpfs need no second look: once somebody has asked for a file's stamps, its next
//! change gets one of its own (`FS_MGTIME`).

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

/// How often a file is looked at until its stamps stay the same for a tick. One that is written to for
/// longer is refused.
const LOOKS_MAX: u32 = 16;

/// Which file it was, and when it was last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) bytes: u64,
    /// Seconds and nanoseconds of the last write. A program can set it back.
    pub(crate) modified: (i64, i64),
    /// Of the last change, be it of bytes or of attributes. Nobody can set it back.
    pub(crate) changed: (i64, i64),
}

impl Identity {
    /// This identity, which the file has just been seen to have, once it is certain that a later write would change
    /// it. `None` where the file is being written to.
    pub(crate) fn settled(self, file: impl AsFd) -> Result<Option<Self>, Errno> {
        let file = file.as_fd();
        let now = seconds_and_ns(clock_gettime(ClockId::RealtimeCoarse));
        if self.changed < now || stamps_every_change(file) {
            return Ok(Some(self));
        }
        self.settled_by_ticks(|| Ok(Self::of(&fstat(file)?)))
    }

    /// Whether both are of one file, in whatever state.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// The same by looking again: after a whole tick without a write the next one gets another stamp, even from the
    /// clock of a file server.
    fn settled_by_ticks(
        self,
        mut look: impl FnMut() -> Result<Self, Errno>,
    ) -> Result<Option<Self>, Errno> {
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

    /// The identity in an answer of `fstat(2)`.
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

/// Whether the change after a look at a file's stamps has a stamp of its own.
fn stamps_every_change(file: BorrowedFd<'_>) -> bool {
    let file_systems = [EXT, XFS, BTRFS, TMPFS];
    is_since(MULTIGRAIN) && file_systems.contains(&file_system(file))
}

/// The period of the clock that files are stamped by.
fn tick() -> Duration {
    let period = clock_getres(ClockId::RealtimeCoarse);
    let ns = u64::try_from(period.tv_nsec).unwrap_or(0);
    // 10 ms: the longest that Linux ticks by. The stamp may be of the end of a tick.
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
    fn a_write_after_the_look_is_seen_however_soon_it_comes() {
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
    fn a_file_that_is_written_to_all_the_time_does_not_settle_and_one_at_rest_does() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let file = fs::File::options()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
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
    fn kernels_are_told_apart_by_their_release() {
        for release in ["6.13.0", "6.18.44-fc-v310", "7.0-rc1", "6.130"] {
            assert!(major_minor(release) >= Some(MULTIGRAIN), "{release}");
        }
        for release in ["6.12.9", "5.15.0-91-generic", "6", "", "x"] {
            assert!(major_minor(release) < Some(MULTIGRAIN), "{release}");
        }
    }

    #[test]
    fn a_write_that_sets_its_time_back_is_seen() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let file = fs::File::open(&path).unwrap();
        let before = Status::of(&file)
            .unwrap()
            .identity
            .settled(&file)
            .unwrap()
            .unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        fs::write(&path, "new").unwrap();
        let writer = fs::File::options().write(true).open(&path).unwrap();
        writer.set_modified(modified).unwrap();
        let after = Identity::of(&fstat(&file).unwrap());
        assert_eq!(after.modified, before.modified);
        assert_ne!(after, before);
    }
}
