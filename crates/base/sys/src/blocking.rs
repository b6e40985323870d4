//! Blocking I/O by `pread` and `pwrite`, or as a copy from or to a mapping.

use std::{
    io,
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
};

use rustix::{fs::copy_file_range, io::Errno};
use straightway_core::Extent;

use crate::{
    file::{File, IoPath},
    region::Window,
    request::{Buf, Done, Io, Op},
    residency::is_resident,
};

/// The shortest read through a mapping. For shorter ones a system call costs less than two changes of the page tables.
const MAPPED_BYTES_MIN: usize = 1 << 20;

/// The buffer between two files that the kernel does not copy between.
const BOUNCE_BYTES: usize = 256 << 10;

/// Runs `io` and waits for it. An interrupted call is repeated.
///
/// A read of bytes that are expected in the page cache is first tried without waiting. The bytes that it
/// returns were resident, which no earlier query can guarantee; the caller reads the rest as usual. If it returns none,
/// they are read as usual, and count as missed.
pub fn run(io: Io) -> Done {
    if let Buf::File(source) = &io.buf {
        let source = Arc::clone(source);
        return copy_between_files(io, &source);
    }
    if (io.op, io.by) == (Op::Write, IoPath::Mapping) && copy_into_mapping(&io) {
        let moved = io.bytes;
        return Done::new(io, Ok(moved));
    }
    let fd = io.object.descriptor(io.by).as_raw_fd();
    let Ok(offset) = libc::off_t::try_from(io.offset) else {
        return Done::new(io, Err(io::ErrorKind::InvalidInput.into()));
    };
    if (io.op, io.by) == (Op::Read, IoPath::Resident) {
        return read_resident(io, fd, offset);
    }
    wait(io, fd, offset)
}

/// Reads bytes that are expected in the page cache.
fn read_resident(io: Io, fd: RawFd, offset: libc::off_t) -> Done {
    let into_region = matches!(io.buf, Buf::Window(_));
    let is_mappable = into_region && io.bytes >= MAPPED_BYTES_MIN;
    let is_there = |io: &Io| is_resident(&io.object, Extent::new(io.offset, io.bytes as u64));
    if is_mappable && is_there(&io) && copy_from_mapping(&io) {
        let moved = io.bytes;
        return Done::new(io, Ok(moved));
    }
    if io.object.reads_nowait() {
        match read_nowait(&io, fd, offset) {
            // 0 is the end of the file, or a file system without support: read as usual.
            Ok(0) => return wait(io, fd, offset),
            // All of them, or those before the first that is missing.
            Ok(moved) => return Done::new(io, Ok(moved)),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => io.object.note_no_nowait(),
            Err(error) => {
                let missed = error.kind() == io::ErrorKind::WouldBlock;
                let done = wait(io, fd, offset);
                return Done { missed, ..done };
            }
        }
    }
    // The read cannot show it, so it is asked for right before.
    let missed = is_mappable || !is_there(&io);
    let done = wait(io, fd, offset);
    Done { missed, ..done }
}

/// Reads bytes that are all in the page cache, into host memory, without waiting for a drive. Returns the number of
/// reads that took; `None` if one of the bytes is not there, or cannot be read. Part of the window was then written.
pub fn read_now(file: &Arc<File>, offset: u64, into: Window) -> Option<u64> {
    let mut io = Io {
        op: Op::Read,
        object: Arc::clone(file),
        by: IoPath::Resident,
        offset,
        start: 0,
        bytes: into.bytes(),
        buf: Buf::Window(into),
        tag: 0,
    };
    let fd = file.descriptor(IoPath::PageCache).as_raw_fd();
    let mut reads = 0;
    while io.bytes > 0 {
        let moved = read_part_now(&io, fd, libc::off_t::try_from(io.offset).ok()?)?;
        reads += u64::from(moved > 0);
        io.offset += moved as u64;
        io.start += moved;
        io.bytes -= moved;
    }
    Some(reads)
}

