//! POSIX access control lists, which give named users and groups their own permissions.
//!
//! A file with a list has other permissions than its mode shows: the group bits of the mode are the list's *mask*, the
//! most that any entry but the owner's and the others' gives. Without the list, the same mode gives the owning group all
//! of the mask. The kernel hands lists out as an extended attribute; its format is in `acl(5)` and the kernel's
//! `posix_acl_xattr.h`.

use std::{os::fd::AsFd, path::Path};

use rustix::{
    fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, fstat, getxattr},
    io::Errno,
};

/// The attribute with the list of a file or folder, and the one with the list that new files in a folder get.
const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

/// Tags of entries.
const OWNER: u16 = 0x01;
const NAMED_USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const NAMED_GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// The usual length of a list, and the largest attribute that the kernel stores.
const USUAL_BYTES: usize = 512;
const BYTES_MAX: usize = 1 << 16;

/// Which list of a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AclKind {
    /// The list of its own permissions.
    Access,
    /// The list that new files in the folder get.
    Default,
}

impl AclKind {
    fn attribute(self) -> &'static str {
        match self {
            Self::Access => ACCESS,
            Self::Default => DEFAULT,
        }
    }
}

/// An access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    /// Read, write and execute, as in a mode.
    permissions: u16,
    /// The named user or group.
    id: u32,
}

impl Acl {
    /// The list of an open file; `None` if it has none, or its file system has no lists.
    pub(crate) fn of(file: impl AsFd, kind: AclKind) -> Result<Option<Self>, Errno> {
        let file = file.as_fd();
        read(|buffer| fgetxattr(file, kind.attribute(), buffer))
    }

    /// The list of the file that a path leads to.
    pub(crate) fn of_path(path: &Path, kind: AclKind) -> Result<Option<Self>, Errno> {
        read(|buffer| getxattr(path, kind.attribute(), &mut *buffer))
    }

    /// Gives the list to an open file, which also sets its mode. If the file system does not enforce it, the file is
    /// left without it.
    pub(crate) fn set(&self, file: impl AsFd) -> Result<(), Errno> {
        let file = file.as_fd();
        fsetxattr(file, ACCESS, &self.bytes(), XattrFlags::empty())?;
        if fstat(file)?.st_mode & 0o777 == self.mode() {
            return Ok(());
        }
        // Some FUSE file systems only store the attribute.
        remove(file)?;
        Err(Errno::OPNOTSUPP)
    }

    /// Gives the list to an open folder, for new files in it.
    pub(crate) fn set_default(&self, folder: impl AsFd) -> Result<(), Errno> {
        fsetxattr(folder, DEFAULT, &self.bytes(), XattrFlags::empty())
    }

    /// The mode that the kernel shows for a file with this list.
    fn mode(&self) -> u32 {
        let group = self.find(MASK).or(self.find(OWNING_GROUP)).unwrap_or(0);
        let (owner, others) = (self.find(OWNER).unwrap_or(0), self.find(OTHERS).unwrap_or(0));
        u32::from(owner) << 6 | u32::from(group) << 3 | u32::from(others)
    }

    /// The mode that gives nobody more than this list does. A named user or group may also be a member of the owning
    /// group or one of the others, so these get no more than any of the named.
    pub(crate) fn mode_without(&self) -> u32 {
        let mask = self.find(MASK).unwrap_or(7);
        let least = |tags: &[u16]| {
            let entries = self.0.iter().filter(|entry| tags.contains(&entry.tag));
            entries.fold(7, |least, entry| least & entry.permissions & mask)
        };
        let owner = self.find(OWNER).unwrap_or(0);
        let group = least(&[OWNING_GROUP, NAMED_USER]);
        let others = self.find(OTHERS).unwrap_or(0) & least(&[NAMED_USER, NAMED_GROUP]);
        u32::from(owner) << 6 | u32::from(group) << 3 | u32::from(others)
    }

    /// The same list with no more for the owning group than for others.
    #[must_use]
    pub(crate) fn with_group_as_others(mut self) -> Self {
        let others = self.find(OTHERS).unwrap_or(0);
        for entry in self.0.iter_mut().filter(|entry| entry.tag == OWNING_GROUP) {
            entry.permissions &= others;
        }
        self
    }

