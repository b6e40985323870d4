//! io_uring on sockets: connections, requests and answers, many at a time.
//!
//! Every operation owns what the kernel reads or writes: its socket, and a buffer or an [`Io`]. Both sit in the table
//! of this type until the completion arrives, and come back with it ([`Landed`]). [`cancel`](Sockets::cancel) only
//! makes that sooner: nothing is given back before the kernel is through with it. Dropping a `Sockets` waits for that
//! too.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::net::SocketAddrAny;
use straightway_core::Result;

use super::{DEPTH_MAX, build, enter, outcome};
use crate::{kernel::is_since, request::Io, socket::Socket};

/// At most this many operations in flight.
pub const OPERATIONS_MAX: u32 = DEPTH_MAX;

/// The user data of entries that cancel others.
const CANCEL: u64 = u64::MAX;

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
    free: Vec<u32>,
    system_calls: u64,
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
    payload: Payload<H>,
    /// The descriptor that the entry names stays open.
    socket: Arc<Socket>,
    /// What a `Connect` reads.
    address: Option<Box<SocketAddrAny>>,
}

/// An operation in flight, for [`Sockets::cancel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation(u32);

impl<H> Sockets<H> {
    /// A ring for up to `operations` at a time.
    pub fn new(operations: u32) -> Result<Self> {
        let operations = operations.clamp(1, OPERATIONS_MAX);
        Ok(Self {
            ring: build(operations)?,
            flying: (0..operations).map(|_| None).collect(),
            free: (0..operations).rev().collect(),
            system_calls: 0,
        })
    }

    /// Begins an operation, which `key` names to the caller. A full table gives the payload back.
    ///
    /// # Panics
    ///
    /// Where a range lies outside of its buffer.
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
        let flying = self.flying[number as usize].insert(Flying {
            key,
            address: payload.address(),
            payload,
            socket: Arc::clone(socket),
        });
        let entry = flying.entry().user_data(u64::from(number));
        if self.push(&entry).is_err() {
            let refused = self.flying[number as usize].take();
            return Err(refused.expect("just put there").payload);
        }
        self.free.pop();
        Ok(Operation(number))
    }

    /// Asks the kernel to end an operation soon. It lands as any other does, with an error or with what it had done.
    pub fn cancel(&mut self, operation: Operation) {
        let Operation(number) = operation;
        if self.flying[number as usize].is_some() {
            let entry = opcode::AsyncCancel::new(u64::from(number)).build();
            // Without room for it the operation lands when its socket ends.
            let _ = self.push(&entry.user_data(CANCEL));
        }
    }

    /// Hands new operations to the kernel, waits for at least `want` completions (or the time-out), and takes all that
    /// are there. Answers how many.
    pub fn poll(
        &mut self,
        landed: &mut Vec<Landed<H>>,
        want: usize,
        timeout: Duration,
    ) -> Result<usize> {
        let want = want.min(self.in_flight());
        self.system_calls += 1;
        enter(&self.ring, want, timeout)?;
        let before = landed.len();
        for completion in self.ring.completion() {
            if completion.user_data() == CANCEL {
                continue;
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
        // SAFETY: the caller keeps what the entry names in `flying` until its completion; one that cancels names
        // nothing.
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
    /// The queue entry. Its pointers stay valid while `self` is kept: they lead to the heap, or into the memory that an
    /// I/O owns.
    fn entry(&mut self) -> squeue::Entry {
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
                assert!(
                    from <= to && *to <= io.bytes,
                    "the range lies inside the I/O"
                );
                let start = io.pointer();
                // SAFETY: `pointer` checked that the I/O lies in its buffer, and `from` lies in the I/O.
                let pointer = unsafe { start.add(*from) };
                opcode::Recv::new(fd, pointer, length(*to - *from))
                    .flags(fill_flags())
                    .build()
            }
            Payload::Spill { io, from, to } => {
                assert!(
                    from <= to && *to <= io.bytes,
                    "the range lies inside the I/O"
                );
                let start = io.pointer();
                // SAFETY: `pointer` checked that the I/O lies in its buffer, and `from` lies in the I/O.
                let pointer = unsafe { start.add(*from) };
                opcode::Send::new(fd, pointer, length(*to - *from))
                    .flags(libc::MSG_NOSIGNAL)
                    .build()
            }
        }
    }
}

impl<H> Drop for Sockets<H> {
    fn drop(&mut self) {
        // The kernel still uses the buffers of what is in flight. Should it not answer within a minute, leaking them is
        // the one safe thing left.
        for number in 0..self.flying.len() {
            self.cancel(Operation(
                u32::try_from(number).expect("the table is small"),
            ));
        }
        let mut landed = Vec::new();
        for _ in 0..60 {
            if self.in_flight() == 0 {
                return;
            }
            let _ = self.poll(&mut landed, 1, Duration::from_secs(1));
        }
        std::mem::forget(std::mem::take(&mut self.flying));
    }
}

