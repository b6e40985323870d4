//! A port: what waits to go out over one link, and who goes next.
//!
//! Every input of a port (another link of the same node, or the node itself) has a slot per virtual
//! channel with three queues, one per class of TLP. Queues hold TLPs that are still on their way
//! too, each with the time it is ready; since a link delivers in order, the front is the earliest.
//! PCIe's ordering rule lives here: a request or a completion may not pass a posted write that came
//! before it on the same input, and a posted write may pass both, which is what keeps the tree free
//! of deadlock.

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
    /// Virtual time of each channel, in weighted fair queueing.
    pub(super) clocks: Vec<Clock>,
    pub(super) tally: Tally,
    /// Its slots, by bit, and those of each channel.
    pub(super) all_slots: u64,
    pub(super) channel_slots: Vec<u64>,
    pub(super) channel_weights: Vec<u32>,
}

/// What a port did.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) busy: Ps,
    pub(crate) tlps: u64,
    pub(crate) wire_bytes: u64,
    pub(crate) payload_bytes: u64,
    /// Time with something ready and no credits for it.
    pub(crate) starved: Ps,
}

/// Fraction bits of [`Port::byte_cost`].
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
            clocks: Vec::new(),
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

    /// Notes that `slot` (its number within the port) sent a TLP, and moves the turn.
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
            // It goes by tags, not by turns.
            Arbiter::WeightedFair => {}
        }
    }
}
