//! A port: the TLPs that wait for one link, and their order.
//!
//! Every input of a port (another link of the same node, or the node itself) has a slot per virtual channel with
//! three queues, one per class of TLP. Queues also hold TLPs that are still in transit, each with its ready time;
//! since a link delivers in order, the front is the earliest. PCIe's ordering rule is implemented here: a request or
//! a completion must not pass a posted write that came before it on the same input, and a posted write may pass both,
//! which keeps the tree free of deadlock.

use std::ops::ControlFlow;

use super::{
    Ahead, Ps,
    credit::Pool,
    fair::Clock,
    slot::Slot,
    tlp::{CLASSES, Class, FENCE, Tlp},
    wake::NEVER,
};
use crate::scenario::{Arbiter, ChannelArbiter};

/// A carrier of TLPs: a link in one direction, the connection between a host's root ports, or a memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Picoseconds per byte, in units of 2^-20.
    pub(super) byte_cost: u64,
    /// The time until the far end can use a sent TLP.
    pub(super) latency: Ps,
    /// The time until a credit returns.
    pub(super) credit_latency: Ps,
    /// The overhead of each class in addition to its payload.
    pub(super) overhead: [u32; CLASSES],
    /// Whether a request costs as much as the bytes it requests: true for a memory, not for a link.
    pub(super) is_memory: bool,
}

/// A wire and the TLPs that wait for it.
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that do not exclude each other, found when the tree is laid out"
)]
#[derive(Debug)]
pub(super) struct Port {
    pub(super) wire: Wire,
    /// Slots that hold something, by bit.
    pub(super) occupied: u64,
    /// Whether TLPs pass at once, without a queue.
    pub(super) passes: bool,
    /// Whether its credits return in order of time, since one port returns them all: the known ones are then the
    /// next.
    pub(super) credits_in_order: bool,
    /// Whether TLPs cannot overtake each other: it carries only posted writes, or those of one stream.
    pub(super) first_come: bool,
    /// Whether the arbiter's next choice does not depend on what a sole slot sends.
    pub(super) arbiter_is_stateless: bool,
    /// The time in which no other port can send a TLP here.
    pub(super) window: Ps,
    /// The time at which the wire is free.
    pub(super) free: Ps,
    /// The time at which the last posted write through this port can be read.
    pub(super) committed: Ps,
    /// The time since which a ready TLP has waited only for credits.
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
    /// Virtual time of each channel, in weighted fair queueing.
    pub(super) clocks: Vec<Clock>,
    pub(super) tally: Tally,
    /// Its slots, by bit, and those of each channel.
    pub(super) all_slots: u64,
    pub(super) channel_slots: Vec<u64>,
    pub(super) channel_weights: Vec<u32>,
}

/// The counters of a port.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) busy: Ps,
    pub(crate) tlps: u64,
    pub(crate) wire_bytes: u64,
    pub(crate) payload_bytes: u64,
    /// The time with a ready TLP but no credits for it.
    pub(crate) starved: Ps,
}

/// Fraction bits of [`Wire::byte_cost`].
const COST_BITS: u32 = 20;

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

    /// The time of `bytes`, rounded up: a link never carries more than its rate.
    #[inline(always)]
    pub(super) fn duration(&self, bytes: u32) -> Ps {
        (u64::from(bytes) * self.byte_cost + (1 << COST_BITS) - 1) >> COST_BITS
    }

    /// The bytes of a TLP on this wire; a fence's completion carries four dummy bytes.
    #[inline(always)]
    pub(super) fn bytes(&self, class: Class, tlp: Tlp) -> u32 {
        let payload = u32::from(tlp.bytes());
        let fence = if tlp.has(FENCE) { 4 } else { 0 };
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

    /// Adds the counters of `other`.
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
            arbiter_is_stateless: false,
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
            clocks: Vec::new(),
            tally: Tally::default(),
            all_slots: 0,
            channel_slots: Vec::new(),
            channel_weights: Vec::new(),
        }
    }

    /// Sets the slots of a port.
    pub(super) fn set_slots(&mut self, slots: std::ops::Range<u32>) {
        let by_turns = self.arbiter == Arbiter::RoundRobin
            && (self.channel_slots.len() == 1 || self.channel_arbiter == ChannelArbiter::Strict);
        self.arbiter_is_stateless = slots.len() == 1 || by_turns;
        self.slots = slots;
    }

    /// Whether every input has a TLP that no later one can overtake. Then there is no horizon: everything that
    /// matters is known.
    #[inline(always)]
    pub(super) fn is_backlogged(&self) -> bool {
        self.first_come && self.occupied == self.all_slots
    }

    /// Whether it has several inputs that take turns.
    #[inline(always)]
    pub(super) fn takes_turns(&self) -> bool {
        self.arbiter == Arbiter::RoundRobin && self.slots.len() > 1
    }

    /// Records the end of a wait for credits.
    #[inline(always)]
    pub(super) fn end_starvation(&mut self, at: Ps) {
        if let Some(since) = self.starved_since.take() {
            self.tally.starved += at - since;
        }
    }

    /// Whether an unknown credit may return before `next`, the first known one.
    #[inline(always)]
    pub(super) fn may_miss_credits(&self, next: Ps) -> bool {
        next == NEVER || !self.credits_in_order
    }

    /// Takes the credits of a sole TLP of `units` from `pool` and returns the time at which they are available.
    /// Breaks if that depends on unknown credits, or lies beyond the horizon.
    #[inline(always)]
    pub(super) fn take_credits(&mut self, pool: &mut Pool, units: u32, at: Ps, ahead: Ahead) -> ControlFlow<Ps, Ps> {
        let next = pool.ready_at(at, units);
        if next > at {
            self.starve(at, next, self.may_miss_credits(next), ahead)?;
        }
        self.end_starvation(next);
        if next > at {
            // The pool must not apply credits that this port may still have to wait for.
            if next >= ahead.horizon {
                return ControlFlow::Break(next);
            }
            pool.wait(next);
        }
        pool.take(units);
        ControlFlow::Continue(next)
    }

    /// Records that a TLP waits for credits from `at` to `next`, as far as known. Otherwise the port sleeps: a credit
    /// that returns earlier wakes it, since its pool has a waiting sender.
    #[inline(always)]
    pub(super) fn starve(&mut self, at: Ps, next: Ps, credits_unknown: bool, ahead: Ahead) -> ControlFlow<Ps, Ps> {
        self.starved_since.get_or_insert(at);
        let known = next < ahead.credits || (!credits_unknown && next < ahead.horizon);
        if known {
            ControlFlow::Continue(next)
        } else {
            ControlFlow::Break(next)
        }
    }

    /// The order in which channels are tried: the first with a TLP to send goes.
    pub(super) fn channels(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.channel_slots.len();
        let (strict, turn) = (
            self.channel_arbiter == ChannelArbiter::Strict,
            self.channel_turn as usize,
        );
        (0..count).map(move |k| if strict { count - 1 - k } else { (turn + k) % count })
    }

    /// Records that channel `channel` sent a TLP.
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

    /// Records that `slot` (its number within the port) sent a TLP, and moves the turn.
    #[inline(always)]
    pub(super) fn served(&mut self, number: u32, slot: &mut Slot) {
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
            // It uses tags, not turns.
            Arbiter::WeightedFair => {}
        }
    }
}
