//! The storage of a namespace: a file, a block device, or memory (an anonymous file).
//!
//! All three are file descriptors, so the same calls serve them, and `sendfile` sends their pages without a copy. A
//! file whose length is not a multiple of the block size is padded with zeros and is not writable.

use std::{
    fs::File,
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{FileExt, FileTypeExt, MetadataExt},
    },
    path::Path,
    sync::Arc,
};

use rustix::{
    fs::{Advice, FallocateFlags, MemfdFlags, fadvise, fallocate, memfd_create},
    io::{Errno, ReadWriteFlags, preadv2},
    time::{ClockId, clock_gettime},
};
use straightway_core::{Error, ErrorKind, Result};

use crate::served_path::ServedPath;

/// Zeros to write if the file system cannot zero a range itself.
static ZEROES: [u8; 64 << 10] = [0; 64 << 10];

/// The version of a file's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// The file system.
    pub(crate) device: u64,
    inode: u64,
    modified_ns: i128,
    /// The time of the last change of content or attributes. Unlike the time of modification, it cannot be set.
    changed_ns: i128,
    pub(crate) bytes: u64,
}

/// Nanoseconds since 1970.
fn time_ns(seconds: i64, ns: i64) -> i128 {
    i128::from(seconds) * 1_000_000_000 + i128::from(ns)
}

/// The current time of the clock that stamps files.
pub(crate) fn stamp_clock_ns() -> i128 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    time_ns(now.tv_sec, now.tv_nsec)
}

impl Stamp {
    /// The version of a file with this metadata.
    pub(crate) fn of(meta: &std::fs::Metadata) -> Self {
        Self {
            device: meta.dev(),
            inode: meta.ino(),
            modified_ns: time_ns(meta.mtime(), meta.mtime_nsec()),
            changed_ns: time_ns(meta.ctime(), meta.ctime_nsec()),
            bytes: meta.len(),
        }
    }

    /// The stamp of a block device: its node and its length. Writes by hosts change its times.
    pub(crate) fn without_times(self) -> Self {
        Self {
            modified_ns: 0,
            changed_ns: 0,
            ..self
        }
    }

    /// Whether the file was changed at this time or later.
    pub(crate) fn is_since(&self, time_ns: i128) -> bool {
        self.changed_ns >= time_ns
    }

