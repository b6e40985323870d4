//! io_uring: many I/Os in flight, few system calls.
//!
//! [`Uring::submit`] only writes a queue entry. [`Uring::poll`] submits all new entries and takes all
//! completions, in one call. Files and ring slots are registered on first use, so that the kernel does
//! not look up files or pin pages for each I/O. Pages of a region are used once each and would not
//! benefit. A registration is replaced only while no I/O uses it ([`registered`]).
//!
//! Bytes that are expected in the page cache are read without waiting, which shows whether they are there.
//!
//! A buffer in flight belongs to the kernel. The in-flight table keeps it, and the file of its queue
//! entry, until the completion arrives. Dropping a `Uring` waits for all completions.

mod guarded;
mod registered;
pub mod sockets;

use std::{io, os::fd::AsRawFd, time::Duration};

use io_uring::{IoUring, Submitter, opcode, squeue, types};
use straightway_core::{Error, ErrorKind, Place, Result};

use crate::{
    file::IoPath,
    request::{Buf, Done, Io, Op},
};
use guarded::{GuardedRing, closed};
use registered::{Registered, Taken};

/// The maximum queue depth of one ring.
pub const DEPTH_MAX: u32 = 4096;

/// The number of registered files. A file that no I/O uses is replaced by another.
const FILES: u32 = 256;

/// The number of registered ring memories. A lane has one.
const BUFFERS: u32 = 4;

/// The largest buffer that the kernel registers.
const BUFFER_BYTES_MAX: usize = 1 << 30;

/// A wait of this length without a completion is rare. Whether the ring's descriptor was closed is then checked.
const CHECKED_WAIT_MIN: Duration = Duration::from_millis(50);

/// An io_uring with its in-flight table.
pub struct Uring {
    ring: GuardedRing,
    /// Whether nothing was submitted since the last transfer, in which time its descriptor may have been closed.
    is_rested: bool,
    /// I/Os that were not submitted, because the ring's descriptor was closed.
    refused: Vec<Io>,
    table: Vec<Option<InFlight>>,
    free: Vec<u32>,
    registrations: Registrations,
    system_calls: u64,
}

/// The tables of registered files and buffers.
#[derive(Debug)]
struct Registrations {
    /// Keyed by the file's id, and whether it is the descriptor with O_DIRECT.
    files: Registered<(u64, bool)>,
    /// Keyed by the memory's id.
    buffers: Registered<u64>,
}

/// An I/O in flight, and the registrations that its queue entry uses.
#[derive(Debug)]
struct InFlight {
    io: Io,
    file: Option<Taken>,
    buffer: Option<Taken>,
    /// Whether it reads only bytes that are in the page cache.
    is_nowait: bool,
}

impl Uring {
    /// Creates a ring with a queue depth of `depth`.
    pub fn new(depth: u32) -> Result<Self> {
        let depth = depth.clamp(1, DEPTH_MAX);
        let ring = build(depth)?;
        let files = ring.submitter().register_files_sparse(FILES).map_or(0, |()| FILES);
        let buffers = ring
            .submitter()
            .register_buffers_sparse(BUFFERS)
            .map_or(0, |()| BUFFERS);
        Ok(Self {
            ring,
            is_rested: false,
            refused: Vec::new(),
            table: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            registrations: Registrations {
                files: Registered::new(files),
                buffers: Registered::new(buffers),
            },
            system_calls: 0,
        })
    }

