//! TLPs on their way: off the wire, past every port that lets them, into a queue or home.
//!
//! What a train sent is moved as a whole: TLPs of one way one stage after another, each stage with
//! its port, queue and credits at hand. All that one port sends moves in the order it was sent.

use super::{
    ARRIVED, Engine, Hop, Ps, data_units,
    slot::Ingress,
    tlp::{Class, Tlp},
};

impl Engine {
    /// Sends a train on its way; each TLP is marked with the time it was through.
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

    /// As [`Self::onward`], for TLPs of one way that arrive a `latency` after they were through.
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

    /// As [`Self::pass`], for TLPs that arrive a `latency` after they were through the last port;
    /// each is marked with the time it is through this one.
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

    /// Gives the room of a TLP that left at `free` back to whoever sent it here.
    #[inline(always)]
    pub(super) fn release(&mut self, ingress: Option<Ingress>, class: Class, units: u32, free: Ps) {
        if let Some(from) = ingress {
            let back = free + from.latency;
            if self.pools[from.pool as usize + class as usize].give_back(back, units) {
                self.wakes.wake(from.port as usize, back);
            }
        }
    }

    /// Puts a sent TLP where it arrives, past every port that lets it.
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

    /// Brings a TLP that starts here to its first port.
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

    /// Lets a TLP pass a port that is a plain queue; when it arrives at the far end.
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
        // At the back, but for completions that a slow read of another stream held up.
        if queue.insert(tlp, |other| other.ready <= tlp.ready) {
            let port = &mut self.ports[hop.port as usize];
            port.occupied |= 1 << (hop.slot - port.slots.start);
            let at = tlp.ready.max(port.free);
            self.wakes.wake(hop.port as usize, at);
        }
    }
}
