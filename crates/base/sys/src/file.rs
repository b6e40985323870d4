//! A file with two descriptors: one with O_DIRECT, if the file system supports it, and one through the
//! page cache.
//!
//! Both are open from the start because one transfer may use both: resident pages are read through the
//! page cache, other pages around it.

mod cached;
mod in_place;
mod unchanged;
mod written;

use std::{
    fmt, fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rustix::fs::{
    Advice, CWD, FileType, Mode, OFlags, SeekFrom, fadvise, fdatasync, fstat, ftruncate, ioctl_blksszget, open, openat,
    seek, stat,
};
use rustix::io::{Errno, pread};
use straightway_core::{Alignment, Error, ErrorKind, Extent, Leg, Lock, Object, Result, Survey, extent::up};

use crate::{
    direct::DirectIo,
    file_system::{BTRFS, EXT, RAMFS, TMPFS, XFS},
    folder::{Folder, open_regular},
    identity::Identity,
    limit,
    mapping::Mapping,
    mount::DeviceNumber,
    page_map::PageMap,
    status::Status,
};

/// The end of the reserved space of a file whose space is reserved, or need not be.
pub(crate) const ALL_RESERVED: u64 = u64::MAX;

/// The id of the next file.
static IDS: AtomicU64 = AtomicU64::new(1);

/// The way in which an I/O accesses a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoPath {
    /// The descriptor with O_DIRECT.
    Direct,
    /// The descriptor through the page cache.
    PageCache,
    /// The descriptor through the page cache, for bytes that are expected there. A read first tries without
    /// waiting, which shows whether they are. For other bytes that would fill the cache with small pages. Bytes that it
    /// does not return are then read by [`PageCache`](Self::PageCache).
    Resident,
    /// A mapping of the file, which is written to.
    Mapping,
}

/// An open file.
pub struct File {
    id: u64,
    path: PathBuf,
    bytes: AtomicU64,
    buffered: fs::File,
    direct: Option<OwnedFd>,
    direct_io: DirectIo,
    /// Whether an I/O has used the descriptor with O_DIRECT.
    direct_used: AtomicBool,
    /// Its identity when it was opened for reading; `None` for a block device and for a file that is written.
    opened: Option<Identity>,
    /// Its identity when it was opened or created. Only the device and the inode stay the same.
    first: Identity,
    /// Whether bytes were written through the page cache since the last sync.
    unsynced: AtomicBool,
    /// The end of the space that is reserved for it.
    pub(crate) reserved: AtomicU64,
    /// The end of the last block that is written, if it is a block device that is written in place. Its length cannot
    /// change.
    device_end: Option<u64>,
    /// Whether it existed before and is written in place. It is never truncated then.
    is_in_place: bool,
    /// Held while its length is extended.
    growing: Lock<()>,
    /// Its mapping for reading, created on first use.
    mapping: OnceLock<Option<Mapping>>,
    /// Its mapping for writing, created on first use.
    target: OnceLock<Option<Mapping>>,
    /// Its mapping for questions about the page cache, created on first use.
    page_map: OnceLock<Option<PageMap>>,
    /// Whether its file system was found not to support reads that do not wait.
    refuses_nowait: AtomicBool,
}

impl File {
    /// Opens an existing file (or block device) for reading.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |errno: Errno| open_failed("open", path, errno);
        let refuse = |why| Err(Error::new(ErrorKind::Invalid, "read", path.display(), why));
        // The type is checked before opening: opening a pipe would wait for its writer.
        match FileType::from_raw_mode(stat(path).map_err(failed)?.st_mode) {
            FileType::RegularFile | FileType::BlockDevice => {}
            FileType::Directory => return refuse("it is a folder, not a file"),
            _ => return refuse("it is neither a file nor a block device"),
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let buffered = open(path, flags, Mode::empty()).map_err(failed)?;
        let status = Status::of(&buffered).map_err(failed)?;
        let (bytes, opened) = match status.kind {
            FileType::BlockDevice => (seek(&buffered, SeekFrom::End(0)).map_err(failed)?, None),
            _ => match status.identity.settled(&buffered).map_err(failed)? {
                Some(identity) => (identity.bytes, Some(identity)),
                None => return Err(changed(path, "it is being written to")),
            },
        };
        // Files in /proc report length 0 but have data: a copy by length would be empty and look complete.
        if bytes == 0 && pread(&buffered, &mut [0_u8; 1], 0).is_ok_and(|read| read > 0) {
            return refuse("it reports size 0 but has data (a kernel file?)");
        }
        let opening = (CWD, path, OFlags::RDONLY);
        let file = Self::with_direct(path, opening, bytes, buffered, &status);
        Ok(Self { opened, ..file })
    }

