//! A file with two descriptors: one with O_DIRECT, where the file system has it, and one through
//! the page cache.
//!
//! Both are open from the start because one transfer may use both: what is resident is read through
//! the cache, what is not is read around it.

use std::{
    fmt, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rustix::fs::{
    Advice, AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, SeekFrom, StatxFlags, fadvise,
    fallocate, fchmod, fdatasync, fstat, fstatfs, ftruncate, open, openat, seek, stat, statx,
    syncfs,
};
use rustix::io::{Errno, pread, pwrite};
use straightway_core::{Alignment, Error, Extent, Kind, Object, Result, extent::up};

use crate::{
    folder::{Folder, open_regular},
    mapping::Mapping,
};

/// From this many files on, syncing their whole file system is cheaper than syncing each.
const SYNC_TOGETHER_MIN: usize = 8;

/// What `statfs(2)` calls tmpfs.
const TMPFS_MAGIC: i128 = 0x0102_1994;

/// The next file's number.
static IDS: AtomicU64 = AtomicU64::new(1);

/// Which of a file's two descriptors an I/O uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The one with O_DIRECT.
    Direct,
    /// The one through the page cache.
    PageCache,
    /// The same, for bytes that are taken to be there: a read asks for them without waiting first,
    /// and so finds out. Asking so for what is not there would fill the cache with small pages.
    Resident,
}

/// An open file.
pub struct File {
    id: u64,
    path: PathBuf,
    bytes: u64,
    buffered: OwnedFd,
    direct: Option<OwnedFd>,
    alignment: Option<Alignment>,
    /// It as memory, once that was asked for.
    mapping: OnceLock<Option<Mapping>>,
}

/// Which file it was, and when it was last written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    /// In seconds and nanoseconds.
    changed: (i64, i64),
}

