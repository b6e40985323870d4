//! A segment: the file with its slots, and the journal that all processes map.

use std::sync::Arc;

use straightway_core::{Error, ErrorKind, Result};
use straightway_sys::{File, Folder, Process, SharedWords, WordAccess, folder::Access};

use crate::{
    format::{Geometry, chunks_name, journal_name},
    protocol::Words,
};

/// An open segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) journal: SharedWords,
    /// Its chunks, for reading.
    pub(crate) chunks: Arc<File>,
}

/// The right to write to a segment. Dropping it gives it back.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Its chunks, for writing. Its descriptor has the lock.
    pub(crate) chunks: Arc<File>,
    process: Process,
}

impl Words for SharedWords {
    fn load(&self, at: usize) -> Option<u64> {
        Self::load(self, at)
    }

    fn store(&self, at: usize, value: u64) -> Option<()> {
        Self::store(self, at, value).then_some(())
    }
}

impl Segment {
    /// Opens a segment. `None` if it does not exist, or not completely.
    pub(crate) fn open(folder: &Folder, geometry: &Geometry, number: u32, access: WordAccess) -> Result<Option<Self>> {
        let name = journal_name(number);
        if !folder.has_file(&name)? {
            return Ok(None);
        }
        let opened = match access {
            WordAccess::Read => folder.open_file(&name, Access::Read)?,
            WordAccess::Write => folder.open_file(&name, Access::Keep)?,
        };
        let path = folder.join(&name);
        let length = opened
            .metadata()
            .map_err(|e| Error::os("examine", path.display(), e))?
            .len();
        let bytes = geometry.journal_bytes(number);
        if length != bytes {
            // A process that is creating it gives it its length before its header.
            if length > 0 {
                let journal = path.display();
                tracing::warn!(%journal, length, "a journal has the wrong length: its chunks are misses");
            }
            return Ok(None);
        }
        let words = usize::try_from(bytes / 8).expect("a journal fits into the address space");
        let journal = SharedWords::map(&opened, words, access, &path)?;
        if !has_header(&journal, geometry, number) {
            tracing::warn!(journal = %path.display(), "a journal has no valid header: its chunks are misses");
            return Ok(None);
        }
        let chunks = Arc::new(File::open_in(folder, &chunks_name(number))?);
        Ok(Some(Self { journal, chunks }))
    }

    /// Gives an empty journal to a segment that this process has leased.
    pub(crate) fn format(folder: &Folder, geometry: &Geometry, number: u32) -> Result<()> {
        let name = journal_name(number);
        let file = File::open_in_place(folder, &name, geometry.journal_bytes(number))?;
        file.truncate(0)?;
        file.fill_to_length()?;
        let path = folder.join(&name);
        let words = usize::try_from(geometry.journal_bytes(number) / 8).expect("it fits into the address space");
        let descriptor = file.descriptor(straightway_sys::IoPath::PageCache);
        let journal = SharedWords::map(descriptor, words, WordAccess::Write, &path)?;
        let header = geometry.journal_header(number);
        let is_written = (0..).zip(header).all(|(at, word)| journal.store(at, word));
        if is_written {
            return Ok(());
        }
        let why = "its pages cannot be written: the drive is full or the file was truncated";
        Err(Error::new(ErrorKind::Transient, "write", path.display(), why).with_hint("free space on that file system"))
    }
}

impl Lease {
    /// Leases a segment, without waiting. `None` if another process has it.
    pub(crate) fn take(folder: &Folder, geometry: &Geometry, number: u32) -> Result<Option<Self>> {
        let chunks = File::open_in_place(folder, &chunks_name(number), geometry.chunks_bytes(number))?;
        if !chunks.try_lock()? {
            return Ok(None);
        }
        let lease = Self {
            chunks: Arc::new(chunks),
            process: Process::this(),
        };
        if let Err(error) = lease.chunks.fill_to_length() {
            // What was reserved so far is of no use.
            let _ = lease.chunks.truncate(0);
            return Err(error);
        }
        Ok(Some(lease))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // A forked child has the same descriptor, and the lease is its parent's.
        if self.process.is_this() {
            self.chunks.unlock();
        }
    }
}

/// Whether a journal belongs to this segment of this tier.
pub(crate) fn has_header(journal: &SharedWords, geometry: &Geometry, number: u32) -> bool {
    let header = geometry.journal_header(number);
    (0..).zip(header).all(|(at, word)| journal.load(at) == Some(word))
}
