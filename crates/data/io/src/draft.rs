//! A file that is being written: it has a temporary name until it is whole, and then gets its own.
//!
//! The temporary file lies next to the final one (a rename must not cross file systems) and is locked while it is
//! written. Both names are relative to the open folder, so nobody can replace the folder meanwhile. A draft of a killed
//! process has no lock any more, and [`sweep`] removes it. A random number distinguishes the drafts of one target:
//! process IDs repeat between containers that share a folder.
//!
//! A block device has no draft: it is written in place, and only for [`Like::Device`]. Everything else refuses it.
//!
//! A draft has the permissions of the file that it replaces or copies from the start, so that nobody can read it who
//! may not read that file. The permissions of a new file follow from the umask.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::{fd::AsFd, unix::ffi::OsStrExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, Stat, flock, fstat, openat, renameat, statat, symlinkat,
        unlinkat,
    },
    io::Errno,
};
use straightway_core::{Error, ErrorKind, Result};
use straightway_sys::{
    File, Folder, IoPath, Rights,
    file::open_failed,
    folder::{DRAFT_SUFFIX, DRAFT_TRIES, claim},
    nonce::nonce,
};

use crate::{
    handle::Handle,
    store::{Draft, Like},
};

/// A file that is being written. Dropped before its commit, it leaves nothing behind.
#[derive(Debug)]
pub struct FileDraft {
    file: Arc<File>,
    folder: Arc<Folder>,
    temporary: OsString,
    name: OsString,
    /// Its final length.
    bytes: u64,
    committed: bool,
}

/// The most bytes of the final name in the temporary one: with the random number and the suffix it stays under the 255
/// bytes that file systems allow.
const NAME_BYTES_MAX: usize = 200;

impl FileDraft {
    /// Begins `target` with space for `bytes` bytes.
    pub fn new(target: &Path, bytes: u64) -> Result<Self> {
        Self::at(target, bytes, &Like::Replaced)
    }

    /// Begins `target`, whose folder exists.
    pub(crate) fn at(target: &Path, bytes: u64, like: &Like<'_>) -> Result<Self> {
        let (folder, name) = place(target).map_err(|error| match error.os_code() {
            Some(code) => open_failed("create", target, Errno::from_raw_os_error(code)),
            None => error,
        })?;
        Self::create(&folder, name, bytes, like)
    }

    /// Begins `name` in an open folder.
    pub(crate) fn create(folder: &Arc<Folder>, name: &OsStr, bytes: u64, like: &Like<'_>) -> Result<Self> {
        let target = folder.join(name);
        let refuse = |why| Err(Error::new(ErrorKind::Invalid, "create", target.display(), why));
        match (kind_of(folder, name), like) {
            (_, Like::InPlace) => return Self::existing(folder, name),
            (Some(FileType::BlockDevice), Like::Device) => return Self::in_place(folder, name, bytes),
            (_, Like::Device) => return refuse("it is not a block device"),
            (kind, _) => check_replaceable(kind, &target)?,
        }
        if let Like::InsteadOf(replaced) = like {
            check_replaceable(kind_of(folder, replaced), &folder.join(replaced))?;
        }
        let rights = match like {
            Like::Replaced | Like::Device | Like::InPlace => Rights::of_name(folder, name),
            Like::InsteadOf(replaced) => Rights::of_name(folder, replaced),
            Like::Copy { of, .. } => match of.file() {
                Some(file) => {
                    let rights = Rights::of(file.descriptor(IoPath::PageCache));
                    Some(rights.map_err(|errno| file.error("examine", errno.into()))?)
                }
                None => Rights::of_name(folder, name),
            },
        };
        for _ in 0..DRAFT_TRIES {
            let draft = Self::begin(folder, name, bytes, rights.as_ref())?;
            if claim(draft.file.descriptor(IoPath::PageCache)) {
                match like {
                    Like::Copy { has_holes: true, .. } => {}
                    // The length of an object on a server is a claim.
                    Like::Copy { of, .. } if of.file().is_none() => draft.file.reserve_as_written()?,
                    _ => draft.file.reserve()?,
                }
                return Ok(draft);
            }
        }
        refuse("other processes keep removing its temporary file")
    }

