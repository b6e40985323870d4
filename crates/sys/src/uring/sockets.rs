//! io_uring on sockets: connections, requests and answers, many at a time.
//!
//! Every operation owns what the kernel reads or writes: its socket, and a buffer or an [`Io`]. Both sit in the table
//! of this type until the completion arrives, and come back with it ([`Landed`]). [`cancel`](Sockets::cancel) only
//! makes that sooner: nothing is given back before the kernel is through with it. Dropping a `Sockets` waits for that
//! too.

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

use io_uring::{IoUring, opcode, squeue, types};
use rustix::net::SocketAddrAny;
use straightway_core::Result;

use super::{DEPTH_MAX, build, enter, outcome};
use crate::{kernel::is_since, request::Io, socket::Socket};
use message::Message;

/// At most this many operations in flight.
pub const OPERATIONS_MAX: u32 = DEPTH_MAX;

/// The user data of entries that cancel others.
const CANCEL: u64 = u64::MAX;

/// The user data of the entry that ends a wait.
const ALARM: u64 = u64::MAX - 1;

/// Bytes come in many pieces. The kernel waits for the last of them, so that one completion serves all. Before Linux 6.1
/// a receive that was cancelled could forget the bytes that it had taken; there each piece is a completion of its own.
fn fill_flags() -> i32 {
    if is_since((6, 1)) {
        libc::MSG_WAITALL
    } else {
        0
    }
}

/// An io_uring for sockets, with its in-flight table. `H` names the objects of I/Os.
pub struct Sockets<H> {
    ring: IoUring,
    flying: Vec<Option<Flying<H>>>,
    /// What the entries of operations on two pieces point to, by number.
    messages: Box<[Message]>,
    free: Vec<u32>,
    /// How many operations were begun.
    begun: u64,
    system_calls: u64,
    /// When the kernel wakes whoever waits, if it was asked to.
    alarm: Option<Instant>,
    /// What the entry of the alarm points to.
    alarm_time: Box<types::Timespec>,
}

/// What an operation works with, and gets back when it is done.
#[derive(Debug)]
pub enum Payload<H> {
    /// A connection to an address. The result is 0.
    Connect(SocketAddr),
    /// A buffer that is sent from `from` on.
    Send {
        /// The buffer.
        bytes: Vec<u8>,
        /// Where to begin.
        from: usize,
    },
    /// A buffer that is filled from `from` up to `to`.
    Receive {
        /// The buffer. Its length does not change.
        bytes: Vec<u8>,
        /// Where to begin.
        from: usize,
        /// Where to end.
        to: usize,
    },
    /// The memory of an I/O, filled from its byte `from` up to `to`: with all of that, or with less where the connection
    /// ends, the operation is cancelled, or the kernel is old.
    Fill {
        /// The I/O.
        io: Io<H>,
        /// Where to begin, from its start.
        from: usize,
        /// Where to end, from its start.
        to: usize,
    },
    /// The memory of an I/O, sent from its byte `from` up to `to`.
    Spill {
        /// The I/O.
        io: Io<H>,
        /// Where to begin, from its start.
        from: usize,
        /// Where to end, from its start.
        to: usize,
    },
    /// What comes next, in two pieces: first the memory of an I/O, then a buffer. Whatever is there is taken; the
    /// result counts both.
    FillThen {
        /// The I/O.
        io: Io<H>,
        /// Which of its bytes are filled.
        fill: Range<usize>,
        /// The buffer. Its length does not change.
        bytes: Vec<u8>,
        /// Which of the buffer's bytes are filled behind them.
        then: Range<usize>,
    },
    /// Two pieces that are sent one behind the other: a buffer from `from` on, then the memory of an I/O. The result
    /// counts both, and may be less.
    SpillAfter {
        /// The buffer.
        bytes: Vec<u8>,
        /// Where to begin in it.
        from: usize,
        /// The I/O.
        io: Io<H>,
        /// Which of its bytes follow.
        spill: Range<usize>,
    },
}

/// An operation that is done.
#[derive(Debug)]
pub struct Landed<H> {
    /// The caller's own number for it.
    pub key: u32,
    /// What it worked with.
    pub payload: Payload<H>,
    /// How many bytes were moved. For a receive, 0 is the end of the connection.
    pub result: io::Result<usize>,
}

/// An operation in flight.
#[derive(Debug)]
struct Flying<H> {
    key: u32,
    /// Which of all operations it is: numbers are used again.
    serial: u64,
    payload: Payload<H>,
    /// The descriptor that the entry names stays open.
    socket: Arc<Socket>,
    /// What a `Connect` reads.
    address: Option<Box<SocketAddrAny>>,
}

/// An operation in flight, for [`Sockets::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    number: u32,
    serial: u64,
}

impl<H> Sockets<H> {
    /// A ring for up to `operations` at a time.
    pub fn new(operations: u32) -> Result<Self> {
        let operations = operations.clamp(1, OPERATIONS_MAX);
        Ok(Self {
            ring: build(operations)?,
            flying: (0..operations).map(|_| None).collect(),
            messages: (0..operations).map(|_| Message::default()).collect(),
            free: (0..operations).rev().collect(),
            begun: 0,
            system_calls: 0,
            alarm: None,
            alarm_time: Box::default(),
        })
    }

