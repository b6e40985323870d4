//! Shortcuts: parts of the simulation that cannot affect the result are skipped.
//!
//! The credits of a link into a sink return after two crossings. If the sink advertises more than the link carries in
//! that time, the credits cannot run out and are not counted. A port with one input and no credits to wait for is a
//! plain queue: the arrival of a TLP determines its departure, so it *passes*, without a queue and without an event.
//! A link that feeds only such ports, none slower than itself, is again like a link into a sink. So both shortcuts
//! spread from the ends of the tree inwards to the ports where streams compete.
//!
//! There, a port may know more than its window says. If one port returns all its credits, they return in order, and
//! unknown ones follow the known ones. If only posted writes pass and every input has some, later TLPs wait behind
//! them, and the port can decide all it has at once. So can a device with one stream of writes: its next I/O waits
//! behind this one.
//!
//! A property test checks on random trees that the outcome is the same without shortcuts.

use super::{
    build::{Builder, Input, has_answers, narrow},
    credit::UNIT_BYTES,
    port::{Port, Wire},
    tlp::CLASSES,
};
use crate::{scenario::Mode, topology::PcieStream};

/// A path through a port: its number, and the next port.
type Through = (usize, Option<usize>);

impl Builder<'_> {
    /// Stops counting credits that cannot run out, lets TLPs pass ports without contention, and records which ports
    /// know more than their window says.
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
        // From the ends inwards: one round per level of the tree, and a last one without changes.
        loop {
            let before = self.ports.iter().filter(|port| port.passes).count();
            for (p, through) in through.iter().enumerate() {
                if !self.ports[p].passes && self.flows_freely(p, through) {
                    self.ignore_ample_credits(p, through);
                    self.ports[p].passes = self.is_plain_queue(p, through);
                }
            }
            if before == self.ports.iter().filter(|port| port.passes).count() {
                return;
            }
        }
    }

    /// Records whether credits return in order, and whether only posted writes pass.
    fn note_order(&mut self, p: usize, through: &[Through]) {
        let port = &mut self.ports[p];
        let mut nexts = through.iter().map(|(_, next)| next);
        let first = nexts.next();
        port.credits_in_order = nexts.all(|next| Some(next) == first);
        let steady = self.is_steady();
        let mut inputs = self.inputs[p].values();
        let sole_stream = match (inputs.next().and_then(|slot| slot.source), inputs.next()) {
            (Some(stream), None) => Some(&self.topology.streams[stream as usize]),
            _ => None,
        };
        let queued = self.inputs[p].values().all(|slot| slot.source.is_none());
        let writes = |(flow, _): &Through| !has_answers(&self.topology.streams[flow / 2]);
        let port = &mut self.ports[p];
        port.first_come = steady
            && match sole_stream {
                // Its I/Os are sent in the order of their issue, and all wait while a fence does.
                Some(stream) => stream.mode == Mode::Write,
                None => queued && self.scenario.channels.count == 1 && through.iter().all(writes),
            };
    }

    /// Whether no latency has a random tail. A tail is drawn when its I/O is issued or its request arrives, so the
    /// order of draws must not change.
    fn is_steady(&self) -> bool {
        self.topology.nodes.iter().all(|node| node.jitter_s == 0.0)
    }

    /// Whether all TLPs of a port end at the next node, or pass another port that is not slower.
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

    /// Whether a port has one input, which is in order, and nothing to wait for.
    fn is_plain_queue(&self, p: usize, through: &[Through]) -> bool {
        let mut inputs = self.inputs[p].keys();
        let one = match (inputs.next(), inputs.next()) {
            (Some((Input::Port(_), _)), None) => true,
            // The answers of one stream are in order. Computing their arrival early would issue, and perhaps draw,
            // early.
            (Some((Input::Answers, _)), None) => {
                through.len() == 1 && (self.is_steady() || self.topology.streams.len() == 1)
            }
            _ => false,
        };
        one && self.pools[self.pools_of(p)].iter().all(|pool| pool.limit().is_none())
    }

    /// Stops counting the credits of a port if they return faster than it can use them up.
    fn ignore_ample_credits(&mut self, p: usize, through: &[Through]) {
        let port = &self.ports[p];
        let smallest = through
            .iter()
            .map(|(flow, _)| self.smallest_wire_bytes(*flow, port))
            .min();
        let Some(smallest) = smallest else { return };
        // A TLP waits for at most the longest one before it, and leaves once it is sent.
        let largest = self.largest_payload_bytes(port, through);
        let longest = port.wire.duration(largest + HEADER_BYTES_MAX);
        let away = port.wire.latency + port.wire.credit_latency + 2 * longest;
        let tlps = away / port.wire.duration(smallest).max(1) + 2;
        let bytes = (away << 20) / port.wire.byte_cost + 2 * u64::from(largest);
        let pools = self.pools_of(p);
        for pool in &mut self.pools[pools] {
            let is_ample = pool.limit().is_some_and(|limit| {
                let headers = u64::from(limit.headers);
                let data = u64::from(limit.data) * u64::from(UNIT_BYTES);
                // Each TLP rounds its payload up to a unit.
                headers >= tlps && (data == 0 || data >= bytes + tlps * u64::from(UNIT_BYTES))
            });
            if is_ample {
                pool.make_unlimited();
            }
        }
    }

    /// The largest payload that a port carries; a memory also serves the bytes that a request asks for.
    fn largest_payload_bytes(&self, port: &Port, through: &[Through]) -> u32 {
        if port.wire.is_memory {
            return PAYLOAD_BYTES_MAX;
        }
        let streams = through.iter().map(|(flow, _)| &self.topology.streams[flow / 2]);
        let largest = streams.map(|stream| stream.mps_bytes).max();
        largest.unwrap_or(PAYLOAD_BYTES_MAX)
    }

    fn pools_of(&self, p: usize) -> std::ops::Range<usize> {
        let channels = usize::try_from(self.scenario.channels.count).expect("at most eight");
        let first = self.ports[p].pool as usize;
        first..first + channels * CLASSES
    }

    /// The smallest TLP of a path: the tail of an I/O, a request, or a fence.
    fn smallest_wire_bytes(&self, flow: usize, port: &Port) -> u32 {
        let stream = &self.topology.streams[flow / 2];
        let least = port.wire.overhead.iter().min();
        least.expect("there are three classes") + smallest_payload_bytes(stream)
    }
}

/// The smallest payload of a stream's TLPs: the tail of an I/O, or 0 for a request or a fence.
fn smallest_payload_bytes(stream: &PcieStream) -> u32 {
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

/// Whether no TLP of a stream takes longer on `next` than on `wire`. Time is linear in the payload, so checking the
/// smallest and the largest is enough.
fn is_no_slower(next: &Wire, wire: &Wire, stream: &PcieStream) -> bool {
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

/// The size of the largest TLP.
const PAYLOAD_BYTES_MAX: u32 = 4096;
const HEADER_BYTES_MAX: u32 = 24;
