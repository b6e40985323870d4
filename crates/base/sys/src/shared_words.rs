//! Words of a file that several processes map, read and change at the same time.
//!
//! Each word is 64 bits, aligned, and is loaded and stored whole. No reference to the words exists, so another process
//! may change them at any time. Stores of one process are seen by others in their order.
//!
//! A file that another process truncates, or whose pages cannot be read, raises SIGBUS on access. The accesses here
//! then report that the word is lost, and the process goes on. That needs x86-64; on other processors the signal ends
//! the process.

mod guarded;

use std::{os::fd::AsFd, path::Path, ptr::NonNull};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use straightway_core::{Error, ErrorKind, Result};

use crate::streaming;

#[cfg(target_arch = "x86_64")]
pub(crate) use guarded::resume;

/// Whether words can be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WordAccess {
    /// They are only read.
    Read,
    /// They are read and changed.
    Write,
}

/// The words of a file, mapped. Dropping it unmaps them.
#[derive(Debug)]
pub struct SharedWords {
    start: NonNull<u64>,
    words: usize,
    access: WordAccess,
}

// SAFETY: the mapping belongs to this value alone and has no thread affinity. No reference to its words is ever made:
// they are accessed one by one by atomic instructions.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// Maps the first `words` words of a file. `path` is the name for errors.
    pub fn map(file: impl AsFd, words: usize, access: WordAccess, path: &Path) -> Result<Self> {
        let failed = |errno: rustix::io::Errno| Error::os("map", path.display(), errno.into());
        if cfg!(target_arch = "x86_64") && !streaming::guarded() {
            let why = "another library of this process has replaced the handler of SIGBUS";
            return Err(Error::new(ErrorKind::Unsupported, "map", path.display(), why));
        }
        let bytes = words.checked_mul(size_of::<u64>()).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| failed(rustix::io::Errno::INVAL))?;
        let prot = match access {
            WordAccess::Read => ProtFlags::READ,
            WordAccess::Write => ProtFlags::READ | ProtFlags::WRITE,
        };
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap(std::ptr::null_mut(), bytes, prot, MapFlags::SHARED, file, 0) };
        let start = NonNull::new(start.map_err(failed)?.cast()).expect("a mapping is never at address 0");
        Ok(Self { start, words, access })
    }

    /// The number of words.
    pub fn words(&self) -> usize {
        self.words
    }

    /// Reads all pages ahead, so that a scan does not fault on each of them. Failure costs only speed.
    pub fn populate(&self) {
        // SAFETY: exactly the mapping. The advice changes no byte, and reports pages that are gone as an error.
        let _ = unsafe { madvise(self.start.as_ptr().cast(), self.words * 8, Advice::LinuxPopulateRead) };
    }

    /// The word at an index; `None` if its page is gone.
    ///
    /// # Panics
    ///
    /// If the index is beyond the mapping.
    pub fn load(&self, at: usize) -> Option<u64> {
        // SAFETY: the word lies inside the mapping.
        unsafe { guarded::load(self.word(at)) }
    }

    /// Changes the word at an index. Returns whether that was possible: the page may be gone, or the mapping may be for
    /// reading. Earlier stores of this thread are visible to others before this one.
    ///
    /// # Panics
    ///
    /// If the index is beyond the mapping.
    pub fn store(&self, at: usize, value: u64) -> bool {
        let word = self.word(at);
        // SAFETY: the word lies inside the mapping, which is writable.
        self.access == WordAccess::Write && unsafe { guarded::store(word, value) }
    }

    /// Adds to the word at an index, and returns its former value. `None` as for [`store`](Self::store).
    ///
    /// # Panics
    ///
    /// If the index is beyond the mapping.
    pub fn add(&self, at: usize, value: u64) -> Option<u64> {
        let word = self.word(at);
        if self.access == WordAccess::Read {
            return None;
        }
        // SAFETY: the word lies inside the mapping, which is writable.
        unsafe { guarded::add(word, value) }
    }

    fn word(&self, at: usize) -> *mut u64 {
        assert!(at < self.words, "a word lies inside its file");
        // SAFETY: the index is inside the mapping.
        unsafe { self.start.as_ptr().add(at) }
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: exactly what was mapped, and nobody has its address.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.words * 8) };
        debug_assert!(unmapped.is_ok(), "the mapping was ours");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared(file: &std::fs::File, words: usize, access: WordAccess) -> SharedWords {
        SharedWords::map(file, words, access, Path::new("words")).unwrap()
    }

    #[test]
    fn a_store_shows_in_other_mappings_and_in_the_file() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let (one, other) = (
            shared(&file, 512, WordAccess::Write),
            shared(&file, 512, WordAccess::Read),
        );
        assert!(one.store(511, 7));
        assert_eq!(
            (other.load(511), one.add(511, 5), other.load(511)),
            (Some(7), Some(7), Some(12))
        );
        assert!(!other.store(511, 1) && other.add(511, 1).is_none());
        let mut bytes = [0; 8];
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut bytes, 511 * 8).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 12);
    }

    #[test]
    fn no_addition_of_several_threads_is_lost() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let words = shared(&file, 512, WordAccess::Write);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| assert!(words.add(3, 1).is_some())));
            }
        });
        assert_eq!(words.load(3), Some(40_000));
    }

    // On other processors the signal ends the process.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn words_of_a_truncated_file_are_lost_and_the_process_survives() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let words = shared(&file, 1024, WordAccess::Write);
        assert!(words.store(1000, 1));
        file.set_len(4096).unwrap();
        assert_eq!((words.load(1000), words.add(1000, 1)), (None, None));
        assert!(!words.store(1000, 1));
        assert!(words.store(100, 2) && words.load(100) == Some(2));
    }

    #[test]
    #[should_panic(expected = "a word lies inside its file")]
    fn a_word_beyond_the_mapping_is_our_mistake() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let _ = shared(&file, 512, WordAccess::Read).load(512);
    }
}