    /// Whether both belong to the same file.
    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        (self.device, self.inode) == (other.device, other.inode)
    }

    /// A hash of it.
    pub(crate) fn version(&self) -> u64 {
        let mut mixed = 0xcbf2_9ce4_8422_2325_u64;
        let times = [self.modified_ns, self.changed_ns].map(i128::to_le_bytes);
        let words = [self.device, self.inode, self.bytes].map(u64::to_le_bytes);
        for byte in words.as_flattened().iter().chain(times.as_flattened()) {
            mixed = (mixed ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        mixed
    }
}

/// The error of a path that cannot be served.
pub(crate) fn unusable(path: &Path, error: io::Error) -> Error {
    let hint = match error.kind() {
        io::ErrorKind::NotFound => {
            "name a file, a folder or a block device that exists; `truncate -s 1G FILE` makes a file, and \
             `straightway target --memory NAME=SIZE` serves memory"
        }
        io::ErrorKind::PermissionDenied => {
            "run it as a user that may read the path, and also write to it if `--writable` is given"
        }
        _ => "check the path and its file system",
    };
    Error::os("serve", path.display(), error).with_hint(hint)
}

/// The storage of a namespace.
#[derive(Clone, Debug)]
pub(crate) struct Backing {
    file: Arc<File>,
    /// The exact length.
    pub(crate) bytes: u64,
    /// The block size is 2 to this power.
    pub(crate) block_shift: u8,
    pub(crate) is_writable: bool,
    /// Whether the file was opened for writing.
    can_write: bool,
}

impl Backing {
    /// Opens a file or a block device. A file whose length is not a multiple of the block size is not writable.
    pub(crate) fn open(served: &ServedPath, block_shift: u8, is_writable: bool) -> Result<(Self, Stamp)> {
        let path = served.path();
        let fail = |error| unusable(path, error);
        let file = served.open(is_writable).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        let mut stamp = Stamp::of(&meta);
        if meta.file_type().is_block_device() {
            stamp.bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|error| fail(error.into()))?;
        } else if !meta.is_file() {
            let why = "it is neither a file nor a block device";
            let error = Error::new(ErrorKind::Invalid, "serve", path.display(), why);
            return Err(error.with_hint("name a file, a folder or a block device"));
        }
        let is_whole = stamp.bytes.is_multiple_of(1 << block_shift);
        let backing = Self {
            file: Arc::new(file),
            bytes: stamp.bytes,
            block_shift,
            is_writable: is_writable && is_whole,
            can_write: is_writable,
        };
        Ok((backing, stamp))
    }

    /// Memory of `bytes` zeros.
    pub(crate) fn memory(name: &str, bytes: u64, block_shift: u8) -> Result<Self> {
        let fail = |error: Errno| Error::os("reserve memory for", name, error.into());
        let file = memfd_create(name, MemfdFlags::CLOEXEC).map_err(fail)?;
        rustix::fs::ftruncate(&file, bytes).map_err(fail)?;
        Ok(Self {
            file: Arc::new(File::from(file)),
            bytes,
            block_shift,
            is_writable: true,
            can_write: true,
        })
    }

    /// The current length of an open block device, which its metadata does not have.
    pub(crate) fn device_bytes(&self) -> io::Result<u64> {
        Ok(rustix::fs::seek(&*self.file, rustix::fs::SeekFrom::End(0))?)
    }

    /// The same file with another length.
    pub(crate) fn resized(&self, bytes: u64) -> Self {
        let is_whole = bytes.is_multiple_of(1 << self.block_shift);
        Self {
            bytes,
            is_writable: self.can_write && is_whole,
            ..self.clone()
        }
    }

    /// The length in blocks. The last one may be padded.
    pub(crate) fn blocks(&self) -> u64 {
        self.bytes.div_ceil(1 << self.block_shift)
    }

    /// The number of bytes of a range that exist; the rest is padding.
    pub(crate) fn present(&self, offset: u64, bytes: usize) -> usize {
        let left = self.bytes.saturating_sub(offset);
        usize::try_from(left).map_or(bytes, |left| left.min(bytes))
    }

    /// The file descriptor, for `sendfile`.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Fills `buffer` from `offset` on, with zeros after the end. Fails if the file became shorter.
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let (data, padding) = buffer.split_at_mut(self.present(offset, buffer.len()));
        padding.fill(0);
        self.file.read_exact_at(data, offset)
    }

    /// Writes inside the namespace.
    pub(crate) fn write(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    /// Makes all writes durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Writes zeros: by the file system if it can, otherwise from a buffer.
    pub(crate) fn zero(&self, offset: u64, bytes: u64, may_deallocate: bool) -> io::Result<()> {
        let how = if may_deallocate {
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
        } else {
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
        };
        match fallocate(&*self.file, how, offset, bytes) {
            Ok(()) => return Ok(()),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        let mut at = offset;
        let end = offset + bytes;
        while at < end {
            let piece = usize::try_from(end - at).map_or(ZEROES.len(), |n| n.min(ZEROES.len()));
            self.write(&ZEROES[..piece], at)?;
            at += piece as u64;
        }
        Ok(())
    }

    /// Deallocates blocks. This is advisory: errors are ignored.
    pub(crate) fn discard(&self, offset: u64, bytes: u64) {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if bytes > 0 {
            let _ = fallocate(&*self.file, how, offset, bytes);
        }
    }

    /// Starts to read a range into the page cache, unless both its ends are resident. Checking every page of a resident
    /// range would cost a tenth of sending it.
    pub(crate) fn prefetch(&self, offset: u64, bytes: usize) {
        let last = offset + self.present(offset, bytes).saturating_sub(1) as u64;
        if self.is_cold(offset) || self.is_cold(last) {
            let bytes = std::num::NonZeroU64::new(bytes as u64);
            let _ = fadvise(&*self.file, offset, bytes, Advice::WillNeed);
        }
    }

    /// Whether a byte is not in the page cache. If the file system cannot tell, it counts as resident.
    fn is_cold(&self, at: u64) -> bool {
        let mut byte = [0];
        let mut into = [io::IoSliceMut::new(&mut byte)];
        let read = preadv2(&*self.file, &mut into, at, ReadWriteFlags::NOWAIT);
        matches!(read, Err(Errno::AGAIN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_reads_what_was_written_and_can_be_zeroed() {
        let memory = Backing::memory("test", 1 << 20, 9).expect("a megabyte");
        assert_eq!(memory.blocks(), 2048);
        memory.write(&[7; 4096], 8192).expect("inside");
        let mut back = [0; 8192];
        memory.read(&mut back, 6144).expect("inside");
        assert!(back[..2048].iter().all(|byte| *byte == 0));
        assert!(back[2048..6144].iter().all(|byte| *byte == 7));
        for may_deallocate in [false, true] {
            memory.write(&[7; 4096], 8192).expect("inside");
            memory.zero(8192, 512, may_deallocate).expect("inside");
            memory.read(&mut back, 8192).expect("inside");
            assert!(back[..512].iter().all(|byte| *byte == 0));
            assert!(back[512..4096].iter().all(|byte| *byte == 7));
        }
    }

    #[test]
    fn an_unaligned_file_is_padded_and_not_writable() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("odd");
        std::fs::write(&path, [9; 1000]).expect("small");
        let (odd, stamp) = Backing::open(&ServedPath::named(&path), 9, true).expect("it exists");
        assert!(!odd.is_writable);
        assert_eq!((odd.bytes, odd.blocks(), stamp.bytes), (1000, 2, 1000));
        let mut back = [1; 512];
        odd.read(&mut back, 512).expect("padded");
        assert!(back[..488].iter().all(|byte| *byte == 9));
        assert!(back[488..].iter().all(|byte| *byte == 0));
        // Truncated by another program: an error and not zeros.
        File::options()
            .write(true)
            .open(&path)
            .and_then(|file| file.set_len(10))
            .expect("it can be truncated");
        assert!(odd.read(&mut back, 0).is_err());
    }
}
