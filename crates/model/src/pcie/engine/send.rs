//! Putting TLPs on the wire, one by one or as a train where there is nothing to choose.

use std::ops::ControlFlow;

use super::{
    Ahead, Engine, Ps,
    choose::Choice,
    data_units,
    port::{Class, Tally, Tlp},
    source::Head,
    wake::NEVER,
};

/// The longest train of a stream, so that a run can be watched and cancelled.
const TRAIN_TLPS_MAX: usize = 1 << 10;

impl Engine {
    /// Sends from the one queue that leads, until the horizon, the end of its lead or a lack of
    /// credits. Whatever else may come is ready after the horizon.
    pub(super) fn train(
        &mut self,
        p: usize,
        slot: u32,
        (class, until): (Class, Ps),
        from: Ps,
        ahead: Ahead,
    ) -> ControlFlow<Ps, Ps> {
        let pool = self.pool_of(p, slot, class);
        let mut sent = std::mem::take(&mut self.sent);
        let (port, pool) = (&mut self.ports[p], &mut self.pools[pool]);
        // Nothing is put into this queue meanwhile: what fills it is another port's turn.
        let queue = &mut self.slots[slot as usize].queues[class as usize];
        let wire = port.wire;
        let mut tally = Tally::default();
        let mut at = from;
        let done = loop {
            if at >= ahead.horizon {
                break ControlFlow::Continue(at);
            }
            let Some(tlp) = queue.front() else {
                // What came behind the leader is next, if anything did.
                break match until {
                    NEVER => ControlFlow::Break(NEVER),
                    _ => ControlFlow::Continue(at),
                };
            };
            if tlp.ready > until {
                break ControlFlow::Continue(at);
            }
            if tlp.ready > at {
                at = tlp.ready;
                continue;
            }
            let units = data_units(class, tlp);
            match port.await_credits(pool, units, at, ahead) {
                ControlFlow::Continue(next) => at = next,
                done @ ControlFlow::Break(_) => break done,
            }
            if at >= ahead.horizon {
                break ControlFlow::Continue(at);
            }
            pool.take(units);
            queue.pop_front();
            let bytes = wire.bytes(class, tlp);
            let duration = wire.duration(bytes);
            at += duration;
            port.free = at;
            tally.count(class, tlp, bytes, duration);
            sent.push(tlp.at(at));
        };
        self.after_train(p, slot, class, &tally, sent);
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
            let front = self.slots[slot as usize].queues[Class::Posted as usize].front();
            let tlp = front.expect("it is backlogged");
            let units = data_units(Class::Posted, tlp);
            if tlp.ready > at {
                break;
            }
            let next = self.pools[pool].ready_at(at, units);
            if next > at {
                let Some(until) = self.all_starve_until(p, at, units, next) else {
                    break;
                };
                self.ports[p].starved_since.get_or_insert(at);
                at = until;
                if until < next {
                    continue;
                }
                self.pools[pool].wait(next);
            }
            self.pools[pool].take(units);
            let here = &mut self.slots[slot as usize];
            let queue = &mut here.queues[Class::Posted as usize];
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
        if self.ports[p].is_blind(next) {
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

    /// As [`Self::train`], from a stream of writes.
    pub(super) fn source_train(
        &mut self,
        p: usize,
        slot: u32,
        stream: u32,
        from: Ps,
        ahead: Ahead,
    ) -> ControlFlow<Ps, Ps> {
        let pool = self.pool_of(p, slot, Class::Posted);
        let mut sent = std::mem::take(&mut self.sent);
        let (port, pool) = (&mut self.ports[p], &mut self.pools[pool]);
        let source = &mut self.sources[stream as usize];
        let device = &mut self.devices[source.device as usize];
        let wire = port.wire;
        let mut tally = Tally::default();
        let mut at = from;
        let done = loop {
            if at >= ahead.horizon {
                break ControlFlow::Continue(at);
            }
            if sent.len() == TRAIN_TLPS_MAX {
                break ControlFlow::Break(at);
            }
            let Some(tlp) = source.write() else {
                // A fence is sent by itself.
                break match source.is_writing() {
                    true => ControlFlow::Break(NEVER),
                    false => ControlFlow::Continue(at),
                };
            };
            let ready = tlp.ready.max(device.write_ready());
            if ready > at {
                at = ready;
                continue;
            }
            let units = data_units(Class::Posted, tlp);
            match port.await_credits(pool, units, at, ahead) {
                ControlFlow::Continue(next) => at = next,
                done @ ControlFlow::Break(_) => break done,
            }
            if at >= ahead.horizon {
                break ControlFlow::Continue(at);
            }
            pool.take(units);
            device.spend_write(at, u64::from(tlp.bytes()));
            source.advance_by(u64::from(tlp.bytes()));
            let bytes = wire.bytes(Class::Posted, tlp);
            let duration = wire.duration(bytes);
            at += duration;
            port.free = at;
            tally.count(Class::Posted, tlp, bytes, duration);
            sent.push(tlp.at(at));
        };
        self.after_train(p, slot, Class::Posted, &tally, sent);
        done
    }

    /// Books what a train sent, and sends it on its way.
    fn after_train(&mut self, p: usize, slot: u32, class: Class, tally: &Tally, sent: Vec<Tlp>) {
        if !sent.is_empty() {
            let here = &self.slots[slot as usize];
            let empty = match here.source {
                Some(stream) => self.sources[stream as usize].is_spent(),
                None => here.is_empty(),
            };
            let port = &mut self.ports[p];
            if empty {
                port.occupied &= !(1 << (slot - port.slots.start));
            }
            port.tally.add(tally);
            port.turn_after(slot - port.slots.start);
            if here.ingress.is_none() {
                self.tlps += tally.tlps;
            }
        }
        self.depart(p, slot, class, sent);
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
}
