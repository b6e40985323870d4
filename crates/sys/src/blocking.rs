//! An I/O run here and now, by `pread` or `pwrite`.

use std::{io, os::fd::AsRawFd};

use crate::request::{Done, Io, Op};

/// Runs `io` and waits for it. An interrupted call is begun again.
pub fn run(io: Io) -> Done {
    let fd = io.file.descriptor(io.by).as_raw_fd();
    let pointer = io.pointer();
    let Ok(offset) = libc::off_t::try_from(io.offset) else {
        return Done {
            io,
            result: Err(io::ErrorKind::InvalidInput.into()),
        };
    };
    loop {
        // SAFETY: the descriptor is open (the file owns it), and the buffer is in bounds, owned by
        // `io`, and not touched by anyone else until this returns.
        let moved = unsafe {
            match io.op {
                Op::Read => libc::pread(fd, pointer.cast(), io.bytes, offset),
                Op::Write => libc::pwrite(fd, pointer.cast(), io.bytes, offset),
            }
        };
        let result = usize::try_from(moved).map_err(|_| io::Error::last_os_error());
        match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return Done { io, result },
        }
    }
}
