//! Putting TLPs on the wire, one by one or as a train where there is nothing to choose.

use std::ops::ControlFlow;

use super::{
    ARRIVED, Ahead, Engine, Hop, Ps,
    choose::Choice,
    data_units,
    port::{Class, Ingress, Tally, Tlp},
    source::Head,
    wake::NEVER,
};

/// The longest train of a stream, so that a run can be watched and cancelled.
const TRAIN_TLPS_MAX: u64 = 1 << 12;

impl Engine {
    /// Sends from the one queue that has anything, until the horizon, the end of the queue or a
    /// lack of credits. Whatever else may come is ready after the horizon.
    pub(super) fn train(
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
        // Nothing is put into this queue meanwhile: what fills it is another port's turn.
        let mut queue = std::mem::take(&mut self.slots[slot as usize].queues[class as usize]);
        let mut tally = Tally::default();
        let (mut at, mut free) = (from, from);
        let done = loop {
            if at >= ahead.horizon {
                break ControlFlow::Continue(at);
            }
            let Some(tlp) = queue.front() else {
                break ControlFlow::Break(NEVER);
            };
            if tlp.ready > at {
                at = tlp.ready;
                continue;
            }
            let units = data_units(class, tlp);
            let next = self.pools[pool].take_at(at, units);
            if next > at {
                self.blind = self.is_blind(p, next);
                let done = self.starve(p, at, next, ahead);
                let ControlFlow::Continue(next) = done else {
                    break done;
                };
                self.ports[p].fed(next);
                at = next;
                continue;
            }
            queue.pop_front();
            if tally.tlps == 0 {
                self.ports[p].fed(at);
            }
            let bytes = wire.bytes(class, tlp);
            let duration = wire.duration(bytes);
            at += duration;
            free = at;
            tally.count(class, tlp, bytes, duration);
            self.release(ingress, class, units, at);
            self.onward(p, slot, class, tlp, at + wire.latency);
        };
        self.slots[slot as usize].queues[class as usize] = queue;
        self.after_train(p, slot, &tally, free);
        done
    }

    /// As [`Self::train`], from several queues of posted writes by turns, for as long as each has
    /// one. What is out of the ordinary is left to [`Self::step`].
    pub(super) fn braid(&mut self, p: usize, from: Ps, ahead: Ahead) -> ControlFlow<Ps, Ps> {
        let (wire, first) = (self.ports[p].wire, self.ports[p].slots.start);
        let pool = self.ports[p].pool as usize + Class::Posted as usize;
        let mut tally = Tally::default();
        let mut at = from;
        while self.ports[p].is_backlogged() {
            let slot = first + self.ports[p].next_in_turn();
            let here = &mut self.slots[slot as usize];
            let queue = &mut here.queues[Class::Posted as usize];
            let tlp = queue.front().expect("it is backlogged");
            let units = data_units(Class::Posted, tlp);
            if tlp.ready > at {
                break;
            }
            let next = self.pools[pool].take_at(at, units);
            if next > at {
                match self.all_starve_until(p, at, units, next) {
                    Some(next) => {
                        self.ports[p].starved_since.get_or_insert(at);
                        at = next;
                        continue;
                    }
                    None => break,
                }
            }
            queue.pop_front();
            let (ingress, empty) = (here.ingress, queue.is_empty());
            let port = &mut self.ports[p];
            if empty {
                port.occupied &= !(1 << (slot - first));
            }
            port.turn_after(slot - first);
            port.fed(at);
            let bytes = wire.bytes(Class::Posted, tlp);
            let duration = wire.duration(bytes);
            at += duration;
            port.free = at;
            tally.count(Class::Posted, tlp, bytes, duration);
            self.release(ingress, Class::Posted, units, at);
            self.onward(p, slot, Class::Posted, tlp, at + wire.latency);
        }
        self.ports[p].tally.add(&tally);
        if self.ports[p].is_backlogged() {
            self.step(p, at, ahead)
        } else {
            ControlFlow::Continue(at)
        }
    }

    /// Until when all queues of a braid wait, given that a TLP of `units` finds its credits at
    /// `next`: then, or when another is ready. `None` where one may need less, or credits may come
    /// that are not known of.
    #[inline(always)]
    fn all_starve_until(&self, p: usize, at: Ps, units: u32, next: Ps) -> Option<Ps> {
        if self.is_blind(p, next) {
            return None;
        }
        let slots = self.ports[p].slots.clone();
        slots.into_iter().try_fold(next, |next, slot| {
            let front = self.slots[slot as usize].queues[Class::Posted as usize].front()?;
            if front.ready > at {
                Some(next.min(front.ready))
            } else {
                (data_units(Class::Posted, front) >= units).then_some(next)
            }
        })
    }

    /// As [`Self::train`], from a stream of plain writes.
    pub(super) fn source_train(
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
            if tally.tlps == TRAIN_TLPS_MAX {
                break ControlFlow::Break(at);
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
            let next = self.pools[pool].take_at(at, units);
            if next > at {
                self.blind = self.is_blind(p, next);
                let done = self.starve(p, at, next, ahead);
                let ControlFlow::Continue(next) = done else {
                    break done;
                };
                self.ports[p].fed(next);
                at = next;
                continue;
            }
            device.spend(at, &head, source.mode);
            source.advance(&head, at);
            if tally.tlps == 0 {
                self.ports[p].fed(at);
            }
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

    /// Sends a TLP at `at`; when the link is free again.
    #[inline(always)]
    pub(super) fn send(&mut self, p: usize, choice: Choice, at: Ps) -> Ps {
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
        if let Some(stream) = here.source {
            self.leave_source(p, slot, stream, &choice, at);
        } else {
            here.queues[class as usize].pop_front();
            if here.is_empty() {
                port.occupied &= !(1 << (slot - port.slots.start));
            }
            let ingress = here.ingress;
            self.tlps += u64::from(ingress.is_none());
            self.release(ingress, class, units, free);
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

    /// Puts a sent TLP where it arrives, past every port that lets it.
    #[inline(always)]
    fn onward(&mut self, p: usize, slot: u32, class: Class, tlp: Tlp, arrival: Ps) {
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

    /// Notes that a stream sent its head.
    #[inline]
    fn leave_source(&mut self, p: usize, slot: u32, stream: u32, choice: &Choice, at: Ps) {
        self.tlps += 1;
        let source = &mut self.sources[stream as usize];
        let device = &mut self.devices[source.device as usize];
        let head = Head {
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
