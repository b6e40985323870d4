//! A port: what waits to go out over one link, and who goes next.
//!
//! Every input of a port (another link of the same node, or the node itself) has a slot per virtual
//! channel with three queues, one per class of TLP. Queues hold TLPs that are still on their way
//! too, each with the time it is ready; since a link delivers in order, the front is the earliest.
//! PCIe's ordering rule lives here: a request or a completion may not pass a posted write that came
//! before it on the same input, and a posted write may pass both, which is what keeps the tree free
//! of deadlock.

use std::ops::ControlFlow;

use super::{Ahead, Ps, credit::Pool, ring::Ring, wake::NEVER};
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
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tlp {
    /// When it can leave the queue it stands in.
    pub(super) ready: Ps,
    /// The place of its next hop in the list of all hops.
    pub(super) hop: u32,
    /// Which way it takes: twice its stream, plus one for the way of the completions.
    pub(super) flow: u16,
    /// Payload, or for a request what it asks for; the marks in the three highest bits.
    load: u16,
}

/// The last TLP of an I/O.
pub(super) const LAST: u16 = 1 << 13;
/// The last completion of a request.
pub(super) const END: u16 = 1 << 14;
/// A fence, or its completion.
pub(super) const FENCE: u16 = 1 << 15;

impl Tlp {
    /// A TLP at its start.
    #[inline]
    pub(super) fn new(ready: Ps, flow: u16, hop: u32, bytes: u16, marks: u16) -> Self {
        debug_assert!(
            bytes < LAST && marks & (LAST - 1) == 0,
            "payloads end at 4 KiB"
        );
        Self {
            ready,
            hop,
            flow,
            load: bytes | marks,
        }
    }

    #[inline(always)]
    pub(super) fn bytes(self) -> u16 {
        self.load & (LAST - 1)
    }

    /// Which of [`LAST`], [`END`] and [`FENCE`] it bears.
    #[inline]
    pub(super) fn marks(self) -> u16 {
        self.load & !(LAST - 1)
    }

    #[inline]
    pub(super) fn bears(self, mark: u16) -> bool {
        self.load & mark != 0
    }

    /// The same TLP at another time.
    #[inline(always)]
    pub(super) fn at(self, ready: Ps) -> Self {
        Self { ready, ..self }
    }

    /// The same TLP in its next queue.
    #[inline(always)]
    pub(super) fn onward(self, ready: Ps) -> Self {
        Self {
            ready,
            hop: self.hop + 1,
            ..self
        }
    }
}

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
    pub(super) queues: [Ring<Tlp>; CLASSES],
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

/// What carries TLPs: a link in one direction, a host's way between its root ports, or a memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
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
}

/// A wire and what waits to go out over it.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that do not exclude each other, found when the tree is laid out"
)]
#[derive(Debug)]
pub(super) struct Port {
    pub(super) wire: Wire,
    /// Slots that hold something, by bit.
    pub(super) occupied: u64,
    /// Whether what comes goes on at once, without a queue.
    pub(super) passes: bool,
    /// Whether its credits come back in order of time, for one port gives them all: those it
    /// knows of are then the next.
    pub(super) credits_in_order: bool,
    /// Whether what comes in behind others cannot go before them: it carries posted writes alone,
    /// or those of one stream.
    pub(super) first_come: bool,
    /// Whether what a lone slot sends does not matter for whose turn it is after that.
    pub(super) keeps_no_account: bool,
    /// How long nothing another port does can bring a TLP here.
    pub(super) window: Ps,
    /// When the wire is free.
    pub(super) free: Ps,
    /// When the last posted write that came this way can be read.
    pub(super) committed: Ps,
    /// Since when something ready waits for credits alone.
    pub(super) starved_since: Option<Ps>,
    /// Its slots.
    pub(super) slots: std::ops::Range<u32>,
    /// The first pool of channel 0.
    pub(super) pool: u32,
    pub(super) arbiter: Arbiter,
    pub(super) channel_arbiter: ChannelArbiter,
    /// The slot after the one served last.
    turn: u32,
    channel_turn: u32,
    channel_left: u32,
    /// Virtual time, in weighted fair queueing.
    virtual_time: u64,
    pub(super) tally: Tally,
    /// Its slots, by bit, and those of each channel.
    pub(super) all_slots: u64,
    pub(super) channel_slots: Vec<u64>,
    pub(super) channel_weights: Vec<u32>,
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
    #[inline(always)]
    pub(super) fn in_order(&self, class: Class, ready: Ps, relaxed: bool) -> bool {
        if class == Class::Posted || (relaxed && class == Class::Completion) {
            return true;
        }
        let first = self.writes().front();
        first.is_none_or(|write| write.ready > ready)
    }

