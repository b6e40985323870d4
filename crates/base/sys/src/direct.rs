//! Whether O_DIRECT on a file bypasses the page cache, and the alignment that it requires.
//!
//! Opening a file with O_DIRECT proves nothing: some file systems accept the flag and use the page cache
//! anyway. This table has what is known of each file system. Nothing else counts as direct.
//!
//! | file system | evidence |
//! |---|---|
//! | block devices | always direct |
//! | tmpfs, ramfs | never: they are the page cache |
//! | btrfs, reads | the extent map: compressed and inline extents are buffered |
//! | btrfs, writes | never: with checksums or mirrored data the kernel buffers them |
//! | ext4, reads | `statx(2)`, for journalled, inline, encrypted or verified data; before Linux 6.1 flags and mounts |
//! | ext4, writes | the same; new files without extents have holes, which are written through the page cache |
//! | XFS | always direct |
//! | NFS, CephFS, Lustre, SMB | always direct: around this machine's page cache |
//! | overlayfs | `statx(2)`, which the file system below answers; writes also need extents or `fallocate(2)` |
//! | others | `statx(2)`, if it reports an alignment (f2fs, erofs, bcachefs); otherwise unproven (FUSE, ZFS, GPFS) |

use std::os::fd::OwnedFd;

use rustix::fs::{FallocateFlags, FileType, fallocate, ioctl_getflags};
use straightway_core::{Alignment, Leg, Reason};

use crate::{
    fiemap::{self, Stored},
    file_system::{BTRFS, EXT, OVERLAY, RAMFS, TMPFS, XFS, file_system},
    mount::{DeviceNumber, Mounts},
    root::Root,
    status::Status,
};

/// NFS, `CephFS`, Lustre, CIFS and SMB2.
const NETWORK: [i128; 5] = [0x6969, 0x00c3_6400, 0x0bd0_0bd0, 0xff53_4d42, 0xfe53_4d42];

/// Flags of an inode (`FS_IOC_GETFLAGS`): data journal, encryption, extents, verity, inline data.
const JOURNALLED: u32 = 0x4000;
const ENCRYPTED: u32 = 0x800;
pub(crate) const EXTENTS: u32 = 0x8_0000;
const VERIFIED: u32 = 0x10_0000;
const INLINE: u32 = 0x1000_0000;

/// The largest alignment that fits the blocks of the transfer planner.
const ALIGN_BYTES_MAX: u32 = 65_536;

/// The properties of O_DIRECT on a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DirectIo {
    /// The alignment that it requires; `None` if it is not supported.
    pub(crate) alignment: Option<Alignment>,
    /// Why it does or may go through the page cache.
    pub(crate) doubt: Option<Reason>,
    /// Whether the file is on an overlay. Its pages are then cached by the file system below.
    pub(crate) is_overlaid: bool,
    /// The magic number of its file system, or 0: unknown, or a block device.
    pub(crate) file_system: i128,
}

/// Facts about a file.
#[derive(Clone, Copy, Debug)]
struct Facts {
    is_block_device: bool,
    /// The magic number of its file system; 0 if it is unknown.
    file_system: i128,
    /// The alignment of offsets and memory that `statx(2)` reports; 0 means that direct I/O is not supported. Linux
    /// 6.1 and later report it for some file systems.
    statx_align: Option<(u32, u32)>,
    /// The flags of the inode.
    flags: u32,
    /// Whether its file system is mounted with a journal for all data.
    is_journalled: bool,
    /// The storage format of its bytes.
    stored: Stored,
    /// Whether its blocks can be reserved before they are written.
    reserves: bool,
}

impl DirectIo {
    /// Queries the kernel about a file that is open for reading, or a new file that is open for writing.
    pub(crate) fn of(file: &OwnedFd, status: &Status, leg: Leg) -> Self {
        decide(&Facts::of(file, status, leg), leg)
    }
}

