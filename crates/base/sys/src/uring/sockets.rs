//! io_uring on sockets: many connections, requests and responses in flight.
//!
//! Every operation owns what the kernel reads or writes: its socket, and a buffer or an [`Io`]. The in-flight table
//! keeps both until the completion arrives, which returns them ([`SocketCompletion`]). [`cancel`](SocketRing::cancel)
//! only makes that happen sooner: nothing is returned while the kernel uses it. Dropping a `SocketRing` waits for all
//! completions.

mod message;
#[cfg(test)]
mod tests;

use std::{
    io,
    net::SocketAddr,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use io_uring::{opcode, squeue, types};
use rustix::net::SocketAddrAny;
use straightway_core::Result;

use super::{DEPTH_MAX, build, confirm, enter, guarded::GuardedRing, outcome};
use crate::{kernel::is_since, request::Io, socket::Socket};
use message::Message;

/// The maximum number of operations in flight.
pub const OPERATIONS_MAX: u32 = DEPTH_MAX;

/// The user data of entries that cancel others.
const CANCEL: u64 = u64::MAX;

/// The user data of the timeout entry that ends a wait.
const ALARM: u64 = u64::MAX - 1;

/// The flags of a receive. Bytes arrive in many pieces, and with `MSG_WAITALL` the kernel waits for the last, so that
/// one completion serves all. Before Linux 6.1 a cancelled receive could lose bytes that it had taken, so there each
/// piece is a separate completion.
fn fill_flags() -> i32 {
    if is_since((6, 1)) { libc::MSG_WAITALL } else { 0 }
}

/// An io_uring for sockets, with its in-flight table. `H` is the type of the I/Os' objects.
pub struct SocketRing<H> {
    ring: GuardedRing,
    table: Vec<Option<InFlight<H>>>,
    /// The message headers of operations with two pieces, by operation number.
    messages: Box<[Message]>,
    free: Vec<u32>,
    /// The number of operations begun so far.
    begun: u64,
    system_calls: u64,
    /// The time at which the pending timeout entry ends a wait, if there is one.
    alarm: Option<Instant>,
    /// The time value that the timeout entry points to.
    alarm_time: Box<types::Timespec>,
}

/// An operation with its buffers, which its completion returns.
#[derive(Debug)]
pub enum Payload<H> {
    /// Connects to an address. The result is 0.
    Connect(SocketAddr),
    /// Sends a buffer from offset `from` to its end.
    Send {
        /// The buffer.
        bytes: Vec<u8>,
        /// The start offset.
        from: usize,
    },
    /// Receives into a buffer from offset `from` up to `to`.
    Receive {
        /// The buffer. Its length does not change.
        bytes: Vec<u8>,
        /// The start offset.
        from: usize,
        /// The end offset.
        to: usize,
    },
    /// Receives into the memory of an I/O from offset `from` up to `to`. It is filled completely, unless the connection
    /// ends, the operation is cancelled, or the kernel is older than 6.1.
    Fill {
        /// The I/O.
        io: Io<H>,
        /// The start offset.
        from: usize,
        /// The end offset.
        to: usize,
    },
    /// Sends the memory of an I/O from offset `from` up to `to`.
    Spill {
        /// The I/O.
        io: Io<H>,
        /// The start offset.
        from: usize,
        /// The end offset.
        to: usize,
    },
    /// Receives into two pieces: first the memory of an I/O, then a buffer. It takes the bytes that are available. The
    /// result counts both.
    FillThen {
        /// The I/O.
        io: Io<H>,
        /// The range of the I/O to fill.
        fill: Range<usize>,
        /// The buffer. Its length does not change.
        bytes: Vec<u8>,
        /// The range of the buffer to fill after that.
        then: Range<usize>,
    },
    /// Sends two pieces: a buffer from offset `from` to its end, then the memory of an I/O. The result counts both, and
    /// may be less.
    SpillAfter {
        /// The buffer.
        bytes: Vec<u8>,
        /// The start offset in the buffer.
        from: usize,
        /// The I/O.
        io: Io<H>,
        /// The range of the I/O to send.
        spill: Range<usize>,
    },
}

/// A completed operation.
#[derive(Debug)]
pub struct SocketCompletion<H> {
    /// The caller's number for it.
    pub key: u32,
    /// The operation with its buffers.
    pub payload: Payload<H>,
    /// The number of bytes moved. For a receive, 0 is the end of the connection.
    pub result: io::Result<usize>,
}

/// An operation in flight.
#[derive(Debug)]
struct InFlight<H> {
    key: u32,
    /// A serial number, because table numbers are reused.
    serial: u64,
    payload: Payload<H>,
    /// Keeps the descriptor of the queue entry open.
    socket: Arc<Socket>,
    /// The address that the kernel reads for a `Connect`.
    address: Option<Box<SocketAddrAny>>,
}

/// An operation in flight, for [`SocketRing::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    number: u32,
    serial: u64,
}

