//! The simulator's core: every TLP over every link, in picoseconds.
//!
//! **One event for many TLPs.** Nothing one port does can reach another in less than a link's
//! latency: a TLP arrives that much later, and so does a credit. So when a port wakes at `t` it
//! may decide everything up to `t` + the latency of what feeds it at once, TLP by TLP and each
//! with full arbitration, ordering and credits; all it could still learn lies beyond that horizon.
//! The result is the same as with an event per TLP (this is conservative lookahead, as in parallel
//! simulators), and the cost of scheduling is shared by all TLPs that fit a window.
//!
//! **No event for arrivals and credits.** A TLP is put into its next queue when it is sent, with
//! the time it will be ready there; a credit into its pool with the time it will be back. A port
//! that sleeps is woken for the earliest of these.
//!
//! What it is not: it knows no link errors, no power states and no addresses (two streams never
//! meet in a bank or a cache set), and a switch is an ideal crossbar with buffers per input.

mod build;
mod choose;
mod credit;
mod deliver;
mod depart;
mod fair;
mod port;
mod progress;
mod ring;
mod send;
mod shortcut;
mod slot;
mod source;
mod tlp;
mod wake;

use std::ops::ControlFlow;

use self::{
    choose::Lone,
    credit::{Pool, UNIT_BYTES},
    port::Port,
    slot::Slot,
    source::{Device, Source},
    tlp::{Class, Tlp},
    wake::{NEVER, Wakes},
};
pub(super) use self::{port::Tally, progress::Progress};
use super::topology::PortName;

/// A time in picoseconds.
pub(super) type Ps = u64;

/// TLPs and events between two looks at whether to go on: about a millisecond of work.
const STEPS_PER_LOOK: u64 = 1 << 14;

/// A tree and its load at work.
#[derive(Debug)]
pub(super) struct Engine {
    ports: Vec<Port>,
    names: Vec<PortName>,
    slots: Vec<Slot>,
    pools: Vec<Pool>,
    hops: Vec<Hop>,
    flows: Vec<Flow>,
    sources: Vec<Source>,
    devices: Vec<Device>,
    wakes: Wakes,
    /// What the last train sent; kept for its memory.
    sent: Vec<Tlp>,
    relaxed: bool,
    /// Whether the last choice found something ready that had no credits.
    starving: bool,
    /// And whether a credit not known of yet may come before those that are.
    blind: bool,
    events: u64,
    tlps: u64,
}

/// One step of a way: the port, and the slot in it that belongs to the step before.
#[derive(Clone, Copy, Debug)]
struct Hop {
    port: u32,
    slot: u32,
    /// Whether TLPs pass this port without a queue.
    passes: bool,
    /// Whether the room a TLP takes here is counted: its credits go back when it leaves.
    counted: bool,
}

/// The port of a hop where a way ends.
const ARRIVED: u32 = u32::MAX;

/// A way through the tree, as a range of hops that ends with one to [`ARRIVED`].
#[derive(Clone, Copy, Debug)]
struct Flow {
    first: u32,
    /// The device at its end.
    end: u32,
    mps_bytes: u16,
    /// What a read that asks for less than `whole_bytes` is answered in, at most.
    completion_bytes: u16,
    whole_bytes: u16,
    /// Until a posted write can be read there.
    commit: Ps,
    /// When the last TLP that started here was ready.
    last_ready: Ps,
}

/// How far a port may decide ahead.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// No TLP that it does not know of is ready before.
    horizon: Ps,
    /// No credit that it does not know of is back before.
    credits: Ps,
}

/// Why a run ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The caller had enough.
    Cancelled,
    /// Simulated time ran out before this stream was done.
    TooLong(usize),
}

/// What a finished run leaves behind.
#[derive(Debug)]
pub(super) struct Finished {
    /// Every port with what it did.
    pub(super) ports: Vec<(PortName, Tally)>,
    /// Every stream.
    pub(super) streams: Vec<Progress>,
    /// Time each device's engines and media were at work: writes, reads, media out, media in.
    pub(super) devices: Vec<[Ps; 4]>,
    /// Credits and tags never given back.
    pub(super) credits_missing: u64,
    /// TLPs sent by their first port.
    pub(super) tlps: u64,
    /// Wakes of ports.
    pub(super) events: u64,
}

