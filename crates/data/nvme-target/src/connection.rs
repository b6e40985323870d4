//! A connection: a socket that is split into PDUs.

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
    end::{End, transfer_time_max},
    receiver::{Filled, Receiver},
    sender::{Sender, send_tick},
};

/// MAXH2CDATA: the maximum data length of one `H2CData` PDU. A connection that writes has a buffer of this size.
pub(crate) const HOST_DATA_BYTES_MAX: u32 = 256 << 10;

/// The maximum in-capsule data size, as in the Linux target.
pub(crate) const CAPSULE_BYTES_MAX: u32 = 16 << 10;

/// The result of waiting for the next PDU.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Arrived {
    /// A PDU. All its bytes have arrived, except for [`Pdu::HostData`], of which the head has arrived.
    Frame(Frame),
    /// The controller signalled an event.
    Wakeup,
    /// The wait timed out.
    Tick,
}

/// A socket with its receiving and its sending half.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) socket: Arc<TcpStream>,
    pub(crate) receiver: Receiver,
    pub(crate) sender: Sender,
    /// The timeout inside a PDU and while sending.
    pub(crate) stall_timeout: Duration,
    /// The time when the connection ends unless it is logged in and authenticated; `None` after that.
    pub(crate) deadline: Option<Instant>,
    /// The time since which the current PDU is incomplete.
    incomplete_since: Option<Instant>,
}

impl Connection {
    pub(crate) fn new(socket: TcpStream, stall_timeout: Duration) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        socket.set_write_timeout(Some(send_tick(stall_timeout)))?;
        // TCP keep-alive detects a dead host that has no NVMe keep-alive.
        rustix::net::sockopt::set_socket_keepalive(&socket, true)?;
        let socket = Arc::new(socket);
        let framing = Framing {
            capsule_bytes_max: CAPSULE_BYTES_MAX,
            ..Framing::new(Role::Controller, HOST_DATA_BYTES_MAX)
        };
        Ok(Self {
            receiver: Receiver::new(socket.clone())?,
            sender: Sender::new(socket.clone(), framing, stall_timeout),
            socket,
            stall_timeout,
            deadline: None,
            incomplete_since: None,
        })
    }

    /// The local address of the connection.
    pub(crate) fn local(&self) -> Option<SocketAddr> {
        self.socket.local_addr().ok()
    }

    /// Returns the next PDU. Sends the queued completions before it waits, or if there are many.
    pub(crate) fn next(&mut self, wakeup: Option<BorrowedFd<'_>>) -> Result<Arrived, End> {
        if self.sender.is_full() {
            self.sender.flush()?;
        }
        loop {
            // Checked after every wait: a host that sends a byte now and then must not delay it.
            if self.deadline.is_some_and(|end| Instant::now() >= end) {
                return Err(End::Deadline);
            }
            let bytes = self.receiver.bytes();
            let needed = match self.sender.framing.decode(bytes)? {
                Decoded::Partial(needed) => needed,
                Decoded::Whole(frame) => {
                    let needed = match frame.pdu {
                        Pdu::HostData(_) => frame.head_bytes,
                        _ => frame.total_bytes(),
                    };
                    if bytes.len() >= needed {
                        self.incomplete_since = None;
                        return Ok(Arrived::Frame(frame));
                    }
                    needed
                }
            };
            let is_inside = !bytes.is_empty();
            if is_inside {
                self.check_progress(needed)?;
            }
            self.sender.flush()?;
            match self.receiver.fill(needed, wakeup)? {
                Filled::Bytes => {}
                Filled::Wakeup => return Ok(Arrived::Wakeup),
                Filled::Tick if is_inside && self.receiver.silence() > self.stall_timeout => {
                    return Err(End::Silent);
                }
                Filled::Tick => return Ok(Arrived::Tick),
            }
        }
    }

    /// Fails if the current PDU has been incomplete for longer than its length permits.
    fn check_progress(&mut self, needed: usize) -> Result<(), End> {
        let since = *self.incomplete_since.get_or_insert_with(Instant::now);
        if since.elapsed() > transfer_time_max(needed, self.stall_timeout) {
            return Err(End::Silent);
        }
        Ok(())
    }

    /// The in-capsule data of a complete frame. Fails with a status if its digest is wrong.
    pub(crate) fn capsule_data(&self, frame: &Frame) -> Result<&[u8], Status> {
        let bytes = self.receiver.bytes();
        let end = frame.head_bytes + frame.data_bytes;
        let data = &bytes[frame.head_bytes..end];
        if frame.has_digest && frame.data_bytes > 0 {
            let sum = bytes[end..end + DIGEST_BYTES].first_chunk().expect("4 bytes");
            if digest(data) != u32::from_le_bytes(*sum) {
                return Err(Status::TRANSIENT_TRANSPORT);
            }
        }
        Ok(data)
    }

    /// Answers `ICReq`.
    pub(crate) fn begin(&mut self) -> Result<(), End> {
        let frame = self.first()?;
        let Pdu::IcReq(request) = frame.pdu else {
            return Err(sequence("the first PDU is not ICReq"));
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

    /// Waits for a PDU of the login.
    pub(crate) fn first(&mut self) -> Result<Frame, End> {
        loop {
            if let Arrived::Frame(frame) = self.next(None)? {
                return Ok(frame);
            }
        }
    }

    /// Fails a command before its queue exists.
    pub(crate) fn refuse(&mut self, sqe: &Sqe, status: Status, result: u64) -> End {
        let mut cqe = Cqe::new(sqe.cid, status);
        cqe.result = result;
        self.sender.response(cqe);
        End::Refused
    }

    /// Sends the termination request, if there is one.
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

/// A PDU that is out of sequence.
pub(crate) fn sequence(what: &'static str) -> End {
    End::Fault(Fault::new(FatalStatus::SEQUENCE, 0, what))
}
