//! The folder of a cache.

use std::{
    fmt, fs, io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::fs::{DirBuilderExt, MetadataExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, mkdirat, openat, renameat, statat, unlinkat},
    io::Errno,
    process::geteuid,
};
use straightway_core::{Bytes, Error, ErrorKind, Lock, Result};

/// The default size limit.
pub const BYTES_DEFAULT: u64 = 100 << 30;

/// The smallest size limit: some requests of 8 MiB.
pub const BYTES_MIN: u64 = 64 << 20;

/// The longest entry is 1/8 of the size limit.
const ENTRY_SHARE: u64 = 8;

/// A process evicts whenever it has added 1/32 of the size limit.
const SWEEP_SHARE: u64 = 32;

/// The number of folders that entries are spread over, by the first byte of their keys.
pub(crate) const SHARDS: u32 = 256;

/// How long nothing is cached after a failed write.
const PAUSE: Duration = Duration::from_secs(30);

/// A folder of entries.
pub struct Cache {
    root: OwnedFd,
    path: PathBuf,
    bytes_max: u64,
    /// The bytes that this process added since its last eviction.
    unswept: AtomicU64,
    /// The time and the message of the last failed write.
    failed: Lock<Option<(Instant, String)>>,
}

impl Cache {
    /// Opens a cache of at most `bytes_max` in a folder, which is created if it is missing.
    ///
    /// # Errors
    ///
    /// `Invalid` if others may write to the folder, or if `bytes_max` is below [`BYTES_MIN`].
    pub fn open(path: &Path, bytes_max: u64) -> Result<Self> {
        let failed = |e: io::Error| Error::os("open the cache", path.display(), e);
        if bytes_max < BYTES_MIN {
            let why = format!("a cache holds at least {}", Bytes(BYTES_MIN));
            let target = Bytes(bytes_max);
            return Err(Error::new(ErrorKind::Invalid, "make a cache of", target, why));
        }
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(path).map_err(failed)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(rustix::fs::CWD, path, flags, Mode::empty());
        let root = root.map_err(|e| failed(e.into()))?;
        let stat = fstat(&root).map_err(|e| failed(e.into()))?;
        if !is_private(&stat) {
            let path = path.display();
            let why = "others may write to it, and could forge entries";
            return Err(
                Error::new(ErrorKind::Invalid, "use the cache", &path, why).with_hint(format!(
                    "name a folder of your own, or remove the permission: chmod go-w {path}"
                )),
            );
        }
        let cache = Self {
            root,
            path: path.to_owned(),
            bytes_max,
            // The first added entry triggers an eviction, which removes drafts of killed processes.
            unswept: AtomicU64::new(bytes_max),
            failed: Lock::default(),
        };
        cache.make_shards()?;
        Ok(cache)
    }

    /// Creates the folders of entries, and checks that only this user can write to them.
    fn make_shards(&self) -> Result<()> {
        for shard in 0..SHARDS {
            let name = shard_name(shard);
            let made = mkdirat(&self.root, &name, Mode::from_raw_mode(0o700));
            let found = statat(&self.root, &name, AtFlags::SYMLINK_NOFOLLOW);
            match (made, found) {
                (Ok(()) | Err(Errno::EXIST), Ok(stat)) if is_folder(&stat) && is_private(&stat) => {}
                // A read-only folder may lack some.
                (Err(Errno::ROFS | Errno::ACCESS | Errno::PERM), Err(Errno::NOENT)) => {}
                (Err(Errno::NOSPC | Errno::DQUOT), Err(Errno::NOENT)) => {
                    self.note(&io::Error::from(Errno::NOSPC));
                }
                (_, Ok(_)) => {
                    let path = self.path.join(name);
                    let why = "it is not a folder that only this user can write to";
                    return Err(Error::new(ErrorKind::Invalid, "use the cache", path.display(), why)
                        .with_hint("remove it, or name another folder"));
                }
                (Err(errno), Err(_)) | (Ok(()), Err(errno)) => {
                    let path = self.path.join(name);
                    return Err(Error::os("create", path.display(), errno.into()));
                }
            }
        }
        Ok(())
    }

    /// Its folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its size limit.
    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// Whether an entry of that length can be added now.
    pub(crate) fn accepts(&self, bytes: u64) -> bool {
        let failed = self.failed.lock();
        let is_paused = failed.as_ref().is_some_and(|(when, _)| when.elapsed() < PAUSE);
        !is_paused && bytes <= self.bytes_max / ENTRY_SHARE
    }

    /// Records a failed write. No entries are added for a while.
    pub(crate) fn note(&self, error: &io::Error) {
        let path = self.path.display();
        let note = format!("not everything was kept in the cache {path}: {error}");
        tracing::warn!("{note}");
        let mut failed = self.failed.lock();
        *failed = Some((Instant::now(), note));
    }

    /// The message of a recent failure.
    pub(crate) fn recent_note(&self) -> Option<String> {
        let failed = self.failed.lock();
        let recent = failed.as_ref().filter(|(when, _)| when.elapsed() < PAUSE);
        recent.map(|(_, note)| note.clone())
    }

    /// Counts an added entry. Returns whether it is time to evict.
    pub(crate) fn is_sweep_due(&self, bytes: u64) -> bool {
        let unswept = self.unswept.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_due = unswept >= self.bytes_max / SWEEP_SHARE;
        if is_due {
            self.unswept.store(0, Ordering::Relaxed);
        }
        is_due
    }

    /// Opens an entry or a draft. Links are not followed.
    pub(crate) fn open_file(&self, name: &str, flags: OFlags) -> io::Result<fs::File> {
        let guards = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let opened = openat(&self.root, name, flags | guards, mode)?;
        Ok(fs::File::from(opened))
    }

    /// Whether an entry has this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }

    /// Renames a draft to its final name.
    pub(crate) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(renameat(&self.root, from, &self.root, to)?)
    }

    /// Removes a name if it exists. Failures are ignored: the next write replaces it.
    pub(crate) fn remove(&self, name: &str) {
        let removed = unlinkat(&self.root, name, AtFlags::empty());
        if matches!(removed, Err(Errno::ISDIR | Errno::PERM)) {
            // It is a folder, which this crate never creates there. Only an empty one is removed.
            let _ = unlinkat(&self.root, name, AtFlags::REMOVEDIR);
        }
    }
}

impl AsFd for Cache {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.root.as_fd()
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cache").field(&self.path).finish()
    }
}

/// The folder of a shard.
pub(crate) fn shard_name(shard: u32) -> String {
    format!("{shard:02x}")
}

/// The metadata of an open file, if it is a regular file that only this user or root can write to.
pub(crate) fn is_own_file(file: &fs::File) -> io::Result<Option<fs::Metadata>> {
    let meta = file.metadata()?;
    let is_own = meta.is_file() && is_trusted(meta.uid(), meta.mode());
    Ok(is_own.then_some(meta))
}

fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn is_private(stat: &Stat) -> bool {
    is_trusted(stat.st_uid, stat.st_mode)
}

/// Whether only this user or root can write to a file with this owner and mode.
fn is_trusted(owner: u32, mode: u32) -> bool {
    (owner == 0 || owner == geteuid().as_raw()) && mode & 0o022 == 0
}