/// Reads the first of these bytes that are in the page cache.
fn read_part_now(io: &Io, fd: RawFd, offset: libc::off_t) -> Option<usize> {
    if io.object.reads_nowait() {
        match read_nowait(io, fd, offset) {
            Ok(moved) => return Some(moved).filter(|moved| *moved > 0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Some(0),
            Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => io.object.note_no_nowait(),
            Err(_) => return None,
        }
    }
    // The read cannot show it. Memory is never waited for; otherwise it is asked for right before.
    let is_there = io.object.is_in_memory() || is_resident(&io.object, Extent::new(io.offset, io.bytes as u64));
    if !is_there {
        return None;
    }
    once_uninterrupted(io, fd, offset).ok().filter(|moved| *moved > 0)
}

/// Copies resident bytes from a mapping, bypassing the CPU cache. Only for targets in the region: a slot of
/// the ring should stay in the CPU cache. Returns whether the bytes were copied.
fn copy_from_mapping(io: &Io) -> bool {
    let mapping = io.object.mapping();
    // SAFETY: the target is in bounds and kept by `io`. Windows may overlap; the copy allows that race.
    mapping.is_some_and(|mapping| unsafe { mapping.copy(io.offset, io.pointer(), io.bytes) })
}

/// Copies into a mapping of the file. Returns whether it succeeded. If not, a write by a system call reports the error.
fn copy_into_mapping(io: &Io) -> bool {
    let target = io.object.target();
    // SAFETY: the source is in bounds and kept by `io`. Windows may overlap; the copy allows that race.
    target.is_some_and(|target| unsafe { target.fill(io.offset, io.pointer(), io.bytes) })
}

/// Copies from another file at the same offset: through mappings of both, or in the kernel. If neither is possible it
/// uses a buffer and sets `is_buffered_copy`.
fn copy_between_files(io: Io, source: &File) -> Done {
    if io.by == IoPath::Mapping
        && let (Some(from), Some(to)) = (source.mapping(), io.object.target())
        && to.fill_from(from, io.offset, io.bytes)
    {
        let moved = io.bytes;
        return Done::new(io, Ok(moved));
    }
    let (from, to) = (
        source.descriptor(IoPath::PageCache),
        io.object.descriptor(IoPath::PageCache),
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
    let result = copy_through_buffer(&io, source);
    Done {
        is_buffered_copy: true,
        ..Done::new(io, result)
    }
}

/// Reads from one file and writes to another, up to the length of one buffer.
fn copy_through_buffer(io: &Io, source: &File) -> io::Result<usize> {
    let mut buffer = vec![0; io.bytes.min(BOUNCE_BYTES)];
    let read = rustix::io::pread(source.descriptor(IoPath::PageCache), &mut buffer, io.offset)?;
    if read == 0 {
        return Ok(0);
    }
    let to = io.object.descriptor(IoPath::PageCache);
    Ok(rustix::io::pwrite(to, &buffer[..read], io.offset)?)
}

/// Reads only bytes that are in the page cache.
fn read_nowait(io: &Io, fd: RawFd, offset: libc::off_t) -> io::Result<usize> {
    let part = libc::iovec {
        iov_base: io.pointer().cast(),
        iov_len: io.bytes,
    };
    // SAFETY: the descriptor is open (the file owns it), and the buffer is in bounds and kept by `io`. The kernel writes
    // to it, so that a window that overlaps it is a race outside of Rust.
    let moved = unsafe { libc::preadv2(fd, &raw const part, 1, offset, libc::RWF_NOWAIT) };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

fn wait(io: Io, fd: RawFd, offset: libc::off_t) -> Done {
    let result = once_uninterrupted(&io, fd, offset);
    Done::new(io, result)
}

/// Moves bytes by one system call, which is repeated if it was interrupted.
fn once_uninterrupted(io: &Io, fd: RawFd, offset: libc::off_t) -> io::Result<usize> {
    let pointer = io.pointer();
    loop {
        // SAFETY: as in `read_nowait`.
        let moved = unsafe {
            match io.op {
                Op::Read => libc::pread(fd, pointer.cast(), io.bytes, offset),
                Op::Write => libc::pwrite(fd, pointer.cast(), io.bytes, offset),
            }
        };
        let result = usize::try_from(moved).map_err(|_| io::Error::last_os_error());
        match result {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
