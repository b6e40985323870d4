//! An io_uring whose descriptor may be closed by other code in the process.
//!
//! A program that closes all descriptors it does not know (`os.closerange`, `closefrom`) also closes those of rings. The
//! number may then belong to another file, or to another ring: entries would never be submitted, a registration would go
//! to the wrong ring, and dropping the ring would close the other file. So it can be asked whether the number still
//! belongs to the ring. Every ring has an inode of its own since Linux 5.16; before that, another ring with the same
//! number is not noticed.

use std::{
    mem::{ManuallyDrop, MaybeUninit},
    ops::{Deref, DerefMut},
    os::fd::{AsRawFd, RawFd},
};

use io_uring::IoUring;
use straightway_core::{Error, ErrorKind};

/// An io_uring, and the inode of its descriptor.
pub(super) struct GuardedRing {
    ring: ManuallyDrop<IoUring>,
    inode: Option<(u64, u64)>,
}

impl GuardedRing {
    /// Guards a new ring.
    pub(super) fn new(ring: IoUring) -> Self {
        let inode = inode_of(ring.as_raw_fd());
        Self {
            ring: ManuallyDrop::new(ring),
            inode,
        }
    }

    /// Whether its descriptor still belongs to it. Takes a system call.
    pub(super) fn is_open(&self) -> bool {
        self.inode.is_some() && inode_of(self.ring.as_raw_fd()) == self.inode
    }
}

/// The error for a ring whose descriptor was closed.
pub(super) fn closed() -> Error {
    let message = "other code in this process closed its descriptor";
    Error::new(ErrorKind::Transient, "use", "io_uring", message)
        .with_hint("close only descriptors that you opened (not by `os.closerange` or `closefrom`), and try again")
}

/// The device and the inode of a descriptor; `None` if it is not open.
fn inode_of(number: RawFd) -> Option<(u64, u64)> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the structure has room for the answer. A number that is not open is an error, nothing worse.
    let stat = unsafe {
        if libc::fstat(number, stat.as_mut_ptr()) != 0 {
            return None;
        }
        stat.assume_init()
    };
    Some((stat.st_dev, stat.st_ino))
}

impl Deref for GuardedRing {
    type Target = IoUring;

    fn deref(&self) -> &IoUring {
        &self.ring
    }
}

impl DerefMut for GuardedRing {
    fn deref_mut(&mut self) -> &mut IoUring {
        &mut self.ring
    }
}

impl Drop for GuardedRing {
    fn drop(&mut self) {
        if self.is_open() {
            // SAFETY: it is dropped once, here, and not used again.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
        // Otherwise its number may be that of another file. The ring's memory, which keeps the ring alive, is leaked.
    }
}
