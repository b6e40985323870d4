//! One blocking connection: one command at a time, each with a deadline.
//!
//! The admin queue always uses a link. An I/O queue uses one until it is connected. Then a lane takes over its socket.

use std::{
    collections::VecDeque,
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::Result as CoreResult;
use straightway_nvme::{
    Cqe, Decoded, Digests, Frame, Framing, Pdu, Role, Sgl, Sqe, Status, TRANSFER_BYTES_MAX,
    admin::{Admin, AsyncEvent, GetLog},
    digest,
    fabrics::{Connect, ConnectData, Fabrics},
    pdu::{Data, HEAD_BYTES_MAX, IcReq, IcResp, Ready},
};
use straightway_sys::Socket;

use super::{
    association::Association,
    failure::{LinkError, Refusal},
};

/// The command identifier of the Asynchronous Event Request. Other commands count up from 0.
const EVENT_CID: u16 = 0xf000;

/// The interval at which a waiting command looks at the association of its queue.
const OWNER_INTERVAL: Duration = Duration::from_millis(50);

type Result<T> = std::result::Result<T, LinkError>;

fn broken<T>(why: impl Into<String>) -> Result<T> {
    Err(LinkError::Broken(why.into()))
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Link {
    stream: TcpStream,
    framing: Framing,
    host_data_bytes_max: u32,
    next_cid: u16,
    has_event_request: bool,
    events: VecDeque<AsyncEvent>,
    /// The association of an I/O queue. It is in use while a command waits, and the command ends with it.
    owner: Option<Arc<Association>>,
}

impl Link {
    /// Connects by TCP and negotiates digests.
    pub(crate) fn open(address: SocketAddr, digests: Digests, wait_max: Duration) -> CoreResult<Self, Refusal> {
        let deadline = Instant::now() + wait_max;
        let stream = TcpStream::connect_timeout(&address, wait_max);
        let stream = stream.map_err(|error| Refusal::transient(connect_failure(&error, wait_max)))?;
        let _ = stream.set_nodelay(true);
        let mut link = Self {
            stream,
            framing: Framing::new(Role::Host, TRANSFER_BYTES_MAX),
            host_data_bytes_max: 0,
            next_cid: 0,
            has_event_request: false,
            events: VecDeque::new(),
            owner: None,
        };
        let hello = IcReq {
            digests,
            ..IcReq::default()
        };
        let mut bytes = Vec::new();
        link.framing.encode(&Pdu::IcReq(hello), 0, &mut bytes);
        let sent = link.send(&bytes, deadline);
        sent.map_err(|error| Refusal::transient(error.to_string()))?;
        let foreign = |why: &str| Refusal::transient(format!("it does not speak NVMe/TCP: {why}"));
        let frame = link.frame(deadline);
        let frame = frame.map_err(|error| foreign(&error.to_string()))?;
        let Pdu::IcResp(IcResp {
            align,
            digests: agreed,
            data_bytes_max,
            ..
        }) = frame.pdu
        else {
            return Err(foreign("its first PDU is not ICResp"));
        };
        check_digests(digests, agreed)?;
        link.framing = link.framing.agreed(agreed, align);
        link.host_data_bytes_max = data_bytes_max;
        Ok(link)
    }

    /// Sends Connect, which creates a queue on the connection.
    pub(crate) fn connect(&mut self, connect: Connect, data: &ConnectData, deadline: Instant) -> Result<u64> {
        let sqe = Fabrics::Connect(connect).sqe();
        Ok(self.run(sqe, &data.encode(), &mut [], deadline)?.result)
    }

    /// Sets the association of an I/O queue.
    pub(crate) fn set_owner(&mut self, owner: &Arc<Association>) {
        self.owner = Some(Arc::clone(owner));
    }

    /// Returns the socket and the negotiated parameters for the data path.
    pub(crate) fn into_parts(self) -> CoreResult<(Socket, Framing, u32), std::io::Error> {
        let socket = Socket::of_stream(self.stream)?;
        Ok((socket, self.framing, self.host_data_bytes_max))
    }

    /// Runs one command. `out` is sent in the capsule or after an R2T, depending on the command's SGL. `into` must be
    /// filled completely.
    pub(crate) fn run(&mut self, sqe: Sqe, out: &[u8], into: &mut [u8], deadline: Instant) -> Result<Cqe> {
        let cid = self.next_cid;
        self.next_cid = (cid + 1) % EVENT_CID;
        let in_capsule = sqe.sgl.is_in_capsule();
        self.send_command(sqe.with_cid(cid), if in_capsule { out } else { &[] }, deadline)?;
        // In-capsule data is sent with the command.
        let (mut received, mut sent) = (0, if in_capsule { out.len() } else { 0 });
        loop {
            let frame = self.frame(deadline)?;
            let done = match frame.pdu {
                Pdu::ControllerData(data) if data.cid == cid => {
                    received = self.take_data(&frame, data, received, into, deadline)?;
                    data.is_success.then(|| Cqe::new(cid, Status::SUCCESS))
                }
                Pdu::Ready(ready) if ready.cid == cid && !in_capsule => {
                    sent = self.send_data(ready, sent, out, deadline)?;
                    None
                }
                Pdu::Response(cqe) if cqe.cid == cid => Some(cqe),
                pdu => {
                    self.take_other(&pdu)?;
                    None
                }
            };
            if let Some(cqe) = done {
                return Self::check_completion(cqe, received + sent, into.len() + out.len());
            }
        }
    }

    /// Checks a completion. Success requires that all data was received or sent.
    fn check_completion(cqe: Cqe, moved: usize, expected: usize) -> Result<Cqe> {
        if !cqe.status.is_success() {
            return Err(LinkError::Refused(cqe.status, cqe.result));
        }
        if moved != expected {
            return broken(format!(
                "the target reported success with {moved} of {expected} bytes moved"
            ));
        }
        Ok(cqe)
    }

    /// Handles a PDU that does not belong to the running command.
    fn take_other(&mut self, pdu: &Pdu) -> Result<()> {
        match pdu {
            Pdu::Response(cqe) if cqe.cid == EVENT_CID && self.has_event_request => {
                self.has_event_request = false;
                // A controller that fails the request has no events.
                if cqe.status.is_success() {
                    self.events.push_back(AsyncEvent::from_result(cqe.result));
                }
                Ok(())
            }
            Pdu::ControllerTerm(term) => broken(format!("the target ended the connection: {}", term.status)),
            Pdu::Response(cqe) => broken(format!(
                "the target answered command {:#x}, which is not outstanding",
                cqe.cid
            )),
            _ => broken("the target sent an unexpected PDU"),
        }
    }

    /// Receives the payload of one data PDU. Returns the number of bytes received so far.
    fn take_data(
        &mut self,
        frame: &Frame,
        data: Data,
        received: usize,
        into: &mut [u8],
        deadline: Instant,
    ) -> Result<usize> {
        let start = data.offset as usize;
        let end = start + frame.data_bytes;
        if start != received || end > into.len() {
            return broken(format!(
                "the target sent bytes {start} to {end} where {received} to {} were due",
                into.len()
            ));
        }
        self.receive(&mut into[start..end], deadline)?;
        if frame.has_digest {
            let mut sum = [0; 4];
            self.receive(&mut sum, deadline)?;
            if u32::from_le_bytes(sum) != digest(&into[start..end]) {
                return broken("the data digest is wrong");
            }
        }
        Ok(end)
    }

    /// Sends the data that an R2T requests, which must follow the data sent so far. Returns the number of bytes sent so
    /// far.
    fn send_data(&mut self, ready: Ready, sent: usize, out: &[u8], deadline: Instant) -> Result<usize> {
        let start = ready.offset as usize;
        let end = start + ready.bytes as usize;
        if start != sent || end > out.len() {
            return broken(format!(
                "the target requested bytes {start} to {end} where {sent} to {} are left",
                out.len()
            ));
        }
        let mut at = start;
        while at < end {
            let bytes = (end - at).min(self.host_data_bytes_max as usize);
            let part = &out[at..at + bytes];
            let data = Data {
                cid: ready.cid,
                tag: ready.tag,
                offset: u32::try_from(at).expect("commands are short"),
                bytes: u32::try_from(bytes).expect("commands are short"),
                is_last: at + bytes == end,
                is_success: false,
            };
            self.send_pdu(&Pdu::HostData(data), part, deadline)?;
            at += bytes;
        }
        Ok(end)
    }

    fn send_command(&mut self, sqe: Sqe, data: &[u8], deadline: Instant) -> Result<()> {
        self.send_pdu(&Pdu::Command(sqe), data, deadline)
    }

    fn send_pdu(&mut self, pdu: &Pdu, data: &[u8], deadline: Instant) -> Result<()> {
        let mut bytes = Vec::with_capacity(HEAD_BYTES_MAX + data.len());
        self.framing.encode(pdu, data.len(), &mut bytes);
        bytes.extend(data);
        if !data.is_empty() && self.framing.has_data_digest() {
            bytes.extend(digest(data).to_le_bytes());
        }
        self.send(&bytes, deadline)
    }

    /// Sends an Asynchronous Event Request.
    pub(crate) fn request_event(&mut self, deadline: Instant) -> Result<()> {
        if self.has_event_request {
            return Ok(());
        }
        let sqe = Admin::EventRequest.sqe().with_cid(EVENT_CID);
        self.send_command(sqe.with_sgl(Sgl::none()), &[], deadline)?;
        self.has_event_request = true;
        Ok(())
    }

    /// Returns the next event, if there is one. A closed connection is an error.
    pub(crate) fn next_event(&mut self) -> Result<Option<AsyncEvent>> {
        if let Some(event) = self.events.pop_front() {
            return Ok(Some(event));
        }
        let mut byte = [0; 1];
        let _ = self.stream.set_nonblocking(true);
        let peeked = self.stream.peek(&mut byte);
        let _ = self.stream.set_nonblocking(false);
        match peeked {
            Ok(0) => broken("the target closed the admin connection"),
            Ok(_) => {
                let frame = self.frame(Instant::now() + Duration::from_secs(2))?;
                self.take_other(&frame.pdu)?;
                Ok(self.events.pop_front())
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => broken(format!("the admin connection failed: {error}")),
        }
    }

    /// Receives the head of the next PDU.
    fn frame(&mut self, deadline: Instant) -> Result<Frame> {
        let mut head = [0; HEAD_BYTES_MAX];
        let mut have = 0;
        loop {
            match self.framing.decode(&head[..have]) {
                Ok(Decoded::Whole(frame)) => return Ok(frame),
                Ok(Decoded::Partial(need)) => {
                    self.receive(&mut head[have..need], deadline)?;
                    have = need;
                }
                Err(fault) => return broken(fault.to_string()),
            }
        }
    }

    fn receive(&mut self, mut bytes: &mut [u8], deadline: Instant) -> Result<()> {
        while !bytes.is_empty() {
            let wait = self.wait_time(deadline)?;
            let _ = self.stream.set_read_timeout(Some(wait));
            match self.stream.read(bytes) {
                Ok(0) => return broken("the target closed the connection"),
                Ok(count) => bytes = &mut bytes[count..],
                Err(error) if is_transient(&error) => self.check_owner()?,
                Err(error) => return broken(error.to_string()),
            }
        }
        Ok(())
    }

    fn send(&mut self, mut bytes: &[u8], deadline: Instant) -> Result<()> {
        while !bytes.is_empty() {
            let wait = self.wait_time(deadline)?;
            let _ = self.stream.set_write_timeout(Some(wait));
            match self.stream.write(bytes) {
                Ok(0) => return broken("the connection accepts no more bytes"),
                Ok(count) => bytes = &bytes[count..],
                Err(error) if is_transient(&error) => self.check_owner()?,
                Err(error) => return broken(error.to_string()),
            }
        }
        Ok(())
    }

    /// The time of the next wait: until the deadline, or until the association is looked at.
    fn wait_time(&self, deadline: Instant) -> Result<Duration> {
        let left = remaining(deadline)?;
        let most = self.owner.as_ref().map_or(left, |_| OWNER_INTERVAL);
        Ok(left.min(most))
    }

    /// Marks the association of an I/O queue as in use. Fails if it has ended: its control thread noticed that the
    /// target is silent, or the target has dropped the queue.
    fn check_owner(&self) -> Result<()> {
        let Some(owner) = &self.owner else {
            return Ok(());
        };
        owner.touch();
        owner.ended().map_or(Ok(()), broken)
    }
}

fn is_transient(error: &std::io::Error) -> bool {
    let kinds = [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted];
    kinds.contains(&error.kind())
}

/// The time until the deadline.
fn remaining(deadline: Instant) -> Result<Duration> {
    match deadline.checked_duration_since(Instant::now()) {
        Some(left) if left > Duration::ZERO => Ok(left),
        _ => broken("no answer in time"),
    }
}

/// Refuses digests other than the requested ones. Without a requested digest, damaged data would go unnoticed.
fn check_digests(requested: Digests, agreed: Digests) -> CoreResult<(), Refusal> {
    if (agreed.header && !requested.header) || (agreed.data && !requested.data) {
        return Err(Refusal::transient("it uses a digest that was not requested"));
    }
    let missing = match (requested.header && !agreed.header, requested.data && !agreed.data) {
        (false, false) => return Ok(()),
        (true, false) => "the header digest",
        (false, true) => "the data digest",
        (true, true) => "the header digest and the data digest",
    };
    let why = format!("the target refuses {missing}, which this host requested");
    Err(Refusal::permanent(why)
        .with_hint("enable the digests of the target, or request only those it has: ⟦nvme_digests⟧"))
}

fn connect_failure(error: &std::io::Error, wait_max: Duration) -> String {
    match error.kind() {
        ErrorKind::TimedOut | ErrorKind::WouldBlock => format!("no connection within {wait_max:?}"),
        ErrorKind::ConnectionRefused => "nobody listens there (connection refused)".to_owned(),
        _ => error.to_string(),
    }
}

/// The command that reads a log page from its start and re-enables its event.
pub(crate) fn get_log(page: u8, bytes: usize, nsid: u32) -> Sqe {
    Admin::GetLog(GetLog {
        page,
        specific: 0,
        retains_event: false,
        offset: 0,
        bytes: u32::try_from(bytes).expect("log pages are short"),
        nsid,
    })
    .sqe()
}
