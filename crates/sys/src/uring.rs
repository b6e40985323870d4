//! io_uring: many I/Os on their way, few system calls.
//!
//! [`Uring::submit`] only writes a queue entry; [`Uring::poll`] hands all new entries to the kernel
//! and takes all completions, in one call. Files and ring slots are registered on first sight, so
//! that the kernel looks neither up nor pins for each I/O; the pages of a region are used once each
//! and gain nothing from it.
//!
//! A buffer in flight belongs to the kernel. It sits in the table of this type until its completion
//! arrives, and dropping a `Uring` waits for that.

use std::{io, os::fd::AsRawFd, time::Duration};

use io_uring::{IoUring, opcode, squeue, types};
use straightway_core::{Error, Kind, Result};

use crate::{
    file::By,
    request::{Buf, Done, Io, Op},
};

/// At most this many I/Os in flight on one ring.
pub const DEPTH_MAX: u32 = 4096;

/// Files registered at once; the least recently registered gives way.
const FILES: u32 = 256;

/// Ring memories registered at once. A lane has one.
const BUFFERS: u32 = 4;

/// The largest buffer that the kernel lets be registered.
const BUFFER_BYTES_MAX: usize = 1 << 30;

/// An io_uring with its in-flight table.
pub struct Uring {
    ring: IoUring,
    flying: Vec<Option<Io>>,
    free: Vec<u32>,
    files: Registered<(u64, By)>,
    buffers: Registered<u64>,
    system_calls: u64,
}

/// What is registered where, by slot; `next` is the slot that gives way.
struct Registered<T> {
    keys: Vec<Option<T>>,
    next: usize,
}

impl<T: PartialEq + Copy> Registered<T> {
    fn new(slots: u32) -> Self {
        Self {
            keys: vec![None; slots as usize],
            next: 0,
        }
    }

    fn find(&self, key: T) -> Option<u16> {
        // A transfer uses few of each, and they are found at the front.
        self.keys.iter().position(|k| *k == Some(key)).map(number)
    }

    /// The slot to register `key` in, if there are any.
    fn give_way(&mut self) -> Option<u16> {
        let slots = self.keys.len();
        let slot = self.next.checked_rem(slots)?;
        self.next = slot + 1;
        self.keys[slot] = None;
        Some(number(slot))
    }
}

/// The number of a slot: there are few.
fn number(slot: usize) -> u16 {
    u16::try_from(slot).expect("a table has under 2^16 slots")
}

