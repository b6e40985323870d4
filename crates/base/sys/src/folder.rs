//! An open folder, whose files are accessed relative to its descriptor.
//!
//! A folder of checkpoints, a profile or a report may have been prepared by an attacker. A file with a well-known
//! name in it (`.lock`, `manifest.json`) could be a symbolic link to any file of the user, a pipe that blocks
//! forever, or a device. Everything here opens a single name relative to the folder, never follows a link in that
//! name, and accepts only regular files. Removal unlinks a link and leaves its target.
//!
//! [`Folder::put_if_absent`], [`Folder::list`] and [`Folder::remove`] are the three operations that protocols between
//! processes are built on. An object store has the same three.

use std::{
    ffi::OsStr,
    fs,
    io::Write,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{
        AtFlags, CWD, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, fcntl_setfl, flock, fstat, fsync,
        linkat, mkdirat, openat, renameat, renameat_with, statat, unlinkat,
    },
    io::Errno,
};
use straightway_core::{Error, ErrorKind, Result};

use crate::{nonce::nonce, plain_file::read_all};

/// The most names listed of one folder. A folder with more is refused, not read in part.
pub const NAMES_MAX: usize = 4 << 20;

/// The maximum depth of [`Folder::remove_tree`]. Trees that this program writes are two levels deep.
const DEPTH_MAX: usize = 64;

/// The suffix of temporary names. Files that a killed process left are found and removed by it.
pub const DRAFT_SUFFIX: &str = ".straightway-part";

/// The number of attempts to create a temporary file, if a sweep removes it as abandoned.
pub const DRAFT_TRIES: usize = 8;

/// An open folder.
#[derive(Debug)]
pub struct Folder {
    descriptor: OwnedFd,
    path: PathBuf,
}

/// The mode in which a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads an existing file.
    Read,
    /// Reads and writes a file. It is created if it is missing, and never truncated.
    Keep,
    /// Writes a new file. An existing file is an error.
    Create,
}

/// Whether a put waits until it is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It waits.
    Synced,
    /// It does not wait: a power failure may undo the whole put.
    Unsynced,
}

impl Folder {
    /// Opens a folder. The path comes from the user, so links in it are followed.
    pub fn open(path: &Path) -> Result<Self> {
        Self::open_at(CWD, path, path.to_owned(), OFlags::empty())
    }

    /// Opens a folder inside this one, which must not be a symbolic link.
    pub fn open_folder(&self, name: impl AsRef<OsStr>) -> Result<Self> {
        let path = self.path_of(&name)?;
        Self::open_at(self, Path::new(&name), path, OFlags::NOFOLLOW)
    }

    /// Opens a folder inside this one. It is created if it is missing.
    pub fn create_folder(&self, name: impl AsRef<OsStr>) -> Result<Self> {
        let path = self.path_of(&name)?;
        match mkdirat(self, name.as_ref(), Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => self.open_folder(name),
            Err(errno) => Err(Error::os("create", path.display(), errno.into())),
        }
    }