    /// Opens a regular file in a folder for reading. A symbolic link is refused.
    ///
    /// Changes during the read are not detected: data that is read this way has checksums.
    pub fn open_in(folder: &Folder, name: &str) -> Result<Self> {
        let path = folder.path_of(name)?;
        let buffered = open_regular(folder, name, OFlags::RDONLY, &path, "open")?;
        let status = Status::of(&buffered).map_err(|e| Error::os("examine", path.display(), e.into()))?;
        let access = OFlags::RDONLY | OFlags::NOFOLLOW;
        let opening = (folder.as_fd(), Path::new(name), access);
        let bytes = status.identity.bytes;
        Ok(Self::with_direct(&path, opening, bytes, buffered, &status))
    }

    /// Creates the new file `name` in a folder, with space reserved for `bytes`, for writing. It will be renamed to
    /// `target`, and its path and its errors use that name.
    pub fn create_in(folder: &Folder, name: &str, target: &str, bytes: u64) -> Result<Self> {
        let path = folder.path_of(target)?;
        folder.path_of(name)?;
        let file = Self::create_for(&path, folder.as_fd(), Path::new(name), bytes, 0o666)?;
        file.reserve()?;
        Ok(file)
    }

    /// Creates a new file with space reserved for `bytes`, for writing.
    ///
    /// Space is reserved at once, so that a full disk is an error before any byte is written.
    pub fn create(path: &Path, bytes: u64) -> Result<Self> {
        let file = Self::create_for(path, CWD, path, bytes, 0o666)?;
        file.reserve()?;
        Ok(file)
    }

    /// Creates the new file `path` in the folder `at`, for writing. It will be renamed to `target`, and its path and
    /// its errors use that name. It is created with the permissions `mode`, less the umask.
    pub fn create_for(target: &Path, at: BorrowedFd<'_>, path: &Path, bytes: u64, mode: u32) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let buffered =
            openat(at, path, flags, Mode::from_raw_mode(mode)).map_err(|e| open_failed("create", target, e))?;
        let status = Status::of(&buffered).map_err(|e| open_failed("create", target, e))?;
        let opening = (at, path, OFlags::RDWR);
        let mut file = Self::with_direct(target, opening, bytes, buffered, &status);
        let block = file
            .alignment()
            .map_or(0, |a| a.object_bytes)
            .max(Alignment::PAGE_BYTES);
        // It has its full length from the start, rounded up to whole blocks: most file systems serialise
        // direct writes that extend a file, and run others in parallel. It is truncated at the end.
        match ftruncate(&file.buffered, bytes.checked_next_multiple_of(block).unwrap_or(bytes)) {
            Ok(()) => Ok(file),
            // The largest size of a file (`ulimit -f`, or that of the file system) lies within its last block. The
            // block cannot be written whole, as direct I/O would.
            Err(Errno::FBIG) if ftruncate(&file.buffered, bytes).is_ok() => {
                (file.direct, file.direct_io.alignment) = (None, None);
                Ok(file)
            }
            Err(errno) => Err(file.error("truncate", errno.into())),
        }
    }

    /// Opens a block device in a folder to write `bytes` to it in place, in whole blocks of the device: the rest of the
    /// last one becomes zero. A device that is mounted or otherwise in use is refused.
    ///
    /// Nothing else opens a block device for writing. The caller has the user's permission to overwrite it.
    pub fn open_device(target: &Path, at: BorrowedFd<'_>, name: &Path, bytes: u64) -> Result<Self> {
        let failed = |errno| {
            let error = open_failed("write to", target, errno);
            match errno {
                Errno::BUSY => error.with_hint("it is mounted or in use: unmount it first"),
                _ => error,
            }
        };
        // For a block device, EXCL requests exclusive use. It creates nothing.
        let flags = OFlags::RDWR | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let buffered = openat(at, name, flags, Mode::empty()).map_err(failed)?;
        let status = Status::of(&buffered).map_err(failed)?;
        let room = match status.kind {
            FileType::BlockDevice => seek(&buffered, SeekFrom::End(0)).map_err(failed)?,
            _ => return Err(failed(Errno::NOTBLK)),
        };
        let end = up(bytes, ioctl_blksszget(&buffered).map_err(failed)?.into());
        if room < end {
            let why = format!("it has {room} bytes, but {end} (in whole blocks) are to be written");
            return Err(Error::new(ErrorKind::Invalid, "write to", target.display(), why)
                .with_hint("use a larger device, or a shorter file"));
        }
        let opening = (at, name, OFlags::RDWR);
        let file = Self::with_direct(target, opening, bytes, buffered, &status);
        Ok(Self {
            device_end: Some(end),
            ..file
        })
    }

