//! I/Os as lanes and engines have them: of an open object of any store. An engine for files turns each into one of its
//! file, and back.

use std::{io, sync::Arc};

use straightway_core::{Alignment, Place};
use straightway_sys::{Buf, By, File};

pub use straightway_sys::Op;

use crate::handle::{Handle, file};

/// One I/O. It owns its buffer until it is done.
pub type Io = straightway_sys::Io<Arc<dyn Handle>>;

/// An I/O that is done.
pub type Done = straightway_sys::Done<Arc<dyn Handle>>;

/// The same I/O of the file that its object is. One of another store comes back done, with an error.
pub(crate) fn of_file(io: Io) -> Result<straightway_sys::Io, Box<Done>> {
    match file(&io.object) {
        Ok(file) => Ok(io.map(|_| file)),
        Err(error) => Err(Box::new(Done::new(io, Err(io::Error::other(error))))),
    }
}

/// Runs an I/O by what knows files.
pub(crate) fn run_on_file(
    io: Io,
    run: impl FnOnce(straightway_sys::Io) -> straightway_sys::Done,
) -> Done {
    match of_file(io) {
        Ok(io) => run(io).map(handle),
        Err(done) => *done,
    }
}

/// A file as the open object that it is.
pub(crate) fn handle(file: Arc<File>) -> Arc<dyn Handle> {
    file
}

/// What an I/O is counted in: it can be continued at a multiple of this.
pub(crate) fn block_bytes(io: &Io) -> u64 {
    let on_gpu = matches!(&io.buf, Buf::Window(w) if matches!(w.region().place(), Place::Gpu(_)));
    match io.by {
        // cuFile wants whole pages, whatever the drive would take.
        By::Direct if on_gpu => Alignment::PAGE_BYTES,
        By::Direct => io.object.block_bytes(),
        By::PageCache | By::Resident | By::Mapping => 1,
    }
}

/// A length inside memory.
pub(crate) fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a chunk fits into memory")
}
