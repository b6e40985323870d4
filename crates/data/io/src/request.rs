//! I/Os on an open object of any store, as lanes and engines use them. An engine for files converts each into an I/O on
//! its file, and back.

use std::{io, sync::Arc};

use straightway_core::{Alignment, Place};
use straightway_sys::{Buf, File, IoPath};

pub use straightway_sys::Op;

use crate::handle::{Handle, file};

/// One I/O. It owns its buffer until it is done.
pub type Io = straightway_sys::Io<Arc<dyn Handle>>;

/// A completed I/O.
pub type Done = straightway_sys::Done<Arc<dyn Handle>>;

/// Converts an I/O to one on its file. If its object is not a file, returns it completed with an error.
pub(crate) fn of_file(io: Io) -> Result<straightway_sys::Io, Box<Done>> {
    match file(&io.object) {
        Ok(file) => Ok(io.map(|_| file)),
        Err(error) => Err(Box::new(Done::new(io, Err(io::Error::other(error))))),
    }
}

/// Runs an I/O with a function for files.
pub(crate) fn run_on_file(io: Io, run: impl FnOnce(straightway_sys::Io) -> straightway_sys::Done) -> Done {
    match of_file(io) {
        Ok(io) => run(io).map(handle),
        Err(done) => *done,
    }
}

/// Converts a file to a handle.
pub(crate) fn handle(file: Arc<File>) -> Arc<dyn Handle> {
    file
}

/// The block size of an I/O: it can be continued at a multiple of this.
pub(crate) fn block_bytes(io: &Io) -> u64 {
    let on_gpu = matches!(&io.buf, Buf::Window(w) if matches!(w.region().place(), Place::Gpu(_)));
    match io.by {
        // cuFile requires whole pages, independent of the drive.
        IoPath::Direct if on_gpu => Alignment::PAGE_BYTES,
        IoPath::Direct => io.object.block_bytes(),
        IoPath::PageCache | IoPath::Resident | IoPath::Mapping => 1,
    }
}

/// Converts a length in memory.
pub(crate) fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a chunk fits into memory")
}
