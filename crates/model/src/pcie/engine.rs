//! The simulator's core: every TLP over every link, in picoseconds.
//!
//! **One event for many TLPs.** Nothing one port does can reach another in less than a link's
//! latency: a TLP arrives that much later, and so does a credit. So when a port wakes at `t` it
//! may decide everything up to `t` + the shortest latency in the tree at once, TLP by TLP and each
//! with full arbitration, ordering and credits; all it could still learn lies beyond that horizon.
//! The result is the same as with an event per TLP (this is conservative lookahead, as in parallel
//! simulators), and the cost of scheduling is shared by the ten or so TLPs that fit a window.
//!
//! **No event for arrivals and credits.** A TLP is put into its next queue when it is sent, with
//! the time it will be ready there; a credit into its pool with the time it will be back. A port
//! that sleeps is woken for the earliest of these.
//!
//! What it is not: it knows no link errors, no power states and no addresses (two streams never
//! meet in a bank or a cache set), and a switch is an ideal crossbar with buffers per input.

mod build;
mod credit;
mod port;
mod source;
mod wake;

use std::ops::ControlFlow;

use self::{
    credit::{Pool, UNIT_BYTES},
    port::{CLASS, CLASSES, Class, END, FENCE, LAST, Port, Slot, Tlp, enqueue},
    source::{Device, Source},
    wake::{NEVER, Wakes},
};
pub(super) use self::{port::Tally, source::Progress};
use super::{scenario::Arbiter, topology::PortName};

/// A time in picoseconds.
pub(super) type Ps = u64;

/// Events between two looks at whether to go on.
const EVENTS_PER_LOOK: u64 = 1 << 15;

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
    /// The shortest latency in the tree: how far a port may decide ahead.
    window: Ps,
    relaxed: bool,
    /// Whether the last choice found something ready that had no credits.
    starving: bool,
    events: u64,
    tlps: u64,
}

/// One step of a way: the port, and the slot in it that belongs to the step before.
#[derive(Clone, Copy, Debug)]
struct Hop {
    port: u32,
    slot: u32,
}

/// A way through the tree, as a range of hops.
#[derive(Clone, Copy, Debug)]
struct Flow {
    first: u32,
    len: u8,
    /// The device at its end.
    end: u32,
    mps_bytes: u16,
    /// When the last TLP that started here was ready.
    last_ready: Ps,
}

