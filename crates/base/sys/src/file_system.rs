//! The kernel's magic numbers of file systems.

use std::os::fd::AsFd;

use rustix::fs::fstatfs;

pub(crate) const TMPFS: i128 = 0x0102_1994;
pub(crate) const RAMFS: i128 = 0x8584_58f6;
pub(crate) const OVERLAY: i128 = 0x794c_7630;
pub(crate) const BTRFS: i128 = 0x9123_683e;
pub(crate) const EXT: i128 = 0xef53;
pub(crate) const XFS: i128 = 0x5846_5342;

/// The magic number of a file's file system, and the bytes that are free on it, those reserved for root included.
/// `None` if the file system does not say.
pub(crate) fn file_system_and_free(file: impl AsFd) -> (i128, Option<u64>) {
    let Ok(fs) = fstatfs(file) else { return (0, None) };
    let block = u64::try_from(fs.f_frsize).ok().filter(|_| fs.f_blocks > 0);
    let free = block.map(|block| fs.f_bfree.saturating_mul(block));
    (fs.f_type.into(), free)
}

/// The magic number of a file's file system; 0 if it is unknown.
pub(crate) fn file_system(file: impl AsFd) -> i128 {
    fstatfs(file).map_or(0, |fs| i128::from(fs.f_type))
}