impl<H> SocketRing<H> {
    /// Creates a ring for up to `operations` in flight.
    pub fn new(operations: u32) -> Result<Self> {
        let operations = operations.clamp(1, OPERATIONS_MAX);
        Ok(Self {
            ring: build(operations)?,
            table: (0..operations).map(|_| None).collect(),
            messages: (0..operations).map(|_| Message::default()).collect(),
            free: (0..operations).rev().collect(),
            begun: 0,
            system_calls: 0,
            alarm: None,
            alarm_time: Box::default(),
        })
    }

    /// Queues an operation. `key` is the caller's number for it. Returns the payload if the table is full.
    ///
    /// # Panics
    ///
    /// If a range is outside its buffer.
    #[expect(clippy::result_large_err, reason = "the I/O path does not allocate")]
    pub fn begin(&mut self, key: u32, socket: &Arc<Socket>, payload: Payload<H>) -> Result<Operation, Payload<H>> {
        let Some(&number) = self.free.last() else {
            return Err(payload);
        };
        // The entry is built from values in the table, so that nothing it points to moves.
        let serial = self.begun + 1;
        let in_flight = self.table[number as usize].insert(InFlight {
            key,
            serial,
            address: payload.address(),
            payload,
            socket: Arc::clone(socket),
        });
        let message = &mut self.messages[number as usize];
        let entry = in_flight.entry(message).user_data(u64::from(number));
        if self.push(&entry).is_err() {
            let refused = self.table[number as usize].take();
            return Err(refused.expect("just put there").payload);
        }
        self.free.pop();
        self.begun = serial;
        Ok(Operation { number, serial })
    }

    /// Asks the kernel to cancel an operation. It completes like any other, with an error or with the bytes moved so
    /// far. Does nothing if it has already completed, even if another operation has its number now.
    pub fn cancel(&mut self, operation: Operation) {
        let Operation { number, serial } = operation;
        let in_flight = self.table[number as usize].as_ref();
        if in_flight.is_some_and(|in_flight| in_flight.serial == serial) {
            let entry = opcode::AsyncCancel::new(u64::from(number)).build();
            // If the queue is full, the operation completes when its socket ends.
            let _ = self.push(&entry.user_data(CANCEL));
        }
    }

    /// Submits queued operations, waits for at least `want` completions, and takes all available completions. Returns
    /// their number. It waits at most for the timeout, and may wait less: an earlier timeout may still be pending.
    pub fn poll(
        &mut self,
        completions: &mut Vec<SocketCompletion<H>>,
        want: usize,
        timeout: Duration,
    ) -> Result<usize> {
        let want = want.min(self.in_flight());
        let waited = self.wait(want, timeout);
        let before = completions.len();
        for completion in self.ring.completion() {
            match completion.user_data() {
                CANCEL => continue,
                ALARM => {
                    self.alarm = None;
                    continue;
                }
                _ => {}
            }
            let number = u32::try_from(completion.user_data()).expect("user data is a u32");
            let in_flight = self.table[number as usize].take();
            let InFlight { key, payload, .. } = in_flight.expect("a number is in flight once");
            self.free.push(number);
            let result = outcome(completion.result());
            completions.push(SocketCompletion { key, payload, result });
        }
        let count = completions.len() - before;
        confirm(&self.ring, waited, (count, want), timeout)?;
        Ok(count)
    }

    /// Submits queued operations and waits.
    ///
    /// One timeout entry serves all waits until it expires. A timeout per wait would set and clear a timer each time.
    fn wait(&mut self, want: usize, timeout: Duration) -> Result<()> {
        self.system_calls += 1;
        if want == 0 || timeout.is_zero() {
            return enter(&self.ring, want, timeout);
        }
        let end = Instant::now() + timeout;
        if self.alarm.is_none() && self.set_alarm(timeout).is_ok() {
            self.alarm = Some(end);
        }
        match self.alarm {
            Some(alarm) if alarm <= end => enter(&self.ring, want, None),
            _ => enter(&self.ring, want, timeout),
        }
    }

    /// Queues a timeout entry that ends a wait. No other may be in flight.
    fn set_alarm(&mut self, timeout: Duration) -> Result<(), squeue::PushError> {
        *self.alarm_time = types::Timespec::from(timeout);
        let entry = opcode::Timeout::new(&raw const *self.alarm_time).build();
        self.push(&entry.user_data(ALARM))
    }

    /// The number of operations in flight.
    pub fn in_flight(&self) -> usize {
        self.table.len() - self.free.len()
    }

