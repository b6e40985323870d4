//! The simulator's core: every TLP over every link, in picoseconds.
//!
//! **One event for many TLPs.** A port cannot affect another in less than a link's latency: TLPs and credits arrive
//! that much later. So a port that wakes at `t` can decide everything up to `t` + the latency of its inputs at once,
//! TLP by TLP, each with full arbitration, ordering and credits: new information arrives only after that horizon. The
//! result is the same as with an event per TLP (this is conservative lookahead, as in parallel simulators), and all
//! TLPs of a window share the cost of scheduling.
//!
//! **No event for arrivals and credits.** A TLP enters its next queue when it is sent, with the time at which it will
//! be ready there; a credit enters its pool with the time of its return. A sleeping port is woken for the earliest of
//! these.
//!
//! Link errors, power states and addresses are not modelled (two streams never conflict in a bank or a cache set),
//! and a switch is an ideal crossbar with buffers per input.

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
    choose::SoleSource,
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

/// TLPs and events between two calls of `look`: about a millisecond of work.
const STEPS_PER_LOOK: u64 = 1 << 14;

/// A running simulation of a tree and its load.
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
    /// The TLPs of the last train; kept to reuse its memory.
    sent: Vec<Tlp>,
    relaxed: bool,
    /// Whether the last choice found a ready TLP without credits.
    starving: bool,
    /// Whether an unknown credit may return before the known ones.
    credits_unknown: bool,
    events: u64,
    tlps: u64,
}

/// One step of a path: the port, and its slot for the step before.
#[derive(Clone, Copy, Debug)]
struct Hop {
    port: u32,
    slot: u32,
    /// Whether TLPs pass this port without a queue.
    passes: bool,
    /// Whether the buffer space of a TLP is counted here: its credits are returned when it leaves.
    counted: bool,
}

/// The port of the hop at the end of a path.
const ARRIVED: u32 = u32::MAX;

/// A path through the tree, as a range of hops that ends with one to [`ARRIVED`].
#[derive(Clone, Copy, Debug)]
struct Flow {
    first: u32,
    /// The device at its end.
    end: u32,
    mps_bytes: u16,
    /// The completion size for a read of less than `whole_bytes`.
    completion_bytes: u16,
    whole_bytes: u16,
    /// The time until a posted write can be read there.
    commit: Ps,
    /// The ready time of the last TLP that started here.
    last_ready: Ps,
}

/// The time up to which a port can decide.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    /// No unknown TLP is ready before this time.
    horizon: Ps,
    /// No unknown credit returns before this time.
    credits: Ps,
}

/// The reason why a run ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The caller cancelled it.
    Cancelled,
    /// Simulated time ran out before this stream was done.
    TooLong(usize),
}

/// The result of a finished run.
#[derive(Debug)]
pub(super) struct Finished {
    /// Every port with its counters.
    pub(super) ports: Vec<(PortName, Tally)>,
    /// Every stream.
    pub(super) streams: Vec<Progress>,
    /// The busy time of each device's engines and media: writes, reads, media out, media in.
    pub(super) devices: Vec<[Ps; 4]>,
    /// Credits and tags that were never returned.
    pub(super) credits_missing: u64,
    /// TLPs sent by their first port.
    pub(super) tlps: u64,
    /// Wakes of ports.
    pub(super) events: u64,
}

impl Engine {
    /// Runs to the end, calling `look` with the share of bytes that has arrived.
    pub(super) fn run(mut self, mut look: impl FnMut(f64) -> ControlFlow<()>) -> Result<Finished, Stop> {
        self.start();
        let total: u64 = self.sources.iter().map(|s| s.progress.size_bytes).sum();
        let mut next_look = STEPS_PER_LOOK;
        while let Some((port, now)) = self.wakes.first() {
            self.events += 1;
            if self.tlps + self.events >= next_look {
                next_look = self.tlps + self.events + STEPS_PER_LOOK;
                let done: u64 = self.sources.iter().map(|s| s.progress.delivered_bytes).sum();
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

    /// Decides all TLPs that a port sends from `now` to its horizon.
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
                horizon: if self.ports[p].is_backlogged() { NEVER } else { window },
                ..ahead
            };
            if at >= ahead.horizon {
                break;
            }
            let done = match self.sole_source(p) {
                Some(SoleSource::Queue(slot, class, until)) => self.train(p, slot, (class, until), at, ahead),
                Some(SoleSource::Source(slot, stream)) => self.source_train(p, slot, stream, at, ahead),
                None if ahead.horizon == NEVER && self.ports[p].takes_turns() => self.round_robin_train(p, at, ahead),
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
        let next = if self.ports[p].occupied == 0 { NEVER } else { at };
        self.wakes.end(p, next);
    }

    /// Sends one TLP, or finds the time at which one can go. Breaks if that depends on credits that may still return:
    /// all up to `ahead.credits` are known, later ones are not.
    #[inline(always)]
    fn step(&mut self, p: usize, at: Ps, ahead: Ahead) -> ControlFlow<Ps, Ps> {
        (self.starving, self.credits_unknown) = (false, false);
        let choice = self.choose(p, at);
        match choice {
            // An unknown credit might let another TLP go first.
            Ok(_) if self.credits_unknown && at >= ahead.credits => ControlFlow::Break(at),
            Ok((choice, channel)) => {
                self.ports[p].channel_served(channel);
                ControlFlow::Continue(self.send(p, choice, at))
            }
            Err(next) if self.starving => self.ports[p].starve(at, next, self.credits_unknown, ahead),
            Err(next) => ControlFlow::Continue(next),
        }
    }

    fn finish(mut self) -> Finished {
        let busy = |d: &Device| [d.writes.busy, d.reads.busy, d.media_out.busy, d.media_in.busy];
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

/// The data credits of a TLP.
#[inline(always)]
fn data_units(class: Class, tlp: Tlp) -> u32 {
    match class {
        Class::NonPosted => 0,
        _ => u32::from(tlp.bytes()).div_ceil(UNIT_BYTES),
    }
}
