//! The permissions of a file or folder, which its copy or successor gets: mode, group and access control list.
//!
//! A copy never gives anybody more than its original. What cannot be kept is left out: without its list, a file gets
//! the mode that gives nobody more than the list did; without its group, the group gets what others get.

use std::{
    ffi::OsStr,
    os::fd::{AsFd, AsRawFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Mode, fchmod, fchown, fstat, statat},
    io::Errno,
    process::Gid,
};

use crate::{
    acl::{self, Acl, AclKind},
    folder::Folder,
};

/// The permissions of a file or folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The permission bits, without set-user-ID, set-group-ID and sticky.
    mode: u32,
    /// Its group; `None` to leave the group unchanged.
    group: Option<u32>,
    list: List,
    /// The list that new files in the folder get.
    default: Option<Acl>,
}

/// What is known of an access control list.
#[derive(Clone, Debug, PartialEq, Eq)]
enum List {
    /// There is none.
    Absent,
    Acl(Acl),
    /// It could not be read.
    Unknown,
}

impl List {
    fn new(read: Result<Option<Acl>, Errno>) -> Self {
        match read {
            Ok(None) => Self::Absent,
            Ok(Some(acl)) => Self::Acl(acl),
            Err(_) => Self::Unknown,
        }
    }
}

impl Rights {
    /// The permissions of an open file, without its group.
    pub fn of(file: impl AsFd) -> Result<Self, Errno> {
        let file = file.as_fd();
        let mode = fstat(file)?.st_mode & 0o777;
        Ok(Self::new(mode, || Acl::of(file, AclKind::Access)))
    }

    /// The permissions of a file in a folder, with its group; `None` if there is no such file. A link is followed.
    pub fn of_name(folder: &Folder, name: &OsStr) -> Option<Self> {
        let stat = statat(folder, name, AtFlags::empty()).ok()?;
        // The path leads through the folder's descriptor, so that nobody can replace the folder meanwhile.
        let mut path = PathBuf::from(format!("/proc/self/fd/{}", folder.as_fd().as_raw_fd()));
        path.push(name);
        let read = || match Acl::of_path(&path, AclKind::Access) {
            // There is no /proc.
            Err(Errno::NOENT) => Acl::of_path(&folder.join(name), AclKind::Access),
            read => read,
        };
        Some(Self {
            group: Some(stat.st_gid),
            ..Self::new(stat.st_mode & 0o777, read)
        })
    }

    /// The permissions of a folder with the mode `mode`, without its group. A link is followed.
    pub fn of_folder(path: &Path, mode: u32) -> Self {
        Self {
            // A folder whose list cannot be read leaves the default to the folder that its copy is in.
            default: Acl::of_path(path, AclKind::Default).ok().flatten(),
            ..Self::new(mode & 0o777, || Acl::of_path(path, AclKind::Access))
        }
    }

    fn new(mode: u32, read: impl FnOnce() -> Result<Option<Acl>, Errno>) -> Self {
        // If neither the mask nor the others have a permission, a list gives nobody any.
        let is_private = mode & 0o700 == mode;
        let list = if is_private { List::Absent } else { List::new(read()) };
        Self {
            mode,
            group: None,
            list,
            default: None,
        }
    }

    /// Gives an open file or folder these permissions.
    pub fn give(&self, file: impl AsFd) -> Result<(), Errno> {
        let file = file.as_fd();
        let owns = |group: u32| fchown(file, None, Some(Gid::from_raw(group))).is_ok();
        let has_group = self.group.is_none_or(owns);
        let mode = match self.list.clone() {
            List::Acl(acl) => {
                let acl = if has_group { acl } else { acl.with_group_as_others() };
                if acl.set(file).is_ok() {
                    return self.give_default(file);
                }
                acl.mode_without()
            }
            List::Absent if has_group => self.mode,
            List::Absent => (self.mode & 0o707) | ((self.mode & 0o007) << 3),
            // The list may deny anybody but the owner what the mode shows.
            List::Unknown => self.mode & 0o700,
        };
        // It may have a list from its folder, and the mode would be the mask of that.
        if !matches!(Acl::of(file, AclKind::Access), Ok(None)) {
            acl::remove(file)?;
        }
        fchmod(file, Mode::from_raw_mode(mode))?;
        self.give_default(file)
    }

    fn give_default(&self, folder: impl AsFd) -> Result<(), Errno> {
        match &self.default {
            // It concerns only later files, which their writers can give permissions.
            Some(acl) => acl.set_default(folder).or(Ok(())),
            None => Ok(()),
        }
    }
}
