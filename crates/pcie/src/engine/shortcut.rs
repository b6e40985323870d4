//! What need not be simulated because it cannot matter.
//!
//! A link into a sink gets its credits back after two crossings. If the sink promised more than the
//! link carries in that time, counting the credits cannot change anything, and they are forgotten.
//! A port with one input and no credits to wait for is a plain queue: when a TLP leaves it is known
//! as soon as it is known when it comes, so it *passes*, without a queue and without an event. And a
//! link that feeds only such ports, none slower than itself, is like a link into a sink again, so
//! both spread from the ends of the tree inwards until they meet a port where streams compete.
//!
//! There, a port may know more than its window tells it. Where one port gives all its credits back,
//! they come in order, and one not known of yet comes after those that are. Where only posted writes
//! go and every input has some, what is still to come waits behind them, and the port may decide all
//! it has at once. So may a device with one stream of writes: its next I/O waits behind this one.
//!
//! A property test holds the whole to this: on random trees the outcome is the same without.

use super::{
    build::{Builder, Input, has_answers, narrow},
    credit::UNIT_BYTES,
    port::{Port, Wire},
    tlp::CLASSES,
};
use crate::{scenario::Mode, topology::Stream};

/// A way through a port: its number, and the port after it.
type Through = (usize, Option<usize>);

impl Builder<'_> {
    /// Forgets credits that cannot run out, lets TLPs pass ports where nothing can happen, and
    /// notes which ports know more than a window tells them.
    pub(super) fn take_shortcuts(&mut self) {
        let mut through: Vec<Vec<Through>> = vec![Vec::new(); self.ports.len()];
        for (flow, way) in self.ways.iter().enumerate() {
            if flow % 2 == 1 && !has_answers(&self.topology.streams[flow / 2]) {
                continue;
            }
            for (k, (port, _)) in way.iter().enumerate() {
                let next = way.get(k + 1).map(|hop| hop.0 as usize);
                through[*port as usize].push((flow, next));
            }
        }
        for (p, through) in through.iter().enumerate() {
            self.note_order(p, through);
        }
        // From the ends inwards: one round per level of the tree, and one to see that it is over.
        loop {
            let before = self.ports.iter().filter(|port| port.passes).count();
            for (p, through) in through.iter().enumerate() {
                if !self.ports[p].passes && self.flows_freely(p, through) {
                    self.forget_ample_credits(p, through);
                    self.ports[p].passes = self.is_plain_queue(p, through);
                }
            }
            if before == self.ports.iter().filter(|port| port.passes).count() {
                return;
            }
        }
    }

    /// Notes where credits come back in order, and where only posted writes go.
    fn note_order(&mut self, p: usize, through: &[Through]) {
        let port = &mut self.ports[p];
        let mut nexts = through.iter().map(|(_, next)| next);
        let first = nexts.next();
        port.credits_in_order = nexts.all(|next| Some(next) == first);
        let steady = self.is_steady();
        let mut inputs = self.inputs[p].values();
        let lone_stream = match (inputs.next().and_then(|slot| slot.source), inputs.next()) {
            (Some(stream), None) => Some(&self.topology.streams[stream as usize]),
            _ => None,
        };
        let queued = self.inputs[p].values().all(|slot| slot.source.is_none());
        let writes = |(flow, _): &Through| !has_answers(&self.topology.streams[flow / 2]);
        let port = &mut self.ports[p];
        port.first_come = steady
            && match lone_stream {
                // Its I/Os are sent in the order of their issue, and all wait while a fence does.
                Some(stream) => stream.mode == Mode::Write,
                None => queued && self.scenario.channels.count == 1 && through.iter().all(writes),
            };
    }

    /// Whether no latency has a tail. One that has is drawn when its I/O is issued or its request
    /// comes: the order of draws must stay.
    fn is_steady(&self) -> bool {
        self.topology.nodes.iter().all(|node| node.jitter_s == 0.0)
    }

    /// Whether all that leaves a port ends there, or passes another that is no slower.
    fn flows_freely(&self, p: usize, through: &[Through]) -> bool {
        let wire = &self.ports[p].wire;
        through.iter().all(|(flow, next)| {
            next.is_none_or(|next| {
                let next = &self.ports[next];
                let stream = &self.topology.streams[flow / 2];
                next.passes && !next.wire.is_memory && is_no_slower(&next.wire, wire, stream)
            })
        })
    }

    /// Whether a port has one input, which fills it in order, and nothing to wait for.
    fn is_plain_queue(&self, p: usize, through: &[Through]) -> bool {
        let mut inputs = self.inputs[p].keys();
        let one = match (inputs.next(), inputs.next()) {
            (Some((Input::Port(_), _)), None) => true,
            // One stream's answers are in order. To know early when they arrive is to issue, and
            // perhaps to draw, early.
            (Some((Input::Answers, _)), None) => {
                through.len() == 1 && (self.is_steady() || self.topology.streams.len() == 1)
            }
            _ => false,
        };
        one && self.pools[self.pools_of(p)]
            .iter()
            .all(|pool| pool.promised().is_none())
    }

    /// Drops the credits of a port that frees itself faster than it can use them up.
    fn forget_ample_credits(&mut self, p: usize, through: &[Through]) {
        let port = &self.ports[p];
        let smallest = through
            .iter()
            .map(|(flow, _)| self.smallest_wire_bytes(*flow, port))
            .min();
        let Some(smallest) = smallest else { return };
        // A TLP waits for at most the longest before it, and is gone once it is through.
        let largest = self.largest_payload_bytes(port, through);
        let longest = port.wire.duration(largest + HEADER_BYTES_MAX);
        let away = port.wire.latency + port.wire.credit_latency + 2 * longest;
        let tlps = away / port.wire.duration(smallest).max(1) + 2;
        let bytes = (away << 20) / port.wire.byte_cost + 2 * u64::from(largest);
        let pools = self.pools_of(p);
        for pool in &mut self.pools[pools] {
            let ample = pool.promised().is_some_and(|promise| {
                let headers = u64::from(promise.headers);
                let data = u64::from(promise.data) * u64::from(UNIT_BYTES);
                // Each TLP rounds its payload up to a unit.
                headers >= tlps && (data == 0 || data >= bytes + tlps * u64::from(UNIT_BYTES))
            });
            if ample {
                pool.forget();
            }
        }
    }

    /// The largest payload that a port carries; a memory works for what a request asks for, too.
    fn largest_payload_bytes(&self, port: &Port, through: &[Through]) -> u32 {
        if port.wire.is_memory {
            return PAYLOAD_BYTES_MAX;
        }
        let streams = through
            .iter()
            .map(|(flow, _)| &self.topology.streams[flow / 2]);
        let largest = streams.map(|stream| stream.mps_bytes).max();
        largest.unwrap_or(PAYLOAD_BYTES_MAX)
    }

    fn pools_of(&self, p: usize) -> std::ops::Range<usize> {
        let channels = usize::try_from(self.scenario.channels.count).expect("at most eight");
        let first = self.ports[p].pool as usize;
        first..first + channels * CLASSES
    }

    /// The smallest TLP of a way: the tail of an I/O, a request, or a fence.
    fn smallest_wire_bytes(&self, flow: usize, port: &Port) -> u32 {
        let stream = &self.topology.streams[flow / 2];
        let least = port.wire.overhead.iter().min();
        least.expect("there are three classes") + smallest_payload_bytes(stream)
    }
}

