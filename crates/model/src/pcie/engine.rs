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
mod credit;
mod port;
mod ring;
mod source;
mod wake;

use std::ops::ControlFlow;

use self::{
    credit::{Pool, UNIT_BYTES},
    port::{CLASS, CLASSES, Class, END, FENCE, Ingress, LAST, Port, Slot, Tlp},
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

/// Where a way ends.
const ARRIVED: Hop = Hop {
    port: u32::MAX,
    slot: 0,
};

/// A way through the tree, as a range of hops that ends with [`ARRIVED`].
#[derive(Clone, Copy, Debug)]
struct Flow {
    first: u32,
    /// The device at its end.
    end: u32,
    mps_bytes: u16,
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

    /// Decides what a port sends from `now` to its horizon.
    fn serve(&mut self, p: usize, now: Ps) {
        self.wakes.begin(p);
        let port = &self.ports[p];
        let ahead = Ahead {
            horizon: now + port.window,
            credits: now + port.wire.credit_latency,
        };
        let mut at = now.max(port.free);
        while at < ahead.horizon {
            let done = match self.lone(p) {
                Some(Lone::Queue(slot, class)) => self.train(p, slot, class, at, ahead),
                Some(Lone::Source(slot, stream)) => self.source_train(p, slot, stream, at, ahead),
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
        self.starving = false;
        let choice = self.choose(p, at);
        if self.starving && at >= ahead.credits {
            return ControlFlow::Break(at);
        }
        match choice {
            Ok((choice, channel)) => {
                self.ports[p].channel_served(channel);
                ControlFlow::Continue(self.send(p, choice, at))
            }
            Err(next) if self.starving => self.starve(p, at, next, ahead),
            Err(next) => ControlFlow::Continue(next),
        }
    }

    /// Notes that something waits for credits from `at` to `next`, as far as is known.
    fn starve(&mut self, p: usize, at: Ps, next: Ps, ahead: Ahead) -> ControlFlow<Ps, Ps> {
        self.ports[p].starved_since.get_or_insert(at);
        if at >= ahead.credits {
            ControlFlow::Break(at)
        } else if next < ahead.credits {
            ControlFlow::Continue(next)
        } else {
            ControlFlow::Break(next)
        }
    }

    /// What a port sends from where it has nothing to choose: one slot, one class, one channel,
    /// and an arbiter that keeps no account.
    #[inline(always)]
    fn lone(&self, p: usize) -> Option<Lone> {
        let port = &self.ports[p];
        let plain = port.arbiter == Arbiter::RoundRobin && port.channel_slots.len() == 1;
        if !(plain && port.occupied.is_power_of_two()) {
            return None;
        }
        let number = port.slots.start + port.occupied.trailing_zeros();
        let slot = &self.slots[number as usize];
        match slot.source {
            Some(stream) => {
                let pure = self.sources[stream as usize].is_pure();
                pure.then_some(Lone::Source(number, stream))
            }
            None => slot.lone_class().map(|class| Lone::Queue(number, class)),
        }
    }

    /// Sends from the one queue that has anything, until the horizon, the end of the queue or a
    /// lack of credits. Whatever else may come is ready after the horizon.
    fn train(
        &mut self,
        p: usize,
        slot: u32,
        class: Class,
        from: Ps,
        ahead: Ahead,
    ) -> ControlFlow<Ps, Ps> {
        let wire = self.ports[p].wire;
        let pool = self.pool_of(p, slot, class);
        let ingress = self.slots[slot as usize].ingress;
        let mut tally = Tally::default();
        let (mut at, mut free) = (from, from);
        let done = loop {
            if at >= ahead.horizon {
                break ControlFlow::Continue(at);
            }
            let queue = &mut self.slots[slot as usize].queues[class as usize];
            let Some(tlp) = queue.front() else {
                break ControlFlow::Break(NEVER);
            };
            if tlp.ready > at {
                at = tlp.ready;
                continue;
            }
            let units = data_units(class, tlp);
            let next = self.pools[pool].ready_at(at, units);
            if next > at {
                match self.starve(p, at, next, ahead) {
                    ControlFlow::Continue(next) => at = next,
                    done @ ControlFlow::Break(_) => break done,
                }
                continue;
            }
            self.pools[pool].take(units);
            queue.pop_front();
            self.ports[p].fed(at);
            let bytes = wire.bytes(class, tlp);
            let duration = wire.duration(bytes);
            at += duration;
            free = at;
            tally.count(class, tlp, bytes, duration);
            self.release(ingress, class, units, at);
            self.onward(p, slot, class, tlp, at + wire.latency);
        };
        self.after_train(p, slot, &tally, free);
        done
    }

    /// As [`Self::train`], from a stream of plain writes.
    fn source_train(
        &mut self,
        p: usize,
        slot: u32,
        stream: u32,
        from: Ps,
        ahead: Ahead,
    ) -> ControlFlow<Ps, Ps> {
        let wire = self.ports[p].wire;
        let pool = self.pool_of(p, slot, Class::Posted);
        let mut tally = Tally::default();
        let (mut at, mut free) = (from, from);
        let done = loop {
            if at >= ahead.horizon {
                break ControlFlow::Continue(at);
            }
            let source = &mut self.sources[stream as usize];
            let device = &mut self.devices[source.device as usize];
            let head = source.head();
            if head.tlp.ready == NEVER {
                break ControlFlow::Break(NEVER);
            }
            let ready = head.tlp.ready.max(device.ready(&head, source.mode));
            if ready > at {
                at = ready;
                continue;
            }
            let units = data_units(Class::Posted, head.tlp);
            let next = self.pools[pool].ready_at(at, units);
            if next > at {
                match self.starve(p, at, next, ahead) {
                    ControlFlow::Continue(next) => at = next,
                    done @ ControlFlow::Break(_) => break done,
                }
                continue;
            }
            self.pools[pool].take(units);
            device.spend(at, &head, source.mode);
            source.advance(&head, at);
            self.ports[p].fed(at);
            let bytes = wire.bytes(Class::Posted, head.tlp);
            let duration = wire.duration(bytes);
            at += duration;
            free = at;
            tally.count(Class::Posted, head.tlp, bytes, duration);
            self.onward(p, slot, Class::Posted, head.tlp, at + wire.latency);
        };
        self.tlps += tally.tlps;
        self.after_train(p, slot, &tally, free);
        done
    }

    /// Books what a train sent; `free` is when its last TLP was through.
    fn after_train(&mut self, p: usize, slot: u32, tally: &Tally, free: Ps) {
        if tally.tlps == 0 {
            return;
        }
        let here = &self.slots[slot as usize];
        let empty = match here.source {
            Some(stream) => self.sources[stream as usize].is_spent(),
            None => here.is_empty(),
        };
        let answers = here.ingress.is_none() && here.source.is_none();
        let port = &mut self.ports[p];
        if empty {
            port.occupied &= !(1 << (slot - port.slots.start));
        }
        port.free = free;
        port.tally.add(tally);
        port.turn_after(slot - port.slots.start);
        if answers {
            self.tlps += tally.tlps;
        }
    }

    /// Who goes at `at` and by which channel; if none can, when one may.
    #[inline(always)]
    fn choose(&mut self, p: usize, at: Ps) -> Result<(Choice, usize), Ps> {
        if self.ports[p].channel_slots.len() == 1 {
            return self.choose_among(p, u64::MAX, at).map(|choice| (choice, 0));
        }
        let mut soonest = NEVER;
        for channel in self.ports[p].channels() {
            let among = self.ports[p].channel_slots[channel];
            match self.choose_among(p, among, at) {
                Ok(choice) => return Ok((choice, channel)),
                Err(next) => soonest = soonest.min(next),
            }
        }
        Err(soonest)
    }

    /// Who of `among` goes at `at`, by the port's arbiter.
    #[inline(always)]
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
                    let bytes = port.wire.bytes(choice.class, choice.tlp);
                    let tag = port.tag(&self.slots[choice.slot as usize], bytes);
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
    #[inline(always)]
    fn candidate(&mut self, p: usize, slot: u32, at: Ps) -> Result<Choice, Ps> {
        if let Some(stream) = self.slots[slot as usize].source {
            return self.source_candidate(p, slot, stream, at);
        }
        let mut soonest = NEVER;
        let mut best: Option<Choice> = None;
        for class in CLASS {
            let here = &self.slots[slot as usize];
            let Some(tlp) = here.queues[class as usize].front() else {
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
    #[inline(always)]
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
                tlp: head.tlp,
            }),
        }
    }

    /// When the far end has room for a TLP.
    #[inline(always)]
    fn credits_at(&mut self, p: usize, slot: u32, class: Class, tlp: Tlp, at: Ps) -> Ps {
        let pool = self.pool_of(p, slot, class);
        let next = self.pools[pool].ready_at(at, data_units(class, tlp));
        self.starving |= next > at;
        next
    }

    #[inline(always)]
    fn pool_of(&self, p: usize, slot: u32, class: Class) -> usize {
        let channel = usize::from(self.slots[slot as usize].channel);
        self.ports[p].pool as usize + channel * CLASSES + class as usize
    }

    /// Sends a TLP at `at`; when the link is free again.
    #[inline(always)]
    fn send(&mut self, p: usize, choice: Choice, at: Ps) -> Ps {
        let Choice { slot, class, tlp } = choice;
        let pool = self.pool_of(p, slot, class);
        let units = data_units(class, tlp);
        self.pools[pool].take(units);
        let here = &mut self.slots[slot as usize];
        let port = &mut self.ports[p];
        let bytes = port.wire.bytes(class, tlp);
        let duration = port.wire.duration(bytes);
        let free = at + duration;
        port.served(slot - port.slots.start, here, bytes);
        port.free = free;
        port.fed(at);
        port.tally.count(class, tlp, bytes, duration);
        let arrival = free + port.wire.latency;
        match here.source {
            Some(stream) => self.leave_source(p, slot, stream, &choice, at),
            None => {
                here.queues[class as usize].pop_front();
                if here.is_empty() {
                    port.occupied &= !(1 << (slot - port.slots.start));
                }
                let ingress = here.ingress;
                self.tlps += u64::from(ingress.is_none());
                self.release(ingress, class, units, free);
            }
        }
        self.onward(p, slot, class, tlp, arrival);
        free
    }

    /// Gives the room of a TLP that left at `free` back to whoever sent it here.
    #[inline(always)]
    fn release(&mut self, ingress: Option<Ingress>, class: Class, units: u32, free: Ps) {
        if let Some(from) = ingress {
            let back = free + from.latency;
            if self.pools[from.pool as usize + class as usize].give_back(back, units) {
                self.wakes.wake(from.port as usize, back);
            }
        }
    }

    /// Puts a sent TLP where it arrives.
    #[inline(always)]
    fn onward(&mut self, p: usize, slot: u32, class: Class, tlp: Tlp, arrival: Ps) {
        let hop = self.hops[tlp.hop as usize];
        if hop.port == ARRIVED.port {
            self.deliver(p, slot, class, tlp, arrival);
        } else {
            self.push(hop, class, tlp.onward(arrival));
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
    #[inline(always)]
    fn push(&mut self, hop: Hop, class: Class, tlp: Tlp) {
        let port = &mut self.ports[hop.port as usize];
        port.occupied |= 1 << (hop.slot - port.slots.start);
        let queue = &mut self.slots[hop.slot as usize].queues[class as usize];
        // At the back, but for completions that a slow read of another stream held up.
        if queue.insert(tlp, |other| other.ready <= tlp.ready) {
            let at = tlp.ready.max(port.free);
            self.wakes.wake(hop.port as usize, at);
        }
    }

    /// Hands a TLP to the node at the end of its way.
    #[inline(always)]
    fn deliver(&mut self, p: usize, slot: u32, class: Class, tlp: Tlp, at: Ps) {
        self.drain(p, slot, class, tlp, at);
        let stream = usize::from(tlp.flow / 2);
        match class {
            Class::Posted => {
                let end = self.flows[usize::from(tlp.flow)].end as usize;
                let committed = at + self.devices[end].commit;
                self.ports[p].committed = self.ports[p].committed.max(committed);
                let source = &mut self.sources[stream];
                source.progress.arrive(u64::from(tlp.bytes()), at);
                if tlp.bears(LAST) && !source.is_fenced() {
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
    #[inline(always)]
    fn drain(&mut self, p: usize, slot: u32, class: Class, tlp: Tlp, at: Ps) {
        let pool = self.pool_of(p, slot, class);
        let back = at + self.ports[p].wire.credit_latency;
        if self.pools[pool].give_back(back, data_units(class, tlp)) {
            self.wakes.wake(p, back);
        }
    }

    /// Answers a read: completions go back once every posted write before it is in memory.
    fn answer(&mut self, p: usize, request: Tlp, at: Ps) {
        let flow = self.flows[usize::from(request.flow)];
        let device = &mut self.devices[flow.end as usize];
        let latency = device.read_latency;
        let mut ready = at.max(self.ports[p].committed) + device.draw(latency);
        let back = request.flow ^ 1;
        let way = &mut self.flows[usize::from(back)];
        // One stream's answers stay in order: its requests were, and its data must be.
        ready = ready.max(way.last_ready);
        way.last_ready = ready;
        let (first, mut left) = (way.first, request.bytes());
        let hop = self.hops[first as usize];
        loop {
            let bytes = left.min(flow.mps_bytes);
            left -= bytes;
            let marks = match left {
                0 => request.marks() | END,
                _ => request.marks() & !LAST,
            };
            let tlp = Tlp::new(ready, back, first + 1, bytes, marks);
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
        if tlp.bears(END) && self.pools[device.tags as usize].give_back(at, 0) {
            self.wakes.wake(device.port as usize, at);
        }
        if tlp.bears(FENCE) {
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
        source.progress.arrive(u64::from(tlp.bytes()), at);
        if tlp.bears(LAST) {
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

/// What a port sends from where it has nothing to choose.
#[derive(Clone, Copy, Debug)]
enum Lone {
    /// A slot and its one class.
    Queue(u32, Class),
    /// A slot and the stream that fills it.
    Source(u32, u32),
}

/// The TLP that goes next.
#[derive(Clone, Copy, Debug)]
struct Choice {
    slot: u32,
    class: Class,
    tlp: Tlp,
}

/// What a TLP takes of a receiver's data credits.
#[inline(always)]
fn data_units(class: Class, tlp: Tlp) -> u32 {
    match class {
        Class::NonPosted => 0,
        _ => u32::from(tlp.bytes()).div_ceil(UNIT_BYTES),
    }
}