    /// Queues an I/O. Returns it if the queue is full.
    pub fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.is_rested {
            // Before the first registration, which would go to the ring that has the number now.
            if !self.ring.is_open() {
                self.refused.push(io);
                return Ok(());
            }
            self.is_rested = false;
        }
        let Some(&number) = self.free.last() else {
            return Err(io);
        };
        let span = Span::of(&io);
        let submitter = self.ring.submitter();
        let buffer = self.registrations.take_buffer(&io, &submitter);
        let file = self.registrations.take_file(&io, &submitter);
        let is_nowait = (io.op, io.by) == (Op::Read, IoPath::Resident) && io.object.reads_nowait();
        let in_flight = InFlight {
            io,
            file,
            buffer,
            is_nowait,
        };
        let entry = in_flight.entry(span).user_data(u64::from(number));
        // SAFETY: the entry's descriptor, buffer and slots are kept in `table` until its
        // completion, and the buffer is owned by the I/O, so nobody else uses it.
        if unsafe { self.ring.submission().push(&entry) }.is_err() {
            return Err(self.registrations.release(in_flight));
        }
        self.free.pop();
        self.table[number as usize] = Some(in_flight);
        Ok(())
    }

    /// Submits queued I/Os, waits for at least `want` completions (or the timeout), and takes all available
    /// completions. Returns their number.
    pub fn poll(&mut self, done: &mut Vec<Done>, want: usize, timeout: Duration) -> Result<usize> {
        let before = done.len();
        if !self.refused.is_empty() {
            let refused = |io| Done::new(io, Err(io::Error::other(closed())));
            done.extend(self.refused.drain(..).map(refused));
            return Ok(done.len() - before);
        }
        let want = want.min(self.in_flight());
        self.system_calls += 1;
        let entered = enter(&self.ring, want, timeout);
        for completion in self.ring.completion() {
            let number = u32::try_from(completion.user_data()).expect("user data is a u32");
            let in_flight = self.table[number as usize].take().expect("a number is in flight once");
            self.free.push(number);
            let is_nowait = in_flight.is_nowait;
            let io = self.registrations.release(in_flight);
            done.push(judge(io, completion.result(), is_nowait));
        }
        let count = done.len() - before;
        confirm(&self.ring, entered, (count, want), timeout)?;
        Ok(count)
    }

    /// The number of I/Os in flight.
    pub fn in_flight(&self) -> usize {
        self.table.len() - self.free.len()
    }

    /// The number of system calls to submit and wait so far.
    pub fn system_calls(&self) -> u64 {
        self.system_calls
    }

    /// The queue depth.
    pub fn depth(&self) -> usize {
        self.table.len()
    }

    /// Unregisters files that no I/O uses, because a registration keeps a file open. Called between transfers. A ring
    /// whose descriptor was closed is replaced.
    pub fn forget_files(&mut self) {
        self.is_rested = self.in_flight() == 0;
        if self.is_rested && !self.ring.is_open() {
            // If that fails, the next transfer fails too, and so on.
            if let Ok(fresh) = Self::new(u32::try_from(self.depth()).expect("the table is small")) {
                *self = fresh;
            }
            return;
        }
        let submitter = self.ring.submitter();
        self.registrations.files.forget(|slot| {
            // A slot that cannot be cleared is overwritten by the next registration.
            let _ = submitter.register_files_update(slot.into(), &[-1]);
        });
    }
}

/// Creates an io_uring for one thread.
fn build(depth: u32) -> Result<GuardedRing> {
    let refused = |source: io::Error| {
        let (kind, hint) = match source.raw_os_error() {
            Some(libc::ENOSYS | libc::EPERM | libc::EACCES) => (
                ErrorKind::Unsupported,
                "sysctl kernel.io_uring_disabled=0, or a seccomp profile that allows it",
            ),
            // The queues count as locked memory, which may be limited to 0.
            Some(libc::ENOMEM) => (
                ErrorKind::Unsupported,
                "let the process lock more memory (`ulimit -l`), or ask for fewer lanes",
            ),
            _ => (ErrorKind::Transient, "ask for fewer lanes, or a smaller depth"),
        };
        Error::new(kind, "set up", "io_uring", source.to_string()).with_hint(hint)
    };
    // One thread uses a ring, so completions can be deferred until it polls (Linux 6.1).
    let ring = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(depth)
        .or_else(|_| IoUring::new(depth))
        .map(GuardedRing::new)
        .map_err(refused)?;
    // A sandbox may permit the setup and forbid every use.
    ring.submitter().submit().map_err(refused)?;
    Ok(ring)
}

/// The result of a submission and wait that took `count` completions and waited for `want`. If it failed, or waited long
/// for nothing, the ring's descriptor may have been closed.
fn confirm(ring: &GuardedRing, entered: Result<()>, (count, want): (usize, usize), timeout: Duration) -> Result<()> {
    let is_suspect = entered.is_err() || (count == 0 && want > 0 && timeout >= CHECKED_WAIT_MIN);
    if is_suspect && !ring.is_open() {
        return Err(closed());
    }
    entered
}

/// Submits queued entries, and waits for at least `want` completions or the timeout, if there is one.
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
            // A timeout or a signal: completions that have arrived are still taken.
            Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN) => Ok(()),
            _ => Err(Error::os("submit to", "io_uring", error)),
        },
    }
}

