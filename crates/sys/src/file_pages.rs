//! A file as memory of the process: its own pages, copy-on-write.
//!
//! Nothing is read before it is used, and nothing is copied before it is written to. A write changes a page of the
//! process and never the file. The kernel shows what others write to the file in pages that the process has not written
//! to, and raises SIGBUS where the file has become shorter; pages beyond the cut are gone, those that the process wrote to
//! as well. So no `&[u8]` may be made of it, for that would promise that nobody writes: this type gives out an address and
//! a length, and no reference.

use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use straightway_core::{Error, Result};

use crate::file::{By, File};

/// The pages of a whole file, mapped privately, to be read and written. They stay mapped as long as this is there.
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
    /// Maps a file that is open to read. An empty one has one page, which nobody may touch.
    pub fn map(file: &File) -> Result<Self> {
        let failed = |errno: rustix::io::Errno| {
            Error::os("map", file.path().display(), errno.into())
                .with_hint("read it instead: backend=\"pread\", or a route")
        };
        let bytes = usize::try_from(file.bytes()).map_err(|_| failed(rustix::io::Errno::NOMEM))?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // Nothing is set aside for copies of pages: most are never made.
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let descriptor = file.descriptor(By::PageCache);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                bytes.max(1),
                prot,
                flags,
                descriptor,
                0,
            )
        };
        let start = start.map_err(failed)?.cast();
        let start = NonNull::new(start).expect("a mapping is never at address 0");
        Ok(Self { start, bytes })
    }

    /// Where they begin: on a page.
    pub fn address(&self) -> u64 {
        self.start.addr().get() as u64
    }

    /// How many bytes the file had when it was mapped.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }
}

impl Drop for FilePages {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped. Whoever uses the address keeps this value.
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
            assert_eq!(
                (start.read_volatile(), start.add(8191).read_volatile()),
                (9, 7)
            );
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
        // A file that is cut takes the process's own copies of its pages with it.
        std::fs::write(&path, [6; 8192]).unwrap();
        assert_eq!(seen(), (6, 6));
    }
}
