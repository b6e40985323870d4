//! Files that are overwritten in place by the process that holds their lock: the segments of a KV cache.

use rustix::{
    fs::{FlockOperation, OFlags, flock, fstat},
    io::Errno,
};
use straightway_core::Result;

use super::File;
use crate::{
    file::IoPath,
    folder::{Folder, open_regular},
    status::Status,
};

impl File {
    /// Opens a regular file in a folder to overwrite parts of it. It is created if it is missing. Its length stays as
    /// it is until [`fill_to_length`](Self::fill_to_length), and `bytes` is the length that it will have. A symbolic
    /// link is refused.
    pub fn open_in_place(folder: &Folder, name: &str, bytes: u64) -> Result<Self> {
        let path = folder.path_of(name)?;
        let buffered = open_regular(folder, name, OFlags::RDWR | OFlags::CREATE, &path, "open")?;
        let status = Status::of(&buffered).map_err(|e| super::open_failed("examine", &path, e))?;
        let access = OFlags::RDWR | OFlags::NOFOLLOW;
        let opening = (std::os::fd::AsFd::as_fd(folder), std::path::Path::new(name), access);
        Ok(Self::with_direct(&path, opening, bytes, buffered, &status))
    }

    /// Reserves its space and gives it its length, unless it is that long already.
    pub fn fill_to_length(&self) -> Result<()> {
        let now = fstat(self.descriptor(IoPath::PageCache)).map_err(|e| self.error("examine", e.into()))?;
        if u64::try_from(now.st_size) == Ok(self.bytes()) {
            return Ok(());
        }
        // In this order, a file that has its length also has its space.
        self.reserve()?;
        self.truncate(self.bytes())
    }

    /// Takes the kernel's lock on the file, without waiting. Returns whether this open file has it: a process that has
    /// died has lost it, once its last I/O with the file has ended. A file that was removed meanwhile is not locked.
    ///
    /// It is the descriptor of I/Os that is locked. The kernel keeps it open until the last of them has ended, so
    /// nobody gets the lock before.
    pub fn try_lock(&self) -> Result<bool> {
        let descriptor = self.descriptor(IoPath::Direct);
        match flock(descriptor, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(fstat(descriptor).is_ok_and(|now| now.st_nlink > 0)),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(self.error("lock", errno.into())),
        }
    }

    /// Gives the lock back, also for forked children that have the file open.
    pub fn unlock(&self) {
        let _ = flock(self.descriptor(IoPath::Direct), FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_open_files_has_the_lock_until_it_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let folder = Folder::open(folder.path()).unwrap();
        let open = || File::open_in_place(&folder, "segment", 10_000).unwrap();
        let (one, other) = (open(), open());
        assert!(one.try_lock().unwrap() && !other.try_lock().unwrap());
        one.fill_to_length().unwrap();
        assert_eq!(std::fs::metadata(one.path()).unwrap().len(), 10_000);
        one.unlock();
        assert!(other.try_lock().unwrap());
        drop(other);
        assert!(one.try_lock().unwrap());
        std::fs::remove_file(one.path()).unwrap();
        assert!(!one.try_lock().unwrap(), "nobody would find what is written to it");
    }

    #[test]
    fn a_link_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("other"), "x").unwrap();
        std::os::unix::fs::symlink("other", folder.path().join("segment")).unwrap();
        let folder = Folder::open(folder.path()).unwrap();
        let error = File::open_in_place(&folder, "segment", 10).unwrap_err();
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }
}
