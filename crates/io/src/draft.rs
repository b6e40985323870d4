//! A file in the making: written under a temporary name, and given its own when it is whole.
//!
//! The temporary file lies beside the final one (a rename must not cross file systems) and is
//! locked while it is written. Both names are relative to the folder's descriptor, so that nobody can put another folder
//! in its place meanwhile. What a killed process leaves behind has no lock any more, and
//! [`sweep`] removes it. A random number tells the drafts of one target apart: containers that share a
//! folder repeat the numbers of processes.
//!
//! A draft has the permissions of the file that it replaces or copies from its first moment, so that nobody reads in it
//! what they may not read in that file. The permissions of a new file follow from the umask.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::{
    fs::{
        AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, flock, fstat, fsync, open, openat,
        renameat, statat, unlinkat,
    },
    io::Errno,
};
use straightway_core::{Error, Kind, Result};
use straightway_sys::{By, File, Folder, file::open_failed, nonce::nonce};

/// A file in the making. Dropped before its commit, it leaves nothing behind.
#[derive(Debug)]
pub struct FileDraft {
    file: Arc<File>,
    /// Whether bytes were written that no job makes durable.
    unsynced: AtomicBool,
    folder: Arc<OwnedFd>,
    temporary: PathBuf,
    target: PathBuf,
    committed: bool,
}

/// Who may do what with a file.
#[derive(Clone, Copy, Debug)]
struct Rights {
    mode: u32,
    /// Whose group it is; `None` where that is nobody's concern.
    group: Option<u32>,
}

impl Rights {
    /// Those of a file in a folder, if it is there.
    fn of(folder: &OwnedFd, name: &OsStr) -> Option<Self> {
        let stat = statat(folder, name, AtFlags::empty()).ok()?;
        Some(Self {
            mode: stat.st_mode & 0o777,
            group: Some(stat.st_gid),
        })
    }

    /// Gives a file these rights. Where it cannot have the group, the group may do no more than all others.
    fn give(self, file: &File) -> Result<()> {
        let has_group = self.group.is_none_or(|group| file.set_group(group));
        let mode = if has_group {
            self.mode
        } else {
            (self.mode & 0o707) | ((self.mode & 0o007) << 3)
        };
        file.set_mode(mode)
    }
}

/// What temporary names end in.
const SUFFIX: &str = straightway_sys::folder::DRAFT_SUFFIX;

/// How much of the final name is in the temporary one: with the random number and the suffix it stays
/// under the 255 bytes that file systems allow.
const NAME_BYTES_MAX: usize = 200;

/// How often a draft is begun again because a sweep took it for abandoned. The gap that this takes
/// is between two system calls.
const TRIES: u32 = 8;

impl FileDraft {
    /// Begins `target` with room for `bytes`.
    pub fn new(target: &Path, bytes: u64) -> Result<Self> {
        let draft = Self::sparse(target, bytes)?;
        draft.file.reserve()?;
        Ok(draft)
    }

    /// Begins `name` in an open folder, with room for `bytes`.
    pub fn in_folder(folder: &Folder, name: &str, bytes: u64) -> Result<Self> {
        let target = folder.path().join(name);
        let own = folder.as_fd().try_clone_to_owned();
        let own = own.map_err(|e| Error::os("create", target.display(), e))?;
        let draft = Self::start(&target, &Arc::new(own), bytes, None)?;
        draft.file.reserve()?;
        Ok(draft)
    }

    /// Begins `target`, which will be `bytes` long and have holes.
    pub fn sparse(target: &Path, bytes: u64) -> Result<Self> {
        Self::start(target, &folder_for(target)?, bytes, None)
    }

    /// Begins `target` with room for `bytes` and with the permissions of `replaced`, a file of the same folder whose place it
    /// takes under another name.
    pub fn instead_of(replaced: &Path, target: &Path, bytes: u64) -> Result<Self> {
        let folder = folder_for(target)?;
        let rights = Rights::of(&folder, replaced.file_name().unwrap_or_default());
        let draft = Self::start(target, &folder, bytes, rights)?;
        draft.file.reserve()?;
        Ok(draft)
    }

