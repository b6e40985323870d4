//! Which file it is, and in which state: what tells whether a file was written to in between.
//!
//! The kernel stamps a file before the bytes of a write change, so equal stamps before the first and
//! after the last byte of a read mean that no write began in between. Two kinds of writes leave no
//! stamp, and nobody can see them: those through a mapping whose page is dirty already, and the rest
//! of a write that had begun before the file was opened.
//!
//! Before Linux 6.13 stamps follow a clock that ticks every 1 to 10 ms, and two writes within one tick
//! look the same. A file whose last stamp may be of the running tick is therefore looked at again after
//! a tick.

use std::{os::fd::AsFd, thread, time::Duration};

use rustix::{
    fs::{Stat, fstat},
    io::Errno,
    time::{ClockId, Timespec, clock_getres, clock_gettime},
};

/// How often a file is looked at until its stamps stay the same for a tick. One that is written to for
/// longer is refused.
const LOOKS_MAX: u32 = 16;

/// Which file it was, and when it was last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    pub(crate) bytes: u64,
    /// Seconds and nanoseconds of the last write. A program can set it back.
    modified: (i64, i64),
    /// Of the last change, be it of bytes or of attributes. Nobody can set it back.
    changed: (i64, i64),
}

impl Identity {
    /// The identity that a file has now, once it is certain that a later write would change it. `None`
    /// where the file is being written to.
    pub(crate) fn settled(file: impl AsFd) -> Result<Option<Self>, Errno> {
        let file = file.as_fd();
        let mut identity = Self::of(&fstat(file)?);
        if identity.changed < seconds_and_ns(clock_gettime(ClockId::RealtimeCoarse)) {
            return Ok(Some(identity));
        }
        for _ in 0..LOOKS_MAX {
            thread::sleep(tick());
            let again = Self::of(&fstat(file)?);
            // A whole tick without a write: the next one gets another stamp, even from the clock of a file server.
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

    #[test]
    fn a_write_after_the_look_is_seen_however_soon_it_comes() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(b"old").unwrap();
        for _ in 0..200 {
            let Some(before) = Identity::settled(&file).unwrap() else {
                panic!("nobody else writes to it");
            };
            file.write_all_at(b"new", 0).unwrap();
            assert_ne!(Identity::of(&fstat(&file).unwrap()), before);
        }
    }

    #[test]
    fn a_write_that_sets_its_time_back_is_seen() {
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "old").unwrap();
        let file = fs::File::open(&path).unwrap();
        let before = Identity::settled(&file).unwrap().unwrap();
        let modified = file.metadata().unwrap().modified().unwrap();
        fs::write(&path, "new").unwrap();
        let writer = fs::File::options().write(true).open(&path).unwrap();
        writer.set_modified(modified).unwrap();
        let after = Identity::of(&fstat(&file).unwrap());
        assert_eq!(after.modified, before.modified);
        assert_ne!(after, before);
    }
}
