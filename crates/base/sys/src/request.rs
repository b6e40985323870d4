//! One I/O: its operation, its object, and the buffer that it owns.
//!
//! The engines of this crate work on files. Other stores have other handles, hence the type parameter: [`Io::map`]
//! converts an I/O on another handle to one on a file, and back.

use std::{io, sync::Arc};

use crate::{
    file::{File, IoPath},
    region::Window,
    shared::{self, folded::Folded},
    slot::Slot,
};

/// The operation of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// From the file into the buffer.
    Read,
    /// From the buffer into the file.
    Write,
}

/// The memory of an I/O. The I/O owns it until it is done.
#[derive(Debug)]
pub enum Buf {
    /// A slot of the ring.
    Slot(Slot),
    /// A part of the region itself.
    Window(Window),
    /// No memory: the bytes at the same offset of another file, which are written without a user-space buffer.
    File(Arc<File>),
}

impl Buf {
    /// Its length.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Slot(slot) => slot.bytes(),
            Self::Window(window) => window.bytes(),
            Self::File(_) => usize::MAX,
        }
    }

    fn pointer(&self) -> *mut u8 {
        match self {
            Self::Slot(slot) => slot.pointer(),
            Self::Window(window) => window.pointer(),
            Self::File(_) => unreachable!("only I/Os between files have no memory"),
        }
    }
}

/// One I/O: `bytes` bytes between the object at `offset` and the buffer at `start`.
#[derive(Debug)]
pub struct Io<H = Arc<File>> {
    /// The operation.
    pub op: Op,
    /// The object.
    pub object: H,
    /// The way in which it accesses a file.
    pub by: IoPath,
    /// The offset in the object.
    pub offset: u64,
    /// The memory.
    pub buf: Buf,
    /// The offset in the memory.
    pub start: usize,
    /// The number of bytes.
    pub bytes: usize,
    /// The submitter's number for it, which the completion returns.
    pub tag: u32,
}

impl<H> Io<H> {
    /// Converts the object handle.
    pub fn map<T>(self, name: impl FnOnce(H) -> T) -> Io<T> {
        let Self {
            op,
            object,
            by,
            offset,
            buf,
            start,
            bytes,
            tag,
        } = self;
        Io {
            op,
            object: name(object),
            by,
            offset,
            buf,
            start,
            bytes,
            tag,
        }
    }

    /// Copies `bytes` to the start of its memory, as a read would.
    pub fn fill(&mut self, bytes: &[u8]) {
        self.fill_from(0, bytes);
    }

    /// Copies `bytes` to offset `from` of its memory.
    pub fn fill_from(&mut self, from: usize, bytes: &[u8]) {
        let end = from.checked_add(bytes.len());
        self.check_length(end.unwrap_or(usize::MAX));
        // SAFETY: in bounds; `&mut self` means that `bytes` is not part of its slot, and no reference to a region
        // exists while a window does. Other windows of the same bytes race, which `shared::copy` allows.
        unsafe { shared::copy(self.pointer().add(from), bytes.as_ptr(), bytes.len()) }
    }

    /// Fills `bytes` from the start of its memory, as a write would.
    pub fn spill(&self, bytes: &mut [u8]) {
        self.spill_from(0, bytes);
    }

    /// Fills `bytes` from offset `from` of its memory.
    pub fn spill_from(&self, from: usize, bytes: &mut [u8]) {
        let end = from.checked_add(bytes.len());
        self.check_length(end.unwrap_or(usize::MAX));
        // SAFETY: as in `fill_from`, in the other direction: `bytes` is exclusive, so it is not memory of this I/O.
        unsafe { shared::copy(bytes.as_mut_ptr(), self.pointer().add(from), bytes.len()) }
    }

    /// A short form of its first `bytes` with the same CRC-64/NVME. `None` if this CPU does not support it.
    pub fn folded(&self, bytes: usize) -> Option<Folded> {
        self.check_length(bytes);
        // SAFETY: in bounds, and read as `spill_from` reads them.
        unsafe { Folded::of(self.pointer(), bytes) }
    }

    fn check_length(&self, bytes: usize) {
        assert!(bytes <= self.bytes, "an I/O does not move more than it requested");
    }

    /// The address of its first byte.
    pub(crate) fn pointer(&self) -> *mut u8 {
        let end = self.start.checked_add(self.bytes);
        assert!(
            end.is_some_and(|end| end <= self.buf.bytes()),
            "an I/O lies inside its buffer"
        );
        // SAFETY: just asserted to be in bounds.
        unsafe { self.buf.pointer().add(self.start) }
    }
}

/// A completed I/O: the request with its buffer, and the result.
#[derive(Debug)]
pub struct Done<H = Arc<File>> {
    /// The I/O as it was submitted.
    pub io: Io<H>,
    /// The number of bytes moved, which may be less than requested.
    pub result: io::Result<usize>,
    /// Whether bytes that were expected in the page cache ([`IoPath::Resident`]) were not there. Otherwise all bytes that
    /// it moved were, and if these are fewer than requested, the next one was not.
    pub missed: bool,
    /// Whether a copy between files went through a buffer, because the kernel does not copy between them.
    pub is_buffered_copy: bool,
    /// Whether its bytes came from the local cache of a remote store.
    pub is_from_cache: bool,
    /// Its retries and hedges, for requests over a network.
    pub tries: Tries,
}

/// Retries and hedges of an I/O over a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// Requests that were retried after a failure.
    pub retries: u32,
    /// Hedges: requests that were sent a second time because the first attempt was slow.
    pub hedges_sent: u32,
    /// Hedges that were answered before the first attempt.
    pub hedges_won: u32,
}

impl<H> Done<H> {
    /// Converts the object handle.
    pub fn map<T>(self, name: impl FnOnce(H) -> T) -> Done<T> {
        Done {
            io: self.io.map(name),
            result: self.result,
            missed: self.missed,
            is_buffered_copy: self.is_buffered_copy,
            is_from_cache: self.is_from_cache,
            tries: self.tries,
        }
    }

    /// A completed I/O without misses, cache hits or retries.
    pub fn new(io: Io<H>, result: io::Result<usize>) -> Self {
        Self {
            io,
            result,
            missed: false,
            is_buffered_copy: false,
            is_from_cache: false,
            tries: Tries::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io(start: usize, bytes: usize) -> Io {
        Io {
            op: Op::Read,
            object: Arc::new(File::open(tempfile::NamedTempFile::new().unwrap().path()).unwrap()),
            by: IoPath::PageCache,
            offset: 0,
            buf: Buf::Slot(Slot::ring(1, 4096).unwrap().remove(0)),
            start,
            bytes,
            tag: 0,
        }
    }

    #[test]
    fn an_io_fills_and_spills_inside_its_buffer() {
        let mut one = io(4090, 6);
        one.fill(b"abcdef");
        let mut seen = [0; 4];
        one.spill(&mut seen);
        assert_eq!(&seen, b"abcd");
    }

    #[test]
    fn an_io_outside_its_buffer_panics_even_if_its_range_overflows() {
        for (start, bytes) in [(4096, 1), (usize::MAX, 2), (2, usize::MAX), (usize::MAX, usize::MAX)] {
            let outside = io(start, bytes);
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| outside.pointer()));
            assert!(caught.is_err(), "{start} {bytes}");
        }
    }
}