    /// Begins a copy of `source` at `target`, which is in the open `folder`: as long as the source, with its permissions,
    /// and with holes or room for all of it.
    pub fn copy_of(
        source: &File,
        target: &Path,
        folder: &Arc<OwnedFd>,
        has_holes: bool,
    ) -> Result<Self> {
        let rights = Rights {
            mode: source.mode()?,
            group: None,
        };
        let draft = Self::start(target, folder, source.bytes(), Some(rights))?;
        if !has_holes {
            draft.file.reserve()?;
        }
        Ok(draft)
    }

    fn start(
        target: &Path,
        folder: &Arc<OwnedFd>,
        bytes: u64,
        rights: Option<Rights>,
    ) -> Result<Self> {
        let refuse = |why| Err(Error::new(Kind::Invalid, "create", target.display(), why));
        let Some(name) = target.file_name() else {
            return refuse("it has no file name");
        };
        let there = statat(folder, name, AtFlags::empty()).ok();
        match there.map(|stat| FileType::from_raw_mode(stat.st_mode)) {
            None | Some(FileType::RegularFile) => {}
            Some(FileType::Directory) => return refuse("it is a folder, and a file is meant"),
            // A rename would put a file where a device or pipe was, /dev/null for one.
            Some(_) => return refuse("what is there is no file to replace"),
        }
        let rights = rights.or_else(|| Rights::of(folder, name));
        for _ in 0..TRIES {
            let draft = Self::begin(target, folder, bytes, rights)?;
            if draft.claim() {
                return Ok(draft);
            }
        }
        refuse("other processes keep removing its temporary file")
    }

    fn begin(
        target: &Path,
        folder: &Arc<OwnedFd>,
        bytes: u64,
        rights: Option<Rights>,
    ) -> Result<Self> {
        let name = target.file_name().expect("`start` found one");
        let mut hidden = OsString::from(".");
        hidden.push(front(name));
        hidden.push(format!(".{:016x}{SUFFIX}", nonce()));
        // What is to have certain rights is nobody else's until it has them.
        let mode = if rights.is_some() { 0o600 } else { 0o666 };
        let at = folder.as_fd();
        let file = File::create_for(target, at, hidden.as_ref(), bytes, mode);
        let file = file.inspect_err(|error| {
            // It may have been created and yet not get its length. What was there before is not ours.
            if error.os_code() != Some(Errno::EXIST.raw_os_error()) {
                let _ = unlinkat(at, &hidden, AtFlags::empty());
            }
        })?;
        let draft = Self {
            file: Arc::new(file),
            unsynced: AtomicBool::new(false),
            folder: Arc::clone(folder),
            temporary: folder_of(target).join(hidden),
            target: target.to_owned(),
            committed: false,
        };
        if let Some(rights) = rights {
            rights.give(&draft.file)?;
        }
        Ok(draft)
    }

    /// Locks the file, which tells the living from the dead. Answers whether it is still ours: a
    /// sweep may have come between its creation and its lock.
    fn claim(&self) -> bool {
        let file = self.file.descriptor(By::PageCache);
        // A file system without locks loses the clean-up and nothing else.
        let swept = flock(file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
        !swept && fstat(file).is_ok_and(|stat| stat.st_nlink > 0)
    }

    /// Where the file is until it has its own name.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// The file to write to.
    pub fn file(&self) -> &Arc<File> {
        &self.file
    }

    /// Writes all of `bytes` at `offset`, through the page cache. The commit makes them durable.
    pub fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.unsynced.store(true, Ordering::Relaxed);
        self.file.write_all_at(offset, bytes)
    }

    /// Where the file goes.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Gives the file its own name, replacing what had it. Its bytes must be synced already; the name is
    /// durable once the folder is.
    pub fn name(mut self) -> Result<()> {
        let (from, to) = (self.temporary.file_name(), self.target.file_name());
        let (from, to) = from.zip(to).expect("both were made from a name");
        renameat(&self.folder, from, &self.folder, to)
            .map_err(|e| Error::os("replace", self.target.display(), e.into()))?;
        self.committed = true;
        Ok(())
    }