    fn open_at(at: impl AsFd, name: &Path, path: PathBuf, follow: OFlags) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | follow;
        match openat(at, name, flags, Mode::empty()) {
            Ok(descriptor) => Ok(Self { descriptor, path }),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(no_folder(&path, follow)),
            Err(errno) => Err(Error::os("open", path.display(), errno.into())),
        }
    }

    /// The path with which it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its inode number. While it is open, no other file on that file system has the same.
    pub fn inode(&self) -> Result<u64> {
        let stat = fstat(self).map_err(|e| self.error("examine", e))?;
        Ok(stat.st_ino)
    }

    /// The type of the file with this name; `None` if there is none. Links are not followed.
    pub fn kind(&self, name: &str) -> Result<Option<FileType>> {
        let path = self.path_of(name)?;
        match statat(self, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(FileType::from_raw_mode(stat.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::os("examine", path.display(), errno.into())),
        }
    }

    /// Whether a regular file has this name.
    pub fn has_file(&self, name: &str) -> Result<bool> {
        Ok(self.kind(name)? == Some(FileType::RegularFile))
    }

    /// Opens a regular file in the folder.
    pub fn open_file(&self, name: &str, access: Access) -> Result<fs::File> {
        let path = self.path_of(name)?;
        let (operation, flags) = match access {
            Access::Read => ("open", OFlags::RDONLY),
            Access::Keep => ("open", OFlags::RDWR | OFlags::CREATE),
            Access::Create => ("create", OFlags::RDWR | OFlags::CREATE | OFlags::EXCL),
        };
        let descriptor = open_regular(self, name, flags, &path, operation)?;
        Ok(fs::File::from(descriptor))
    }

    /// Reads all bytes of a regular file. More than `bytes_max` is an error.
    pub fn read(&self, name: &str, bytes_max: u64) -> Result<Vec<u8>> {
        let path = self.path_of(name)?;
        let file = self.open_file(name, Access::Read)?;
        let bytes = file.metadata().map_or(0, |m| m.len());
        read_all(file, bytes, bytes_max, &path)
    }

    /// Atomically creates a file with this content, unless the name exists. Returns whether it was created.
    pub fn put_if_absent(&self, name: &str, bytes: &[u8], durability: Durability) -> Result<bool> {
        let path = self.path_of(name)?;
        if self.kind(name)?.is_some() {
            return Ok(false);
        }
        let (draft, _file) = self.draft(name, bytes, durability)?;
        if let Err(errno) = place_new(self, &draft, name) {
            let _ = unlinkat(self, &draft, AtFlags::empty());
            return match errno {
                Errno::EXIST => Ok(false),
                _ => Err(Error::os("create", path.display(), errno.into())),
            };
        }
        if durability == Durability::Synced {
            self.sync()?;
        }
        Ok(true)
    }

    /// Writes a new file under a temporary name. It is locked while it is open: an unlocked one was left by a dead
    /// process.
    fn draft(&self, name: &str, bytes: &[u8], durability: Durability) -> Result<(String, fs::File)> {
        let front = &name[..name.floor_char_boundary(150)];
        let (draft, mut file) = self.claim(front)?;
        let written = file.write_all(bytes).and_then(|()| match durability {
            Durability::Synced => file.sync_data(),
            Durability::Unsynced => Ok(()),
        });
        written.map_err(|e| {
            let _ = unlinkat(self, &draft, AtFlags::empty());
            Error::os("write", self.path.join(name).display(), e)
        })?;
        Ok((draft, file))
    }

    /// Creates and locks a temporary file. If a sweep removed it between its creation and its lock, this is repeated.
    fn claim(&self, front: &str) -> Result<(String, fs::File)> {
        for _ in 0..DRAFT_TRIES {
            let draft = format!(".{front}.{:016x}{DRAFT_SUFFIX}", nonce());
            let file = self.open_file(&draft, Access::Create)?;
            if claim(&file) {
                return Ok((draft, file));
            }
        }
        let why = "other processes keep removing its temporary file";
        let path = self.path.join(front);
        Err(Error::new(ErrorKind::Transient, "create", path.display(), why))
    }

    /// The names that are valid UTF-8, unordered. Every name that existed during the whole call is listed.
    pub fn list(&self) -> Result<Vec<String>> {
        let entries = self.entries()?;
        Ok(entries.into_iter().map(|(name, _)| name).collect())
    }

    /// As [`list`](Self::list), with the type of each file.
    pub fn entries(&self) -> Result<Vec<(String, FileType)>> {
        let failed = |e| self.error("list", e);
        let mut entries = Vec::new();
        // A separate descriptor: two threads that list must not share a position.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let own = openat(self, ".", flags, Mode::empty()).map_err(failed)?;
        for entry in Dir::new(own).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            match (entry.file_name().to_str(), entry.file_type()) {
                (Ok("." | "..") | Err(_), _) => {}
                // Some file systems do not report the type.
                (Ok(name), FileType::Unknown) => {
                    let kind = self.kind(name)?;
                    entries.extend(kind.map(|kind| (name.to_owned(), kind)));
                }
                (Ok(name), kind) => entries.push((name.to_owned(), kind)),
            }
            if entries.len() > NAMES_MAX {
                let (path, why) = (self.path.display(), format!("it has more than {NAMES_MAX} entries"));
                return Err(Error::new(ErrorKind::Invalid, "list", path, why));
            }
        }
        Ok(entries)
    }

    /// Removes a file or link. It is not an error if the name does not exist.
    pub fn remove(&self, name: &str) -> Result<()> {
        let path = self.path_of(name)?;
        match unlinkat(self, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(Error::os("remove", path.display(), errno.into())),
        }
    }

    /// Removes an empty folder. Returns whether it is gone: a folder that is not empty stays.
    pub fn remove_empty(&self, name: &str) -> Result<bool> {
        let path = self.path_of(name)?;
        match unlinkat(self, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(Error::os("remove", path.display(), errno.into())),
        }
    }

    /// Removes a file, or a folder with all its content. Links are removed and not followed.
    pub fn remove_tree(&self, name: &str) -> Result<()> {
        self.remove_below(name, DEPTH_MAX)
    }

    fn remove_below(&self, name: &str, depth: usize) -> Result<()> {
        match self.kind(name)? {
            None => return Ok(()),
            Some(FileType::Directory) => {}
            Some(_) => return self.remove(name),
        }
        let folder = match self.open_folder(name) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
            opened => opened?,
        };
        folder.clear_below(depth)?;
        if self.remove_empty(name)? {
            return Ok(());
        }
        let (path, why) = (self.path.join(name), "another process writes to it while it is removed");
        Err(Error::new(ErrorKind::Transient, "remove", path.display(), why))
    }

    /// Removes its content.
    pub fn clear(&self) -> Result<()> {
        self.clear_below(DEPTH_MAX)
    }

    fn clear_below(&self, depth: usize) -> Result<()> {
        if depth == 0 {
            let why = format!("folders in it are nested more than {DEPTH_MAX} deep");
            let path = self.path.display();
            return Err(Error::new(ErrorKind::Invalid, "remove", path, why));
        }
        // Names that are not UTF-8 are not listed. The removal of the folder then fails with an error.
        for name in self.list()? {
            self.remove_below(&name, depth - 1)?;
        }
        Ok(())
    }

    /// Renames a file or folder. The new name must not exist yet.
    pub fn rename_new(&self, from: &str, to: &str) -> Result<()> {
        let (source, target) = (self.path_of(from)?, self.path_of(to)?);
        let renamed = match renameat_with(self, from, self, to, RenameFlags::NOREPLACE) {
            // Some network file systems lack the flag.
            Err(errno) if is_unsupported(errno) => match self.kind(to)? {
                Some(_) => Err(Errno::EXIST),
                None => renameat(self, from, self, to),
            },
            renamed => renamed,
        };
        renamed.map_err(|errno| match errno {
            Errno::EXIST | Errno::NOTEMPTY => {
                let why = "it already exists";
                Error::new(ErrorKind::AlreadyExists, "create", target.display(), why)
            }
            _ => Error::os("rename", source.display(), errno.into()),
        })
    }

    /// Makes the names in it durable.
    pub fn sync(&self) -> Result<()> {
        match fsync(self) {
            // Some network file systems cannot sync folders, which is not treated as an error.
            Ok(()) | Err(Errno::INVAL) => Ok(()),
            Err(errno) => Err(self.error("sync", errno)),
        }
    }

    /// The path of a name in the folder. In the current folder it is the name alone, without `./`.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        match self.path.as_os_str().as_bytes() {
            b"." => name.as_ref().to_owned(),
            _ => self.path.join(name),
        }
    }

    /// The path of a name in the folder, for messages. A name that would lead out of the folder is refused.
    pub(crate) fn path_of(&self, name: impl AsRef<OsStr>) -> Result<PathBuf> {
        let name = name.as_ref();
        let is_separator = |byte: &u8| matches!(byte, b'/' | b'\0');
        if !matches!(name.as_bytes(), b"" | b"." | b"..") && !name.as_bytes().iter().any(is_separator) {
            return Ok(self.join(name));
        }
        let name = format!("{:?}", name.to_string_lossy());
        let why = "it is not a single file name";
        Err(Error::new(ErrorKind::Invalid, "open", name, why))
    }

    fn error(&self, operation: &'static str, errno: Errno) -> Error {
        Error::os(operation, self.path.display(), errno.into())
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Locks a temporary file, which marks its process as alive. Returns whether the file still exists: a sweep may have
/// removed it between its creation and its lock.
pub fn claim(file: impl AsFd) -> bool {
    // On a file system without locks only the sweep does not work.
    let locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    locked != Err(Errno::WOULDBLOCK) && fstat(&file).is_ok_and(|stat| stat.st_nlink > 0)
}

fn no_folder(path: &Path, follow: OFlags) -> Error {
    let is_link = path.symlink_metadata().is_ok_and(|meta| meta.is_symlink());
    let (message, hint) = if is_link && follow.contains(OFlags::NOFOLLOW) {
        (
            "it is a symbolic link, which is not followed there",
            "use the path that it points to, or remove it",
        )
    } else {
        ("it is not a folder", "use another path, or remove it")
    };
    Error::new(ErrorKind::NotFolder, "open", path.display(), message).with_hint(hint)
}

/// Opens a regular file by a single name, without following a link or waiting for the other end of a pipe.
pub(crate) fn open_regular(
    at: impl AsFd,
    name: &str,
    flags: OFlags,
    path: &Path,
    operation: &'static str,
) -> Result<OwnedFd> {
    let refuse = |what| Err(Error::new(ErrorKind::Invalid, operation, path.display(), what));
    let guards = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let descriptor = match openat(at, name, flags | guards, Mode::from_raw_mode(0o666)) {
        Ok(descriptor) => descriptor,
        Err(Errno::LOOP) => return refuse("it is a symbolic link, which is not followed here"),
        Err(Errno::ISDIR) => return refuse("it is a folder, not a regular file"),
        // A pipe without a reader, a socket, a device without a driver.
        Err(Errno::NXIO | Errno::NODEV) => return refuse("it is not a regular file"),
        Err(errno) => return Err(Error::os(operation, path.display(), errno.into())),
    };
    let stat = fstat(&descriptor).map_err(|e| Error::os("examine", path.display(), e.into()))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return refuse("it is not a regular file");
    }
    // On a non-blocking descriptor io_uring returns EAGAIN instead of waiting for the drive.
    fcntl_setfl(&descriptor, OFlags::empty()).map_err(|e| Error::os(operation, path.display(), e.into()))?;
    Ok(descriptor)
}