    /// The device that stores it: itself, or the device of its file system.
    pub fn device(&self) -> Result<DeviceNumber> {
        let stat = fstat(&self.buffered).map_err(|e| self.error("examine", e.into()))?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        Ok(DeviceNumber::of(if is_device { stat.st_rdev } else { stat.st_dev }))
    }

    /// Opens the second descriptor of an open file in the same way as the first: folder, path and flags.
    fn with_direct(
        name: &Path,
        (at, path, access): (BorrowedFd<'_>, &Path, OFlags),
        bytes: u64,
        buffered: OwnedFd,
        status: &Status,
    ) -> Self {
        let is_written = access.contains(OFlags::RDWR);
        let leg = if is_written { Leg::Write } else { Leg::Read };
        let direct_io = DirectIo::of(&buffered, status, leg);
        let direct = direct_io.alignment.and_then(|_| {
            let flags = access | OFlags::DIRECT | OFlags::CLOEXEC;
            let direct = openat(at, path, flags, Mode::empty()).ok()?;
            // Another process may have replaced the file in the meantime.
            let now = Identity::of(&fstat(&direct).ok()?);
            status.identity.is_same_file(&now).then_some(direct)
        });
        Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            path: name.to_owned(),
            bytes: AtomicU64::new(bytes),
            buffered: buffered.into(),
            direct_io: DirectIo {
                alignment: direct_io.alignment.filter(|_| direct.is_some()),
                ..direct_io
            },
            direct,
            direct_used: AtomicBool::new(false),
            opened: None,
            first: status.identity,
            unsynced: AtomicBool::new(false),
            reserved: AtomicU64::new(ALL_RESERVED),
            device_end: None,
            is_in_place: false,
            growing: Lock::default(),
            mapping: OnceLock::new(),
            target: OnceLock::new(),
            page_map: OnceLock::new(),
            // An overlay never supports them.
            refuses_nowait: AtomicBool::new(direct_io.is_overlaid),
        }
    }

    /// An id that is unique in this process and never reused.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its path, or the path that it will have.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length when it was opened, or its final length if it is being written.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// The offset that writes must not exceed: on a device, the blocks beyond belong to others.
    pub fn room_bytes(&self) -> u64 {
        self.device_end.unwrap_or(u64::MAX)
    }

    /// The alignment that O_DIRECT requires; `None` if O_DIRECT is not supported, or not proven to bypass the page
    /// cache.
    pub fn alignment(&self) -> Option<Alignment> {
        self.survey().usable().ok()
    }

    /// The facts that are known without a look at the page cache.
    pub fn survey(&self) -> Survey {
        Survey {
            direct: self.direct_io.alignment,
            doubt: self.direct_io.doubt,
            ..Survey::default()
        }
    }

    /// The file as an object.
    pub fn object(&self) -> Object {
        Object::new(self.path.display().to_string(), self.bytes())
    }

