//! A file with two descriptors: one with O_DIRECT, where the file system has it, and one through
//! the page cache.
//!
//! Both are open from the start because one transfer may use both: what is resident is read through
//! the cache, what is not is read around it.

use std::{
    cmp::Ordering::{Equal, Greater, Less},
    fmt, fs, io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use rustix::fs::{
    Advice, CWD, FallocateFlags, FileType, Mode, OFlags, SeekFrom, fadvise, fallocate, fchmod,
    fchown, fdatasync, fstat, ftruncate, open, openat, seek, stat, syncfs,
};
use rustix::io::{Errno, pread};
use rustix::process::Gid;
use straightway_core::{Alignment, Error, Extent, Kind, Leg, Object, Result, Survey, extent::up};

use crate::{
    direct::DirectIo,
    file_system::is_memory,
    folder::{Folder, open_regular},
    identity::Identity,
    limit,
    mapping::Mapping,
    mount::DeviceNumber,
    status::Status,
};

/// From this many files on, syncing their whole file system is cheaper than syncing each.
const SYNC_TOGETHER_MIN: usize = 8;

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
    /// The same file as memory, which is written to.
    Mapping,
}

/// An open file.
pub struct File {
    id: u64,
    path: PathBuf,
    bytes: u64,
    buffered: fs::File,
    direct: Option<OwnedFd>,
    direct_io: DirectIo,
    /// What it was when it was opened to read; `None` for a block device, and for what is written.
    opened: Option<Identity>,
    /// Whether bytes were written through the page cache since the last sync.
    unsynced: AtomicBool,
    /// Whether it is a block device that is written in place, whose length is its own.
    is_device: bool,
    /// It as memory, once that was asked for.
    mapping: OnceLock<Option<Mapping>>,
    /// It as memory to write to, once that was asked for.
    target: OnceLock<Option<Mapping>>,
}

impl File {
    /// Opens an existing file (or block device) to read.
    pub fn open(path: &Path) -> Result<Self> {
        let failed = |errno: Errno| open_failed("open", path, errno);
        let refuse = |why| Err(Error::new(Kind::Invalid, "read", path.display(), why));
        // What it is, is asked before it is opened: opening a pipe waits for its writer.
        match FileType::from_raw_mode(stat(path).map_err(failed)?.st_mode) {
            FileType::RegularFile | FileType::BlockDevice => {}
            FileType::Directory => return refuse("it is a folder, and a file is meant"),
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
        // The kernel's own files (/proc) say that they are empty and are not: a copy by their
        // length would be empty and look whole.
        if bytes == 0 && pread(&buffered, &mut [0_u8; 1], 0).is_ok_and(|read| read > 0) {
            return refuse("it says that it has no bytes, and yet it has");
        }
        let opening = (CWD, path, OFlags::RDONLY);
        let file = Self::with_direct(path, opening, bytes, buffered, &status);
        Ok(Self { opened, ..file })
    }

    /// Opens a regular file of a folder to read. A link under its name is refused.
    ///
    /// Whether it changes while it is read is not watched: what is read this way has checksums.
    pub fn open_in(folder: &Folder, name: &str) -> Result<Self> {
        let path = folder.path_of(name)?;
        let buffered = open_regular(folder, name, OFlags::RDONLY, &path, "open")?;
        let status =
            Status::of(&buffered).map_err(|e| Error::os("examine", path.display(), e.into()))?;
        let access = OFlags::RDONLY | OFlags::NOFOLLOW;
        let opening = (folder.as_fd(), Path::new(name), access);
        let bytes = status.identity.bytes;
        Ok(Self::with_direct(&path, opening, bytes, buffered, &status))
    }

    /// Creates a file of a folder that must not exist yet, with room for `bytes`, to write. It is meant to become
    /// `target` there, and that is the name that it and its errors go by.
    pub fn create_in(folder: &Folder, name: &str, target: &str, bytes: u64) -> Result<Self> {
        let path = folder.path_of(target)?;
        folder.path_of(name)?;
        let file = Self::create_for(&path, folder.as_fd(), Path::new(name), bytes, 0o666)?;
        file.reserve()?;
        Ok(file)
    }

    /// Creates a file that must not exist yet, with room for `bytes`, to write.
    ///
    /// Room is set aside at once: a disk that is too full says so before any byte is written.
    pub fn create(path: &Path, bytes: u64) -> Result<Self> {
        let file = Self::create_for(path, CWD, path, bytes, 0o666)?;
        file.reserve()?;
        Ok(file)
    }

    /// Creates a file that must not exist yet under the name `path` in the folder `at`, to write. It is meant to
    /// become `target`, and that is the name that it and its errors go by. From the first moment it has the
    /// permissions `mode`, less those that the umask takes.
    pub fn create_for(
        target: &Path,
        at: BorrowedFd<'_>,
        path: &Path,
        bytes: u64,
        mode: u32,
    ) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let buffered = openat(at, path, flags, Mode::from_raw_mode(mode))
            .map_err(|e| open_failed("create", target, e))?;
        let status = Status::of(&buffered).map_err(|e| open_failed("create", target, e))?;
        let opening = (at, path, OFlags::RDWR);
        let file = Self::with_direct(target, opening, bytes, buffered, &status);
        // At its full length from the start, to whole pages: a direct write that makes a file longer
        // is run alone by most file systems, and one inside it beside others. It is cut at the end.
        file.truncate(up(bytes, Alignment::PAGE_BYTES))?;
        Ok(file)
    }