/// The smallest payload of a stream's TLPs: the tail of an I/O, or none, of a request or a fence.
fn smallest_payload_bytes(stream: &Stream) -> u32 {
    if has_answers(stream) {
        return 0;
    }
    let mps = u64::from(stream.mps_bytes);
    let tail = |bytes: u64| match bytes % mps {
        0 => mps,
        rest => rest,
    };
    let payload = match stream.size_bytes % stream.io_bytes {
        0 => tail(stream.io_bytes),
        odd => tail(stream.io_bytes).min(tail(odd)),
    };
    narrow(usize::try_from(payload).expect("at most a payload"))
}

/// Whether no TLP of a stream takes longer on `next` than on `wire`. Time is linear in payload, so
/// what holds for the smallest and the largest holds for all.
fn is_no_slower(next: &Wire, wire: &Wire, stream: &Stream) -> bool {
    let payloads = [smallest_payload_bytes(stream), stream.mps_bytes];
    let time = |wire: &Wire, class: usize, payload: u32| {
        u128::from(wire.byte_cost) * u128::from(payload + wire.overhead[class])
    };
    // Without answers there are only posted writes.
    let classes = if has_answers(stream) { CLASSES } else { 1 };
    (0..classes).all(|class| {
        let mut payloads = payloads.iter();
        payloads.all(|payload| time(next, class, *payload) <= time(wire, class, *payload))
    })
}

/// The largest TLP there is.
const PAYLOAD_BYTES_MAX: u32 = 4096;
const HEADER_BYTES_MAX: u32 = 24;
