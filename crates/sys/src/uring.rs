//! io_uring: many I/Os on their way, few system calls.
//!
//! [`Uring::submit`] only writes a queue entry; [`Uring::poll`] hands all new entries to the kernel
//! and takes all completions, in one call. Files and ring slots are registered on first sight, so
//! that the kernel looks neither up nor pins for each I/O; the pages of a region are used once each
//! and gain nothing from it. A registration is replaced only while no I/O uses it ([`registered`]).
//!
//! A buffer in flight belongs to the kernel. It sits in the table of this type until its completion
//! arrives, with the file whose descriptor the entry names, and dropping a `Uring` waits for that.

mod registered;
pub mod sockets;

use std::{io, os::fd::AsRawFd, time::Duration};

use io_uring::{IoUring, Submitter, opcode, squeue, types};
use straightway_core::{Error, Kind, Place, Result};

use crate::{
    file::By,
    request::{Buf, Done, Io, Op},
};
use registered::{Registered, Taken};

/// At most this many I/Os in flight on one ring.
pub const DEPTH_MAX: u32 = 4096;

/// Files registered at once. One that no I/O uses gives way to another.
const FILES: u32 = 256;

/// Ring memories registered at once. A lane has one.
const BUFFERS: u32 = 4;

/// The largest buffer that the kernel lets be registered.
const BUFFER_BYTES_MAX: usize = 1 << 30;

/// An io_uring with its in-flight table.
pub struct Uring {
    ring: IoUring,
    flying: Vec<Option<Flying>>,
    free: Vec<u32>,
    tables: Tables,
    system_calls: u64,
}

/// What is registered with the ring.
#[derive(Debug)]
struct Tables {
    /// By the file's number, and whether it is the descriptor with O_DIRECT.
    files: Registered<(u64, bool)>,
    /// By the memory's number.
    buffers: Registered<u64>,
}

/// An I/O in flight, and the slots that its queue entry names.
#[derive(Debug)]
struct Flying {
    io: Io,
    file: Option<Taken>,
    buffer: Option<Taken>,
}

