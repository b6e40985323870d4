//! A port: what waits to go out over one link, and who goes next.
//!
//! Every input of a port (another link of the same node, or the node itself) has a slot per virtual
//! channel with three queues, one per class of TLP. Queues hold TLPs that are still on their way
//! too, each with the time it is ready; since a link delivers in order, the front is the earliest.
//! PCIe's ordering rule lives here: a request or a completion may not pass a posted write that came
//! before it on the same input, and a posted write may pass both, which is what keeps the tree free
//! of deadlock.

use std::collections::VecDeque;

use super::Ps;
use crate::pcie::scenario::{Arbiter, ChannelArbiter};

/// What a TLP is, for ordering and credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Class {
    /// A memory write.
    Posted = 0,
    /// A read request.
    NonPosted = 1,
    /// A completion.
    Completion = 2,
}

pub(super) const CLASSES: usize = 3;

/// The classes by their number.
pub(super) const CLASS: [Class; CLASSES] = [Class::Posted, Class::NonPosted, Class::Completion];

/// One packet, 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tlp {
    /// When it can leave the queue it stands in.
    pub(super) ready: Ps,
    /// Which way it takes: twice its stream, plus one for the way of the completions.
    pub(super) flow: u32,
    /// Payload, or for a request what it asks for.
    pub(super) bytes: u16,
    /// How many links lie behind it.
    pub(super) hop: u8,
    /// See the constants below.
    pub(super) marks: u8,
}

/// The last TLP of an I/O.
pub(super) const LAST: u8 = 1;
/// The last completion of a request.
pub(super) const END: u8 = 2;
/// A fence, or its completion.
pub(super) const FENCE: u8 = 4;

/// Whose credits a slot gives back when a TLP leaves it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ingress {
    /// The port at the far end of the link the TLP came in by.
    pub(super) port: u32,
    /// The first of its pools for this slot's channel.
    pub(super) pool: u32,
    /// How long a credit takes back.
    pub(super) latency: Ps,
}

/// One input of a port.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) queues: [VecDeque<Tlp>; CLASSES],
    /// `None` where the TLPs start here.
    pub(super) ingress: Option<Ingress>,
    /// The stream that generates its TLPs in place of the queues.
    pub(super) source: Option<u32>,
    pub(super) channel: u8,
    pub(super) weight: u32,
    /// TLPs left of its turn, in weighted round robin.
    left: u32,
    /// The finish tag of its last TLP, in weighted fair queueing.
    finish: u64,
}

/// A link in one direction, a host's way between its root ports, or a memory.
#[derive(Debug)]
pub(super) struct Port {
    /// Picoseconds a byte, in units of 2^-20.
    pub(super) byte_cost: u64,
    /// Until the far end can use what was sent.
    pub(super) latency: Ps,
    /// Until a credit is back.
    pub(super) credit_latency: Ps,
    /// What each class has beside its payload.
    pub(super) overhead: [u32; CLASSES],
    /// Whether a request costs what it asks for: true of a memory, not of a link.
    pub(super) is_memory: bool,
    /// The first of its slots and how many.
    pub(super) slots: std::ops::Range<u32>,
    /// Slots that hold something, by bit.
    pub(super) occupied: u64,
    /// Slots of each channel, by bit.
    pub(super) channel_slots: Vec<u64>,
    /// The first pool of channel 0.
    pub(super) pool: u32,
    pub(super) arbiter: Arbiter,
    pub(super) channel_arbiter: ChannelArbiter,
    pub(super) channel_weights: Vec<u32>,
    /// When the link is free.
    pub(super) free: Ps,
    /// Since when something ready waits for credits alone.
    pub(super) starved_since: Option<Ps>,
    /// When the last posted write that came this way can be read.
    pub(super) committed: Ps,
    /// The slot after the one served last.
    turn: u32,
    channel_turn: u32,
    channel_left: u32,
    /// Virtual time, in weighted fair queueing.
    virtual_time: u64,
    pub(super) tally: Tally,
}

/// What a port did.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::pcie) struct Tally {
    pub(in crate::pcie) busy: Ps,
    pub(in crate::pcie) tlps: u64,
    pub(in crate::pcie) wire_bytes: u64,
    pub(in crate::pcie) payload_bytes: u64,
    /// Time with something ready and no credits for it.
    pub(in crate::pcie) starved: Ps,
}

/// Fraction bits of [`Port::byte_cost`].
const COST_BITS: u32 = 20;

impl Slot {
    pub(super) fn new(
        ingress: Option<Ingress>,
        source: Option<u32>,
        channel: u8,
        weight: u32,
    ) -> Self {
        Self {
            queues: Default::default(),
            ingress,
            source,
            channel,
            weight,
            left: weight,
            finish: 0,
        }
    }

    /// Whether the front of `class` may leave before the posted writes in the same slot.
    #[inline]
    pub(super) fn in_order(&self, class: Class, ready: Ps, relaxed: bool) -> bool {
        if class == Class::Posted || (relaxed && class == Class::Completion) {
            return true;
        }
        let posted = &self.queues[Class::Posted as usize];
        posted.front().is_none_or(|write| write.ready > ready)
    }

