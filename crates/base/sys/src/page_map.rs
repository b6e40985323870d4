//! A mapping of a file that is never accessed: `mincore(2)` tells which of its pages are in the page cache.
//!
//! The kernel does not tell everybody. A process that neither owns the file nor may write to it is told that all pages
//! are cached. A page far beyond the end of the file, which cannot be cached, shows whether the answers are true.

use std::{io, os::fd::AsFd, ptr};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use straightway_core::{Extent, extent::up};

const PAGE: u64 = 4096;

/// The distance of the page that cannot be cached from the end of the file. The last pages may be cached as a part of a
/// larger one, of 2 MiB at most.
const BEYOND_BYTES: u64 = 4 << 20;

/// The most pages of one query, whose answer is a byte for each.
const PAGES_MAX: usize = 16_384;

/// The pages of a whole file, mapped without access rights. Dropping it unmaps them.
#[derive(Debug)]
pub(crate) struct PageMap {
    start: *mut libc::c_void,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, is never accessed, and has no thread affinity.
unsafe impl Send for PageMap {}
// SAFETY: as above.
unsafe impl Sync for PageMap {}

impl PageMap {
    /// Maps the first `bytes` of a file. `None` if that is not possible, or if the kernel does not tell this process
    /// which pages are cached.
    pub(crate) fn of(file: impl AsFd, bytes: u64) -> Option<Self> {
        let beyond = up(bytes, BEYOND_BYTES).checked_add(BEYOND_BYTES)?;
        let bytes = usize::try_from(beyond.checked_add(PAGE)?).ok()?;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::empty(), MapFlags::SHARED, file, 0) }.ok()?;
        let map = Self { start, bytes };
        let cannot_be_cached = map.cached(Extent::new(beyond, PAGE)).ok()?;
        (cannot_be_cached == 0).then_some(map)
    }

    /// The number of cached pages in `range`, which consists of whole pages.
    pub(crate) fn cached(&self, range: Extent) -> io::Result<u64> {
        let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
        let (offset, bytes) = usize::try_from(range.offset)
            .ok()
            .zip(usize::try_from(range.bytes).ok())
            .filter(|(offset, bytes)| offset.checked_add(*bytes).is_some_and(|end| end <= self.bytes))
            .ok_or_else(invalid)?;
        let mut pages = vec![0_u8; bytes.div_ceil(4096).min(PAGES_MAX)];
        let mut count = 0;
        for start in (0..bytes).step_by(PAGES_MAX * 4096) {
            let asked = (bytes - start).min(PAGES_MAX * 4096);
            // SAFETY: the range lies inside the mapping, as was just checked, and the answer has a byte for each of its
            // pages. No page is accessed, so a file that shrinks at the same time does no harm.
            let status = unsafe { libc::mincore(self.start.add(offset + start), asked, pages.as_mut_ptr()) };
            if status != 0 {
                return Err(io::Error::last_os_error());
            }
            let answer = &pages[..asked.div_ceil(4096)];
            count += answer.iter().filter(|page| **page & 1 == 1).count() as u64;
        }
        Ok(count)
    }
}

impl Drop for PageMap {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and nobody holds a reference into it.
        let _ = unsafe { munmap(self.start, self.bytes) };
    }
}