    fn find(&self, tag: u16) -> Option<u16> {
        let entry = self.0.iter().find(|entry| entry.tag == tag);
        entry.map(|entry| entry.permissions)
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (version, entries) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if u32::from_le_bytes(*version) != VERSION || !rest.is_empty() {
            return None;
        }
        let entry = |[t0, t1, p0, p1, id @ ..]: &[u8; ENTRY_BYTES]| Entry {
            tag: u16::from_le_bytes([*t0, *t1]),
            permissions: u16::from_le_bytes([*p0, *p1]) & 7,
            id: u32::from_le_bytes(*id),
        };
        Some(Self(entries.iter().map(entry).collect()))
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for Entry { tag, permissions, id } in &self.0 {
            bytes.extend(tag.to_le_bytes());
            bytes.extend(permissions.to_le_bytes());
            bytes.extend(id.to_le_bytes());
        }
        bytes
    }
}

/// Removes the list of an open file, such as one that it got from its folder. Its mode stays, but the group bits then
/// are those of the owning group: set the mode afterwards.
pub(crate) fn remove(file: impl AsFd) -> Result<(), Errno> {
    match fremovexattr(file, ACCESS) {
        Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Reads a list with `get`, which fills a buffer. A list that cannot be parsed is an error.
fn read(mut get: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Option<Acl>, Errno> {
    let mut usual = [0; USUAL_BYTES];
    let parsed = match get(&mut usual) {
        Ok(bytes) => Acl::parse(&usual[..bytes]),
        Err(Errno::RANGE) => {
            let mut large = vec![0; BYTES_MAX];
            let bytes = get(&mut large)?;
            Acl::parse(&large[..bytes])
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    parsed.map(Some).ok_or(Errno::INVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16)]) -> Acl {
        let entry = |&(tag, permissions): &(u16, u16)| Entry {
            tag,
            permissions,
            id: if tag & (NAMED_USER | NAMED_GROUP) != 0 {
                1000
            } else {
                u32::MAX
            },
        };
        Acl(entries.iter().map(entry).collect())
    }

    #[test]
    fn a_mode_without_the_list_gives_nobody_more() {
        for (entries, mode, without) in [
            // The group bits of the mode are the mask, not the group's.
            (
                &[(OWNER, 6), (NAMED_USER, 6), (OWNING_GROUP, 0), (MASK, 6), (OTHERS, 0)][..],
                0o660,
                0o600,
            ),
            (
                &[(OWNER, 6), (NAMED_USER, 6), (OWNING_GROUP, 4), (MASK, 6), (OTHERS, 4)],
                0o664,
                0o644,
            ),
            // The mask limits the group.
            (
                &[(OWNER, 6), (NAMED_GROUP, 6), (OWNING_GROUP, 6), (MASK, 4), (OTHERS, 0)],
                0o640,
                0o640,
            ),
            // A user who is denied may be in the group, and is one of the others.
            (
                &[(OWNER, 6), (NAMED_USER, 0), (OWNING_GROUP, 4), (MASK, 4), (OTHERS, 4)],
                0o644,
                0o600,
            ),
            // Members of a group that is denied are others.
            (
                &[(OWNER, 6), (OWNING_GROUP, 4), (NAMED_GROUP, 0), (MASK, 4), (OTHERS, 4)],
                0o644,
                0o640,
            ),
            (&[(OWNER, 7), (OWNING_GROUP, 5), (OTHERS, 1)], 0o751, 0o751),
        ] {
            let acl = acl(entries);
            assert_eq!(acl.mode(), mode, "{acl:?}");
            assert_eq!(acl.mode_without(), without, "{acl:?}");
        }
    }

    #[test]
    fn the_format_is_the_kernels() {
        let acl = acl(&[(OWNER, 6), (NAMED_USER, 4), (OWNING_GROUP, 0), (MASK, 4), (OTHERS, 0)]);
        let bytes = acl.bytes();
        assert_eq!(bytes.len(), HEADER_BYTES + 5 * ENTRY_BYTES);
        assert_eq!(bytes[..12], [2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255]);
        assert_eq!(Acl::parse(&bytes), Some(acl));
        for broken in [&bytes[..11], &[3, 0, 0, 0], &[]] {
            assert_eq!(Acl::parse(broken), None);
        }
    }

    #[test]
    fn a_group_that_cannot_be_kept_gets_what_others_get() {
        let acl = acl(&[(OWNER, 6), (NAMED_USER, 6), (OWNING_GROUP, 6), (MASK, 6), (OTHERS, 4)]);
        assert_eq!(acl.with_group_as_others().mode_without(), 0o644);
    }
}