    /// Whether nothing waits here.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.source.is_none() && self.queues.iter().all(VecDeque::is_empty)
    }
}

impl Port {
    pub(super) fn new(bytes_per_s: f64, latency: Ps, credit_latency: Ps) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "rates are checked to lie between 1 MB/s and 10 TB/s"
        )]
        let byte_cost = (1e12 / bytes_per_s * f64::from(1u32 << COST_BITS)).ceil() as u64;
        Self {
            byte_cost,
            latency,
            credit_latency,
            overhead: [0; CLASSES],
            is_memory: false,
            slots: 0..0,
            occupied: 0,
            channel_slots: Vec::new(),
            pool: 0,
            arbiter: Arbiter::default(),
            channel_arbiter: ChannelArbiter::default(),
            channel_weights: Vec::new(),
            free: 0,
            starved_since: None,
            committed: 0,
            turn: 0,
            channel_turn: 0,
            channel_left: 0,
            virtual_time: 0,
            tally: Tally::default(),
        }
    }

    /// How long `bytes` take on the wire, rounded up: a link never carries more than its rate.
    #[inline]
    pub(super) fn duration(&self, bytes: u32) -> Ps {
        (u64::from(bytes) * self.byte_cost + (1 << COST_BITS) - 1) >> COST_BITS
    }

    /// The bytes a TLP takes on this wire; a fence's completion carries four that mean nothing.
    #[inline]
    pub(super) fn wire_bytes(&self, class: Class, tlp: Tlp) -> u32 {
        let payload = u32::from(tlp.bytes);
        let fence = if tlp.marks & FENCE == 0 { 0 } else { 4 };
        match class {
            Class::Posted => payload + self.overhead[0],
            Class::NonPosted if self.is_memory => payload + fence,
            Class::NonPosted => self.overhead[1],
            Class::Completion => payload + fence + self.overhead[2],
        }
    }

    /// The order in which channels are tried: the first that has something to send goes.
    pub(super) fn channels(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.channel_slots.len();
        let (strict, turn) = (
            self.channel_arbiter == ChannelArbiter::Strict,
            self.channel_turn as usize,
        );
        (0..count).map(move |k| {
            if strict {
                count - 1 - k
            } else {
                (turn + k) % count
            }
        })
    }

    /// Notes that channel `channel` sent a TLP.
    pub(super) fn channel_served(&mut self, channel: usize) {
        if self.channel_slots.len() < 2 || self.channel_arbiter == ChannelArbiter::Strict {
            return;
        }
        let weight = |c: usize| self.channel_weights.get(c).copied().unwrap_or(1);
        #[expect(clippy::cast_possible_truncation, reason = "at most eight channels")]
        if self.channel_turn as usize != channel {
            self.channel_turn = channel as u32;
            self.channel_left = weight(channel);
        }
        self.channel_left = self.channel_left.saturating_sub(1);
        if self.channel_left == 0 {
            let next = (channel + 1) % self.channel_slots.len();
            #[expect(clippy::cast_possible_truncation, reason = "at most eight channels")]
            let turn = next as u32;
            self.channel_turn = turn;
            self.channel_left = weight(next);
        }
    }

    /// The occupied slots of `among` in the order of their turn, as (rotation, bits).
    #[inline]
    pub(super) fn in_turn(&self, among: u64) -> (u32, u64) {
        (self.turn, (self.occupied & among).rotate_right(self.turn))
    }

    /// Notes that `slot` (its number within the port) sent `wire` bytes, and moves the turn.
    #[inline]
    pub(super) fn served(&mut self, number: u32, slot: &mut Slot, wire: u32) {
        match self.arbiter {
            Arbiter::RoundRobin => self.turn = (number + 1) % u64::BITS,
            Arbiter::WeightedRoundRobin => {
                if self.turn != number {
                    self.turn = number;
                    slot.left = slot.weight;
                }
                slot.left -= 1;
                if slot.left == 0 {
                    slot.left = slot.weight;
                    self.turn = (number + 1) % u64::BITS;
                }
            }
            Arbiter::WeightedFair => {
                let tag = self.tag(slot, wire);
                slot.finish = tag;
                self.virtual_time = tag;
            }
        }
    }

    /// The finish tag a TLP of `wire` bytes would get: self-clocked fair queueing, where virtual
    /// time is the tag of the TLP in service.
    #[inline]
    pub(super) fn tag(&self, slot: &Slot, wire: u32) -> u64 {
        // 2^10 is the largest weight: no share is rounded away.
        slot.finish.max(self.virtual_time) + (u64::from(wire) << 10) / u64::from(slot.weight)
    }
}

/// Puts a TLP where its time says: at the back, but for completions a slow read held up.
/// True when it is the new front.
#[inline]
pub(super) fn enqueue(queue: &mut VecDeque<Tlp>, tlp: Tlp) -> bool {
    if queue.back().is_none_or(|last| last.ready <= tlp.ready) {
        queue.push_back(tlp);
        return queue.len() == 1;
    }
    let place = queue.partition_point(|other| other.ready <= tlp.ready);
    queue.insert(place, tlp);
    place == 0
}