    /// A draft for a block device, which is written in place: its old content is lost from the first byte on, and after
    /// an error it is partly written.
    fn in_place(folder: &Arc<Folder>, name: &OsStr, bytes: u64) -> Result<Self> {
        let file = File::open_device(&folder.join(name), folder.as_fd(), name.as_ref(), bytes)?;
        Ok(Self {
            file: Arc::new(file),
            folder: Arc::clone(folder),
            temporary: name.to_owned(),
            name: name.to_owned(),
            bytes,
            committed: true,
        })
    }

    /// A draft for an existing file, which is written in place.
    fn existing(folder: &Arc<Folder>, name: &OsStr) -> Result<Self> {
        let file = File::open_existing(&folder.join(name), folder.as_fd(), name.as_ref())?;
        Ok(Self {
            bytes: file.bytes(),
            file: Arc::new(file),
            folder: Arc::clone(folder),
            temporary: name.to_owned(),
            name: name.to_owned(),
            committed: true,
        })
    }

    fn begin(folder: &Arc<Folder>, name: &OsStr, bytes: u64, rights: Option<&Rights>) -> Result<Self> {
        let temporary = draft_name(name);
        // A file that will get certain permissions is private until it has them.
        let mode = if rights.is_some() { 0o600 } else { 0o666 };
        let (target, at) = (folder.join(name), folder.as_fd());
        let file = File::create_for(&target, at, temporary.as_ref(), bytes, mode);
        let file = file.inspect_err(|error| {
            // It may have been created without getting its length. A file that existed before is not ours.
            if error.os_code() != Some(Errno::EXIST.raw_os_error()) {
                let _ = unlinkat(at, &temporary, AtFlags::empty());
            }
        })?;
        let draft = Self {
            file: Arc::new(file),
            folder: Arc::clone(folder),
            temporary,
            name: name.to_owned(),
            bytes,
            committed: false,
        };
        if let Some(rights) = rights {
            let given = rights.give(draft.file.descriptor(IoPath::PageCache));
            given.map_err(|errno| draft.file.error("set the permissions of", errno.into()))?;
        }
        Ok(draft)
    }

    /// The path of the file until it has its own name.
    pub fn path(&self) -> PathBuf {
        self.folder.join(&self.temporary)
    }

    /// The file to write to.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Renames the file to its own name, durably.
    pub fn commit(self) -> Result<()> {
        Self::commit_all(vec![self])
    }

    /// Commits several drafts. Each folder is synced once.
    pub(crate) fn commit_all(drafts: Vec<Self>) -> Result<()> {
        finish(&drafts)?;
        Self::name_all(drafts, None)
    }

    /// Commits several drafts in order: a reader that sees the last sees all. After an error, new names are removed
    /// again, unless another writer has replaced their files.
    pub(crate) fn commit_in_order(mut drafts: Vec<Self>) -> Result<()> {
        finish(&drafts)?;
        let last = drafts.pop();
        let mut new = Vec::new();
        let committed = Self::name_all(drafts, Some(&mut new)).and_then(|()| Self::name_all(last, Some(&mut new)));
        if committed.is_err() {
            new.iter().for_each(NewName::remove);
        }
        committed
    }

    /// Renames drafts, replacing files of the same names, and syncs their folders. Names that did not exist before are
    /// added to `new`.
    fn name_all(drafts: impl IntoIterator<Item = Self>, mut new: Option<&mut Vec<NewName>>) -> Result<()> {
        let mut folders = BTreeMap::new();
        // A file written in place has its name already.
        for mut draft in drafts.into_iter().filter(|draft| !draft.committed) {
            let (folder, name) = (Arc::clone(&draft.folder), draft.name.clone());
            let is_new = new.is_some() && statat(&folder, &name, AtFlags::SYMLINK_NOFOLLOW).is_err();
            renameat(&folder, &draft.temporary, &folder, &name)
                .map_err(|e| Error::os("replace", draft.file.path().display(), e.into()))?;
            draft.committed = true;
            folders.insert(folder.path().to_owned(), Arc::clone(&folder));
            if let Some(new) = new.as_mut().filter(|_| is_new) {
                let file = Arc::clone(&draft.file);
                new.push(NewName { folder, name, file });
            }
        }
        folders.values().try_for_each(|folder| folder.sync())
    }
}