    /// The descriptor for a path. Without O_DIRECT all paths use the same one.
    pub fn descriptor(&self, by: IoPath) -> BorrowedFd<'_> {
        match (by, &self.direct) {
            (IoPath::Direct, Some(direct)) => {
                // Lanes share the file: most of them only read the flag.
                if !self.direct_used.load(Ordering::Relaxed) {
                    self.direct_used.store(true, Ordering::Relaxed);
                }
                direct.as_fd()
            }
            _ => self.buffered.as_fd(),
        }
    }

    /// Reads all of `bytes` at `offset` through the page cache, for headers and other small reads. The end of
    /// the file before that is an error.
    pub fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < bytes.len() {
            match pread(&self.buffered, &mut bytes[filled..], offset + filled as u64) {
                Ok(0) => {
                    let message = format!("it ends at byte {}", offset + filled as u64);
                    return Err(changed(&self.path, message));
                }
                Ok(read) => filled += read,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    let (start, end) = (offset + filled as u64, offset.saturating_add(bytes.len() as u64));
                    return Err(self.error("read", errno.into()).in_bytes(start..end));
                }
            }
        }
        Ok(())
    }

    /// Writes all of `bytes` at `offset` through the page cache, for headers and other small writes.
    pub fn write_all_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.unsynced.store(true, Ordering::Relaxed);
        let written = self.buffered.write_all_at(bytes, offset);
        written.map_err(|e| self.error("write", e))
    }

    /// Its identity and state when it was opened. `None` for a block device, whose timestamps do not follow its
    /// bytes, and for a file that was created here.
    pub fn identity(&self) -> Option<Identity> {
        self.opened
    }

    /// Its mapping for reading, if it can be mapped.
    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        let map = || Mapping::new(&self.buffered, self.bytes());
        self.mapping.get_or_init(map).as_ref()
    }

    /// Its mapping for writing, if it can be mapped.
    pub(crate) fn target(&self) -> Option<&Mapping> {
        let map = || Mapping::to_write(&self.buffered, self.bytes());
        self.target.get_or_init(map).as_ref()
    }

    /// Whether its file system is in memory (tmpfs).
    pub fn is_in_memory(&self) -> bool {
        self.direct_io.file_system == TMPFS
    }

    /// Whether it is on a file system that answers from memory what is asked about an open file. A network or a FUSE
    /// server may not answer, and a file system that is not known may be one of those.
    pub fn is_on_local_file_system(&self) -> bool {
        matches!(self.direct_io.file_system, EXT | XFS | BTRFS | TMPFS | RAMFS)
    }

    /// The number of the device of its file system.
    pub fn device_id(&self) -> u64 {
        self.first.device
    }

    /// The extents that are not holes, in order. The whole file if the file system does not know its holes.
    pub fn data_extents(&self) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        let mut at = 0;
        let bytes = self.bytes();
        while at < bytes {
            let data = match seek(&self.buffered, SeekFrom::Data(at)) {
                Ok(data) => data,
                // Only a hole is left.
                Err(Errno::NXIO) => break,
                Err(Errno::INVAL) => return Ok(vec![Extent::new(0, bytes)]),
                Err(errno) => return Err(self.error("find the holes of", errno.into())),
            };
            let hole =
                seek(&self.buffered, SeekFrom::Hole(data)).map_err(|e| self.error("find the holes of", e.into()))?;
            let end = hole.min(bytes);
            if end <= data {
                break;
            }
            extents.push(Extent::between(data, end));
            at = end;
        }
        Ok(extents)
    }

    /// Evicts it from the page cache. Dirty pages are written first; pages in use may stay.
    pub fn evict(&self) -> Result<()> {
        let _ = fdatasync(&self.buffered);
        fadvise(&self.buffered, 0, None, Advice::DontNeed).map_err(|e| self.error("evict", e.into()))
    }

    /// Makes written data durable.
    pub fn sync(&self) -> Result<()> {
        self.check_descriptors()?;
        self.note_synced();
        fdatasync(&self.buffered).map_err(|e| self.error("sync", e.into()))
    }

    /// Records that a sync of all its data has begun.
    pub(crate) fn note_synced(&self) {
        self.unsynced.store(false, Ordering::Relaxed);
    }

    /// Whether [`write_all_at`](Self::write_all_at) wrote to it since the last sync.
    pub fn is_unsynced(&self) -> bool {
        self.unsynced.load(Ordering::Relaxed)
    }

    /// An error of the operating system about this file.
    pub fn error(&self, operation: &'static str, source: io::Error) -> Error {
        let code = source.raw_os_error();
        let error = Error::os(operation, self.path.display(), source);
        match code {
            Some(libc::ENOSPC) => error.with_hint("free space on that file system, or write elsewhere"),
            Some(libc::EBADF) => self.closed(operation),
            Some(libc::EFBIG) => error.with_hint("raise the limit of the process (`ulimit -f`), or write elsewhere"),
            _ => error,
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

/// An error of the operating system about a file or folder that could not be opened.
pub fn open_failed(operation: &'static str, path: &Path, errno: Errno) -> Error {
    let error = Error::os(operation, path.display(), errno.into());
    match errno {
        Errno::MFILE => error.with_hint(limit::open_files_hint()),
        _ => error,
    }
}

/// An error about a file that another process changes during the read.
fn changed(path: &Path, message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Precondition, "read", path.display(), message)
        .with_hint("wait until nobody writes to it, and try again")
}