    /// Opens a block device of a folder to write `bytes` to it in place. One that is mounted, or in use otherwise, is
    /// refused.
    pub fn open_device(target: &Path, at: BorrowedFd<'_>, name: &Path, bytes: u64) -> Result<Self> {
        let failed = |errno| {
            let error = open_failed("write to", target, errno);
            match errno {
                Errno::BUSY => error.with_hint("it is mounted or in use: unmount it first"),
                _ => error,
            }
        };
        // Of a block device this asks for nobody else's use of it, and creates nothing.
        let flags = OFlags::RDWR | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let buffered = openat(at, name, flags, Mode::empty()).map_err(failed)?;
        let status = Status::of(&buffered).map_err(failed)?;
        let room = match status.kind {
            FileType::BlockDevice => seek(&buffered, SeekFrom::End(0)).map_err(failed)?,
            _ => return Err(failed(Errno::NOTBLK)),
        };
        let wanted = up(bytes, Alignment::PAGE_BYTES);
        if room < wanted {
            let why =
                format!("it has {room} bytes, and {wanted} in whole blocks are to be written");
            return Err(Error::new(Kind::Invalid, "write to", target.display(), why));
        }
        let opening = (at, name, OFlags::RDWR);
        let file = Self::with_direct(target, opening, bytes, buffered, &status);
        Ok(Self {
            is_device: true,
            ..file
        })
    }

    /// The device that its bytes are on: itself, or the one of its file system.
    pub fn device(&self) -> Result<DeviceNumber> {
        let stat = fstat(&self.buffered).map_err(|e| self.error("examine", e.into()))?;
        let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
        Ok(DeviceNumber::of(if is_device {
            stat.st_rdev
        } else {
            stat.st_dev
        }))
    }

    /// Sets its room aside: a disk that is too full says so before any byte is written.
    pub fn reserve(&self) -> Result<()> {
        // On tmpfs room is memory, and setting it aside zeroes it on one core before all cores write.
        if self.bytes == 0 || is_memory(&self.buffered) {
            return Ok(());
        }
        match fallocate(&self.buffered, FallocateFlags::KEEP_SIZE, 0, self.bytes) {
            // Not every file system can; it then fills up as it is written.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(errno) => Err(self.error("make room for", errno.into())),
        }
    }