/// A name that a commit has given to a file, and that did not exist before.
struct NewName {
    folder: Arc<Folder>,
    name: OsString,
    file: Arc<File>,
}

impl NewName {
    /// Removes it, if it is still the name of that file.
    fn remove(&self) {
        let named = statat(&self.folder, &self.name, AtFlags::SYMLINK_NOFOLLOW);
        let own = fstat(self.file.descriptor(IoPath::PageCache));
        let inode = |stat: Stat| (stat.st_dev, stat.st_ino);
        if named.is_ok_and(|named| own.is_ok_and(|own| inode(named) == inode(own))) {
            let _ = unlinkat(&self.folder, &self.name, AtFlags::empty());
        }
    }
}

/// The type of the file that a name leads to, if there is one.
fn kind_of(folder: &Folder, name: &OsStr) -> Option<FileType> {
    let stat = statat(folder, name, AtFlags::empty()).ok()?;
    Some(FileType::from_raw_mode(stat.st_mode))
}

/// Returns an error if a file may not replace what has its name. A rename would replace a device or pipe, such as
/// /dev/null, by a file.
fn check_replaceable(kind: Option<FileType>, path: &Path) -> Result<()> {
    let why = match kind {
        None | Some(FileType::RegularFile) => return Ok(()),
        Some(FileType::BlockDevice) => return Err(device_refused(path)),
        Some(FileType::Directory) => "it is a folder, not a file",
        Some(_) => "it exists and is not a regular file",
    };
    Err(Error::new(ErrorKind::Invalid, "create", path.display(), why))
}

/// The error for a block device that would be overwritten without the user's permission.
pub(crate) fn device_refused(path: &Path) -> Error {
    let why = "it is a block device, and its contents would be lost";
    Error::new(ErrorKind::Invalid, "write to", path.display(), why)
        .with_hint("write to a file; `straightway copy --to-device` copies a file onto a device")
}

/// Gives drafts their lengths, and syncs those that no job has synced.
fn finish(drafts: &[FileDraft]) -> Result<()> {
    for FileDraft { file, bytes, .. } in drafts {
        // It may have grown since it was begun.
        let bytes = file.bytes().max(*bytes);
        // Writes in whole blocks reach past the end. A job that synced the file has truncated it already.
        let is_truncated =
            fstat(file.descriptor(IoPath::PageCache)).is_ok_and(|stat| u64::try_from(stat.st_size) == Ok(bytes));
        if !is_truncated {
            file.truncate(bytes)?;
        }
        if file.is_unsynced() {
            file.sync()?;
        }
    }
    Ok(())
}

impl Draft for FileDraft {
    fn handle(&self) -> Arc<dyn Handle> {
        Arc::clone(&self.file) as _
    }

    /// Writes through the page cache. The commit makes the bytes durable.
    fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(offset, bytes)
    }

    fn end_at(&mut self, bytes: u64) -> Result<()> {
        self.bytes = bytes;
        Ok(())
    }

    fn grow(&self, end: u64) -> Result<()> {
        self.file.grow(end)
    }
}

impl Drop for FileDraft {
    fn drop(&mut self) {
        if !self.committed {
            // If it cannot be removed, it still has no final name.
            let _ = unlinkat(&self.folder, &self.temporary, AtFlags::empty());
        }
    }
}

/// Whether a path has the name of a draft.
pub fn is_draft(path: &Path) -> bool {
    let name = path.file_name().map(OsStrExt::as_bytes);
    name.is_some_and(|name| name.starts_with(b".") && name.ends_with(DRAFT_SUFFIX.as_bytes()))
}

