//! One connection: its socket, its phase, and its buffers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_sys::{
    Socket,
    uring::sockets::{Operation, Payload},
};

use super::{
    Object,
    session::{Session, Stage},
};
use crate::{head::HEAD_BYTES_MAX, origin::Origin, progress::Progress, remote::ERROR_BYTES_MAX, service::Judgement};

/// The size of the first receive of a response: most heads fit, and little of the body must be copied.
const FIRST_BYTES: usize = 4 << 10;

/// Space for a head and the body of an error.
const SCRATCH_BYTES: usize = HEAD_BYTES_MAX + ERROR_BYTES_MAX;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) origin: Arc<Origin>,
    pub(super) socket: Arc<Socket>,
    /// `None` without TLS, and before the tunnel of a proxy is open.
    pub(super) session: Option<Box<Session>>,
    pub(super) phase: Phase,
    /// Its operation in the ring: one at a time.
    pub(super) operation: Option<Operation>,
    /// When it counts as stalled.
    pub(super) deadline: Instant,
    /// The progress checks while a body is received.
    pub(super) watch: Watch,
    /// When its request was sent; if it is idle, since when.
    pub(super) since: Instant,
    /// Whether it has served a request.
    pub(super) is_used: bool,
    /// Whether it may serve another one after this response.
    pub(super) is_reusable: bool,
    /// Set when it is closing: it is removed once its operation has completed.
    pub(super) ending: Option<Ending>,
    /// The head of its request, or a piece of the body with TLS.
    pub(super) out: Vec<u8>,
    /// The bytes received of the response's head and of an error's body.
    scratch: Vec<u8>,
    pub(super) filled: usize,
}

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is being established: TCP, the tunnel, TLS.
    Connecting,
    Tunnelling,
    Handshaking,
    /// It waits for a request.
    Idle,
    /// Sends the head of a request.
    SendingHead(u32),
    /// Sends the body of a request.
    SendingBody(u32),
    /// Waits for the head of the response.
    Awaiting(u32),
    /// Receives the body into the I/O.
    ReceivingBody(u32),
    /// Receives the body of an error, which ends at this byte of the scratch buffer.
    ReceivingError(u32, usize),
}

/// Measures the progress of a body. While the kernel receives into an I/O it reports none before the end. So the
/// operation is cancelled twice per stall timeout, which yields the bytes received so far, and started again.
#[derive(Clone, Copy, Debug)]
pub(super) struct Watch {
    /// Whether its operation was cancelled for a check.
    pub(super) is_checking: bool,
    /// The bytes that must arrive, and by when.
    progress: Progress,
}

/// The reason why a connection is closed.
#[derive(Debug)]
pub(super) enum Ending {
    /// It is not needed any more.
    Unneeded,
    /// Its request failed with this judgement.
    Judged(u32, Judgement),
}

impl Phase {
    /// Whether the connection is being established.
    pub(super) fn is_dialling(self) -> bool {
        matches!(self, Self::Connecting | Self::Tunnelling | Self::Handshaking)
    }

    /// The request that the connection serves.
    pub(super) fn request(self) -> Option<u32> {
        match self {
            Self::SendingHead(request)
            | Self::SendingBody(request)
            | Self::Awaiting(request)
            | Self::ReceivingBody(request)
            | Self::ReceivingError(request, _) => Some(request),
            _ => None,
        }
    }
}

