//! A connection: a socket cut into PDUs, from its first byte to its end.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    os::fd::BorrowedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_nvme::{
    Cqe, DIGEST_BYTES, Decoded, Digests, Fault, Frame, Framing, Pdu, Role, Sqe, Status, digest,
    pdu::{FatalStatus, IcResp},
};

use crate::{
    receiver::{Filled, Receiver},
    sender::Sender,
};

/// The most data in one PDU of a host: MAXH2CDATA. A connection that writes has a buffer of this size.
pub(crate) const HOST_DATA_BYTES_MAX: u32 = 256 << 10;

/// The most data in the capsule of a command, as Linux's target has it.
pub(crate) const CAPSULE_BYTES_MAX: u32 = 16 << 10;

/// Why a connection ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The host closed it, or the target is told to stop.
    Closed,
    /// The host broke a rule.
    Fault(Fault),
    /// Nothing came or nothing was taken for too long, inside of a message or before the login.
    Silent,
    /// The host has given no sign of life for its keep-alive time.
    KeepAlive,
    /// It was refused, and told so.
    Refused,
    /// A file lost bytes that were promised already.
    Backing,
    /// The socket failed.
    Socket(io::Error),
}

impl From<Fault> for End {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// What a wait for the next PDU ended with.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrived {
    /// A PDU. All its bytes are there, but for [`Pdu::HostData`], of which the head is.
    Frame(Frame),
    /// The bell of the controller.
    Bell,
    /// Time has passed.
    Tick,
}

/// A socket and its two halves.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: Arc<TcpStream>,
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    /// How long a host may be silent inside of a message, or not take an answer.
    pub(crate) patience: Duration,
}

impl Connection {
    pub(crate) fn new(socket: TcpStream, patience: Duration) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(patience))?;
        // A host that died without a word is found by TCP where it has no keep-alive of its own.
        rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
        let socket = Arc::new(socket);
        let framing = Framing {
            capsule_bytes_max: CAPSULE_BYTES_MAX,
            ..Framing::new(Role::Controller, HOST_DATA_BYTES_MAX)
        };
        Ok(Self {
            receiver: Receiver::new(socket.clone())?,
            sender: Sender::new(socket.clone(), framing),
            socket,
            patience,
        })
    }

    /// The address that the host connected to.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    /// Waits for the next PDU, and sends the answers gathered so far before it does.
    pub(crate) fn next(&mut self, bell: Option<BorrowedFd<'_>>) -> Result<Arrived, End> {
        loop {
            let bytes = self.receiver.bytes();
            let needed = match self.sender.framing.decode(bytes)? {
                Decoded::Partial(needed) => needed,
                Decoded::Whole(frame) => {
                    let needed = match frame.pdu {
                        Pdu::HostData(_) => frame.head_bytes,
                        _ => frame.total_bytes(),
                    };
                    if bytes.len() >= needed {
                        return Ok(Arrived::Frame(frame));
                    }
                    needed
                }
            };
            let is_inside = !bytes.is_empty();
            self.sender.flush()?;
            match self.receiver.fill(needed, bell)? {
                Filled::Bytes => {}
                Filled::Bell => return Ok(Arrived::Bell),
                Filled::Tick if is_inside && self.receiver.silence() > self.patience => {
                    return Err(End::Silent);
                }
                Filled::Tick => return Ok(Arrived::Tick),
            }
        }
    }

    /// The data of a frame that is all there; an error status where its digest is wrong.
    pub(crate) fn capsule_data(&self, frame: &Frame) -> Result<&[u8], Status> {
        let bytes = self.receiver.bytes();
        let end = frame.head_bytes + frame.data_bytes;
        let data = &bytes[frame.head_bytes..end];
        if frame.has_digest && frame.data_bytes > 0 {
            let sum = bytes[end..end + DIGEST_BYTES]
                .first_chunk()
                .expect("4 bytes");
            if digest(data) != u32::from_le_bytes(*sum) {
                return Err(Status::TRANSIENT_TRANSPORT);
            }
        }
        Ok(data)
    }

    /// Answers the first PDU.
    pub(crate) fn begin(&mut self, limit: Duration) -> Result<(), End> {
        let frame = self.first(limit)?;
        let Pdu::IcReq(request) = frame.pdu else {
            return Err(sequence("the first PDU is no ICReq"));
        };
        self.receiver.consume(frame.total_bytes());
        let digests: Digests = request.digests;
        self.sender.pdu(&Pdu::IcResp(IcResp {
            version: 0,
            align: 0,
            digests,
            data_bytes_max: HOST_DATA_BYTES_MAX,
        }));
        self.sender.flush()?;
        self.sender.framing = self.sender.framing.agreed(digests, request.align);
        Ok(())
    }

    /// Waits for a PDU that must come within a time.
    pub(crate) fn first(&mut self, limit: Duration) -> Result<Frame, End> {
        let start = Instant::now();
        loop {
            match self.next(None)? {
                Arrived::Frame(frame) => return Ok(frame),
                _ if start.elapsed() > limit => return Err(End::Silent),
                _ => {}
            }
        }
    }

    /// Answers a command that failed before it was looked at in a queue.
    pub(crate) fn refuse(&mut self, sqe: &Sqe, status: Status, result: u64) -> End {
        let mut cqe = Cqe::new(sqe.cid, status);
        cqe.result = result;
        self.sender.response(cqe);
        End::Refused
    }

    /// Says the last word, where there is one.
    pub(crate) fn end(&mut self, end: &End) {
        match end {
            End::Fault(fault) => {
                let wrong = self.receiver.bytes();
                let wrong = wrong[..wrong.len().min(72)].to_vec();
                self.sender.terminate(fault, &wrong);
            }
            End::Refused => self.sender.close(),
            _ => {}
        }
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
    }
}

/// A PDU that came where it must not.
pub(crate) fn sequence(what: &'static str) -> End {
    End::Fault(Fault::new(FatalStatus::SEQUENCE, 0, what))
}
