//! A queue pair: a connection with its commands and buffers.

use std::{
    collections::VecDeque,
    sync::{Arc, mpsc},
    time::Instant,
};

use straightway_io::slab::Slab;
use straightway_nvme::{Cqe, Framing, pdu::HEAD_BYTES_MAX};
use straightway_sys::{Socket, uring::sockets::Operation};

use crate::controller::{Controller, QueueId, Refusal};

/// The buffer for headers, and for payloads that come with them.
pub(super) const INBOX_BYTES: usize = 256 << 10;

/// While a longer read than this is open, receives for headers ask for [`LOOK_BYTES`] only: the rest of its payload
/// then goes straight into its memory.
pub(super) const COPIED_BYTES_MAX: usize = 16 << 10;

/// Two headers and a little.
pub(super) const LOOK_BYTES: usize = 64;

/// A queue that a thread is making.
#[derive(Debug)]
pub(super) struct Joining {
    pub(super) controller: Arc<Controller>,
    pub(super) answer: mpsc::Receiver<Result<Joined, Refusal>>,
}

/// A queue that is connected.
#[derive(Debug)]
pub(super) struct Joined {
    /// Its controller: the one that was asked for, or one of its own where that grants no more queues.
    pub(super) controller: Arc<Controller>,
    pub(super) socket: Socket,
    pub(super) framing: Framing,
    pub(super) host_data_bytes_max: u32,
    pub(super) id: QueueId,
}

/// A command without an answer.
#[derive(Debug)]
pub(super) struct Command {
    pub(super) cid: u16,
    pub(super) request: u32,
    /// Where in its I/O.
    pub(super) start: usize,
    pub(super) bytes: usize,
    /// How much of its data was received, or sent.
    pub(super) moved: usize,
    /// Whether a request for its data is being served.
    pub(super) is_asked: bool,
    /// An answer that came while its data was being sent.
    pub(super) answer: Option<Cqe>,
    pub(super) since: Instant,
}

/// Payload that is being received.
#[derive(Debug)]
pub(super) struct Filling {
    pub(super) slot: u32,
    /// Where in the I/O the payload of this PDU begins.
    pub(super) start: usize,
    pub(super) bytes: usize,
    pub(super) got: usize,
    pub(super) has_digest: bool,
    pub(super) is_success: bool,
}

/// Data that the target asked for.
#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) slot: u32,
    pub(super) tag: u16,
    /// The next byte of the command's data, and the end.
    pub(super) at: usize,
    pub(super) end: usize,
}

/// A data PDU that is being sent.
#[derive(Debug)]
pub(super) struct Spilling {
    pub(super) slot: u32,
    pub(super) bytes: usize,
    /// The digest that has to follow.
    pub(super) digest: Option<u32>,
}

/// A queue pair.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) controller: Arc<Controller>,
    /// The number of the controller that it was asked of.
    pub(super) serves: u64,
    _id: QueueId,
    pub(super) socket: Arc<Socket>,
    pub(super) framing: Framing,
    pub(super) host_data_bytes_max: usize,
    pub(super) commands: Slab<Command>,
    /// Counts uses of numbers, so that one is not used again soon.
    generation: u16,
    /// Requests that are bound to it and have bytes without a command.
    pub(super) backlog: VecDeque<u32>,
    /// Reads that are too long to be copied.
    pub(super) long_reads: usize,
    pub(super) inbox: Vec<u8>,
    /// Bytes in the inbox.
    pub(super) have: usize,
    /// Bytes that the next header needs in all.
    pub(super) need: usize,
    pub(super) filling: Option<Filling>,
    pub(super) receiving: Option<Operation>,
    pub(super) outbox: Vec<u8>,
    /// The other buffer for what is sent.
    pub(super) spare: Vec<u8>,
    pub(super) transfers: VecDeque<Transfer>,
    pub(super) spilling: Option<Spilling>,
    pub(super) sending: Option<Operation>,
    pub(super) heard: Instant,
    /// Why it is given up.
    pub(super) ending: Option<String>,
}

impl Queue {
    pub(super) fn new(serves: u64, joined: Joined, now: Instant) -> Self {
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
            filling: None,
            receiving: None,
            outbox: Vec::with_capacity(commands * 76),
            spare: Vec::with_capacity(commands * 76),
            transfers: VecDeque::with_capacity(commands),
            spilling: None,
            sending: None,
            heard: now,
            ending: None,
            controller: joined.controller,
        }
    }

    /// The bits of a command's number that say where it is in the table.
    fn mask(&self) -> u16 {
        let slots = self.commands.capacity().next_power_of_two().max(2);
        u16::try_from(slots - 1).unwrap_or(u16::MAX)
    }

    /// Adds a command. The rest of its number counts up, so that an answer to an old one is recognised.
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

    /// The command of a number, if it is open.
    pub(super) fn slot_of(&self, cid: u16) -> Option<u32> {
        let slot = u32::from(cid & self.mask());
        if slot as usize >= self.commands.capacity() {
            return None;
        }
        let command = self.commands.get(slot)?;
        (command.cid == cid).then_some(slot)
    }

    /// Where the next receive into the inbox ends.
    pub(super) fn inbox_end(&self) -> usize {
        let look = if self.long_reads > 0 {
            LOOK_BYTES.max(self.need.saturating_sub(self.have))
        } else {
            INBOX_BYTES
        };
        debug_assert!(self.have <= HEAD_BYTES_MAX, "whole PDUs were taken out");
        (self.have + look).min(INBOX_BYTES)
    }

    /// Whether the kernel has none of its buffers.
    pub(super) fn is_quiet(&self) -> bool {
        self.receiving.is_none() && self.sending.is_none()
    }
}