/// The result of a completion: a count, or an error.
fn outcome(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

/// The completed I/O of a completion's result.
fn judge(io: Io, result: i32, is_nowait: bool) -> Done {
    match -result {
        libc::EAGAIN if is_nowait => Done {
            missed: true,
            ..Done::new(io, outcome(result))
        },
        // It is repeated, and may then wait.
        libc::EOPNOTSUPP if is_nowait => {
            io.object.note_no_nowait();
            Done::new(io, Err(io::ErrorKind::WouldBlock.into()))
        }
        _ => Done::new(io, outcome(result)),
    }
}

impl Registrations {
    /// The slot of the I/O's file, which is registered on first use.
    fn take_file(&mut self, io: &Io, submitter: &Submitter<'_>) -> Option<Taken> {
        let direct = io.by == IoPath::Direct;
        let fd = io.object.descriptor(io.by).as_raw_fd();
        // Ids are consecutive, so the files of a transfer have different slots. The two descriptors of a file
        // are half a table apart.
        let hash = io.object.id() + u64::from(direct) * u64::from(FILES / 2);
        self.files.take((io.object.id(), direct), hash, |slot| {
            submitter.register_files_update(slot.into(), &[fd]).is_ok()
        })
    }

    /// The slot of the memory that contains the I/O's buffer, which is registered on first use.
    fn take_buffer(&mut self, io: &Io, submitter: &Submitter<'_>) -> Option<Taken> {
        let Buf::Slot(slot) = &io.buf else {
            return None;
        };
        let memory = slot.memory();
        // A pinned slot with memory of its own is used by many lanes in turn. Each would have to register it.
        let moves = memory.is_pinned() && slot.bytes() == memory.bytes();
        // Memory in a BAR cannot be registered: the kernel returns EFAULT.
        if moves || memory.bytes() > BUFFER_BYTES_MAX || memory.place() != Place::Host {
            return None;
        }
        let iovec = libc::iovec {
            iov_base: memory.start().as_ptr().cast(),
            iov_len: memory.bytes(),
        };
        self.buffers.take(memory.id(), memory.id(), |slot| {
            // SAFETY: the memory is mapped, since the I/O's buffer is part of it. The kernel pins its pages, so
            // that they outlive the mapping, and uses them only for I/Os that own a slot of the memory.
            let registered = unsafe { submitter.register_buffers_update(slot.into(), &[iovec], None) };
            // The likely cause of a failure is RLIMIT_MEMLOCK. The I/O then runs unregistered, and slower.
            registered.is_ok()
        })
    }

    /// Returns the slots of an I/O that is no longer in flight.
    fn release(&mut self, in_flight: InFlight) -> Io {
        let InFlight { io, file, buffer, .. } = in_flight;
        if let Some(slot) = file {
            self.files.give_back(slot);
        }
        if let Some(slot) = buffer {
            self.buffers.give_back(slot);
        }
        io
    }
}

/// The memory of an I/O, which is checked before any slot is taken.
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

impl InFlight {
    /// The queue entry. It uses the plain descriptor if the file has no slot.
    fn entry(&self, Span { pointer, bytes }: Span) -> squeue::Entry {
        let io = &self.io;
        let fd = types::Fd(io.object.descriptor(io.by).as_raw_fd());
        let fixed = self.file.as_ref().map(|s| types::Fixed(s.number().into()));
        let flags = if self.is_nowait { libc::RWF_NOWAIT } else { 0 };
        // The builders differ by type, so the four cases are spelled out.
        macro_rules! build {
            ($op:ident $(, $extra:expr)?) => {
                match fixed {
                    Some(file) => build!($op, file $(, $extra)?; ),
                    None => build!($op, fd $(, $extra)?; ),
                }
            };
            ($op:ident, $file:ident $(, $extra:expr)?;) => {
                opcode::$op::new($file, pointer, bytes $(, $extra)?).offset(io.offset).rw_flags(flags).build()
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
        // The kernel still writes to the buffers of I/Os in flight. If they do not complete within a minute,
        // leaking them is the only safe option.
        let mut done = Vec::new();
        for _ in 0..60 {
            if self.in_flight() == 0 {
                return;
            }
            let _ = self.poll(&mut done, 1, Duration::from_secs(1));
        }
        std::mem::forget(std::mem::take(&mut self.table));
    }
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (in_flight, depth) = (self.in_flight(), self.depth());
        write!(f, "Uring {{ in flight: {in_flight} of {depth} }}")
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
            by: IoPath::PageCache,
            offset: 0,
            bytes: slot.bytes(),
            buf: Buf::Slot(slot),
            start: 0,
            tag,
        }
    }

    /// Files of one page, which begins with the file's number.
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
                panic!("it was submitted with a slot")
            };
            assert_eq!(slot.as_slice()[..4], done.io.tag.to_le_bytes());
        }
    }

    #[test]
    fn more_files_than_can_be_registered_are_read_correctly() {
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
    fn more_memories_than_can_be_registered_receive_their_own_bytes() {
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
        // The I/O keeps its file open.
        drop(files);
        while uring.in_flight() > 0 {
            uring.poll(&mut done, 2, Duration::from_secs(1)).unwrap();
        }
        assert!(done.iter().all(|d| matches!(d.result, Ok(4096))), "{done:?}");
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
        assert!(uring.system_calls() <= 80, "{} for 320 I/Os", uring.system_calls());
    }
}
