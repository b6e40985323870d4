//! What the kernel lets this process do, found out by doing it.

use straightway_core::{Error, Result};

/// Whether `io_uring` may be used. Containers forbid the system call by default, which no file
/// tells: only asking for a ring does.
pub fn io_uring() -> Result<()> {
    // Two entries: the smallest ring there is; it is dropped at once.
    let ring = io_uring::IoUring::new(2).map(drop);
    ring.map_err(|e| Error::os("set up", "an io_uring", e))
}