impl Uring {
    /// A ring for `depth` I/Os at a time.
    pub fn new(depth: u32) -> Result<Self> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let ring = build(depth)?;
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
            tables: Tables {
                files: Registered::new(files),
                buffers: Registered::new(buffers),
            },
            system_calls: 0,
        })
    }

    /// Takes an I/O on; gives it back when the queue is full.
    pub fn submit(&mut self, io: Io) -> Result<(), Io> {
        let Some(&number) = self.free.last() else {
            return Err(io);
        };
        let span = Span::of(&io);
        let submitter = self.ring.submitter();
        let buffer = self.tables.take_buffer(&io, &submitter);
        let file = self.tables.take_file(&io, &submitter);
        let flying = Flying { io, file, buffer };
        let entry = flying.entry(span).user_data(u64::from(number));
        // SAFETY: the entry's descriptor, buffer and slots are kept in `flying` until its
        // completion, and the buffer is owned by the I/O, so nobody else touches it.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(self.tables.land(flying));
        }
        self.free.pop();
        self.flying[number as usize] = Some(flying);
        Ok(())
    }

    /// Hands new I/Os to the kernel, waits for at least `want` completions (or the time-out), and
    /// takes all that are there. Answers how many.
    pub fn poll(&mut self, done: &mut Vec<Done>, want: usize, timeout: Duration) -> Result<usize> {
        let want = want.min(self.in_flight());
        self.system_calls += 1;
        enter(&self.ring, want, timeout)?;
        let before = done.len();
        for completion in self.ring.completion() {
            let number = u32::try_from(completion.user_data()).expect("we gave it a u32");
            let flying = self.flying[number as usize]
                .take()
                .expect("a number flies once");
            self.free.push(number);
            let io = self.tables.land(flying);
            done.push(Done::new(io, outcome(completion.result())));
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

    /// Lets go of the registered files that no I/O uses: a registration keeps a file open.
    pub fn forget_files(&mut self) {
        let submitter = self.ring.submitter();
        self.tables.files.forget(|slot| {
            // A slot that cannot be cleared is overwritten by the next registration.
            let _ = submitter.register_files_update(slot.into(), &[-1]);
        });
    }
}

/// An io_uring that one thread uses, or why there is none.
fn build(depth: u32) -> Result<IoUring> {
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
    IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(depth)
        .or_else(|_| IoUring::new(depth))
        .map_err(refused)
}

/// Hands new entries to the kernel, and waits for at least `want` completions or the time-out, if there is one.
fn enter(ring: &IoUring, want: usize, timeout: impl Into<Option<Duration>>) -> Result<()> {
    let entered = match timeout.into() {
        Some(timeout) => {
            let time = types::Timespec::from(timeout);
            let args = types::SubmitArgs::new().timespec(&time);
            ring.submitter().submit_with_args(want, &args)
        }
        None => ring.submitter().submit_and_wait(want),
    };
    match entered {
        Ok(_) => Ok(()),
        Err(error) => match error.raw_os_error() {
            // Nothing was ready in time, or a signal came: what is there is still taken.
            Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(Error::os("submit to", "io_uring", error)),
        },
    }
}

/// What a completion says: a count, or an error.
fn outcome(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

impl Tables {
    /// The slot of the I/O's file, registering it on first sight.
    fn take_file(&mut self, io: &Io, submitter: &Submitter<'_>) -> Option<Taken> {
        let direct = io.by == By::Direct;
        let fd = io.object.descriptor(io.by).as_raw_fd();
        // Numbers count up, so the files of a transfer have slots of their own; the two descriptors of a
        // file lie half a table apart.
        let hash = io.object.id() + u64::from(direct) * u64::from(FILES / 2);
        self.files.take((io.object.id(), direct), hash, |slot| {
            submitter.register_files_update(slot.into(), &[fd]).is_ok()
        })
    }

    /// The slot of the memory that holds the I/O's buffer, registering it on first sight.
    fn take_buffer(&mut self, io: &Io, submitter: &Submitter<'_>) -> Option<Taken> {
        let Buf::Slot(slot) = &io.buf else {
            return None;
        };
        let memory = slot.memory();
        // Memory in a BAR cannot be registered: the kernel answers EFAULT.
        if memory.bytes() > BUFFER_BYTES_MAX || memory.place() != Place::Host {
            return None;
        }
        let iovec = libc::iovec {
            iov_base: memory.start().as_ptr().cast(),
            iov_len: memory.bytes(),
        };
        self.buffers.take(memory.id(), memory.id(), |slot| {
            // SAFETY: the memory is mapped, since the I/O's buffer is part of it. The kernel pins its pages, so
            // that they outlive the mapping, and uses them only for I/Os that own a slot of the memory.
            let registered =
                unsafe { submitter.register_buffers_update(slot.into(), &[iovec], None) };
            // Refused for RLIMIT_MEMLOCK, most likely: the I/O then goes unregistered, and slower.
            registered.is_ok()
        })
    }

    /// Gives back the slots of an I/O that is not in flight any more.
    fn land(&mut self, flying: Flying) -> Io {
        let Flying { io, file, buffer } = flying;
        if let Some(slot) = file {
            self.files.give_back(slot);
        }
        if let Some(slot) = buffer {
            self.buffers.give_back(slot);
        }
        io
    }
}

/// The memory of an I/O, checked before anything is taken for it.
#[derive(Clone, Copy, Debug)]
struct Span {
    pointer: *mut u8,
    bytes: u32,
}

impl Span {
    fn of(io: &Io) -> Self {
        Self {
            pointer: io.pointer(),
            bytes: u32::try_from(io.bytes).expect("chunks are under 2 GiB"),
        }
    }
}

impl Flying {
    /// The queue entry. It names the plain descriptor where the file has no slot.
    fn entry(&self, Span { pointer, bytes }: Span) -> squeue::Entry {
        let io = &self.io;
        let fd = types::Fd(io.object.descriptor(io.by).as_raw_fd());
        let fixed = self.file.as_ref().map(|s| types::Fixed(s.number().into()));
        // The builders differ by type, so the four cases are spelled out.
        macro_rules! build {
            ($op:ident $(, $extra:expr)?) => {
                match fixed {
                    Some(file) => opcode::$op::new(file, pointer, bytes $(, $extra)?).offset(io.offset).build(),
                    None => opcode::$op::new(fd, pointer, bytes $(, $extra)?).offset(io.offset).build(),
                }
            };
        }
        match (io.op, self.buffer.as_ref().map(Taken::number)) {
            (Op::Read, None) => build!(Read),
            (Op::Write, None) => build!(Write),
            (Op::Read, Some(index)) => build!(ReadFixed, index),
            (Op::Write, Some(index)) => build!(WriteFixed, index),
        }
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
        let (flying, depth) = (self.in_flight(), self.depth());
        write!(f, "Uring {{ in flight: {flying} of {depth} }}")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{file::File, slot::Slot};

    /// A ring, or a printed reason why there is none.
    fn ring(depth: u32) -> Option<Uring> {
        Uring::new(depth)
            .inspect_err(|error| eprintln!("skipped: {error}"))
            .ok()
    }

    fn read(file: &Arc<File>, slot: Slot, tag: u32) -> Io {
        Io {
            op: Op::Read,
            object: Arc::clone(file),
            by: By::PageCache,
            offset: 0,
            bytes: slot.bytes(),
            buf: Buf::Slot(slot),
            start: 0,
            tag,
        }
    }

    /// Files with one page each, which begins with the file's number.
    fn numbered(folder: &std::path::Path, count: u32) -> Vec<Arc<File>> {
        (0..count)
            .map(|number| {
                let path = folder.join(number.to_string());
                let mut page = vec![0; 4096];
                page[..4].copy_from_slice(&number.to_le_bytes());
                std::fs::write(&path, page).unwrap();
                Arc::new(File::open(&path).unwrap())
            })
            .collect()
    }

    /// Queues one read of each file before any is submitted, and expects each to get its own bytes.
    fn read_all_at_once(uring: &mut Uring, files: &[Arc<File>], slots: Vec<Slot>) {
        for (tag, (file, slot)) in (0..).zip(files.iter().zip(slots)) {
            uring.submit(read(file, slot, tag)).unwrap();
        }
        let mut done = Vec::new();
        while uring.in_flight() > 0 {
            uring.poll(&mut done, 8, Duration::from_secs(1)).unwrap();
        }
        assert_eq!(done.len(), files.len());
        for done in done {
            assert_eq!(done.result.unwrap(), 4096);
            let Buf::Slot(slot) = &done.io.buf else {
                panic!("it went out with a slot")
            };
            assert_eq!(slot.as_slice()[..4], done.io.tag.to_le_bytes());
        }
    }

    #[test]
    fn more_files_than_can_be_registered_are_each_read_as_themselves() {
        let Some(mut uring) = ring(1024) else { return };
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let files = numbered(folder.path(), 3 * FILES);
        for _ in 0..3 {
            let slots = Slot::ring(files.len(), 4096).unwrap();
            read_all_at_once(&mut uring, &files, slots);
        }
        uring.forget_files();
        read_all_at_once(&mut uring, &files, Slot::ring(files.len(), 4096).unwrap());
    }

    #[test]
    fn more_memories_than_can_be_registered_each_get_their_own_bytes() {
        let Some(mut uring) = ring(64) else { return };
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let files = numbered(folder.path(), 8 * BUFFERS);
        for _ in 0..3 {
            let slot = |_: &Arc<File>| Slot::ring(1, 4096).unwrap().pop().unwrap();
            let slots = files.iter().map(slot).collect();
            read_all_at_once(&mut uring, &files, slots);
        }
    }

    #[test]
    fn files_forgotten_between_queueing_and_submission_are_still_read() {
        let Some(mut uring) = ring(8) else { return };
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let files = numbered(folder.path(), 2);
        let mut done = Vec::new();
        for (tag, slot) in (0..).zip(Slot::ring(2, 4096).unwrap()) {
            uring.submit(read(&files[tag as usize], slot, tag)).unwrap();
            uring.forget_files();
        }
        // The I/O keeps its file open, whoever else lets go of it.
        drop(files);
        while uring.in_flight() > 0 {
            uring.poll(&mut done, 2, Duration::from_secs(1)).unwrap();
        }
        assert!(
            done.iter().all(|d| matches!(d.result, Ok(4096))),
            "{done:?}"
        );
        uring.forget_files();
    }

    #[test]
    fn at_depth_one_system_call_serves_many_ios() {
        let Some(mut uring) = ring(32) else { return };
        let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![3; 4096]).unwrap();
        let file = Arc::new(File::open(&path).unwrap());
        let mut done = Vec::new();
        for _ in 0..10 {
            for (tag, slot) in (0..).zip(Slot::ring(32, 4096).unwrap()) {
                uring.submit(read(&file, slot, tag)).unwrap();
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
