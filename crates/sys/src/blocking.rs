//! An I/O run here and now, by `pread` or `pwrite`, or as a copy out of a mapping.

use std::{
    io,
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
};

use rustix::{fs::copy_file_range, io::Errno};
use straightway_core::Extent;

use crate::{
    file::{By, File},
    request::{Buf, Done, Io, Op},
    residency::is_resident,
};

/// Shorter reads than this cost less by a system call than by two changes of the page tables.
const MAPPED_BYTES_MIN: usize = 1 << 20;

/// The buffer between two files that the kernel does not copy between.
const BOUNCE_BYTES: usize = 256 << 10;

/// Runs `io` and waits for it. An interrupted call is begun again.
///
/// A read of what is taken to be resident is first asked for without waiting: what comes back so was
/// resident, which no question asked beforehand can promise. The rest is then read as usual.
pub fn run(io: Io) -> Done {
    if let Buf::File(source) = &io.buf {
        let source = Arc::clone(source);
        return between_files(io, &source);
    }
    if (io.op, io.by) == (Op::Write, By::Mapping) && into_mapping(&io) {
        let moved = io.bytes;
        return Done::new(io, Ok(moved));
    }
    let fd = io.object.descriptor(io.by).as_raw_fd();
    let Ok(offset) = libc::off_t::try_from(io.offset) else {
        return Done::new(io, Err(io::ErrorKind::InvalidInput.into()));
    };
    if (io.op, io.by) == (Op::Read, By::Resident) {
        if from_mapping(&io) {
            let moved = io.bytes;
            return Done::new(io, Ok(moved));
        }
        match at_once(&io, fd, offset) {
            Ok(moved) if moved == io.bytes => return Done::new(io, Ok(moved)),
            // Nothing more may mean the file's end or a file system that cannot tell: ask again.
            Ok(0) => {}
            Ok(moved) => {
                let done = Done::new(io, Ok(moved));
                return Done {
                    missed: true,
                    ..done
                };
            }
            Err(error) => {
                let missed = error.kind() == io::ErrorKind::WouldBlock;
                let done = wait(io, fd, offset);
                return Done { missed, ..done };
            }
        }
    }
    wait(io, fd, offset)
}

/// Copies what is in the page cache out of a mapping, past the processor's cache. Only into the
/// region itself: a slot of the ring is meant to stay in that cache. Answers whether it did.
fn from_mapping(io: &Io) -> bool {
    let into_region = matches!(io.buf, Buf::Window(_));
    let extent = Extent::new(io.offset, io.bytes as u64);
    if !into_region || io.bytes < MAPPED_BYTES_MIN || !is_resident(&io.object, extent) {
        return false;
    }
    let mapping = io.object.mapping();
    // SAFETY: the target is in bounds, owned by `io`, and touched by nobody else.
    mapping.is_some_and(|mapping| unsafe { mapping.copy(io.offset, io.pointer(), io.bytes) })
}

/// Copies into a mapping of the file. Answers whether it did: a write by a system call then says why not.
fn into_mapping(io: &Io) -> bool {
    let target = io.object.target();
    // SAFETY: the source is in bounds, owned by `io`, and written to by nobody else.
    target.is_some_and(|target| unsafe { target.fill(io.offset, io.pointer(), io.bytes) })
}

/// Writes what another file has at the same offset: through mappings of both, or by the kernel. Where neither can, by
/// way of a buffer, which `missed` says.
fn between_files(io: Io, source: &File) -> Done {
    if io.by == By::Mapping
        && let (Some(from), Some(to)) = (source.mapping(), io.object.target())
        && to.fill_from(from, io.offset, io.bytes)
    {
        let moved = io.bytes;
        return Done::new(io, Ok(moved));
    }
    let (from, to) = (
        source.descriptor(By::PageCache),
        io.object.descriptor(By::PageCache),
    );
    let mut moved = 0;
    while moved < io.bytes {
        let at = io.offset + moved as u64;
        let (mut read_at, mut write_at) = (at, at);
        let places = (Some(&mut read_at), Some(&mut write_at));
        match copy_file_range(from, places.0, to, places.1, io.bytes - moved) {
            Ok(0) => break,
            Ok(more) => moved += more,
            Err(Errno::INTR) => {}
            Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::PERM) => {
                break;
            }
            Err(errno) if moved == 0 => return Done::new(io, Err(errno.into())),
            Err(_) => break,
        }
    }
    if moved > 0 {
        return Done::new(io, Ok(moved));
    }
    let result = by_way_of_a_buffer(&io, source);
    Done {
        missed: true,
        ..Done::new(io, result)
    }
}

/// Reads from one file and writes to another, as much as one buffer holds.
fn by_way_of_a_buffer(io: &Io, source: &File) -> io::Result<usize> {
    let mut buffer = vec![0; io.bytes.min(BOUNCE_BYTES)];
    let read = rustix::io::pread(source.descriptor(By::PageCache), &mut buffer, io.offset)?;
    if read == 0 {
        return Ok(0);
    }
    let to = io.object.descriptor(By::PageCache);
    Ok(rustix::io::pwrite(to, &buffer[..read], io.offset)?)
}

/// Reads what is in the page cache, and no more.
fn at_once(io: &Io, fd: RawFd, offset: libc::off_t) -> io::Result<usize> {
    let part = libc::iovec {
        iov_base: io.pointer().cast(),
        iov_len: io.bytes,
    };
    // SAFETY: the descriptor is open (the file owns it), and the buffer is in bounds, owned by
    // `io`, and not touched by anyone else until this returns.
    let moved = unsafe { libc::preadv2(fd, &raw const part, 1, offset, libc::RWF_NOWAIT) };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

fn wait(io: Io, fd: RawFd, offset: libc::off_t) -> Done {
    let pointer = io.pointer();
    loop {
        // SAFETY: as in `at_once`.
        let moved = unsafe {
            match io.op {
                Op::Read => libc::pread(fd, pointer.cast(), io.bytes, offset),
                Op::Write => libc::pwrite(fd, pointer.cast(), io.bytes, offset),
            }
        };
        let result = usize::try_from(moved).map_err(|_| io::Error::last_os_error());
        match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return Done::new(io, result),
        }
    }
}
