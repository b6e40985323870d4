//! A file mapped to be copied from, for bytes that the page cache holds.
//!
//! Mapped pages count as the process's memory as long as they stay mapped, so each copy lets go of
//! what it has read: a model of 100 GB must not look like 200.

use std::{os::fd::AsFd, ptr::NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};

use crate::streaming;

/// Pages of the kernel. Larger ones elsewhere only mean that mappings are not used there.
const PAGE_BYTES: usize = 4096;

/// A whole file, mapped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, is only read, and has no thread affinity.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of a file. `None` where that is not possible, or where a file that
    /// shrinks could end the process.
    pub(crate) fn new(file: impl AsFd, bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok().filter(|b| *b > 0)?;
        if !streaming::guarded() || rustix::param::page_size() != PAGE_BYTES {
            return None;
        }
        let (prot, flags) = (ProtFlags::READ, MapFlags::SHARED);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, prot, flags, file, 0) }.ok()?;
        let start = NonNull::new(start.cast())?;
        Some(Self { start, bytes })
    }

    /// Copies `bytes` bytes from `offset` on to `target`. What the page cache lacks is read first. Answers
    /// false, with the target undefined, where the file has become shorter.
    ///
    /// # Safety
    ///
    /// The target must be valid for that many writes.
    pub(crate) unsafe fn copy(&self, offset: u64, target: *mut u8, bytes: usize) -> bool {
        let Some(offset) = usize::try_from(offset).ok().filter(|offset| {
            let end = offset.checked_add(bytes);
            end.is_some_and(|end| end <= self.bytes)
        }) else {
            return false;
        };
        let skip = offset % PAGE_BYTES;
        // SAFETY: just found to be inside the mapping.
        let first = unsafe { self.start.as_ptr().add(offset - skip) };
        let span = skip + bytes;
        // Another user of this process may have put a handler in the place of ours since.
        if !streaming::guarded() {
            return false;
        }
        // SAFETY: the range is inside the mapping, whose pages may be gone, and that is guarded; the
        // caller answers for the target, which is no mapping of ours. Letting go of pages of a
        // shared mapping loses nothing: they are the file's.
        unsafe {
            // All at once costs less than a fault for each run of pages; refusal costs only speed.
            let _ = madvise(first.cast(), span, Advice::LinuxPopulateRead);
            let whole = streaming::copy(target, first.add(skip), bytes);
            let _ = madvise(first.cast(), span, Advice::LinuxDontNeed);
            whole
        }
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
        (0..=252).cycle().step_by(31).take(bytes).collect()
    }

    #[test]
    fn any_part_of_a_file_in_the_page_cache_is_copied_as_it_is() -> io::Result<()> {
        let mut file = tempfile::tempfile()?;
        let bytes = noise(5 << 20);
        file.write_all(&bytes)?;
        let Some(mapping) = Mapping::new(&file, bytes.len() as u64) else {
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
    fn a_file_that_shrank_is_no_longer_copied_from_and_nobody_dies() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("shrinks");
        fs::write(&path, noise(1 << 20))?;
        let file = fs::OpenOptions::new().read(true).write(true).open(&path)?;
        let Some(mapping) = Mapping::new(&file, 1 << 20) else {
            return Ok(());
        };
        file.set_len(8192)?;
        let mut target = vec![0; 1 << 20];
        // SAFETY: the vector is that long; past the question about residency the copy itself is
        // asked, as it would be where the file shrinks in between.
        unsafe {
            assert!(!mapping.copy(0, target.as_mut_ptr(), 1 << 20));
            assert!(!streaming::copy(
                target.as_mut_ptr(),
                mapping.start.as_ptr(),
                1 << 20
            ));
        }
        let mut front = vec![0; 8192];
        file.read_exact_at(&mut front, 0)?;
        // It stops at the fault, with the line that it was about to copy left out.
        let copied = 8192 - 64;
        assert_eq!(target[..copied], front[..copied]);
        Ok(())
    }
}