impl Connection {
    pub(super) fn new(origin: &Arc<Origin>, socket: Socket, now: Instant) -> Self {
        let settings = origin.settings();
        Self {
            origin: Arc::clone(origin),
            socket: Arc::new(socket),
            session: None,
            phase: Phase::Connecting,
            operation: None,
            deadline: now + settings.connect_max,
            watch: Watch {
                is_checking: false,
                progress: Progress::begin(settings, 0, 0, now),
            },
            since: now,
            is_used: false,
            is_reusable: false,
            ending: None,
            out: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES],
            filled: 0,
        }
    }

    /// The bytes received so far of the response.
    pub(super) fn scratch(&self) -> &[u8] {
        &self.scratch[..self.filled]
    }

    /// Drops all received bytes of the response.
    pub(super) fn clear_scratch(&mut self) {
        self.filled = 0;
    }

    /// Appends decrypted bytes to the response. Returns the number of bytes that fit.
    pub(super) fn append_scratch(&mut self, bytes: &[u8]) -> usize {
        let room = &mut self.scratch[self.filled..];
        let taken = bytes.len().min(room.len());
        room[..taken].copy_from_slice(&bytes[..taken]);
        self.filled += taken;
        taken
    }

    /// Lends the buffer that the next bytes are received into.
    pub(super) fn lend_incoming(&mut self) -> Payload<Object> {
        if let Some(session) = &mut self.session {
            let (bytes, from) = session.lend_incoming();
            let to = bytes.len();
            return Payload::Receive { bytes, from, to };
        }
        let from = self.filled;
        let most = match self.phase {
            // The proxy's response is only a head; bytes after it are an error.
            Phase::Tunnelling => HEAD_BYTES_MAX,
            _ if from < FIRST_BYTES => FIRST_BYTES,
            _ => SCRATCH_BYTES,
        };
        let bytes = std::mem::take(&mut self.scratch);
        let to = most.min(bytes.len()).max(from);
        Payload::Receive { bytes, from, to }
    }

    /// Takes that buffer back with `more` bytes in it.
    pub(super) fn take_incoming(&mut self, bytes: Vec<u8>, more: usize) {
        if let Some(session) = &mut self.session {
            session.take_incoming(bytes, more);
        } else {
            self.scratch = bytes;
            self.filled += more;
        }
    }

    /// Lends the bytes to send.
    pub(super) fn lend_outgoing(&mut self) -> Option<Vec<u8>> {
        match &mut self.session {
            Some(session) => session.lend_outgoing(),
            None => Some(std::mem::take(&mut self.out)),
        }
    }

    /// Takes that buffer back.
    pub(super) fn take_outgoing(&mut self, bytes: Vec<u8>) {
        match &mut self.session {
            Some(session) => session.take_outgoing(bytes),
            None => self.out = bytes,
        }
    }

    /// Whether the kernel receives into the buffer of the response.
    pub(super) fn lends_scratch(&self) -> bool {
        self.operation.is_some() && self.session.is_none()
    }

    /// Whether the kernel receives into an I/O.
    pub(super) fn fills_io(&self) -> bool {
        matches!(self.phase, Phase::ReceivingBody(_)) && self.session.is_none()
    }

    /// Whether it can take a request.
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle && self.operation.is_none() && self.ending.is_none()
    }

    /// Whether an idle connection is usable: no unexpected bytes have arrived, and the server has not closed it. With
    /// TLS the server may have sent session tickets, which are processed.
    pub(super) fn is_quiet(&mut self) -> bool {
        if self.socket.is_quiet() {
            return true;
        }
        let Some(session) = &mut self.session else {
            return false;
        };
        let (mut bytes, from) = session.lend_incoming();
        let received = self.socket.receive_now(&mut bytes[from..]);
        session.take_incoming(bytes, *received.as_ref().unwrap_or(&0));
        let mut has_payload = false;
        let stage = session.process(|_| has_payload = true);
        let is_open = received.is_ok_and(|bytes| bytes > 0) && matches!(stage, Ok(Stage::Open));
        is_open && !has_payload && self.socket.is_quiet()
    }

    /// Begins to measure the progress of a body, of which `got` of `end` bytes have arrived.
    pub(super) fn expect_body(&mut self, got: usize, end: usize, now: Instant) {
        let settings = self.origin.settings();
        self.watch = Watch {
            is_checking: false,
            progress: Progress::begin(settings, got, end, now),
        };
        self.set_body_deadline(now);
    }

    /// Notes that `got` of the `end` bytes of the body have arrived. Returns whether the body comes too slowly.
    pub(super) fn is_too_slow(&mut self, got: usize, end: usize, now: Instant) -> bool {
        let settings = self.origin.settings();
        let is_too_slow = self.watch.progress.is_too_slow(settings, got, end, now);
        self.set_body_deadline(now);
        is_too_slow
    }

    /// Sets the deadline for the progress of the body.
    fn set_body_deadline(&mut self, now: Instant) {
        let until = self.watch.progress.until();
        // With TLS every receive is seen, so no progress checks are needed.
        self.deadline = if self.origin.site().is_tls {
            until
        } else {
            until.min(now + self.origin.settings().stall_max / 2)
        };
    }

    /// Sets the deadline to `most` from now.
    pub(super) fn expect_within(&mut self, most: Duration, now: Instant) {
        self.deadline = now + most;
    }
}