/// Why a run ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The caller had enough.
    Cancelled,
    /// Simulated time ran out.
    TooLong,
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
        while let Some((port, now)) = self.wakes.first() {
            self.events += 1;
            if self.events.is_multiple_of(EVENTS_PER_LOOK) {
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
        if self.sources.iter().any(short) {
            return Err(Stop::TooLong);
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

    /// Decides what a port sends from `now` to the end of the window.
    fn serve(&mut self, p: usize, now: Ps) {
        self.wakes.sleep(p);
        let horizon = now + self.window;
        let mut at = now.max(self.ports[p].free);
        while at < horizon {
            self.starving = false;
            match self.choose(p, at) {
                Ok(choice) => at = self.send(p, choice, at),
                Err(next) => {
                    if self.starving {
                        self.ports[p].starved_since.get_or_insert(at);
                    }
                    at = next;
                }
            }
        }
        // The port may have been woken meanwhile, by what it sent itself.
        if self.ports[p].occupied != 0 {
            self.wakes.wake(p, at);
        }
    }

    /// Who goes at `at`; if none can, when one may.
    #[inline]
    fn choose(&mut self, p: usize, at: Ps) -> Result<Choice, Ps> {
        let mut soonest = NEVER;
        if self.ports[p].channel_slots.len() == 1 {
            return self.choose_among(p, u64::MAX, at);
        }
        for channel in self.ports[p].channels() {
            let among = self.ports[p].channel_slots[channel];
            match self.choose_among(p, among, at) {
                Ok(choice) => {
                    self.ports[p].channel_served(channel);
                    return Ok(choice);
                }
                Err(next) => soonest = soonest.min(next),
            }
        }
        Err(soonest)
    }

    /// Who of `among` goes at `at`, by the port's arbiter.
    #[inline]
    fn choose_among(&mut self, p: usize, among: u64, at: Ps) -> Result<Choice, Ps> {
        let (turn, mut bits) = self.ports[p].in_turn(among);
        let first = self.ports[p].slots.start;
        let fair = self.ports[p].arbiter == Arbiter::WeightedFair;
        let mut best: Option<(u64, Choice)> = None;
        let mut soonest = NEVER;
        while bits != 0 {
            let number = (bits.trailing_zeros() + turn) % u64::BITS;
            bits &= bits - 1;
            match self.candidate(p, first + number, at) {
                Ok(choice) if !fair => return Ok(choice),
                Ok(choice) => {
                    let port = &self.ports[p];
                    let wire = port.wire_bytes(choice.class, choice.tlp);
                    let tag = port.tag(&self.slots[choice.slot as usize], wire);
                    if best.is_none_or(|(least, _)| tag < least) {
                        best = Some((tag, choice));
                    }
                }
                Err(next) => soonest = soonest.min(next),
            }
        }
        best.map(|(_, choice)| choice).ok_or(soonest)
    }

    /// What `slot` can send at `at`; if nothing, when it may.
    #[inline]
    fn candidate(&mut self, p: usize, slot: u32, at: Ps) -> Result<Choice, Ps> {
        if let Some(stream) = self.slots[slot as usize].source {
            return self.source_candidate(p, slot, stream, at);
        }
        let mut soonest = NEVER;
        let mut best: Option<Choice> = None;
        for class in CLASS {
            let here = &self.slots[slot as usize];
            let Some(&tlp) = here.queues[class as usize].front() else {
                continue;
            };
            if tlp.ready > at {
                soonest = soonest.min(tlp.ready);
                continue;
            }
            let older = best.is_none_or(|b| tlp.ready < b.tlp.ready);
            // Held back by a posted write: its turn comes after that write's.
            if !older || !here.in_order(class, tlp.ready, self.relaxed) {
                continue;
            }
            match self.credits_at(p, slot, class, tlp, at) {
                next if next > at => soonest = soonest.min(next),
                _ => best = Some(Choice { slot, class, tlp }),
            }
        }
        best.ok_or(soonest)
    }

    /// As [`Self::candidate`], for a slot whose TLPs a stream generates.
    #[inline]
    fn source_candidate(&mut self, p: usize, slot: u32, stream: u32, at: Ps) -> Result<Choice, Ps> {
        let source = &self.sources[stream as usize];
        let device = &self.devices[source.device as usize];
        let head = source.head();
        let ready = head.tlp.ready.max(device.ready(&head, source.mode));
        if ready > at {
            return Err(if head.tlp.ready == NEVER {
                NEVER
            } else {
                ready
            });
        }
        if head.class == Class::NonPosted {
            let tags = device.tags as usize;
            let next = self.pools[tags].ready_at(at, 0);
            if next > at {
                return Err(next);
            }
        }
        match self.credits_at(p, slot, head.class, head.tlp, at) {
            next if next > at => Err(next),
            _ => Ok(Choice {
                slot,
                class: head.class,
                tlp: Tlp {
                    flow: 2 * stream,
                    ..head.tlp
                },
            }),
        }
    }

    /// When the far end has room for a TLP.
    #[inline]
    fn credits_at(&mut self, p: usize, slot: u32, class: Class, tlp: Tlp, at: Ps) -> Ps {
        let pool = self.pool_of(p, slot, class);
        let next = self.pools[pool].ready_at(at, data_units(class, tlp));
        self.starving |= next > at;
        next
    }

    #[inline]
    fn pool_of(&self, p: usize, slot: u32, class: Class) -> usize {
        let channel = usize::from(self.slots[slot as usize].channel);
        self.ports[p].pool as usize + channel * CLASSES + class as usize
    }

    /// Sends a TLP at `at`; when the link is free again.
    #[inline]
    fn send(&mut self, p: usize, choice: Choice, at: Ps) -> Ps {
        let Choice { slot, class, tlp } = choice;
        let pool = self.pool_of(p, slot, class);
        self.pools[pool].take(data_units(class, tlp));
        let here = &mut self.slots[slot as usize];
        let port = &mut self.ports[p];
        let wire = port.wire_bytes(class, tlp);
        let duration = port.duration(wire);
        let free = at + duration;
        let number = slot - port.slots.start;
        port.served(number, here, wire);
        port.free = free;
        if let Some(since) = port.starved_since.take() {
            port.tally.starved += at - since;
        }
        port.tally.busy += duration;
        port.tally.tlps += 1;
        port.tally.wire_bytes += u64::from(wire);
        if class != Class::NonPosted {
            port.tally.payload_bytes += u64::from(tlp.bytes);
        }
        let arrival = free + port.latency;
        match here.source {
            Some(stream) => self.leave_source(p, slot, stream, &choice, at),
            None => self.leave_queue(p, slot, class, tlp, free),
        }
        let flow = self.flows[tlp.flow as usize];
        if tlp.hop + 1 == flow.len {
            self.deliver(p, class, tlp, arrival);
        } else {
            let hop = self.hops[flow.first as usize + usize::from(tlp.hop) + 1];
            let next = Tlp {
                ready: arrival,
                hop: tlp.hop + 1,
                ..tlp
            };
            self.push(hop, class, next);
        }
        free
    }

    /// Takes a TLP out of its queue and gives its room back to whoever sent it here.
    #[inline]
    fn leave_queue(&mut self, p: usize, slot: u32, class: Class, tlp: Tlp, free: Ps) {
        let here = &mut self.slots[slot as usize];
        here.queues[class as usize].pop_front();
        if here.queues[class as usize].is_empty() && here.is_empty() {
            self.ports[p].occupied &= !(1 << (slot - self.ports[p].slots.start));
        }
        match here.ingress {
            None => self.tlps += 1,
            Some(from) => {
                let back = free + from.latency;
                let pool = from.pool as usize + class as usize;
                if self.pools[pool].give_back(back, data_units(class, tlp)) {
                    self.wakes.wake(from.port as usize, back);
                }
            }
        }
    }

    /// Notes that a stream sent its head.
    #[inline]
    fn leave_source(&mut self, p: usize, slot: u32, stream: u32, choice: &Choice, at: Ps) {
        self.tlps += 1;
        let source = &mut self.sources[stream as usize];
        let device = &mut self.devices[source.device as usize];
        let head = source::Head {
            class: choice.class,
            tlp: choice.tlp,
        };
        device.spend(at, &head, source.mode);
        source.advance(&head, at);
        if choice.class == Class::NonPosted {
            self.pools[device.tags as usize].take(0);
        }
        if source.is_spent() {
            self.ports[p].occupied &= !(1 << (slot - self.ports[p].slots.start));
        }
    }

    /// Puts a TLP into the queue of its next port.
    #[inline]
    fn push(&mut self, hop: Hop, class: Class, tlp: Tlp) {
        let port = &mut self.ports[hop.port as usize];
        port.occupied |= 1 << (hop.slot - port.slots.start);
        if enqueue(
            &mut self.slots[hop.slot as usize].queues[class as usize],
            tlp,
        ) {
            let at = tlp.ready.max(port.free);
            self.wakes.wake(hop.port as usize, at);
        }
    }

    /// Hands a TLP to the node at the end of its way.
    #[inline]
    fn deliver(&mut self, p: usize, class: Class, tlp: Tlp, at: Ps) {
        self.drain(p, class, tlp, at);
        let stream = (tlp.flow / 2) as usize;
        match class {
            Class::Posted => {
                let end = self.flows[tlp.flow as usize].end as usize;
                let committed = at + self.devices[end].commit;
                self.ports[p].committed = self.ports[p].committed.max(committed);
                let source = &mut self.sources[stream];
                source.progress.arrive(u64::from(tlp.bytes), at);
                if tlp.marks & LAST != 0 && !source.is_fenced() {
                    source.complete(at);
                    let back = at + source.back;
                    self.issue(stream, back);
                }
            }
            Class::NonPosted => self.answer(p, tlp, at),
            Class::Completion => self.receive(stream, tlp, at),
        }
    }

    /// Frees the room a delivered TLP took at the end of its last link.
    #[inline]
    fn drain(&mut self, p: usize, class: Class, tlp: Tlp, at: Ps) {
        let flow = self.flows[tlp.flow as usize];
        let hop = self.hops[flow.first as usize + usize::from(tlp.hop)];
        let pool = self.pool_of(p, hop.slot, class);
        let back = at + self.ports[p].credit_latency;
        if self.pools[pool].give_back(back, data_units(class, tlp)) {
            self.wakes.wake(p, back);
        }
    }

    /// Answers a read: completions go back once every posted write before it is in memory.
    fn answer(&mut self, p: usize, request: Tlp, at: Ps) {
        let flow = self.flows[request.flow as usize];
        let device = &mut self.devices[flow.end as usize];
        let latency = device.read_latency;
        let mut ready = at.max(self.ports[p].committed) + device.draw(latency);
        let back = request.flow ^ 1;
        let way = &mut self.flows[back as usize];
        // One stream's answers stay in order: its requests were, and its data must be.
        ready = ready.max(way.last_ready);
        way.last_ready = ready;
        let hop = self.hops[way.first as usize];
        let mut left = request.bytes;
        loop {
            let bytes = left.min(flow.mps_bytes);
            left -= bytes;
            let marks = match left {
                0 => request.marks | END,
                _ => request.marks & !LAST,
            };
            let tlp = Tlp {
                ready,
                flow: back,
                bytes,
                hop: 0,
                marks,
            };
            self.push(hop, Class::Completion, tlp);
            if left == 0 {
                return;
            }
        }
    }

    /// Takes a completion in at the device that asked.
    fn receive(&mut self, stream: usize, tlp: Tlp, at: Ps) {
        let source = &mut self.sources[stream];
        let device = &self.devices[source.device as usize];
        if tlp.marks & END != 0 && self.pools[device.tags as usize].give_back(at, 0) {
            self.wakes.wake(device.port as usize, at);
        }
        if tlp.marks & FENCE != 0 {
            let port = device.port as usize;
            let covered = source.fence_done(at);
            for _ in 0..covered {
                self.sources[stream].complete(at);
                self.issue(stream, at);
            }
            if self.sources[stream].is_spent() {
                self.retire(stream);
            }
            self.wakes.wake(port, at);
            return;
        }
        source.progress.arrive(u64::from(tlp.bytes), at);
        if tlp.marks & LAST != 0 {
            source.complete(at);
            self.issue(stream, at);
        }
    }

    /// Lets a stream's next I/O in at `at`.
    fn issue(&mut self, stream: usize, at: Ps) {
        let source = &mut self.sources[stream];
        let device = &mut self.devices[source.device as usize];
        let latency = device.media_latency;
        let delay = device.draw(latency);
        let ready = source.issue(at, delay);
        let port = device.port as usize;
        self.wakes.wake(port, ready);
    }

    /// Marks a stream's slot empty: its last fence is done.
    fn retire(&mut self, stream: usize) {
        let hop = self.hops[self.flows[2 * stream].first as usize];
        let port = &mut self.ports[hop.port as usize];
        port.occupied &= !(1 << (hop.slot - port.slots.start));
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

/// The TLP that goes next.
#[derive(Clone, Copy, Debug)]
struct Choice {
    slot: u32,
    class: Class,
    tlp: Tlp,
}

/// What a TLP takes of a receiver's data credits.
#[inline]
fn data_units(class: Class, tlp: Tlp) -> u32 {
    match class {
        Class::NonPosted => 0,
        _ => u32::from(tlp.bytes).div_ceil(UNIT_BYTES),
    }
}
