//! A queue pair: a connection with its commands and buffers.

use std::{
    collections::VecDeque,
    sync::{Arc, mpsc},
    time::Instant,
};

use straightway_io::slab::Slab;
use straightway_nvme::{Cqe, Framing, pdu::HEAD_BYTES_MAX};
use straightway_sys::{Socket, uring::sockets::Operation};

use crate::session::{
    controller::{Controller, QueueId},
    failure::Refusal,
};

/// The size of the buffer for headers and for payloads that arrive with them.
pub(super) const INBOX_BYTES: usize = 256 << 10;

/// While a read longer than this is outstanding, header receives request only [`LOOK_BYTES`]. The rest of its payload
/// is then received directly into its memory.
pub(super) const COPIED_BYTES_MAX: usize = 16 << 10;

/// Slightly more than two headers.
pub(super) const LOOK_BYTES: usize = 64;

/// A queue that a thread is connecting.
#[derive(Debug)]
pub(super) struct ConnectingQueue {
    pub(super) controller: Arc<Controller>,
    pub(super) answer: mpsc::Receiver<Result<ConnectedQueue, Refusal>>,
}

/// Failed attempts to connect a queue of a controller that has not ended.
#[derive(Debug)]
pub(super) struct ConnectDelay {
    /// The number of the controller.
    pub(super) serves: u64,
    pub(super) failures: u32,
    /// The time of the next attempt.
    pub(super) until: Instant,
    /// The cause of the last failure.
    pub(super) why: String,
}

/// A connected queue.
#[derive(Debug)]
pub(super) struct ConnectedQueue {
    /// Its controller: the requested one, or another association if that grants no more queues.
    pub(super) controller: Arc<Controller>,
    pub(super) socket: Socket,
    pub(super) framing: Framing,
    pub(super) host_data_bytes_max: u32,
    pub(super) id: QueueId,
}

/// An outstanding command.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) cid: u16,
    pub(super) request: u32,
    /// Its offset in the I/O.
    pub(super) start: usize,
    pub(super) bytes: usize,
    /// The number of data bytes received or sent.
    pub(super) moved: usize,
    /// Whether an R2T for its data is being served.
    pub(super) is_asked: bool,
    /// A completion that arrived while its data was being sent.
    pub(super) answer: Option<Cqe>,
    pub(super) since: Instant,
}

/// A payload that is being received.
#[derive(Debug)]
pub(super) struct IncomingPayload {
    pub(super) slot: u32,
    /// The offset of this PDU's payload in the I/O.
    pub(super) start: usize,
    pub(super) bytes: usize,
    pub(super) got: usize,
    pub(super) has_digest: bool,
    pub(super) is_success: bool,
}

/// Data that an R2T requests.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) slot: u32,
    pub(super) tag: u16,
    /// The offset of the next byte in the command's data, and the end.
    pub(super) at: usize,
    pub(super) end: usize,
}

/// A data PDU that is being sent.
#[derive(Debug)]
pub(super) struct OutgoingPayload {
    pub(super) slot: u32,
    pub(super) bytes: usize,
    /// The digest that follows.
    pub(super) digest: Option<u32>,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) controller: Arc<Controller>,
    /// The number of the requested controller.
    pub(super) serves: u64,
    _id: QueueId,
    pub(super) socket: Arc<Socket>,
    pub(super) framing: Framing,
    pub(super) host_data_bytes_max: usize,
    pub(super) commands: Slab<Command>,
    /// Counts uses of command identifiers, so that none is reused soon.
    generation: u16,
    /// Bound requests that have bytes without a command.
    pub(super) backlog: VecDeque<u32>,
    /// The number of outstanding reads that are too long to be copied.
    pub(super) long_reads: usize,
    pub(super) inbox: Vec<u8>,
    /// The number of bytes in the inbox.
    pub(super) have: usize,
    /// The number of bytes that the next header needs.
    pub(super) need: usize,
    pub(super) incoming: Option<IncomingPayload>,
    pub(super) receiving: Option<Operation>,
    pub(super) outbox: Vec<u8>,
    /// The second send buffer.
    pub(super) spare: Vec<u8>,
    pub(super) transfers: VecDeque<Transfer>,
    pub(super) outgoing: Option<OutgoingPayload>,
    pub(super) sending: Option<Operation>,
    pub(super) heard: Instant,
    /// The cause of its end.
    pub(super) ending: Option<String>,
}

impl Queue {
    pub(super) fn new(serves: u64, joined: ConnectedQueue, now: Instant) -> Self {
        let commands = usize::from(joined.controller.limits.commands);
        Self {
            serves,
            socket: Arc::new(joined.socket),
            framing: joined.framing,
            host_data_bytes_max: joined.host_data_bytes_max as usize,
            _id: joined.id,
            commands: Slab::new(commands),
            generation: 0,
            backlog: VecDeque::new(),
            long_reads: 0,
            inbox: vec![0; INBOX_BYTES],
            have: 0,
            need: 0,
            incoming: None,
            receiving: None,
            outbox: Vec::with_capacity(commands * 76),
            spare: Vec::with_capacity(commands * 76),
            transfers: VecDeque::with_capacity(commands),
            outgoing: None,
            sending: None,
            heard: now,
            ending: None,
            controller: joined.controller,
        }
    }

    /// The bits of a command identifier that are the table index.
    fn mask(&self) -> u16 {
        let slots = self.commands.capacity().next_power_of_two().max(2);
        u16::try_from(slots - 1).unwrap_or(u16::MAX)
    }

    /// Adds a command. The other bits of its identifier count up, so that a stale completion is recognised.
    pub(super) fn add(&mut self, mut command: Command) -> Option<u32> {
        let mask = self.mask();
        self.generation = self.generation.wrapping_add(1);
        let high = self.generation.wrapping_mul(mask.wrapping_add(1));
        command.cid = high;
        let slot = self.commands.insert(command).ok()?;
        let low = u16::try_from(slot).expect("queues have at most 65535 entries");
        self.commands[slot].cid = high | low;
        Some(slot)
    }

    /// The table index of an outstanding command.
    pub(super) fn slot_of(&self, cid: u16) -> Option<u32> {
        let slot = u32::from(cid & self.mask());
        if slot as usize >= self.commands.capacity() {
            return None;
        }
        let command = self.commands.get(slot)?;
        (command.cid == cid).then_some(slot)
    }

    /// The end of the next receive into the inbox.
    pub(super) fn inbox_end(&self) -> usize {
        let look = if self.long_reads > 0 {
            LOOK_BYTES.max(self.need.saturating_sub(self.have))
        } else {
            INBOX_BYTES
        };
        debug_assert!(self.have <= HEAD_BYTES_MAX, "whole PDUs were taken out");
        (self.have + look).min(INBOX_BYTES)
    }

    /// Whether the kernel holds none of its buffers.
    pub(super) fn is_quiet(&self) -> bool {
        self.receiving.is_none() && self.sending.is_none()
    }
}
