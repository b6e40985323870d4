//! The storage format of a file's bytes on the drive, by its extent map (`FS_IOC_FIEMAP`).

use std::os::fd::{AsRawFd, OwnedFd};

/// The number of extents that one call requests.
const BATCH: u32 = 64;

/// The maximum number of calls for one file: a file with more than a quarter of a million extents is not examined
/// further.
const CALLS_MAX: usize = 4096;

/// Flags of an extent: the last; not on the drive yet; encoded (compressed, encrypted, inline).
const LAST: u32 = 0x1;
const UNSETTLED: u32 = 0x2 | 0x4;
const ENCODED: u32 = 0x8 | 0x80 | 0x100 | 0x200 | 0x400;

/// The storage format of a file's bytes on the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stored {
    /// All are stored unchanged, in separate blocks.
    Plain,
    /// Some are compressed, encrypted, or inline in the file system's metadata.
    Encoded,
    /// Unknown, or some are not on the drive yet.
    Unknown,
}

/// `struct fiemap_extent` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    bytes: u64,
    reserved: [u64; 2],
    flags: u32,
    reserved_more: [u32; 3],
}

/// `struct fiemap` of the kernel, with room for a batch.
#[repr(C)]
struct RawMap {
    start: u64,
    bytes: u64,
    flags: u32,
    mapped: u32,
    room: u32,
    reserved: u32,
    extents: [RawExtent; BATCH as usize],
}

/// Examines the extents of a file, up to the first that is not plain.
pub(crate) fn stored(file: &OwnedFd) -> Stored {
    let mut start = 0;
    for _ in 0..CALLS_MAX {
        let Some(map) = ask(file, start) else {
            return Stored::Unknown;
        };
        let extents = &map.extents[..map.mapped.min(BATCH) as usize];
        if extents.iter().any(|e| e.flags & ENCODED != 0) {
            return Stored::Encoded;
        }
        if extents.iter().any(|e| e.flags & UNSETTLED != 0) {
            return Stored::Unknown;
        }
        match extents.last() {
            Some(last) if last.flags & LAST == 0 => start = last.logical + last.bytes,
            _ => return Stored::Plain,
        }
    }
    Stored::Unknown
}

/// The extents from offset `start` on; `None` if the file system has no extent map.
fn ask(file: &OwnedFd, start: u64) -> Option<RawMap> {
    // `_IOWR('f', 11, struct fiemap)`, whose size is counted without extents.
    const FS_IOC_FIEMAP: libc::Ioctl = 0xc020_660b_u32 as libc::Ioctl;
    let mut map = RawMap {
        start,
        bytes: u64::MAX - start,
        flags: 0,
        mapped: 0,
        room: BATCH,
        reserved: 0,
        extents: [RawExtent::default(); BATCH as usize],
    };
    // SAFETY: the structure has the kernel's layout, says how many extents it has room for, and outlives
    // the call.
    let status = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP, &raw mut map) };
    (status == 0).then_some(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structures_have_the_kernel_s_sizes() {
        assert_eq!(size_of::<RawExtent>(), 56);
        assert_eq!(size_of::<RawMap>(), 32 + BATCH as usize * 56);
    }
}