    /// Its posted writes.
    #[inline(always)]
    pub(super) fn writes(&self) -> &Ring<Tlp> {
        &self.queues[Class::Posted as usize]
    }

    /// The class that goes first without a doubt, and the latest that its TLPs may be ready for
    /// that to hold: the only one that has anything, or posted writes that came before all else.
    #[inline(always)]
    pub(super) fn leader(&self, relaxed: bool) -> Option<(Class, Ps)> {
        let [posted, requests, completions] = &self.queues;
        let empty = (
            posted.is_empty(),
            requests.is_empty(),
            completions.is_empty(),
        );
        match empty {
            (false, true, true) => Some((Class::Posted, NEVER)),
            (true, false, true) => Some((Class::NonPosted, NEVER)),
            (true, true, false) => Some((Class::Completion, NEVER)),
            (false, _, true) => self.writes_lead(requests),
            (false, true, false) if !relaxed => self.writes_lead(completions),
            _ => None,
        }
    }

    /// Posted writes as the leader, if they came before what else there is.
    #[inline(always)]
    fn writes_lead(&self, others: &Ring<Tlp>) -> Option<(Class, Ps)> {
        let write = self.writes().front()?;
        let other = others.front()?;
        (write.ready <= other.ready).then_some((Class::Posted, other.ready))
    }

    /// Whether nothing waits here.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.source.is_none() && self.queues.iter().all(Ring::is_empty)
    }
}

impl Wire {
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
        }
    }

    /// How long `bytes` take, rounded up: a link never carries more than its rate.
    #[inline(always)]
    pub(super) fn duration(&self, bytes: u32) -> Ps {
        (u64::from(bytes) * self.byte_cost + (1 << COST_BITS) - 1) >> COST_BITS
    }

    /// The bytes a TLP takes on this wire; a fence's completion carries four that mean nothing.
    #[inline(always)]
    pub(super) fn bytes(&self, class: Class, tlp: Tlp) -> u32 {
        let payload = u32::from(tlp.bytes());
        let fence = if tlp.bears(FENCE) { 4 } else { 0 };
        match class {
            Class::Posted => payload + self.overhead[0],
            Class::NonPosted if self.is_memory => payload + fence,
            Class::NonPosted => self.overhead[1],
            Class::Completion => payload + fence + self.overhead[2],
        }
    }
}

impl Tally {
    /// Counts one TLP.
    #[inline(always)]
    pub(super) fn count(&mut self, class: Class, tlp: Tlp, wire_bytes: u32, duration: Ps) {
        self.busy += duration;
        self.tlps += 1;
        self.wire_bytes += u64::from(wire_bytes);
        if class != Class::NonPosted {
            self.payload_bytes += u64::from(tlp.bytes());
        }
    }

    /// Counts all that `other` counted.
    #[inline]
    pub(super) fn add(&mut self, other: &Self) {
        self.busy += other.busy;
        self.tlps += other.tlps;
        self.wire_bytes += other.wire_bytes;
        self.payload_bytes += other.payload_bytes;
        self.starved += other.starved;
    }
}

