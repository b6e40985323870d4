//! One I/O on its way: what to do, with which file, and the buffer that it owns.

use std::{io, sync::Arc};

use crate::{
    file::{By, File},
    region::Window,
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
}

impl Buf {
    /// How many bytes it holds.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Slot(slot) => slot.bytes(),
            Self::Window(window) => window.bytes(),
        }
    }

    fn pointer(&self) -> *mut u8 {
        match self {
            Self::Slot(slot) => slot.pointer(),
            Self::Window(window) => window.pointer(),
        }
    }
}

/// One I/O: `bytes` bytes between the file at `offset` and the buffer at `start`.
#[derive(Debug)]
pub struct Io {
    /// Read or write.
    pub op: Op,
    /// With which file.
    pub file: Arc<File>,
    /// By which of its descriptors.
    pub by: By,
    /// Where in the file.
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

impl Io {
    /// Copies `bytes` to the front of its memory, as a read would.
    pub fn fill(&self, bytes: &[u8]) {
        assert!(
            bytes.len() <= self.bytes,
            "an I/O moves no more than it asked for"
        );
        // SAFETY: in bounds, and the I/O owns its memory: no reference to it exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer(), bytes.len()) }
    }

    /// Copies the front of its memory into `bytes`, as a write would.
    pub fn spill(&self, bytes: &mut [u8]) {
        assert!(
            bytes.len() <= self.bytes,
            "an I/O moves no more than it asked for"
        );
        // SAFETY: as in `fill`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(self.pointer(), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// The address of its first byte.
    pub(crate) fn pointer(&self) -> *mut u8 {
        assert!(
            self.start + self.bytes <= self.buf.bytes(),
            "an I/O lies inside its buffer"
        );
        // SAFETY: just asserted to be in bounds.
        unsafe { self.buf.pointer().add(self.start) }
    }
}

/// An I/O that is done: the request, its buffer with it, and how many bytes were moved.
#[derive(Debug)]
pub struct Done {
    /// The I/O as it was submitted.
    pub io: Io,
    /// How many bytes were moved, which may be fewer than asked for.
    pub result: io::Result<usize>,
    /// Whether a read through the page cache found that bytes were missing there. Only the engine
    /// that copies on its own thread can tell.
    pub missed: bool,
}

impl Done {
    /// An I/O that is done, and missed nothing as far as anyone can tell.
    pub fn new(io: Io, result: io::Result<usize>) -> Self {
        Self {
            io,
            result,
            missed: false,
        }
    }
}