    /// The number of system calls to submit and wait so far.
    pub fn system_calls(&self) -> u64 {
        self.system_calls
    }

    /// Queues an entry. If the queue is full, it is submitted first.
    fn push(&mut self, entry: &squeue::Entry) -> Result<(), squeue::PushError> {
        // SAFETY: the caller keeps what the entry points to in `table` until its completion. A cancel entry points to
        // nothing, and the timeout entry to a time that is kept as long as the ring.
        let queued = unsafe { self.ring.submission().push(entry) };
        if queued.is_ok() {
            return Ok(());
        }
        self.system_calls += 1;
        // Entries that the kernel does not take now stay in the queue.
        let _ = self.ring.submit();
        // SAFETY: as above.
        unsafe { self.ring.submission().push(entry) }
    }
}

impl<H> Payload<H> {
    /// The address of a connection, as the kernel reads it.
    fn address(&self) -> Option<Box<SocketAddrAny>> {
        match self {
            Self::Connect(address) => Some(Box::new(SocketAddrAny::from(*address))),
            _ => None,
        }
    }
}

impl<H> InFlight<H> {
    /// The queue entry. Its pointers stay valid while `self` and `message` are kept: they point to the heap, or into
    /// the memory that an I/O owns.
    fn entry(&mut self, message: &mut Message) -> squeue::Entry {
        let fd = types::Fd(self.socket.raw());
        let length = |bytes: usize| u32::try_from(bytes).expect("buffers are under 4 GiB");
        match &mut self.payload {
            Payload::Connect(_) => {
                let address = self.address.as_ref().expect("a connection has an address");
                opcode::Connect::new(fd, address.as_ptr().cast(), address.addr_len()).build()
            }
            Payload::Send { bytes, from } => {
                let rest = &bytes[*from..];
                opcode::Send::new(fd, rest.as_ptr(), length(rest.len()))
                    .flags(libc::MSG_NOSIGNAL)
                    .build()
            }
            Payload::Receive { bytes, from, to } => {
                let rest = &mut bytes[*from..*to];
                opcode::Recv::new(fd, rest.as_mut_ptr(), length(rest.len())).build()
            }
            Payload::Fill { io, from, to } => {
                let pointer = part(io, &(*from..*to));
                opcode::Recv::new(fd, pointer, length(*to - *from))
                    .flags(fill_flags())
                    .build()
            }
            Payload::Spill { io, from, to } => {
                let pointer = part(io, &(*from..*to));
                opcode::Send::new(fd, pointer, length(*to - *from))
                    .flags(libc::MSG_NOSIGNAL)
                    .build()
            }
            Payload::FillThen { io, fill, bytes, then } => {
                let first = (part(io, fill), fill.len());
                let rest = &mut bytes[then.clone()];
                let second = (rest.as_mut_ptr(), rest.len());
                opcode::RecvMsg::new(fd, message.of([first, second])).build()
            }
            Payload::SpillAfter { bytes, from, io, spill } => {
                let rest = &mut bytes[*from..];
                let first = (rest.as_mut_ptr(), rest.len());
                let second = (part(io, spill), spill.len());
                let message: *const libc::msghdr = message.of([first, second]);
                opcode::SendMsg::new(fd, message)
                    .flags(libc::MSG_NOSIGNAL.cast_unsigned())
                    .build()
            }
        }
    }
}

/// The address of a part of an I/O's memory.
fn part<H>(io: &Io<H>, range: &Range<usize>) -> *mut u8 {
    assert!(
        range.start <= range.end && range.end <= io.bytes,
        "the range lies inside the I/O"
    );
    // SAFETY: `pointer` checked that the I/O lies in its buffer, and the range lies in the I/O.
    unsafe { io.pointer().add(range.start) }
}

impl<H> Drop for SocketRing<H> {
    fn drop(&mut self) {
        // The kernel still uses the buffers of operations in flight. If they do not complete within a minute, leaking
        // them is the only safe option.
        for number in 0..self.table.len() {
            if let Some(serial) = self.table[number].as_ref().map(|in_flight| in_flight.serial) {
                let number = u32::try_from(number).expect("the table is small");
                self.cancel(Operation { number, serial });
            }
        }
        let mut completions = Vec::new();
        for _ in 0..60 {
            if self.in_flight() == 0 {
                return;
            }
            let _ = self.poll(&mut completions, 1, Duration::from_secs(1));
        }
        std::mem::forget(std::mem::take(&mut self.table));
        std::mem::forget(std::mem::take(&mut self.messages));
    }
}

impl<H> std::fmt::Debug for SocketRing<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (in_flight, all) = (self.in_flight(), self.table.len());
        write!(f, "SocketRing {{ in flight: {in_flight} of {all} }}")
    }
}