/// Removes the drafts in `folder` whose writers are gone, and all drafts of links. Drafts that cannot be examined stay.
/// Symlinks are not followed.
pub fn sweep(folder: &Folder) {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let own = openat(folder, ".", flags | OFlags::DIRECTORY, Mode::empty());
    let Ok(entries) = own.and_then(Dir::new) else {
        return;
    };
    for entry in entries.flatten() {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if !is_draft(Path::new(name)) {
            continue;
        }
        if entry.file_type() == FileType::Symlink {
            // A link cannot be locked. Its writer, if it is alive, makes another one.
            let _ = unlinkat(folder, name, AtFlags::empty());
            continue;
        }
        // Read access is enough for a lock, and possible for the draft of a read-only file.
        let Ok(file) = openat(folder, name, flags, Mode::empty()) else {
            continue;
        };
        let kind = fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let is_file = kind == Ok(FileType::RegularFile);
        if is_file && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = unlinkat(folder, name, AtFlags::empty());
        }
    }
}

/// A new name for a draft of `name`.
fn draft_name(name: &OsStr) -> OsString {
    let bytes = name.as_bytes();
    let mut draft = OsString::from(".");
    draft.push(OsStr::from_bytes(&bytes[..bytes.len().min(NAME_BYTES_MAX)]));
    draft.push(format!(".{:016x}{DRAFT_SUFFIX}", nonce()));
    draft
}

/// Creates a link to `points_to` in a folder, atomically: it replaces a file or link of that name by a rename.
pub fn place_link(folder: &Folder, name: &OsStr, points_to: &Path) -> Result<()> {
    let target = folder.join(name);
    let kind = statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
    match kind.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
        Err(_) | Ok(FileType::Symlink) => {}
        Ok(kind) => check_replaceable(Some(kind), &target)?,
    }
    let failed = |errno: Errno| Error::os("create", target.display(), errno.into());
    for _ in 0..DRAFT_TRIES {
        let draft = draft_name(name);
        symlinkat(points_to, folder, &draft).map_err(failed)?;
        match renameat(folder, &draft, folder, name) {
            Ok(()) => return Ok(()),
            // A sweep has removed it.
            Err(Errno::NOENT) => {}
            Err(errno) => {
                let _ = unlinkat(folder, &draft, AtFlags::empty());
                return Err(failed(errno));
            }
        }
    }
    let why = "other processes keep removing its temporary file";
    Err(Error::new(ErrorKind::Transient, "create", target.display(), why).with_hint("try again"))
}

