//! The path of sent TLPs: off the wire, through every port without a queue, into a queue or to the destination.
//!
//! A train is moved as a whole: TLPs of one path are moved one stage after another, so that each stage looks up its
//! port, queue and credits once. The TLPs of one port move in the order they were sent.

use super::{
    ARRIVED, Engine, Hop, Ps, data_units,
    slot::Ingress,
    tlp::{Class, Tlp},
};

impl Engine {
    /// Forwards a train; `ready` of each TLP is the time at which it was sent.
    #[inline]
    pub(super) fn depart(&mut self, p: usize, slot: u32, class: Class, mut sent: Vec<Tlp>) {
        if let Some(from) = self.slots[slot as usize].ingress {
            self.release_all(from, class, &sent);
        }
        let latency = self.ports[p].wire.latency;
        for batch in sent.chunk_by_mut(|tlp, next| tlp.hop == next.hop) {
            self.onward_all(p, slot, class, batch, latency);
        }
        sent.clear();
        self.sent = sent;
    }

    /// As [`Self::release`], for a train.
    #[inline]
    fn release_all(&mut self, from: Ingress, class: Class, sent: &[Tlp]) {
        let pool = &mut self.pools[from.pool as usize + class as usize];
        for tlp in sent {
            let back = tlp.ready + from.latency;
            if pool.give_back(back, data_units(class, *tlp)) {
                self.wakes.wake(from.port as usize, back);
            }
        }
    }

    /// As [`Self::onward`], for TLPs of one path that arrive a `latency` after they were sent.
    #[inline]
    fn onward_all(&mut self, p: usize, slot: u32, class: Class, batch: &mut [Tlp], latency: Ps) {
        let (mut p, mut slot, mut latency) = (p, slot, latency);
        let mut hop = self.hops[batch[0].hop as usize];
        while hop.passes {
            self.pass_all(hop, class, batch, latency);
            (p, slot) = (hop.port as usize, hop.slot);
            latency = self.ports[p].wire.latency;
            hop = self.hops[batch[0].hop as usize];
        }
        for tlp in batch {
            let arrival = tlp.ready + latency;
            if hop.port == ARRIVED {
                if hop.counted {
                    self.drain(p, slot, class, *tlp, arrival);
                }
                self.deliver(p, class, *tlp, arrival);
            } else {
                self.push(hop, class, tlp.onward(arrival));
            }
        }
    }

    /// As [`Self::pass`], for TLPs that arrive a `latency` after the last port sent them; sets `ready` of each to the
    /// time at which this port has sent it.
    #[inline]
    fn pass_all(&mut self, hop: Hop, class: Class, batch: &mut [Tlp], latency: Ps) {
        let port = &mut self.ports[hop.port as usize];
        let (wire, mut tally, mut free) = (port.wire, port.tally, port.free);
        for tlp in &mut *batch {
            let bytes = wire.bytes(class, *tlp);
            let duration = wire.duration(bytes);
            free = (tlp.ready + latency).max(free) + duration;
            tally.count(class, *tlp, bytes, duration);
            *tlp = tlp.onward(free);
        }
        (port.tally, port.free) = (tally, free);
        if hop.counted
            && let Some(from) = self.slots[hop.slot as usize].ingress
        {
            self.release_all(from, class, batch);
        }
    }

    /// Returns the credits of a TLP that left at `free` to its sender.
    #[inline(always)]
    pub(super) fn release(&mut self, ingress: Option<Ingress>, class: Class, units: u32, free: Ps) {
        if let Some(from) = ingress {
            let back = free + from.latency;
            if self.pools[from.pool as usize + class as usize].give_back(back, units) {
                self.wakes.wake(from.port as usize, back);
            }
        }
    }

    /// Moves a sent TLP through every port without a queue to where it arrives.
    #[inline(always)]
    pub(super) fn onward(&mut self, p: usize, slot: u32, class: Class, tlp: Tlp, arrival: Ps) {
        let (mut p, mut slot, mut tlp, mut arrival) = (p, slot, tlp, arrival);
        loop {
            let hop = self.hops[tlp.hop as usize];
            if hop.port == ARRIVED {
                if hop.counted {
                    self.drain(p, slot, class, tlp, arrival);
                }
                return self.deliver(p, class, tlp, arrival);
            }
            tlp = tlp.onward(arrival);
            if !hop.passes {
                return self.push(hop, class, tlp);
            }
            (p, slot) = (hop.port as usize, hop.slot);
            arrival = self.pass(hop, class, tlp);
        }
    }

    /// Puts a TLP that starts here into its first port.
    #[inline(always)]
    pub(super) fn enter(&mut self, hop: Hop, class: Class, tlp: Tlp) {
        if hop.passes {
            self.tlps += 1;
            let arrival = self.pass(hop, class, tlp);
            self.onward(hop.port as usize, hop.slot, class, tlp, arrival);
        } else {
            self.push(hop, class, tlp);
        }
    }

    /// Passes a TLP through a port that is a plain queue; returns its arrival at the far end.
    #[inline(always)]
    fn pass(&mut self, hop: Hop, class: Class, tlp: Tlp) -> Ps {
        let port = &mut self.ports[hop.port as usize];
        let bytes = port.wire.bytes(class, tlp);
        let duration = port.wire.duration(bytes);
        let free = tlp.ready.max(port.free) + duration;
        port.free = free;
        port.tally.count(class, tlp, bytes, duration);
        let arrival = free + port.wire.latency;
        if hop.counted {
            let ingress = self.slots[hop.slot as usize].ingress;
            self.release(ingress, class, data_units(class, tlp), free);
        }
        arrival
    }

    /// Puts a TLP into the queue of its next port.
    #[inline(always)]
    pub(super) fn push(&mut self, hop: Hop, class: Class, tlp: Tlp) {
        let queue = &mut self.slots[hop.slot as usize].queues[class as usize];
        // At the back, except for completions that a slow read of another stream delayed.
        if queue.insert(tlp, |other| other.ready <= tlp.ready) {
            let port = &mut self.ports[hop.port as usize];
            port.occupied |= 1 << (hop.slot - port.slots.start);
            let at = tlp.ready.max(port.free);
            self.wakes.wake(hop.port as usize, at);
        }
    }
}