impl File {
    /// Opens an existing file (or block device) to read.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |errno: Errno| Error::os("open", path.display(), errno.into());
        let refuse = |why| Err(Error::new(Kind::Invalid, "read", path.display(), why));
        // What it is, is asked before it is opened: opening a pipe waits for its writer.
        match FileType::from_raw_mode(stat(path).map_err(failed)?.st_mode) {
            FileType::RegularFile | FileType::BlockDevice => {}
            FileType::Directory => return refuse("it is a folder, and a file is meant"),
            _ => return refuse("it is neither a file nor a block device"),
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let buffered = open(path, flags, Mode::empty()).map_err(failed)?;
        let stat = fstat(&buffered).map_err(failed)?;
        let bytes = match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => seek(&buffered, SeekFrom::End(0)).map_err(failed)?,
            _ => u64::try_from(stat.st_size).unwrap_or(0),
        };
        // The kernel's own files (/proc) say that they are empty and are not: a copy by their
        // length would be empty and look whole.
        if bytes == 0 && pread(&buffered, &mut [0_u8; 1], 0).is_ok_and(|read| read > 0) {
            return refuse("it says that it has no bytes, and yet it has");
        }
        Ok(Self::with_direct(
            path,
            CWD,
            path,
            bytes,
            buffered,
            OFlags::RDONLY,
        ))
    }

    /// Opens a regular file of a folder to read. A link under its name is refused.
    pub fn open_in(folder: &Folder, name: &str) -> Result<Self> {
        let path = folder.path_of(name)?;
        let buffered = open_regular(folder, name, OFlags::RDONLY, &path, "open")?;
        let stat = fstat(&buffered).map_err(|e| Error::os("examine", path.display(), e.into()))?;
        let bytes = u64::try_from(stat.st_size).unwrap_or(0);
        let (at, access) = (folder.as_fd(), OFlags::RDONLY | OFlags::NOFOLLOW);
        Ok(Self::with_direct(
            &path,
            at,
            Path::new(name),
            bytes,
            buffered,
            access,
        ))
    }

    /// Creates a file of a folder that must not exist yet, with room for `bytes`, to write.
    pub fn create_in(folder: &Folder, name: &str, bytes: u64) -> Result<Self> {
        let path = folder.path_of(name)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        let buffered = open_regular(folder, name, flags, &path, "create")?;
        let (at, access) = (folder.as_fd(), OFlags::RDWR | OFlags::NOFOLLOW);
        let file = Self::with_direct(&path, at, Path::new(name), bytes, buffered, access);
        file.truncate(up(bytes, Alignment::PAGE_BYTES))?;
        file.reserve()?;
        Ok(file)
    }

    /// Creates a file that must not exist yet, with room for `bytes`, to write.
    ///
    /// Room is set aside at once: a disk that is too full says so before any byte is written.
    pub fn create(path: &Path, bytes: u64) -> Result<Self> {
        let file = Self::create_for(path, path, bytes)?;
        file.reserve()?;
        Ok(file)
    }

    /// Creates a file that must not exist yet under the name `path`, to write. It is meant to
    /// become `target`, and that is the name that it and its errors go by.
    pub fn create_for(target: &Path, path: &Path, bytes: u64) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let buffered = open(path, flags, Mode::from_raw_mode(0o666))
            .map_err(|e| Error::os("create", target.display(), e.into()))?;
        let file = Self::with_direct(target, CWD, path, bytes, buffered, OFlags::RDWR);
        // At its full length from the start, to whole pages: a direct write that makes a file longer
        // is run alone by most file systems, and one inside it beside others. It is cut at the end.
        file.truncate(up(bytes, Alignment::PAGE_BYTES))?;
        Ok(file)
    }

    /// Sets its room aside: a disk that is too full says so before any byte is written.
    pub fn reserve(&self) -> Result<()> {
        // On tmpfs room is memory, and setting it aside zeroes it on one core before all cores write.
        if self.bytes == 0 || file_system_magic(&self.buffered) == TMPFS_MAGIC {
            return Ok(());
        }
        match fallocate(&self.buffered, FallocateFlags::KEEP_SIZE, 0, self.bytes) {
            // Not every file system can; it then fills up as it is written.
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => Ok(()),
            Err(errno) => Err(self.error("make room for", errno.into())),
        }
    }

    fn with_direct(
        name: &Path,
        at: BorrowedFd<'_>,
        path: &Path,
        bytes: u64,
        buffered: OwnedFd,
        access: OFlags,
    ) -> Self {
        let alignment = direct_alignment(&buffered);
        let direct = alignment.and_then(|_| {
            openat(
                at,
                path,
                access | OFlags::DIRECT | OFlags::CLOEXEC,
                Mode::empty(),
            )
            .ok()
        });
        Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            path: name.to_owned(),
            bytes,
            buffered,
            alignment: alignment.filter(|_| direct.is_some()),
            direct,
            mapping: OnceLock::new(),
        }
    }

    /// A number that no other file of this process has or will have.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its path, or the one that it is meant to have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How long it was when it was opened, or is meant to become.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What O_DIRECT asks for; `None` where there is none.
    pub fn alignment(&self) -> Option<Alignment> {
        self.alignment
    }

    /// It as an object.
    pub fn object(&self) -> Object {
        Object::new(self.path.display().to_string(), self.bytes)
    }

    /// One of its descriptors. Without O_DIRECT both are the same.
    pub fn descriptor(&self, by: By) -> BorrowedFd<'_> {
        match (by, &self.direct) {
            (By::Direct, Some(direct)) => direct.as_fd(),
            _ => self.buffered.as_fd(),
        }
    }

    /// Fills `bytes` with what is at `offset`, through the page cache: for headers and the like. A
    /// file that ends before is an error.
    pub fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            match pread(&self.buffered, &mut bytes[filled..], offset + filled as u64) {
                Ok(0) => {
                    let message = format!("it ends at byte {}", offset + filled as u64);
                    let path = self.path.display();
                    return Err(Error::new(Kind::Corrupt, "read", path, message)
                        .with_hint("wait until nobody writes to it, and try again"));
                }
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.error("read", errno.into())),
            }
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset`, through the page cache: for headers and the like.
    pub fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut written = 0;
        while written < bytes.len() {
            match pwrite(&self.buffered, &bytes[written..], offset + written as u64) {
                Ok(0) => return Err(self.error("write", io::ErrorKind::WriteZero.into())),
                Ok(moved) => written += moved,
                Err(Errno::INTR) => {}
                Err(errno) => return Err(self.error("write", errno.into())),
            }
        }
        Ok(())
    }

    /// Which file it is, and in which state: two that are equal have the same bytes.
    pub fn identity(&self) -> Result<Identity> {
        let stat = fstat(&self.buffered).map_err(|e| self.error("examine", e.into()))?;
        Ok(Identity {
            device: stat.st_dev,
            inode: stat.st_ino,
            bytes: self.bytes,
            changed: (
                stat.st_mtime,
                i64::try_from(stat.st_mtime_nsec).unwrap_or(0),
            ),
        })
    }

    /// It as memory to copy from, where that is possible.
    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        let map = || Mapping::new(&self.buffered, self.bytes);
        self.mapping.get_or_init(map).as_ref()
    }

    /// The parts of it that are no holes, in order. A file system that does not know says all of it.
    pub fn data_extents(&self) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        let mut at = 0;
        while at < self.bytes {
            let data = match seek(&self.buffered, SeekFrom::Data(at)) {
                Ok(data) => data,
                // Only a hole is left.
                Err(rustix::io::Errno::NXIO) => break,
                Err(rustix::io::Errno::INVAL) => return Ok(vec![Extent::new(0, self.bytes)]),
                Err(errno) => return Err(self.error("find the holes of", errno.into())),
            };
            let hole = seek(&self.buffered, SeekFrom::Hole(data))
                .map_err(|e| self.error("find the holes of", e.into()))?;
            let end = hole.min(self.bytes);
            if end <= data {
                break;
            }
            extents.push(Extent::between(data, end));
            at = end;
        }
        Ok(extents)
    }

    /// Who may do what with it: the permission bits, without those that lend the owner's rights.
    pub fn mode(&self) -> Result<u32> {
        let stat = fstat(&self.buffered).map_err(|e| self.error("examine", e.into()))?;
        Ok(stat.st_mode & 0o777)
    }

    /// Sets its permission bits.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        fchmod(&self.buffered, Mode::from_raw_mode(mode))
            .map_err(|e| self.error("set the permissions of", e.into()))
    }

    /// How long it is now, and an error if that is not what it was when it was opened.
    pub fn check_unchanged(&self) -> Result<()> {
        let stat = fstat(&self.buffered).map_err(|e| self.error("measure", e.into()))?;
        let now = u64::try_from(stat.st_size).unwrap_or(0);
        let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        if !is_file || now == self.bytes {
            return Ok(());
        }
        let word = if now > self.bytes { "grew" } else { "shrank" };
        let message = format!(
            "it {word} from {} to {now} bytes while it was read",
            self.bytes
        );
        Err(
            Error::new(Kind::Corrupt, "read", self.path.display(), message)
                .with_hint("wait until nobody writes to it, and try again"),
        )
    }

    /// Cuts it to `bytes`: an aligned tail was written past its end.
    pub fn truncate(&self, bytes: u64) -> Result<()> {
        ftruncate(&self.buffered, bytes).map_err(|e| self.error("truncate", e.into()))
    }

    /// Lets the page cache forget it. What is dirty is written first; what others use may stay.
    pub fn evict(&self) -> Result<()> {
        let _ = fdatasync(&self.buffered);
        fadvise(&self.buffered, 0, None, Advice::DontNeed)
            .map_err(|e| self.error("evict", e.into()))
    }

    /// Waits until what was written is durable.
    pub fn sync(&self) -> Result<()> {
        fdatasync(&self.buffered).map_err(|e| self.error("sync", e.into()))
    }

    /// Waits until what was written to all of `files` is durable.
    ///
    /// Many small files are synced by their file system at once: one journal commit instead of one
    /// for each.
    pub fn sync_all(files: &[Arc<Self>]) -> Result<()> {
        let [first, ..] = files else { return Ok(()) };
        if files.len() < SYNC_TOGETHER_MIN {
            return files.iter().try_for_each(|f| f.sync());
        }
        let device = |f: &Self| fstat(&f.buffered).map(|s| s.st_dev).ok();
        let (together, alone): (Vec<_>, Vec<_>) = files
            .iter()
            .partition(|f| device(f).is_some() && device(f) == device(first));
        if !together.is_empty() {
            syncfs(&first.buffered).map_err(|e| first.error("sync", e.into()))?;
        }
        alone.into_iter().try_for_each(|f| f.sync())
    }

    /// An error of the operating system about this file.
    pub fn error(&self, operation: &'static str, source: io::Error) -> Error {
        let full = source.raw_os_error() == Some(libc::ENOSPC);
        let error = Error::os(operation, self.path.display(), source);
        if full {
            error.with_hint("free space on that file system, or write elsewhere")
        } else {
            error
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

/// The kernel's number for the file system of a file; 0 where it will not say.
fn file_system_magic(file: &OwnedFd) -> i128 {
    fstatfs(file).map_or(0, |fs| i128::from(fs.f_type))
}

/// What direct I/O on this file asks for, by the kernel's own word where it gives one.
fn direct_alignment(file: &OwnedFd) -> Option<Alignment> {
    // Since Linux 6.6 tmpfs takes O_DIRECT and makes it the same copy as without, on one core.
    const OVERLAY_MAGIC: i128 = 0x794C_7630;
    let file_system = file_system_magic(file);
    if file_system == TMPFS_MAGIC {
        return None;
    }
    // Linux 6.1 and later say; 0 means that there is no direct I/O.
    let stat = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN).ok()?;
    let known = stat.stx_mask & StatxFlags::DIOALIGN.bits() != 0;
    // An overlay says what the file system below says; silence there may be tmpfs.
    if !known && file_system == OVERLAY_MAGIC {
        return None;
    }
    if !known {
        // Older kernels: a page suits every file system that takes O_DIRECT at all, and opening
        // with it tells whether this one does.
        let page = Alignment::PAGE_BYTES;
        return Some(Alignment {
            object_bytes: page,
            memory_bytes: page,
        });
    }
    let (object, memory) = (stat.stx_dio_offset_align, stat.stx_dio_mem_align);
    // A file system that wants more than 64 KiB would not fit the planner's blocks.
    let usable = object > 0 && object <= 65_536;
    usable.then(|| Alignment {
        object_bytes: object.into(),
        memory_bytes: memory.max(1).into(),
    })
}
