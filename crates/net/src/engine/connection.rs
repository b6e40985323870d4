//! One connection: a socket, where it is in its dialogue, and the buffers of that.

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
use crate::{head::HEAD_BYTES_MAX, origin::Origin, remote::ERROR_BYTES_MAX, service::Judgement};

/// What is received at first of an answer: most heads fit, and little of the body is copied.
const FIRST_BYTES: usize = 4 << 10;

/// Room for a head and the body of an error.
const SCRATCH_BYTES: usize = HEAD_BYTES_MAX + ERROR_BYTES_MAX;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) origin: Arc<Origin>,
    pub(super) socket: Arc<Socket>,
    /// `None` without TLS, and while a tunnel is opened for it.
    pub(super) session: Option<Box<Session>>,
    pub(super) phase: Phase,
    /// What the ring has under way for it: one operation at a time.
    pub(super) operation: Option<Operation>,
    /// When it counts as stuck.
    pub(super) deadline: Instant,
    /// What the deadline means while a body is received.
    pub(super) watch: Watch,
    /// When its request was sent; while it has none, since when.
    pub(super) since: Instant,
    /// Whether it has served a request.
    pub(super) is_used: bool,
    /// Whether it may serve another one after this answer.
    pub(super) is_reusable: bool,
    /// Set when it is to be closed: as soon as its operation has landed.
    pub(super) ending: Option<Ending>,
    /// The head of its request.
    pub(super) out: Vec<u8>,
    /// What came of the answer's head, and of an error's body.
    scratch: Vec<u8>,
    pub(super) filled: usize,
}

/// Where a connection is in its dialogue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is being established: TCP, the tunnel, TLS.
    Connecting,
    Tunnelling,
    Shaking,
    /// It waits for a request.
    Idle,
    /// The head of a request is sent.
    Asking(u32),
    /// The body of a request is sent.
    Sending(u32),
    /// The head of the answer is awaited.
    Awaiting(u32),
    /// The body is received into the I/O.
    Filling(u32),
    /// The body of an error is received, from this byte of the scratch buffer on.
    Erring(u32, usize),
}

/// How it is noticed that nothing comes any more while the kernel fills an I/O. It tells nothing before the end.
/// Twice in the longest time without a byte the operation is cancelled, which tells how far it came; then it goes on.
/// Two such looks in a row without a byte are the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Watch {
    /// Whether its operation was cancelled for a look.
    pub(super) is_looking: bool,
    /// Whether nothing had come at the last look.
    pub(super) was_silent: bool,
}

/// How a connection ends.
#[derive(Debug)]
pub(super) enum Ending {
    /// Nobody needs it any more.
    Unneeded,
    /// Its request is judged so.
    Judged(u32, Judgement),
}

impl Phase {
    /// Whether it is being established.
    pub(super) fn is_dialling(self) -> bool {
        matches!(self, Self::Connecting | Self::Tunnelling | Self::Shaking)
    }

    /// The request that it serves.
    pub(super) fn request(self) -> Option<u32> {
        match self {
            Self::Asking(request)
            | Self::Sending(request)
            | Self::Awaiting(request)
            | Self::Filling(request)
            | Self::Erring(request, _) => Some(request),
            _ => None,
        }
    }
}

impl Connection {
    pub(super) fn new(origin: &Arc<Origin>, socket: Socket, now: Instant) -> Self {
        Self {
            origin: Arc::clone(origin),
            socket: Arc::new(socket),
            session: None,
            phase: Phase::Connecting,
            operation: None,
            deadline: now + origin.network().settings().connect_max,
            watch: Watch::default(),
            since: now,
            is_used: false,
            is_reusable: false,
            ending: None,
            out: Vec::new(),
            scratch: vec![0; SCRATCH_BYTES],
            filled: 0,
        }
    }

    /// What came so far of the answer.
    pub(super) fn scratch(&self) -> &[u8] {
        &self.scratch[..self.filled]
    }

    /// Drops all that came of the answer.
    pub(super) fn clear_scratch(&mut self) {
        self.filled = 0;
    }

    /// Adds decrypted bytes to what came of the answer. Answers how many fit.
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
            // No byte behind the proxy's answer is ours to take.
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

    /// Lends what is to be sent.
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

    /// Whether the kernel receives into an I/O.
    pub(super) fn fills_io(&self) -> bool {
        matches!(self.phase, Phase::Filling(_)) && self.session.is_none()
    }

    /// Whether it waits for a request.
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle && self.operation.is_none() && self.ending.is_none()
    }

    /// Whether nothing has come that nobody asked for, and the other side has not closed it. With TLS the other side
    /// may have sent tickets, which are taken.
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

    /// Counts as stuck if no byte of the body comes for the longest time that is allowed.
    pub(super) fn expect_body(&mut self, now: Instant) {
        let most = self.origin.network().settings().stall_max;
        self.watch = Watch::default();
        // TLS is decrypted as it comes, so that each byte is seen.
        self.deadline = now
            + if self.session.is_some() {
                most
            } else {
                most / 2
            };
    }

    /// Counts as stuck if no byte comes for `most`.
    pub(super) fn expect_within(&mut self, most: Duration, now: Instant) {
        self.deadline = now + most;
    }
}