impl Engine {
    /// Runs to the end, telling `look` the share of bytes that has arrived.
    pub(super) fn run(
        mut self,
        mut look: impl FnMut(f64) -> ControlFlow<()>,
    ) -> Result<Finished, Stop> {
        self.start();
        let total: u64 = self.sources.iter().map(|s| s.progress.size_bytes).sum();
        let mut next_look = STEPS_PER_LOOK;
        while let Some((port, now)) = self.wakes.first() {
            self.events += 1;
            if self.tlps + self.events >= next_look {
                next_look = self.tlps + self.events + STEPS_PER_LOOK;
                let done: u64 = self
                    .sources
                    .iter()
                    .map(|s| s.progress.delivered_bytes)
                    .sum();
                if look(done as f64 / total as f64).is_break() {
                    return Err(Stop::Cancelled);
                }
            }
            self.serve(port, now);
        }
        let short = |s: &Source| s.progress.delivered_bytes < s.progress.size_bytes;
        if let Some(stream) = self.sources.iter().position(short) {
            return Err(Stop::TooLong(stream));
        }
        Ok(self.finish())
    }

    /// Issues every stream's first I/Os.
    fn start(&mut self) {
        for stream in 0..self.sources.len() {
            let (depth, start) = {
                let source = &self.sources[stream];
                (source.depth(), source.progress.start)
            };
            for _ in 0..depth {
                self.issue(stream, start);
            }
        }
    }

    /// Decides what a port sends from `now` to its horizon.
    fn serve(&mut self, p: usize, now: Ps) {
        self.wakes.begin(p);
        let port = &self.ports[p];
        let ahead = Ahead {
            horizon: now + port.window,
            credits: now + port.wire.credit_latency,
        };
        let mut at = now.max(port.free);
        let window = ahead.horizon;
        loop {
            let ahead = Ahead {
                horizon: if self.ports[p].is_backlogged() {
                    NEVER
                } else {
                    window
                },
                ..ahead
            };
            if at >= ahead.horizon {
                break;
            }
            let done = match self.lone(p) {
                Some(Lone::Queue(slot, class, until)) => {
                    self.train(p, slot, (class, until), at, ahead)
                }
                Some(Lone::Source(slot, stream)) => self.source_train(p, slot, stream, at, ahead),
                None if ahead.horizon == NEVER && self.ports[p].braids() => {
                    self.braid(p, at, ahead)
                }
                None => self.step(p, at, ahead),
            };
            match done {
                ControlFlow::Continue(next) => at = next,
                ControlFlow::Break(next) => {
                    at = next;
                    break;
                }
            }
        }
        let next = if self.ports[p].occupied == 0 {
            NEVER
        } else {
            at
        };
        self.wakes.end(p, next);
    }

    /// Sends one TLP, or finds when one may go. Breaks off where an answer depends on credits
    /// that may still come back: those up to `ahead.credits` are all known, later ones are not.
    #[inline(always)]
    fn step(&mut self, p: usize, at: Ps, ahead: Ahead) -> ControlFlow<Ps, Ps> {
        (self.starving, self.blind) = (false, false);
        let choice = self.choose(p, at);
        match choice {
            // A credit not known of yet might have let another go first.
            Ok(_) if self.blind && at >= ahead.credits => ControlFlow::Break(at),
            Ok((choice, channel)) => {
                self.ports[p].channel_served(channel);
                ControlFlow::Continue(self.send(p, choice, at))
            }
            Err(next) if self.starving => self.ports[p].starve(at, next, self.blind, ahead),
            Err(next) => ControlFlow::Continue(next),
        }
    }

    fn finish(mut self) -> Finished {
        let busy = |d: &Device| {
            [
                d.writes.busy,
                d.reads.busy,
                d.media_out.busy,
                d.media_in.busy,
            ]
        };
        Finished {
            credits_missing: self.pools.iter_mut().map(Pool::missing).sum(),
            devices: self.devices.iter().map(busy).collect(),
            ports: self
                .names
                .iter()
                .copied()
                .zip(self.ports.iter().map(|p| p.tally))
                .collect(),
            streams: self.sources.into_iter().map(|s| s.progress).collect(),
            tlps: self.tlps,
            events: self.events,
        }
    }
}

/// What a TLP takes of a receiver's data credits.
#[inline(always)]
fn data_units(class: Class, tlp: Tlp) -> u32 {
    match class {
        Class::NonPosted => 0,
        _ => u32::from(tlp.bytes()).div_ceil(UNIT_BYTES),
    }
}