/// Renames a file atomically, unless the new name exists.
fn place_new(folder: &Folder, draft: &str, name: &str) -> std::result::Result<(), Errno> {
    match renameat_with(folder, draft, folder, name, RenameFlags::NOREPLACE) {
        // Some network file systems lack the flag, but have hard links.
        Err(errno) if is_unsupported(errno) => {
            linkat(folder, draft, folder, name, AtFlags::empty())?;
            // The file has its name. If the draft stays, a later sweep removes it.
            let _ = unlinkat(folder, draft, AtFlags::empty());
            Ok(())
        }
        placed => placed,
    }
}

fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use rustix::fs::mknodat;

    use super::*;

    fn folder() -> (tempfile::TempDir, Folder) {
        let home = tempfile::tempdir().unwrap();
        fs::create_dir(home.path().join("in")).unwrap();
        let folder = Folder::open(&home.path().join("in")).unwrap();
        (home, folder)
    }

    #[test]
    fn a_link_under_a_fixed_name_is_neither_read_nor_written_nor_truncated() {
        let (home, folder) = folder();
        let victim = home.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        symlink("../victim", folder.path().join("name")).unwrap();
        for access in [Access::Read, Access::Keep, Access::Create] {
            let error = folder.open_file("name", access).unwrap_err();
            assert!(error.to_string().contains("name"), "{error}");
        }
        assert!(folder.read("name", 100).is_err());
        assert!(!folder.has_file("name").unwrap());
        assert!(!folder.put_if_absent("name", b"x", Durability::Synced).unwrap());
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
    }

    #[test]
    fn a_pipe_a_socket_and_a_folder_are_refused_at_once() {
        let (_home, folder) = folder();
        for (name, kind) in [("pipe", FileType::Fifo), ("socket", FileType::Socket)] {
            mknodat(&folder, name, kind, Mode::RUSR | Mode::WUSR, 0).unwrap();
        }
        folder.create_folder("folder").unwrap();
        for name in ["pipe", "socket", "folder"] {
            for access in [Access::Read, Access::Keep] {
                let error = folder.open_file(name, access).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Invalid, "{name}: {error}");
            }
        }
    }

    #[test]
    fn a_name_that_leads_out_of_the_folder_is_refused() {
        let (_home, folder) = folder();
        for name in ["", ".", "..", "../victim", "a/b", "/etc/passwd", "a\0b"] {
            assert!(folder.open_file(name, Access::Keep).is_err(), "{name:?}");
            assert!(folder.put_if_absent(name, b"", Durability::Unsynced).is_err());
            assert!(folder.remove_tree(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn one_of_many_concurrent_puts_of_a_name_succeeds_and_no_draft_is_left() {
        let (_home, folder) = folder();
        let put = |number: usize| {
            let text = number.to_string();
            folder.put_if_absent("name", text.as_bytes(), Durability::Unsynced)
        };
        let done: Vec<bool> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|n| scope.spawn(move || put(n).unwrap())).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let winner = done.iter().position(|done| *done).unwrap();
        assert_eq!(done.iter().filter(|done| **done).count(), 1);
        assert_eq!(folder.read("name", 9).unwrap(), winner.to_string().as_bytes());
        assert_eq!(folder.list().unwrap(), ["name"]);
    }

    #[test]
    fn removing_a_tree_unlinks_its_links_and_leaves_their_targets() {
        let (home, folder) = folder();
        let outside = home.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("kept"), "kept").unwrap();
        fs::create_dir_all(folder.path().join("tree/deep")).unwrap();
        symlink(&outside, folder.path().join("tree/deep/link")).unwrap();
        symlink(&outside, folder.path().join("link")).unwrap();
        folder.remove_tree("tree").unwrap();
        folder.remove_tree("link").unwrap();
        folder.remove_tree("absent").unwrap();
        assert_eq!(folder.list().unwrap(), [""; 0]);
        assert_eq!(fs::read(outside.join("kept")).unwrap(), b"kept");
        symlink(&outside, folder.path().join("link")).unwrap();
        assert!(folder.open_folder("link").is_err());
        assert!(folder.create_folder("link").is_err());
    }

    #[test]
    fn a_read_is_bounded() {
        let (_home, folder) = folder();
        fs::write(folder.path().join("name"), "two!").unwrap();
        assert_eq!(folder.read("name", 4).unwrap(), b"two!");
        assert_eq!(folder.read("name", 3).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_rename_never_replaces() {
        let (_home, folder) = folder();
        folder.create_folder("a").unwrap();
        folder.create_folder("b").unwrap();
        let error = folder.rename_new("a", "b").unwrap_err();
        assert!(error.to_string().ends_with("it already exists"), "{error}");
        folder.rename_new("a", "c").unwrap();
        assert_eq!(folder.rename_new("a", "d").unwrap_err().kind(), ErrorKind::NotFound);
    }
}
