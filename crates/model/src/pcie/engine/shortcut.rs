//! What need not be simulated because it cannot matter.
//!
//! A link into a sink gets its credits back after two crossings. If the sink promised more than the
//! link carries in that time, counting the credits cannot change anything, and they are forgotten.
//! A port with one input and no credits to wait for is a plain queue: when a TLP leaves it is known
//! as soon as it is known when it comes, so it *passes*, without a queue and without an event. And a
//! link that feeds only such ports, none slower than itself, is like a link into a sink again, so
//! both spread from the ends of the tree inwards until they meet a port where streams compete.
//!
//! A property test holds the whole to this: on random trees the outcome is the same without.

use super::{
    build::{Builder, Input, narrow},
    credit::UNIT_BYTES,
    port::{CLASSES, Port},
};
use crate::pcie::scenario::Mode;

/// A way through a port: its number, and the port after it.
type Through = (usize, Option<usize>);

impl Builder<'_> {
    /// Forgets credits that cannot run out, and lets TLPs pass ports where nothing can happen.
    pub(super) fn take_shortcuts(&mut self) {
        let mut through: Vec<Vec<Through>> = vec![Vec::new(); self.ports.len()];
        for (flow, way) in self.ways.iter().enumerate() {
            for (k, (port, _)) in way.iter().enumerate() {
                let next = way.get(k + 1).map(|hop| hop.0 as usize);
                through[*port as usize].push((flow, next));
            }
        }
        // From the ends inwards: one round per level of the tree, and one to see that it is over.
        loop {
            let before = self.ports.iter().filter(|port| port.passes).count();
            for (p, through) in through.iter().enumerate() {
                if !self.ports[p].passes && self.flows_freely(p, through) {
                    self.forget_ample_credits(p, through);
                    self.ports[p].passes = self.is_plain_queue(p);
                }
            }
            if before == self.ports.iter().filter(|port| port.passes).count() {
                return;
            }
        }
    }

    /// Whether all that leaves a port ends there, or passes another that is no slower.
    fn flows_freely(&self, p: usize, through: &[Through]) -> bool {
        let wire = &self.ports[p].wire;
        let no_slower = |next: &Port| {
            let headers = next.wire.overhead.iter().zip(&wire.overhead);
            next.wire.byte_cost <= wire.byte_cost
                && !next.wire.is_memory
                && headers.into_iter().all(|(next, own)| next <= own)
        };
        let free = |next: usize| self.ports[next].passes && no_slower(&self.ports[next]);
        through.iter().all(|(_, next)| next.is_none_or(free))
    }

    /// Whether a port has one input, another port, and nothing to wait for.
    fn is_plain_queue(&self, p: usize) -> bool {
        let mut inputs = self.inputs[p].keys();
        let one = matches!(
            (inputs.next(), inputs.next()),
            (Some((Input::Port(_), _)), None)
        );
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
        let longest = port.wire.duration(PAYLOAD_BYTES_MAX + HEADER_BYTES_MAX);
        let away = port.wire.latency + port.wire.credit_latency + 2 * longest;
        let tlps = away / port.wire.duration(smallest).max(1) + 2;
        let bytes = (away << 20) / port.wire.byte_cost + 2 * u64::from(PAYLOAD_BYTES_MAX);
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

    fn pools_of(&self, p: usize) -> std::ops::Range<usize> {
        let channels = usize::try_from(self.scenario.channels.count).expect("at most eight");
        let first = self.ports[p].pool as usize;
        first..first + channels * CLASSES
    }

    /// The smallest TLP of a way: the tail of an I/O, a request, or a fence.
    fn smallest_wire_bytes(&self, flow: usize, port: &Port) -> u32 {
        let stream = &self.topology.streams[flow / 2];
        let least = port.wire.overhead.iter().min();
        let least = *least.expect("there are three classes");
        if stream.fence_bytes.is_some() || stream.mode == Mode::Read {
            return least;
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
        least + narrow(usize::try_from(payload).expect("at most a payload"))
    }
}

/// The largest TLP there is.
const PAYLOAD_BYTES_MAX: u32 = 4096;
const HEADER_BYTES_MAX: u32 = 24;
