//! The status of an open file, from one system call.
//!
//! Opening a file needs its type, its identity and the alignment for O_DIRECT. The load time of a model of thousands of
//! small files is the time to open them, so each costs one `statx(2)` and no additional `fstat(2)`.

use std::os::fd::AsFd;

use rustix::{
    fs::{AtFlags, FileType, Statx, StatxFlags, fstat, makedev, statx},
    io::Errno,
};

use crate::identity::Identity;

/// The status of an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Status {
    pub(crate) kind: FileType,
    pub(crate) identity: Identity,
    /// The alignment of offsets and memory for direct I/O; 0 means that it is not supported. Linux 6.1 and later report
    /// it for some file systems.
    pub(crate) direct_align: Option<(u32, u32)>,
}

impl Status {
    /// Queries the kernel.
    pub(crate) fn of(file: impl AsFd) -> Result<Self, Errno> {
        let file = file.as_fd();
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::DIOALIGN;
        match statx(file, "", AtFlags::EMPTY_PATH, wanted) {
            Ok(answer) => Ok(Self::from(&answer)),
            // Some sandboxes forbid it.
            Err(Errno::NOSYS | Errno::PERM) => {
                let stat = fstat(file)?;
                Ok(Self {
                    kind: FileType::from_raw_mode(stat.st_mode),
                    identity: Identity::of(&stat),
                    direct_align: None,
                })
            }
            Err(errno) => Err(errno),
        }
    }
}

impl From<&Statx> for Status {
    fn from(answer: &Statx) -> Self {
        let stamp = |time: rustix::fs::StatxTimestamp| (time.tv_sec, i64::from(time.tv_nsec));
        let knows_direct = answer.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
        Self {
            kind: FileType::from_raw_mode(answer.stx_mode.into()),
            identity: Identity {
                device: makedev(answer.stx_dev_major, answer.stx_dev_minor),
                inode: answer.stx_ino,
                bytes: answer.stx_size,
                modified: stamp(answer.stx_mtime),
                changed: stamp(answer.stx_ctime),
            },
            direct_align: knows_direct.then_some((answer.stx_dio_offset_align, answer.stx_dio_mem_align)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_equals_that_of_fstat() {
        for path in [
            std::env::current_exe().unwrap(),
            "/dev/null".into(),
            "/proc/self/stat".into(),
        ] {
            let file = std::fs::File::open(path).unwrap();
            let (status, stat) = (Status::of(&file).unwrap(), fstat(&file).unwrap());
            assert_eq!(status.kind, FileType::from_raw_mode(stat.st_mode));
            assert_eq!(status.identity, Identity::of(&stat));
        }
    }
}