/// The folder that `path` is in.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Opens the folder of a path. Returns it with the file's name.
pub(crate) fn place(target: &Path) -> Result<(Arc<Folder>, &OsStr)> {
    let Some(name) = target.file_name() else {
        let why = "it has no file name";
        return Err(Error::new(ErrorKind::Invalid, "use", target.display(), why));
    };
    Ok((Arc::new(Folder::open(folder_of(target))?), name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    #[test]
    fn a_dropped_draft_leaves_nothing_and_a_committed_one_leaves_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        drop(FileDraft::new(&target, 100).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        FileDraft::new(&target, 0).unwrap().commit().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"");
    }

    #[test]
    fn a_sweep_removes_the_draft_of_a_killed_writer_and_keeps_that_of_a_living_one() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let abandoned = folder.path().join(".file.1-0.straightway-part");
        fs::write(&abandoned, "half").unwrap();
        let living = FileDraft::new(&target, 10).unwrap();
        sweep(&Folder::open(folder.path()).unwrap());
        assert!(!abandoned.exists());
        assert!(living.path().exists());
    }

    #[test]
    fn a_draft_that_a_sweep_removed_before_it_was_locked_is_begun_again() {
        let folder = tempfile::tempdir().unwrap();
        let opened = Arc::new(Folder::open(folder.path()).unwrap());
        let draft = FileDraft::begin(&opened, "file".as_ref(), 10, None).unwrap();
        sweep(&Folder::open(folder.path()).unwrap());
        assert!(!claim(draft.file.descriptor(IoPath::PageCache)));
        let draft = FileDraft::begin(&opened, "file".as_ref(), 10, None).unwrap();
        assert!(claim(draft.file.descriptor(IoPath::PageCache)));
    }

    #[test]
    fn a_draft_has_the_permissions_of_the_file_that_it_replaces_or_copies() {
        let folder = tempfile::tempdir().unwrap();
        let (target, source) = (folder.path().join("file"), folder.path().join("source"));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let set = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        };
        fs::write(&source, "secret").unwrap();
        fs::write(folder.path().join("new"), "").unwrap();
        FileDraft::new(&target, 1).unwrap().commit().unwrap();
        assert_eq!(
            mode(&target),
            mode(&folder.path().join("new")),
            "a new file follows the umask"
        );
        for rights in [0o600, 0o640, 0o444] {
            set(&target, rights);
            let draft = FileDraft::new(&target, 1).unwrap();
            assert_eq!(mode(&draft.path()), rights, "from the start");
            draft.commit().unwrap();
            assert_eq!(mode(&target), rights);
            // A copy has the permissions of its source, not of the file that it replaces.
            set(&source, rights);
            set(&target, 0o666);
            let opened = Arc::new(Folder::open(folder.path()).unwrap());
            let source = File::open(&source).unwrap();
            let like = Like::Copy {
                of: &source,
                has_holes: false,
            };
            let copy = FileDraft::create(&opened, "file".as_ref(), 6, &like).unwrap();
            assert_eq!(mode(&copy.path()), rights);
        }
    }

    #[test]
    fn a_symlink_in_the_place_of_the_folder_receives_nothing() {
        let home = tempfile::tempdir().unwrap();
        let (folder, victim) = (home.path().join("folder"), home.path().join("victim"));
        fs::create_dir(&folder).unwrap();
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("file"), "precious").unwrap();
        let (kept, dropped) = (folder.join("file"), folder.join("other"));
        let (kept, dropped) = (FileDraft::new(&kept, 1).unwrap(), FileDraft::new(&dropped, 1).unwrap());
        fs::rename(&folder, home.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(&victim, &folder).unwrap();
        kept.commit().unwrap();
        drop(dropped);
        assert_eq!(fs::read(victim.join("file")).unwrap(), b"precious");
        assert_eq!(fs::read_dir(home.path().join("moved")).unwrap().count(), 1);
    }

    #[test]
    fn a_symlink_is_replaced_and_its_target_is_untouched() {
        let home = tempfile::tempdir().unwrap();
        let (link, victim) = (home.path().join("link"), home.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, &link).unwrap();
        let draft = FileDraft::new(&link, 4).unwrap();
        draft.write_all_at(0, b"mine").unwrap();
        draft.commit().unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"precious");
        assert_eq!(fs::read(&link).unwrap(), b"mine");
        assert!(!link.is_symlink());
    }

    #[test]
    fn a_failed_commit_does_not_remove_what_another_writer_put_under_its_names() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, theirs] = ["ours", "theirs"].map(|name| folder.path().join(name));
        let drafts = [&ours, &theirs].map(|path| FileDraft::new(path, 1).unwrap());
        let mut new = Vec::new();
        FileDraft::name_all(drafts, Some(&mut new)).unwrap();
        let other = FileDraft::new(&theirs, 5).unwrap();
        other.write_all_at(0, b"other").unwrap();
        other.commit().unwrap();
        new.iter().for_each(NewName::remove);
        assert_eq!((ours.exists(), fs::read(&theirs).unwrap()), (false, b"other".to_vec()));
    }

    #[test]
    fn the_longest_possible_name_has_a_draft() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("n".repeat(255));
        FileDraft::new(&target, 10).unwrap().commit().unwrap();
        assert!(target.exists());
    }

    #[test]
    fn a_folder_is_refused_as_target() {
        let folder = tempfile::tempdir().unwrap();
        let error = FileDraft::new(folder.path(), 1).unwrap_err();
        assert!(error.to_string().ends_with("it is a folder, not a file"), "{error}");
    }
}
