//! Mappings of files, for copies from and to the page cache.
//!
//! Mapped pages count as memory of the process. Each copy therefore unmaps its pages afterwards: loading a model of
//! 100 GB must not appear to use 200 GB.

use std::{os::fd::AsFd, ptr::NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::streaming;

/// The kernel's page size. With larger pages, mappings are not used.
const PAGE_BYTES: usize = 4096;

/// A whole file, mapped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and has no thread affinity. No reference to its bytes is ever made:
// they are copied by `streaming::copy`, which others may race.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a file for reading. `None` if that is not possible, or if a file that shrinks
    /// could kill the process.
    pub(crate) fn new(file: impl AsFd, bytes: u64) -> Option<Self> {
        Self::with(file, bytes, ProtFlags::READ)
    }

    /// As `new`, for writing. The file must be at least that long.
    pub(crate) fn to_write(file: impl AsFd, bytes: u64) -> Option<Self> {
        Self::with(file, bytes, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn with(file: impl AsFd, bytes: u64, prot: ProtFlags) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok().filter(|b| *b > 0)?;
        if !streaming::guarded() || rustix::param::page_size() != PAGE_BYTES {
            return None;
        }
        let flags = MapFlags::SHARED;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, prot, flags, file, 0) }.ok()?;
        let start = NonNull::new(start.cast())?;
        Some(Self { start, bytes })
    }

    /// Copies `bytes` bytes that start at `offset` to `target`. Pages that are not cached are read first. Returns
    /// false, with undefined content of the target, if the file has become shorter.
    ///
    /// # Safety
    ///
    /// The target must be valid for that many writes.
    pub(crate) unsafe fn copy(&self, offset: u64, target: *mut u8, bytes: usize) -> bool {
        let Some((first, skip)) = self.pages(offset, bytes) else {
            return false;
        };
        let span = skip + bytes;
        // SAFETY: the range is inside the mapping, whose pages may be gone, and that is guarded; the
        // caller guarantees the target, which is not one of our mappings. Unmapping pages of a shared
        // mapping loses nothing: they belong to the file.
        unsafe {
            // One call costs less than a fault for each run of pages. Failure costs only speed.
            let _ = madvise(first.cast(), span, Advice::LinuxPopulateRead);
            let whole = streaming::copy(target, first.add(skip), bytes);
            let _ = madvise(first.cast(), span, Advice::LinuxDontNeed);
            whole
        }
    }

    /// Copies `bytes` bytes from `source` to offset `offset` of the file. The mapping must be writable. Returns
    /// false, with undefined content of those bytes, if the file has become shorter or its file system is full.
    ///
    /// # Safety
    ///
    /// The source must be valid for that many reads, or a mapping of a file whose pages may be gone.
    pub(crate) unsafe fn fill(&self, offset: u64, source: *const u8, bytes: usize) -> bool {
        let Some((first, skip)) = self.pages(offset, bytes) else {
            return false;
        };
        let span = skip + bytes;
        // SAFETY: as in `copy`, in the other direction: a fault on either side only ends the copy. Unmapping pages of a
        // shared mapping loses nothing.
        unsafe {
            let _ = madvise(first.cast(), span, Advice::LinuxPopulateWrite);
            let whole = streaming::copy(first.add(skip), source, bytes);
            let _ = madvise(first.cast(), span, Advice::LinuxDontNeed);
            whole
        }
    }

    /// Copies from another mapping to the same offset of this one, which must be writable.
    pub(crate) fn fill_from(&self, source: &Self, offset: u64, bytes: usize) -> bool {
        let Some((first, skip)) = source.pages(offset, bytes) else {
            return false;
        };
        // SAFETY: the source range is inside its mapping, whose pages may be gone.
        unsafe {
            let _ = madvise(first.cast(), skip + bytes, Advice::LinuxPopulateRead);
            let whole = self.fill(offset, first.add(skip), bytes);
            let _ = madvise(first.cast(), skip + bytes, Advice::LinuxDontNeed);
            whole
        }
    }

    /// The address of the page that contains `offset`, and the offset in that page. `None` if the range is not inside
    /// the mapping, or if an access to a page that is gone would kill the process.
    fn pages(&self, offset: u64, bytes: usize) -> Option<(*mut u8, usize)> {
        let offset = usize::try_from(offset).ok()?;
        offset.checked_add(bytes).filter(|end| *end <= self.bytes)?;
        // Other code in this process may have replaced our signal handler.
        if !streaming::guarded() {
            return None;
        }
        let skip = offset % PAGE_BYTES;
        // SAFETY: just found to be inside the mapping.
        let first = unsafe { self.start.as_ptr().add(offset - skip) };
        Some((first, skip))
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and nobody holds a reference into it.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{self, Write},
        os::unix::fs::FileExt,
    };

    use super::*;

    fn noise(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|n| (n * 31 % 253).to_le_bytes()[0]).collect()
    }

    /// A mapping of the file. Prints the reason and returns `None` if this machine does not allow mappings.
    fn mapping(file: &fs::File, bytes: u64) -> Option<Mapping> {
        if !streaming::guarded() {
            eprintln!("skipped: copies from pages that are gone are not guarded here");
            return None;
        }
        if rustix::param::page_size() != PAGE_BYTES {
            eprintln!("skipped: pages here have {} bytes", rustix::param::page_size());
            return None;
        }
        Some(Mapping::new(file, bytes).expect("nothing else prevents a mapping"))
    }

    #[test]
    fn any_part_of_a_file_in_the_page_cache_is_copied_correctly() -> io::Result<()> {
        let mut file = tempfile::tempfile()?;
        let bytes = noise(5 << 20);
        file.write_all(&bytes)?;
        let Some(mapping) = mapping(&file, bytes.len() as u64) else {
            return Ok(());
        };
        for (offset, length) in [(0, 5 << 20), (1, 4095), (4097, 100), (4 << 20, 1 << 20)] {
            let mut target = vec![0; length];
            // SAFETY: the vector is that long.
            assert!(unsafe { mapping.copy(offset as u64, target.as_mut_ptr(), length) });
            assert_eq!(target, bytes[offset..offset + length]);
        }
        let mut byte = [0];
        // SAFETY: as above.
        assert!(!unsafe { mapping.copy(5 << 20, byte.as_mut_ptr(), 1) });
        Ok(())
    }

    #[test]
    fn a_copy_from_a_file_that_shrank_fails_and_the_process_survives() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("shrinks");
        fs::write(&path, noise(1 << 20))?;
        let file = fs::OpenOptions::new().read(true).write(true).open(&path)?;
        let Some(mapping) = mapping(&file, 1 << 20) else {
            return Ok(());
        };
        file.set_len(8192)?;
        let mut target = vec![0; 1 << 20];
        // SAFETY: the vector is that long. The second copy skips the checks, as if the file shrank after
        // them.
        unsafe {
            assert!(!mapping.copy(0, target.as_mut_ptr(), 1 << 20));
            assert!(!streaming::copy(target.as_mut_ptr(), mapping.start.as_ptr(), 1 << 20));
        }
        let mut front = vec![0; 8192];
        file.read_exact_at(&mut front, 0)?;
        // It stops at the fault, without the cache line that it was about to copy.
        let copied = 8192 - 64;
        assert_eq!(target[..copied], front[..copied]);
        Ok(())
    }
}