impl Facts {
    fn of(file: &OwnedFd, status: &Status, leg: Leg) -> Self {
        let mut facts = Self {
            is_block_device: status.kind == FileType::BlockDevice,
            file_system: file_system(file),
            statx_align: status.direct_align,
            flags: 0,
            is_journalled: false,
            stored: Stored::Unknown,
            reserves: false,
        };
        // Facts about the file system of a device node say nothing about the device, whose blocks must not be touched.
        match facts.file_system {
            _ if facts.is_block_device => {}
            // `statx(2)` has reported all that a read needs. This saves a call for each open file.
            EXT if leg == Leg::Read && facts.statx_align.is_some() => {}
            EXT => {
                facts.flags = ioctl_getflags(file).map_or(0, |flags| flags.bits());
                facts.is_journalled = facts.statx_align.is_none() && is_journalled(status.identity.device);
            }
            BTRFS => facts.stored = fiemap::stored(file),
            OVERLAY if leg == Leg::Write && facts.statx_align.is_some() => {
                facts.flags = ioctl_getflags(file).map_or(0, |flags| flags.bits());
                // Only ext4 has this flag. Another file system has to show that its files are not like those of ext3.
                facts.reserves = facts.flags & EXTENTS != 0 || reserves(file);
            }
            _ => {}
        }
        facts
    }
}

/// Whether blocks of a new file can be reserved. The file has no blocks afterwards either.
///
/// An overlay hides the file system below it, which may be ext2 or ext3. Their files have no extents, so that nothing
/// can be reserved, and the kernel writes to their holes through the page cache. In a container the folder below the
/// overlay has no path that could be examined instead.
fn reserves(file: &OwnedFd) -> bool {
    let page = Alignment::PAGE_BYTES;
    let is_reserved = fallocate(file, FallocateFlags::KEEP_SIZE, 0, page).is_ok();
    // A file that keeps its holes must not get a block in the first one. Where this fails, it costs that block.
    let _ = fallocate(file, FallocateFlags::KEEP_SIZE | FallocateFlags::PUNCH_HOLE, 0, page);
    is_reserved
}

/// Derives the properties of O_DIRECT from the facts.
fn decide(facts: &Facts, leg: Leg) -> DirectIo {
    let page = u32::try_from(Alignment::PAGE_BYTES).expect("a page is small");
    let (object, memory) = facts.statx_align.unwrap_or((page, page));
    let alignment = Some(Alignment {
        object_bytes: object.into(),
        memory_bytes: memory.max(1).into(),
    });
    let is_overlaid = facts.file_system == OVERLAY && !facts.is_block_device;
    let direct = |doubt| DirectIo {
        alignment,
        doubt,
        is_overlaid,
        file_system: if facts.is_block_device { 0 } else { facts.file_system },
    };
    if facts.is_block_device {
        // The file system of its device node says nothing about the device.
        return direct(None);
    }
    let is_memory = matches!(facts.file_system, TMPFS | RAMFS);
    // An overlay reports what the file system below reports. Without a report that may be tmpfs.
    let is_silent = is_overlaid && facts.statx_align.is_none();
    if is_memory || is_silent || object == 0 || object > ALIGN_BYTES_MAX {
        return DirectIo {
            alignment: None,
            ..direct(None)
        };
    }
    let buffers = |does: bool| does.then_some(Reason::FileSystemBuffers);
    direct(match facts.file_system {
        BTRFS => match (leg, facts.stored) {
            (Leg::Write, _) | (_, Stored::Encoded) => buffers(true),
            (Leg::Read, Stored::Plain) => None,
            (Leg::Read, Stored::Unknown) => Some(Reason::DirectUnproven),
        },
        EXT => {
            let has_holes = leg == Leg::Write && facts.flags & EXTENTS == 0;
            let odd = JOURNALLED | ENCRYPTED | VERIFIED | INLINE;
            let is_odd = facts.statx_align.is_none() && (facts.is_journalled || facts.flags & odd != 0);
            buffers(has_holes || is_odd)
        }
        OVERLAY if leg == Leg::Write && !facts.reserves => Some(Reason::DirectUnproven),
        XFS => None,
        number if facts.statx_align.is_some() || NETWORK.contains(&number) => None,
        _ => Some(Reason::DirectUnproven),
    })
}

