//! A private, copy-on-write mapping of a file.
//!
//! A page is read on first access, and copied on the first write to it. A write never changes the file. Writes by
//! others to the file are visible in pages that the process has not written to. If the file is truncated, the pages
//! beyond its end are gone, even those that the process wrote to, and access raises SIGBUS. A `&[u8]` would promise
//! that nobody writes, so this type provides an address and a length, but no reference.

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use straightway_core::{Error, Result};

use crate::file::{File, IoPath};

/// The pages of a whole file, mapped privately for reading and writing. Dropping it unmaps them.
#[derive(Debug)]
pub struct FilePages {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and has no thread affinity.
unsafe impl Send for FilePages {}
// SAFETY: as above; `&FilePages` gives out an address, never a reference to the bytes.
unsafe impl Sync for FilePages {}

impl FilePages {
    /// Maps a file that is open for reading. For an empty file one page is mapped, which must not be accessed.
    pub fn map(file: &File) -> Result<Self> {
        let failed = |errno: rustix::io::Errno| {
            Error::os("map", file.path().display(), errno.into())
                .with_hint("read the file into memory instead of mapping it")
        };
        let bytes = usize::try_from(file.bytes()).map_err(|_| failed(rustix::io::Errno::NOMEM))?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // No memory is reserved for copies of pages, because most are never made.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let descriptor = file.descriptor(IoPath::PageCache);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes.max(1), prot, flags, descriptor, 0) };
        let start = start.map_err(failed)?.cast();
        let start = NonNull::new(start).expect("a mapping is never at address 0");
        Ok(Self { start, bytes })
    }

    /// The start address, which is page-aligned.
    pub fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// The length of the file when it was mapped.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl Drop for FilePages {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped. Users of the address keep this value.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes.max(1)) };
        debug_assert!(unmapped.is_ok(), "the mapping was ours");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_write_to_the_pages_leaves_the_file_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 8192]).unwrap();
        let pages = FilePages::map(&File::open(&path).unwrap()).unwrap();
        assert_eq!(
            (pages.bytes(), pages.address() % 4096),
            (8192, 0),
            "the descriptor is closed, and the pages stay"
        );
        // SAFETY: both bytes lie inside the mapping, and nobody else uses it or the file.
        unsafe {
            let start = pages.start.as_ptr();
            start.write_volatile(9);
            assert_eq!((start.read_volatile(), start.add(8191).read_volatile()), (9, 7));
        }
        assert_eq!(std::fs::read(&path).unwrap(), [7; 8192]);
    }

    #[test]
    fn a_change_of_the_file_shows_in_pages_that_were_not_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 8192]).unwrap();
        let pages = FilePages::map(&File::open(&path).unwrap()).unwrap();
        // SAFETY: as above.
        unsafe { pages.start.as_ptr().write_volatile(9) };
        // SAFETY: as above; the file is as long as before.
        let seen = || unsafe {
            let start = pages.start.as_ptr();
            (start.read_volatile(), start.add(4096).read_volatile())
        };
        let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[8; 8192], 0).unwrap();
        assert_eq!(seen(), (9, 8));
        // Truncating the file also drops the process's copies of its pages.
        std::fs::write(&path, [6; 8192]).unwrap();
        assert_eq!(seen(), (6, 6));
    }
}
