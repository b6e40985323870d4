//! A message header for two pieces, at a stable address.

use std::ptr;

/// A message header and the two pieces that it points to.
#[derive(Debug)]
pub(super) struct Message {
    header: libc::msghdr,
    pieces: [libc::iovec; 2],
}

// SAFETY: the pointers are only values here. They point to data of the operation with the same number, which is itself
// `Send`, and only the kernel dereferences them.
unsafe impl Send for Message {}

const EMPTY: libc::iovec = libc::iovec {
    iov_base: ptr::null_mut(),
    iov_len: 0,
};

impl Default for Message {
    fn default() -> Self {
        Self {
            // SAFETY: a message header is plain numbers and pointers, for which zero is a value.
            header: unsafe { std::mem::zeroed() },
            pieces: [EMPTY; 2],
        }
    }
}

impl Message {
    /// Sets the pieces, by address and length. The returned pointer is valid as long as `self` is not moved.
    pub(super) fn of(&mut self, pieces: [(*mut u8, usize); 2]) -> *mut libc::msghdr {
        self.pieces = pieces.map(|(start, bytes)| libc::iovec {
            iov_base: start.cast(),
            iov_len: bytes,
        });
        self.header.msg_iov = self.pieces.as_mut_ptr();
        self.header.msg_iovlen = 2;
        &raw mut self.header
    }
}