fn is_journalled(device: u64) -> bool {
    let device = DeviceNumber::of(device);
    // Without a mount table nothing is proven.
    Mounts::read(&Root::machine()).map_or(true, |mounts| {
        let is_on = |mount: &&crate::mount::Mount| mount.device == device;
        let option = mounts.iter().find(is_on).map(|m| m.option("data"));
        option.is_none_or(|data| data == Some("journal"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: Facts = Facts {
        is_block_device: false,
        file_system: XFS,
        statx_align: Some((512, 4)),
        flags: 0,
        is_journalled: false,
        stored: Stored::Unknown,
        reserves: false,
    };

    fn doubt(facts: Facts, leg: Leg) -> Result<Option<Reason>, ()> {
        let direct = decide(&facts, leg);
        direct.alignment.map(|_| direct.doubt).ok_or(())
    }

    #[test]
    fn a_block_device_is_direct_on_any_file_system_of_its_node() {
        let node = Facts {
            is_block_device: true,
            file_system: TMPFS,
            ..PLAIN
        };
        assert_eq!(doubt(node, Leg::Read), Ok(None));
        let silent = Facts {
            statx_align: None,
            ..node
        };
        let page = decide(&silent, Leg::Read).alignment.unwrap();
        assert_eq!((page.object_bytes, page.memory_bytes), (4096, 4096));
    }

    #[test]
    fn tmpfs_and_file_systems_that_report_no_direct_io_have_none() {
        for facts in [
            Facts {
                file_system: TMPFS,
                ..PLAIN
            },
            Facts {
                file_system: EXT,
                statx_align: Some((0, 0)),
                ..PLAIN
            },
            Facts {
                file_system: OVERLAY,
                statx_align: None,
                ..PLAIN
            },
            Facts {
                statx_align: Some((1 << 20, 4)),
                ..PLAIN
            },
        ] {
            assert_eq!(doubt(facts, Leg::Read), Err(()), "{facts:?}");
        }
    }

    #[test]
    fn btrfs_is_direct_only_for_reads_of_files_with_plain_extents() {
        let btrfs = Facts {
            file_system: BTRFS,
            statx_align: None,
            ..PLAIN
        };
        let plain = Facts {
            stored: Stored::Plain,
            ..btrfs
        };
        let encoded = Facts {
            stored: Stored::Encoded,
            ..btrfs
        };
        let buffers = Ok(Some(Reason::FileSystemBuffers));
        assert_eq!(doubt(plain, Leg::Read), Ok(None));
        assert_eq!(doubt(encoded, Leg::Read), buffers);
        assert_eq!(doubt(btrfs, Leg::Read), Ok(Some(Reason::DirectUnproven)));
        assert_eq!(doubt(plain, Leg::Write), buffers);
    }

    #[test]
    fn ext4_is_direct_if_statx_reports_it_or_no_flag_excludes_it() {
        let ext4 = Facts {
            file_system: EXT,
            flags: EXTENTS,
            ..PLAIN
        };
        let old = Facts {
            statx_align: None,
            ..ext4
        };
        let buffers = Ok(Some(Reason::FileSystemBuffers));
        for facts in [ext4, old] {
            assert_eq!(doubt(facts, Leg::Read), Ok(None));
            assert_eq!(doubt(facts, Leg::Write), Ok(None));
            let ext3 = Facts { flags: 0, ..facts };
            assert_eq!(doubt(ext3, Leg::Read), Ok(None));
            assert_eq!(doubt(ext3, Leg::Write), buffers);
        }
        let journalled = Facts {
            is_journalled: true,
            ..old
        };
        assert_eq!(doubt(journalled, Leg::Read), buffers);
        let inline = Facts {
            flags: EXTENTS | INLINE,
            ..old
        };
        assert_eq!(doubt(inline, Leg::Read), buffers);
    }

    #[test]
    fn writes_to_an_overlay_are_direct_only_if_blocks_can_be_reserved_below_it() {
        let below_ext3 = Facts {
            file_system: OVERLAY,
            ..PLAIN
        };
        let below_xfs = Facts {
            reserves: true,
            ..below_ext3
        };
        assert_eq!(doubt(below_ext3, Leg::Write), Ok(Some(Reason::DirectUnproven)));
        assert_eq!(doubt(below_xfs, Leg::Write), Ok(None));
        for facts in [below_ext3, below_xfs] {
            assert_eq!(doubt(facts, Leg::Read), Ok(None));
            assert!(decide(&facts, Leg::Read).is_overlaid);
        }
    }

    #[test]
    fn an_unknown_file_system_without_a_statx_report_is_unproven() {
        for (file_system, statx_align, expected) in [
            (0x6573_5546, None, Some(Reason::DirectUnproven)), // FUSE
            (0x2fc1_2fc1, None, Some(Reason::DirectUnproven)), // ZFS
            (0xf2f5_2010, Some((4096, 4)), None),              // f2fs
            (0x6969, None, None),                              // NFS
            (XFS, None, None),
        ] {
            let facts = Facts {
                file_system,
                statx_align,
                ..PLAIN
            };
            assert_eq!(doubt(facts, Leg::Read), Ok(expected), "{facts:?}");
        }
    }
}