    /// Gives the file its own name, durably.
    pub fn commit(self) -> Result<()> {
        Self::commit_all([self])
    }

    /// Commits several: each folder is synced once, however many of them are in it.
    pub fn commit_all(drafts: impl IntoIterator<Item = Self>) -> Result<()> {
        Self::name_all(drafts, |_| None::<()>, &mut Vec::new())
    }

    /// Commits several in order: whoever sees the last sees all. After an error those that are new are gone again.
    pub(crate) fn commit_in_order(mut drafts: Vec<Self>) -> Result<()> {
        for draft in &drafts {
            draft.file.truncate(draft.file.bytes())?;
            if draft.unsynced.load(Ordering::Relaxed) {
                draft.file.sync()?;
            }
        }
        let last = drafts.pop();
        let place = |draft: &Self| {
            let name = draft.target.file_name()?.to_owned();
            let is_new = statat(&draft.folder, &name, AtFlags::SYMLINK_NOFOLLOW).is_err();
            is_new.then(|| (Arc::clone(&draft.folder), name))
        };
        let mut new = Vec::new();
        let committed = Self::name_all(drafts, place, &mut new)
            .and_then(|()| Self::name_all(last, place, &mut new));
        if committed.is_err() {
            for (folder, name) in new {
                let _ = unlinkat(&folder, name, AtFlags::empty());
            }
        }
        committed
    }

    /// Names drafts and syncs their folders. What `place` answers is added to `new` once a draft has its name.
    fn name_all<T>(
        drafts: impl IntoIterator<Item = Self>,
        place: impl Fn(&Self) -> Option<T>,
        new: &mut Vec<T>,
    ) -> Result<()> {
        let mut folders = BTreeMap::new();
        for draft in drafts {
            let path = folder_of(&draft.target).to_owned();
            folders.insert(path, Arc::clone(&draft.folder));
            let place = place(&draft);
            draft.name()?;
            new.extend(place);
        }
        folders
            .iter()
            .try_for_each(|(path, folder)| sync_opened(folder, path))
    }
}

impl Drop for FileDraft {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing partial stays; if it cannot be removed, it still has no final name.
            let name = self.temporary.file_name().unwrap_or_default();
            let _ = unlinkat(&self.folder, name, AtFlags::empty());
        }
    }
}

/// Whether a path has the name of a draft.
pub fn is_draft(path: &Path) -> bool {
    let name = path.file_name().map(OsStrExt::as_bytes);
    name.is_some_and(|name| name.starts_with(b".") && name.ends_with(SUFFIX.as_bytes()))
}

/// Removes the drafts in `folder` whose writers are gone. What cannot be examined stays.
pub fn sweep(folder: &Path) {
    if let Ok(opened) = open_folder(folder) {
        sweep_opened(&opened);
    }
}

/// The same, for a folder that is open. Nothing outside it is touched, whatever links are in it.
pub fn sweep_opened(folder: impl AsFd) {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let own = openat(&folder, ".", flags | OFlags::DIRECTORY, Mode::empty());
    let Ok(entries) = own.and_then(Dir::new) else {
        return;
    };
    for entry in entries.flatten() {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if !is_draft(Path::new(name)) {
            continue;
        }
        // To read is enough for a lock, and possible with the draft of a file that nobody may write.
        let Ok(file) = openat(&folder, name, flags, Mode::empty()) else {
            continue;
        };
        let kind = fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode));
        let is_file = kind == Ok(FileType::RegularFile);
        if is_file && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = unlinkat(&folder, name, AtFlags::empty());
        }
    }
}

/// A name's first bytes: all of it unless it is very long.
fn front(name: &OsStr) -> &OsStr {
    let bytes = name.as_bytes();
    OsStr::from_bytes(&bytes[..bytes.len().min(NAME_BYTES_MAX)])
}