impl<H> std::fmt::Debug for Sockets<H> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (flying, all) = (self.in_flight(), self.flying.len());
        write!(f, "Sockets {{ in flight: {flying} of {all} }}")
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::{
        file::By,
        request::{Buf, Op},
        slot::Slot,
    };

    /// A ring, or a printed reason why there is none.
    fn ring() -> Option<Sockets<u8>> {
        Sockets::new(8)
            .inspect_err(|error| eprintln!("skipped: {error}"))
            .ok()
    }

    fn one(ring: &mut Sockets<u8>) -> Landed<u8> {
        let mut landed = Vec::new();
        while landed.is_empty() {
            ring.poll(&mut landed, 1, Duration::from_secs(5)).unwrap();
        }
        assert_eq!(landed.len(), 1);
        landed.remove(0)
    }

    /// A socket that is connected, and its other side.
    fn connected(ring: &mut Sockets<u8>) -> (Arc<Socket>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let socket = Arc::new(Socket::new(&address).unwrap());
        ring.begin(7, &socket, Payload::Connect(address)).unwrap();
        let landed = one(ring);
        assert_eq!((landed.key, landed.result.unwrap()), (7, 0));
        (socket, listener.accept().unwrap().0)
    }

    fn io(bytes: usize) -> Io<u8> {
        Io {
            op: Op::Read,
            object: 3,
            by: By::Direct,
            offset: 0,
            buf: Buf::Slot(Slot::ring(1, 4096).unwrap().remove(0)),
            start: 96,
            bytes,
            tag: 1,
        }
    }

    #[test]
    fn what_is_sent_arrives_and_what_comes_lands_in_the_io() {
        let Some(mut ring) = ring() else { return };
        let (socket, mut peer) = connected(&mut ring);
        let payload = Payload::Send {
            bytes: b"__hello".to_vec(),
            from: 2,
        };
        ring.begin(1, &socket, payload).unwrap();
        assert_eq!(one(&mut ring).result.unwrap(), 5);
        let mut seen = [0; 5];
        peer.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"hello");
        assert!(socket.is_quiet());
        peer.write_all(b"abcdef").unwrap();
        let payload = Payload::Fill {
            io: io(10),
            from: 4,
            to: 10,
        };
        ring.begin(2, &socket, payload).unwrap();
        let landed = one(&mut ring);
        assert_eq!(landed.result.unwrap(), 6);
        let Payload::Fill { io, .. } = landed.payload else {
            panic!("it went out with an I/O")
        };
        let Buf::Slot(slot) = &io.buf else {
            panic!("it went out with a slot")
        };
        assert_eq!(&slot.as_slice()[95..107], b"\0\0\0\0\0abcdef\0");
        let payload = Payload::Spill { io, from: 5, to: 9 };
        ring.begin(3, &socket, payload).unwrap();
        let landed = one(&mut ring);
        assert_eq!(landed.result.unwrap(), 4);
        assert!(matches!(landed.payload, Payload::Spill { from: 5, .. }));
        let mut seen = [0; 4];
        peer.read_exact(&mut seen).unwrap();
        assert_eq!(&seen, b"bcde");
        peer.write_all(b"x").unwrap();
        drop(peer);
        assert!(!socket.is_quiet());
    }

    #[test]
    fn a_cancelled_operation_gives_its_buffer_back_when_it_lands() {
        let Some(mut ring) = ring() else { return };
        let (socket, _peer) = connected(&mut ring);
        let operation = ring.begin(
            4,
            &socket,
            Payload::Fill {
                io: io(10),
                from: 0,
                to: 10,
            },
        );
        let mut landed = Vec::new();
        ring.poll(&mut landed, 1, Duration::from_millis(20))
            .unwrap();
        assert!(landed.is_empty() && ring.in_flight() == 1);
        ring.cancel(operation.unwrap());
        let landed = one(&mut ring);
        assert_eq!(
            landed.result.unwrap_err().raw_os_error(),
            Some(libc::ECANCELED)
        );
        assert!(matches!(landed.payload, Payload::Fill { .. }));
    }

    #[test]
    fn dropping_a_ring_ends_what_is_in_flight() {
        let Some(mut ring) = ring() else { return };
        let (socket, _peer) = connected(&mut ring);
        for key in 0..8 {
            let payload = Payload::Receive {
                bytes: vec![0; 64],
                from: 0,
                to: 64,
            };
            ring.begin(key, &socket, payload).unwrap();
        }
        let payload = Payload::Fill {
            io: io(10),
            from: 0,
            to: 10,
        };
        let refused = ring.begin(9, &socket, payload).unwrap_err();
        assert!(matches!(refused, Payload::Fill { .. }), "the table is full");
        let start = std::time::Instant::now();
        drop(ring);
        assert!(start.elapsed() < Duration::from_secs(10));
        drop(socket);
    }

    #[test]
    fn a_refused_connection_says_so() {
        let Some(mut ring) = ring() else { return };
        let listener = TcpListener::bind("[::1]:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let socket = Arc::new(Socket::new(&address).unwrap());
        ring.begin(0, &socket, Payload::Connect(address)).unwrap();
        let error = one(&mut ring).result.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    }
}