    /// An open file with its second descriptor, which is opened as the first was: in a folder, by a path, with flags.
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
            // The name may have become another file's meanwhile, by whoever may write to the folder.
            let now = Identity::of(&fstat(&direct).ok()?);
            status.identity.is_same_file(&now).then_some(direct)
        });
        Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            path: name.to_owned(),
            bytes,
            buffered: buffered.into(),
            direct_io: DirectIo {
                alignment: direct_io.alignment.filter(|_| direct.is_some()),
                ..direct_io
            },
            direct,
            opened: None,
            unsynced: AtomicBool::new(false),
            is_device: false,
            mapping: OnceLock::new(),
            target: OnceLock::new(),
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

    /// What O_DIRECT asks for; `None` where there is none, or it is not proven to bypass the page cache.
    pub fn alignment(&self) -> Option<Alignment> {
        self.survey().usable().ok()
    }

    /// What is known of it before anyone has read it.
    pub fn survey(&self) -> Survey {
        Survey {
            direct: self.direct_io.alignment,
            doubt: self.direct_io.doubt,
            ..Survey::default()
        }
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
                    return Err(changed(&self.path, message));
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
        self.unsynced.store(true, Ordering::Relaxed);
        let written = self.buffered.write_all_at(bytes, offset);
        written.map_err(|e| self.error("write", e))
    }

    /// Which file it was when it was opened, and in which state. `None` for a block device, whose stamps
    /// say nothing of its bytes, and for a file that was created here.
    pub fn identity(&self) -> Option<Identity> {
        self.opened
    }

    /// It as memory to copy from, where that is possible.
    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        let map = || Mapping::new(&self.buffered, self.bytes);
        self.mapping.get_or_init(map).as_ref()
    }

    /// It as memory to copy to, where that is possible.
    pub(crate) fn target(&self) -> Option<&Mapping> {
        let map = || Mapping::to_write(&self.buffered, self.bytes);
        self.target.get_or_init(map).as_ref()
    }

    /// Whether its room is memory.
    pub fn is_in_memory(&self) -> bool {
        is_memory(&self.buffered)
    }

    /// The parts of it that are no holes, in order. A file system that does not know says all of it.
    pub fn data_extents(&self) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        let mut at = 0;
        while at < self.bytes {
            let data = match seek(&self.buffered, SeekFrom::Data(at)) {
                Ok(data) => data,
                // Only a hole is left.
                Err(Errno::NXIO) => break,
                Err(Errno::INVAL) => return Ok(vec![Extent::new(0, self.bytes)]),
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

    /// Gives it to a group, and answers whether this process may do that.
    pub fn set_group(&self, group: u32) -> bool {
        fchown(&self.buffered, None, Some(Gid::from_raw(group))).is_ok()
    }

    /// Sets its permission bits.
    pub fn set_mode(&self, mode: u32) -> Result<()> {
        fchmod(&self.buffered, Mode::from_raw_mode(mode))
            .map_err(|e| self.error("set the permissions of", e.into()))
    }

    /// An error where it was written to since it was opened, as far as its length and its stamps tell
    /// ([`identity`](crate::identity) says how far that is).
    pub fn check_unchanged(&self) -> Result<()> {
        let Some(opened) = self.opened else {
            return Ok(());
        };
        let stat = fstat(&self.buffered).map_err(|e| self.error("examine", e.into()))?;
        let now = Identity::of(&stat);
        if now == opened {
            return Ok(());
        }
        let (was, is) = (opened.bytes, now.bytes);
        let message = match is.cmp(&was) {
            Less => format!("it shrank from {was} to {is} bytes while it was read"),
            Greater => format!("it grew from {was} to {is} bytes while it was read"),
            Equal => "it was written to, or its attributes changed, while it was read".to_owned(),
        };
        Err(changed(&self.path, message))
    }

    /// Cuts it to `bytes`: an aligned tail was written past its end.
    pub fn truncate(&self, bytes: u64) -> Result<()> {
        if self.is_device {
            return Ok(());
        }
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
        self.unsynced.store(false, Ordering::Relaxed);
        fdatasync(&self.buffered).map_err(|e| self.error("sync", e.into()))
    }

    /// Whether [`write_all_at`](Self::write_all_at) wrote to it since the last sync.
    pub fn is_unsynced(&self) -> bool {
        self.unsynced.load(Ordering::Relaxed)
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
            let synced = |f: &&Arc<Self>| f.unsynced.store(false, Ordering::Relaxed);
            together.iter().for_each(synced);
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

/// An error of the operating system about a file that could not be opened, or whose folder could not.
pub fn open_failed(operation: &'static str, path: &Path, errno: Errno) -> Error {
    let error = Error::os(operation, path.display(), errno.into());
    match errno {
        Errno::MFILE => error.with_hint(limit::open_files_hint()),
        _ => error,
    }
}

/// An error about a file that others write to while it is read.
fn changed(path: &Path, message: impl Into<String>) -> Error {
    Error::new(Kind::Corrupt, "read", path.display(), message)
        .with_hint("wait until nobody writes to it, and try again")
}