/// The folder that `path` is in.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Makes the names in a folder durable.
pub fn sync_folder(folder: &Path) -> Result<()> {
    let failed = |e: Errno| Error::os("sync", folder.display(), e.into());
    sync_opened(open_folder(folder).map_err(failed)?, folder)
}

/// The folder of a file that is to be created, open.
fn folder_for(target: &Path) -> Result<Arc<OwnedFd>> {
    let opened = open_folder(folder_of(target));
    Ok(Arc::new(
        opened.map_err(|e| open_failed("create", target, e))?,
    ))
}

fn open_folder(folder: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    open(folder, flags, Mode::empty())
}

/// The same, for a folder that is open.
pub fn sync_opened(opened: impl AsFd, folder: &Path) -> Result<()> {
    match fsync(opened) {
        // Some network file systems do not sync folders; the rename stands all the same.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(Error::os("sync", folder.display(), errno.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    #[test]
    fn a_draft_that_is_dropped_leaves_nothing_and_one_that_is_committed_leaves_itself() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        drop(FileDraft::new(&target, 100).unwrap());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        FileDraft::new(&target, 0).unwrap().commit().unwrap();
        assert_eq!(fs::read(&target).unwrap(), b"");
    }

    #[test]
    fn what_a_killed_writer_left_is_removed_and_a_living_one_s_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let abandoned = folder.path().join(".file.1-0.straightway-part");
        fs::write(&abandoned, "half").unwrap();
        let living = FileDraft::new(&target, 10).unwrap();
        sweep(folder.path());
        assert!(!abandoned.exists());
        assert!(living.temporary.exists());
    }

    #[test]
    fn a_draft_that_a_sweep_took_before_its_lock_is_begun_again() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("file");
        let opened = Arc::new(open_folder(folder.path()).unwrap());
        let draft = FileDraft::begin(&target, &opened, 10, None).unwrap();
        sweep(folder.path());
        assert!(!draft.claim());
        let draft = FileDraft::begin(&target, &opened, 10, None).unwrap();
        assert!(draft.claim());
    }

    #[test]
    fn a_file_keeps_the_rights_of_the_one_that_it_replaces_and_of_the_one_that_it_copies() {
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
            assert_eq!(mode(draft.path()), rights, "from the first moment");
            draft.commit().unwrap();
            assert_eq!(mode(&target), rights);
            // A copy has the rights of its source, whatever was there.
            set(&source, rights);
            set(&target, 0o666);
            let opened = Arc::new(open_folder(folder.path()).unwrap());
            let source = File::open(&source).unwrap();
            let copy = FileDraft::copy_of(&source, &target, &opened, false).unwrap();
            assert_eq!(mode(copy.path()), rights);
        }
    }

    #[test]
    fn a_folder_that_was_replaced_by_a_link_gets_nothing() {
        let home = tempfile::tempdir().unwrap();
        let (folder, victim) = (home.path().join("folder"), home.path().join("victim"));
        fs::create_dir(&folder).unwrap();
        fs::create_dir(&victim).unwrap();
        fs::write(victim.join("file"), "precious").unwrap();
        let (kept, dropped) = (folder.join("file"), folder.join("other"));
        let (kept, dropped) = (
            FileDraft::new(&kept, 1).unwrap(),
            FileDraft::new(&dropped, 1).unwrap(),
        );
        fs::rename(&folder, home.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(&victim, &folder).unwrap();
        kept.commit().unwrap();
        drop(dropped);
        assert_eq!(fs::read(victim.join("file")).unwrap(), b"precious");
        assert_eq!(fs::read_dir(home.path().join("moved")).unwrap().count(), 1);
    }

    #[test]
    fn the_longest_name_that_a_file_may_have_has_a_draft() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("n".repeat(255));
        FileDraft::new(&target, 10).unwrap().commit().unwrap();
        assert!(target.exists());
    }

    #[test]
    fn a_folder_is_no_target() {
        let folder = tempfile::tempdir().unwrap();
        let error = FileDraft::new(folder.path(), 1).unwrap_err();
        assert!(
            error
                .to_string()
                .ends_with("it is a folder, and a file is meant"),
            "{error}"
        );
    }
}