impl Port {
    pub(super) fn new(wire: Wire) -> Self {
        Self {
            wire,
            occupied: 0,
            passes: false,
            credits_in_order: false,
            first_come: false,
            keeps_no_account: false,
            window: 0,
            free: 0,
            committed: 0,
            starved_since: None,
            slots: 0..0,
            pool: 0,
            arbiter: Arbiter::default(),
            channel_arbiter: ChannelArbiter::default(),
            turn: 0,
            channel_turn: 0,
            channel_left: 0,
            virtual_time: 0,
            tally: Tally::default(),
            all_slots: 0,
            channel_slots: Vec::new(),
            channel_weights: Vec::new(),
        }
    }

    /// Gives a port its slots.
    pub(super) fn set_slots(&mut self, slots: std::ops::Range<u32>) {
        let by_turns = self.arbiter == Arbiter::RoundRobin
            && (self.channel_slots.len() == 1 || self.channel_arbiter == ChannelArbiter::Strict);
        self.keeps_no_account = slots.len() == 1 || by_turns;
        self.slots = slots;
    }

    /// Whether every input has something and nothing that is still to come can go before it. Then
    /// there is no horizon: all that could matter is known.
    #[inline(always)]
    pub(super) fn is_backlogged(&self) -> bool {
        self.first_come && self.occupied == self.all_slots
    }

    /// Whether its inputs, all queues, go by turns.
    #[inline(always)]
    pub(super) fn braids(&self) -> bool {
        self.arbiter == Arbiter::RoundRobin && self.slots.len() > 1
    }

    /// Notes the end of a wait for credits.
    #[inline(always)]
    pub(super) fn fed(&mut self, at: Ps) {
        if let Some(since) = self.starved_since.take() {
            self.tally.starved += at - since;
        }
    }

    /// Whether a credit not known of yet may be back before `next`, the first that is.
    #[inline(always)]
    pub(super) fn is_blind(&self, next: Ps) -> bool {
        next == NEVER || !self.credits_in_order
    }

    /// When a TLP of `units` that is alone finds its credits in `pool`, and takes them. Breaks off
    /// where that depends on credits not known of yet, or lies beyond the horizon.
    #[inline(always)]
    pub(super) fn take_credits(
        &mut self,
        pool: &mut Pool,
        units: u32,
        at: Ps,
        ahead: Ahead,
    ) -> ControlFlow<Ps, Ps> {
        let next = pool.ready_at(at, units);
        if next > at {
            self.starve(at, next, self.is_blind(next), ahead)?;
        }
        self.fed(next);
        if next > at {
            // The pool must not know of credits that this port may still have to wait for.
            if next >= ahead.horizon {
                return ControlFlow::Break(next);
            }
            pool.wait(next);
        }
        pool.take(units);
        ControlFlow::Continue(next)
    }

    /// Notes that something waits for credits from `at` to `next`, as far as is known. Beyond what
    /// is known the port sleeps: a credit that comes earlier wakes it, for its pool is hungry.
    #[inline(always)]
    pub(super) fn starve(
        &mut self,
        at: Ps,
        next: Ps,
        blind: bool,
        ahead: Ahead,
    ) -> ControlFlow<Ps, Ps> {
        self.starved_since.get_or_insert(at);
        let known = next < ahead.credits || (!blind && next < ahead.horizon);
        if known {
            ControlFlow::Continue(next)
        } else {
            ControlFlow::Break(next)
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

    /// The occupied slot whose turn it is, in round robin.
    #[inline(always)]
    pub(super) fn next_in_turn(&self) -> u32 {
        let (turn, bits) = self.in_turn(u64::MAX);
        (bits.trailing_zeros() + turn) % u64::BITS
    }

    /// Moves the turn past slot `number`, in round robin.
    #[inline]
    pub(super) fn turn_after(&mut self, number: u32) {
        self.turn = (number + 1) % u64::BITS;
    }

    /// Notes that `slot` (its number within the port) sent `wire` bytes, and moves the turn.
    #[inline(always)]
    pub(super) fn served(&mut self, number: u32, slot: &mut Slot, wire: u32) {
        match self.arbiter {
            Arbiter::RoundRobin => self.turn_after(number),
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