    /// Begins an operation, which `key` names to the caller. A full table gives the payload back.
    ///
    /// # Panics
    ///
    /// Where a range lies outside of its buffer.
    #[expect(
        clippy::result_large_err,
        reason = "nothing on the way of an I/O allocates"
    )]
    pub fn begin(
        &mut self,
        key: u32,
        socket: &Arc<Socket>,
        payload: Payload<H>,
    ) -> Result<Operation, Payload<H>> {
        let Some(&number) = self.free.last() else {
            return Err(payload);
        };
        // The entry is made of what lies in the table already, so that nothing it points to moves any more.
        let serial = self.begun + 1;
        let flying = self.flying[number as usize].insert(Flying {
            key,
            serial,
            address: payload.address(),
            payload,
            socket: Arc::clone(socket),
        });
        let message = &mut self.messages[number as usize];
        let entry = flying.entry(message).user_data(u64::from(number));
        if self.push(&entry).is_err() {
            let refused = self.flying[number as usize].take();
            return Err(refused.expect("just put there").payload);
        }
        self.free.pop();
        self.begun = serial;
        Ok(Operation { number, serial })
    }

    /// Asks the kernel to end an operation soon. It lands as any other does, with an error or with what it had done.
    /// Nothing happens where it has landed already, even if another one has its number by now.
    pub fn cancel(&mut self, operation: Operation) {
        let Operation { number, serial } = operation;
        let flying = self.flying[number as usize].as_ref();
        if flying.is_some_and(|flying| flying.serial == serial) {
            let entry = opcode::AsyncCancel::new(u64::from(number)).build();
            // Without room for it the operation lands when its socket ends.
            let _ = self.push(&entry.user_data(CANCEL));
        }
    }

    /// Hands new operations to the kernel, waits for at least `want` completions, and takes all that are there. Answers
    /// how many. It waits no longer than the time-out, and may wait less: an earlier time-out may still be running.
    pub fn poll(
        &mut self,
        landed: &mut Vec<Landed<H>>,
        want: usize,
        timeout: Duration,
    ) -> Result<usize> {
        let want = want.min(self.in_flight());
        self.wait(want, timeout)?;
        let before = landed.len();
        for completion in self.ring.completion() {
            match completion.user_data() {
                CANCEL => continue,
                ALARM => {
                    self.alarm = None;
                    continue;
                }
                _ => {}
            }
            let number = u32::try_from(completion.user_data()).expect("we gave it a u32");
            let flying = self.flying[number as usize].take();
            let Flying { key, payload, .. } = flying.expect("a number flies once");
            self.free.push(number);
            let result = outcome(completion.result());
            landed.push(Landed {
                key,
                payload,
                result,
            });
        }
        Ok(landed.len() - before)
    }

    /// Hands new operations to the kernel and waits.
    ///
    /// One alarm serves all waits until it rings: a time-out of its own would set and clear a timer at each wait.
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

    /// Queues an entry that ends a wait. None is in flight.
    fn set_alarm(&mut self, timeout: Duration) -> Result<(), squeue::PushError> {
        *self.alarm_time = types::Timespec::from(timeout);
        let entry = opcode::Timeout::new(&raw const *self.alarm_time).build();
        self.push(&entry.user_data(ALARM))
    }

    /// How many operations are in flight.
    pub fn in_flight(&self) -> usize {
        self.flying.len() - self.free.len()
    }

    /// How often it has called the kernel to hand over and wait.
    pub fn system_calls(&self) -> u64 {
        self.system_calls
    }

    /// Queues an entry; where the queue is full, hands it to the kernel first.
    fn push(&mut self, entry: &squeue::Entry) -> Result<(), squeue::PushError> {
        // SAFETY: the caller keeps what the entry names in `flying` until its completion. One that cancels names nothing,
        // and the alarm a time that is kept as long as the ring.
        let queued = unsafe { self.ring.submission().push(entry) };
        if queued.is_ok() {
            return Ok(());
        }
        self.system_calls += 1;
        // What the kernel does not take now stays in the queue.
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

impl<H> Flying<H> {
    /// The queue entry. Its pointers stay valid while `self` and `message` are kept: they lead to the heap, or into the
    /// memory that an I/O owns.
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
            Payload::FillThen {
                io,
                fill,
                bytes,
                then,
            } => {
                let first = (part(io, fill), fill.len());
                let rest = &mut bytes[then.clone()];
                let second = (rest.as_mut_ptr(), rest.len());
                opcode::RecvMsg::new(fd, message.of([first, second])).build()
            }
            Payload::SpillAfter {
                bytes,
                from,
                io,
                spill,
            } => {
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

impl<H> Drop for Sockets<H> {
    fn drop(&mut self) {
        // The kernel still uses the buffers of what is in flight. Should it not answer within a minute, leaking them is
        // the one safe thing left.
        for number in 0..self.flying.len() {
            if let Some(serial) = self.flying[number].as_ref().map(|flying| flying.serial) {
                let number = u32::try_from(number).expect("the table is small");
                self.cancel(Operation { number, serial });
            }
        }
        let mut landed = Vec::new();
        for _ in 0..60 {
            if self.in_flight() == 0 {
                return;
            }
            let _ = self.poll(&mut landed, 1, Duration::from_secs(1));
        }
        std::mem::forget(std::mem::take(&mut self.flying));
        std::mem::forget(std::mem::take(&mut self.messages));
    }
}

impl<H> std::fmt::Debug for Sockets<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (flying, all) = (self.in_flight(), self.flying.len());
        write!(f, "Sockets {{ in flight: {flying} of {all} }}")
    }
}