impl Uring {
    /// A ring for `depth` I/Os at a time.
    pub fn new(depth: u32) -> Result<Self> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let refused = |source: io::Error| {
            let (kind, hint) = match source.raw_os_error() {
                Some(libc::ENOSYS | libc::EPERM | libc::EACCES) => (
                    Kind::Unsupported,
                    "sysctl kernel.io_uring_disabled=0, or a seccomp profile that allows it",
                ),
                // Its queues count as locked memory, of which a user may have none.
                Some(libc::ENOMEM) => (
                    Kind::Unsupported,
                    "let the process lock more memory (`ulimit -l`), or ask for fewer lanes",
                ),
                _ => (Kind::Transient, "ask for fewer lanes, or a smaller depth"),
            };
            Error::new(kind, "set up", "io_uring", source.to_string()).with_hint(hint)
        };
        // One thread uses a ring, so completions may wait until it asks for them (Linux 6.1).
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(depth)
            .or_else(|_| IoUring::new(depth))
            .map_err(refused)?;
        let files = ring
            .submitter()
            .register_files_sparse(FILES)
            .map_or(0, |()| FILES);
        let buffers = ring
            .submitter()
            .register_buffers_sparse(BUFFERS)
            .map_or(0, |()| BUFFERS);
        Ok(Self {
            ring,
            flying: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            files: Registered::new(files),
            buffers: Registered::new(buffers),
            system_calls: 0,
        })
    }

    /// Takes an I/O on; gives it back when the queue is full.
    pub fn submit(&mut self, io: Io) -> Result<(), Io> {
        let Some(&number) = self.free.last() else {
            return Err(io);
        };
        let entry = self.entry(&io).user_data(u64::from(number));
        // SAFETY: the entry's descriptor and buffer are kept alive in `flying` until its
        // completion, and the buffer is owned by the I/O, so nobody else touches it.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(io);
        }
        self.free.pop();
        self.flying[number as usize] = Some(io);
        Ok(())
    }

    /// Hands new I/Os to the kernel, waits for at least `want` completions (or the time-out), and
    /// takes all that are there. Answers how many.
    pub fn poll(&mut self, done: &mut Vec<Done>, want: usize, timeout: Duration) -> Result<usize> {
        let want = want.min(self.in_flight());
        let time = types::Timespec::from(timeout);
        let args = types::SubmitArgs::new().timespec(&time);
        self.system_calls += 1;
        match self.ring.submitter().submit_with_args(want, &args) {
            Ok(_) => {}
            // Nothing was ready in time, or a signal came: what is there is still taken.
            Err(e)
                if matches!(
                    e.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) => {}
            Err(e) => return Err(Error::os("submit to", "io_uring", e)),
        }
        let before = done.len();
        for completion in self.ring.completion() {
            let number = u32::try_from(completion.user_data()).expect("we gave it a u32");
            let io = self.flying[number as usize]
                .take()
                .expect("a number flies once");
            self.free.push(number);
            let result = usize::try_from(completion.result())
                .map_err(|_| io::Error::from_raw_os_error(-completion.result()));
            done.push(Done::new(io, result));
        }
        Ok(done.len() - before)
    }

    /// How many I/Os are in flight.
    pub fn in_flight(&self) -> usize {
        self.flying.len() - self.free.len()
    }

    /// How often it has called the kernel to hand over and wait.
    pub fn system_calls(&self) -> u64 {
        self.system_calls
    }

    /// How many can be.
    pub fn depth(&self) -> usize {
        self.flying.len()
    }

    /// Lets go of the registered files: a registration keeps a file open.
    pub fn forget_files(&mut self) {
        for (slot, key) in (0..).zip(&mut self.files.keys) {
            if key.take().is_some() {
                // A slot that cannot be cleared is overwritten by the next registration.
                let _ = self.ring.submitter().register_files_update(slot, &[-1]);
            }
        }
    }

    fn entry(&mut self, io: &Io) -> squeue::Entry {
        let pointer = io.pointer();
        let bytes = u32::try_from(io.bytes).expect("chunks are under 2 GiB");
        let buffer = self.buffer_index(io);
        let fd = types::Fd(io.file.descriptor(io.by).as_raw_fd());
        let fixed = self.file_index(io).map(types::Fixed);
        // The builders differ by type, so the four cases are spelled out.
        macro_rules! build {
            ($op:ident $(, $extra:expr)?) => {
                match fixed {
                    Some(file) => opcode::$op::new(file, pointer, bytes $(, $extra)?).offset(io.offset).build(),
                    None => opcode::$op::new(fd, pointer, bytes $(, $extra)?).offset(io.offset).build(),
                }
            };
        }
        match (io.op, buffer) {
            (Op::Read, None) => build!(Read),
            (Op::Write, None) => build!(Write),
            (Op::Read, Some(index)) => build!(ReadFixed, index),
            (Op::Write, Some(index)) => build!(WriteFixed, index),
        }
    }

    /// The registered slot of the I/O's file, registering it on first sight.
    fn file_index(&mut self, io: &Io) -> Option<u32> {
        let key = (io.file.id(), io.by);
        if let Some(slot) = self.files.find(key) {
            return Some(slot.into());
        }
        let slot = self.files.give_way()?;
        let fd = io.file.descriptor(io.by).as_raw_fd();
        // The kernel keeps a replaced file alive for the I/Os that still use it.
        self.ring
            .submitter()
            .register_files_update(slot.into(), &[fd])
            .ok()?;
        self.files.keys[usize::from(slot)] = Some(key);
        Some(slot.into())
    }

    /// The registered buffer that holds the I/O's slot, registering its memory on first sight.
    fn buffer_index(&mut self, io: &Io) -> Option<u16> {
        let Buf::Slot(slot) = &io.buf else {
            return None;
        };
        let memory = slot.memory();
        if let Some(place) = self.buffers.find(memory.id()) {
            return Some(place);
        }
        if memory.bytes() > BUFFER_BYTES_MAX {
            return None;
        }
        let place = self.buffers.give_way()?;
        let iovec = libc::iovec {
            iov_base: memory.start().as_ptr().cast(),
            iov_len: memory.bytes(),
        };
        // SAFETY: the memory stays mapped while any slot of it lives; the kernel pins its pages, so
        // even an unmapped buffer would not dangle, and it is only used by I/Os that own a slot.
        let registered = unsafe {
            self.ring
                .submitter()
                .register_buffers_update(place.into(), &[iovec], None)
        };
        // Refused for RLIMIT_MEMLOCK, most likely: the I/O then goes unregistered, and slower.
        registered.ok()?;
        self.buffers.keys[usize::from(place)] = Some(memory.id());
        Some(place)
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The kernel still writes to the buffers of what is in flight. Should it not answer within
        // a minute, leaking them is the one safe thing left.
        let mut done = Vec::new();
        for _ in 0..60 {
            if self.in_flight() == 0 {
                return;
            }
            let _ = self.poll(&mut done, 1, Duration::from_secs(1));
        }
        std::mem::forget(std::mem::take(&mut self.flying));
    }
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "Uring {{ in flight: {} of {} }}",
            self.in_flight(),
            self.depth()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{file::File, slot::Slot};

    #[test]
    fn at_depth_one_system_call_serves_many_ios() {
        let mut uring = match Uring::new(32) {
            Ok(uring) => uring,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![3; 4096]).unwrap();
        let file = Arc::new(File::open(&path).unwrap());
        let mut done = Vec::new();
        for _ in 0..10 {
            for (tag, slot) in (0..).zip(Slot::ring(32, 4096).unwrap()) {
                let (op, by, buf) = (Op::Read, By::PageCache, Buf::Slot(slot));
                let file = Arc::clone(&file);
                let io = Io {
                    op,
                    file,
                    by,
                    offset: 0,
                    buf,
                    start: 0,
                    bytes: 4096,
                    tag,
                };
                uring.submit(io).unwrap();
            }
            while uring.in_flight() > 0 {
                uring.poll(&mut done, 8, Duration::from_secs(1)).unwrap();
            }
        }
        assert_eq!(done.len(), 320);
        assert!(
            uring.system_calls() <= 80,
            "{} for 320 I/Os",
            uring.system_calls()
        );
    }
}
