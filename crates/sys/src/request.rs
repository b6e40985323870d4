//! One I/O on its way: what to do, with which object, and the buffer that it owns.
//!
//! What runs I/Os here knows files. Other stores have handles of their own, hence the parameter: an I/O that names its
//! object another way is turned into one that names a file by [`Io::map`], and back.

use std::{io, sync::Arc};

use crate::{
    file::{By, File},
    region::Window,
    shared::{self, folded::Folded},
    slot::Slot,
};

/// What an I/O does.
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
    /// No memory: the bytes at the same offset of another file, which are written without a buffer of ours.
    File(Arc<File>),
}

impl Buf {
    /// How many bytes it holds.
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
    /// Read or write.
    pub op: Op,
    /// With which object.
    pub object: H,
    /// By which of a file's descriptors.
    pub by: By,
    /// Where in the object.
    pub offset: u64,
    /// With which memory.
    pub buf: Buf,
    /// Where in that memory.
    pub start: usize,
    /// How many bytes.
    pub bytes: usize,
    /// The submitter's own number for it, given back when it is done.
    pub tag: u32,
}

impl<H> Io<H> {
    /// The same I/O, with its object named another way.
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

    /// Copies `bytes` to the front of its memory, as a read would.
    pub fn fill(&mut self, bytes: &[u8]) {
        self.fill_from(0, bytes);
    }

    /// Copies `bytes` into its memory from its byte `from` on.
    pub fn fill_from(&mut self, from: usize, bytes: &[u8]) {
        let end = from.checked_add(bytes.len());
        self.check_length(end.unwrap_or(usize::MAX));
        // SAFETY: in bounds; `&mut self` means that `bytes` is not its slot's, and of a region no reference exists while
        // a window does. Other windows of the same bytes make a race that `shared::copy` allows.
        unsafe { shared::copy(self.pointer().add(from), bytes.as_ptr(), bytes.len()) }
    }

    /// Copies the front of its memory into `bytes`, as a write would.
    pub fn spill(&self, bytes: &mut [u8]) {
        self.spill_from(0, bytes);
    }

    /// Copies its memory from its byte `from` on into `bytes`.
    pub fn spill_from(&self, from: usize, bytes: &mut [u8]) {
        let end = from.checked_add(bytes.len());
        self.check_length(end.unwrap_or(usize::MAX));
        // SAFETY: as in `fill_from`, the other way round: `bytes` is exclusive, so it is no memory of this I/O.
        unsafe { shared::copy(bytes.as_mut_ptr(), self.pointer().add(from), bytes.len()) }
    }

    /// A few bytes that have the same CRC-64/NVME as its first `bytes`. `None` where this processor cannot make them.
    pub fn folded(&self, bytes: usize) -> Option<Folded> {
        self.check_length(bytes);
        // SAFETY: in bounds, and read as `spill_from` reads them.
        unsafe { Folded::of(self.pointer(), bytes) }
    }

    fn check_length(&self, bytes: usize) {
        assert!(
            bytes <= self.bytes,
            "an I/O moves no more than it asked for"
        );
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

/// An I/O that is done: the request, its buffer with it, and how many bytes were moved.
#[derive(Debug)]
pub struct Done<H = Arc<File>> {
    /// The I/O as it was submitted.
    pub io: Io<H>,
    /// How many bytes were moved, which may be fewer than asked for.
    pub result: io::Result<usize>,
    /// Whether a read through the page cache found that bytes were missing there. Only the engine
    /// that copies on its own thread can tell.
    pub missed: bool,
    /// Whether its bytes came from a local cache of what a remote store has.
    pub is_from_cache: bool,
    /// What it took, where requests over a network may be repeated.
    pub tries: Tries,
}

/// What it took to complete an I/O over a network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// Requests that were sent again after a failure.
    pub retries: u32,
    /// Requests that were sent a second time because the first one was slow.
    pub hedges_sent: u32,
    /// Those of them that were answered first.
    pub hedges_won: u32,
}

impl<H> Done<H> {
    /// The same, with its object named another way.
    pub fn map<T>(self, name: impl FnOnce(H) -> T) -> Done<T> {
        Done {
            io: self.io.map(name),
            result: self.result,
            missed: self.missed,
            is_from_cache: self.is_from_cache,
            tries: self.tries,
        }
    }

    /// An I/O that is done, and missed nothing as far as anyone can tell.
    pub fn new(io: Io<H>, result: io::Result<usize>) -> Self {
        Self {
            io,
            result,
            missed: false,
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
            by: By::PageCache,
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
    fn an_io_outside_its_buffer_is_our_mistake_however_large_its_numbers_are() {
        for (start, bytes) in [
            (4096, 1),
            (usize::MAX, 2),
            (2, usize::MAX),
            (usize::MAX, usize::MAX),
        ] {
            let outside = io(start, bytes);
            let caught =
                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| outside.pointer()));
            assert!(caught.is_err(), "{start} {bytes}");
        }
    }
}
