//! Sends TLPs, one by one or as a train if there is nothing to choose.

use std::ops::ControlFlow;

use super::{
    Ahead, Engine, Ps,
    choose::Choice,
    data_units,
    port::{Tally, Wire},
    slot::Slot,
    source::Head,
    tlp::{Class, Tlp},
    wake::NEVER,
};
use crate::scenario::Arbiter;

/// The maximum length of a train of a stream, so that a run can be watched and cancelled.
const TRAIN_TLPS_MAX: usize = 1 << 10;

/// TLPs that leave a port one after another.
struct Train {
    wire: Wire,
    tally: Tally,
    /// The TLPs; `ready` is the time at which each was sent.
    sent: Vec<Tlp>,
}

impl Train {
    /// An empty train that reuses the memory of `sent`.
    fn new(wire: Wire, sent: Vec<Tlp>) -> Self {
        let tally = Tally::default();
        Self { wire, tally, sent }
    }

    /// Sends a TLP at `at`; returns the time at which it is sent.
    #[inline(always)]
    fn add(&mut self, class: Class, tlp: Tlp, at: Ps) -> Ps {
        let bytes = self.wire.bytes(class, tlp);
        let duration = self.wire.duration(bytes);
        let through = at + duration;
        self.tally.count(class, tlp, bytes, duration);
        self.sent.push(tlp.at(through));
        through
    }
}

impl Engine {
    /// Sends from the leading queue until the horizon, the end of its lead or a lack of credits. Any other TLP is
    /// ready after the horizon.
    pub(super) fn train(
        &mut self,
        p: usize,
        slot: u32,
        (class, until): (Class, Ps),
        from: Ps,
        ahead: Ahead,
    ) -> ControlFlow<Ps, Ps> {
        let pool = self.pool_of(p, slot, class);
        let mut train = Train::new(self.ports[p].wire, std::mem::take(&mut self.sent));
        let (port, pool) = (&mut self.ports[p], &mut self.pools[pool]);
        // No TLP enters this queue meanwhile: only other ports fill it.
        let queue = &mut self.slots[slot as usize].queues[class as usize];
        let mut at = from;
        let done = loop {
            if at >= ahead.horizon {
                break ControlFlow::Continue(at);
            }
            let Some(tlp) = queue.front() else {
                // Next is a TLP behind the leader, if there is one.
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
            match port.take_credits(pool, units, at, ahead) {
                ControlFlow::Continue(next) => at = next,
                done @ ControlFlow::Break(_) => break done,
            }
            queue.pop_front();
            at = train.add(class, tlp, at);
            port.free = at;
        };
        self.after_train(p, slot, class, train);
        done
    }

    /// As [`Self::train`], from several queues of posted writes in turn, as long as none is empty. Special cases are
    /// left to [`Self::step`].
    pub(super) fn round_robin_train(&mut self, p: usize, from: Ps, ahead: Ahead) -> ControlFlow<Ps, Ps> {
        let wire = self.ports[p].wire;
        let mut tally = Tally::default();
        let (mut at, mut free) = (from, from);
        while let Some((slot, tlp)) = self.take_turn(p, &mut at) {
            let ingress = self.slots[slot as usize].ingress;
            let bytes = wire.bytes(Class::Posted, tlp);
            let duration = wire.duration(bytes);
            at += duration;
            free = at;
            tally.count(Class::Posted, tlp, bytes, duration);
            let units = data_units(Class::Posted, tlp);
            self.release(ingress, Class::Posted, units, at);
            self.onward(p, slot, Class::Posted, tlp, at + wire.latency);
        }
        let port = &mut self.ports[p];
        if tally.tlps > 0 {
            port.free = free;
            port.tally.add(&tally);
        }
        if port.is_backlogged() {
            self.step(p, at, ahead)
        } else {
            ControlFlow::Continue(at)
        }
    }

    /// Takes the TLP whose turn it is, and its credits: at `at`, or when they are available. `None` if a queue is
    /// empty, or in special cases.
    #[inline(always)]
    fn take_turn(&mut self, p: usize, at: &mut Ps) -> Option<(u32, Tlp)> {
        let port = &mut self.ports[p];
        let first = port.slots.start;
        let slots = &mut self.slots[first as usize..port.slots.end as usize];
        let pool = &mut self.pools[port.pool as usize + Class::Posted as usize];
        if !port.is_backlogged() {
            return None;
        }
        let number = port.next_in_turn();
        loop {
            let tlp = slots[number as usize].writes().front()?;
            if tlp.ready > *at {
                return None;
            }
            let units = data_units(Class::Posted, tlp);
            let next = pool.ready_at(*at, units);
            if next > *at {
                if port.may_miss_credits(next) {
                    return None;
                }
                let until = all_starve_until(slots, *at, units, next)?;
                port.starved_since.get_or_insert(*at);
                *at = until;
                if until < next {
                    continue;
                }
                pool.wait(next);
            }
            pool.take(units);
            port.end_starvation(*at);
            port.turn_after(number);
            let queue = &mut slots[number as usize].queues[Class::Posted as usize];
            queue.pop_front();
            if queue.is_empty() {
                port.occupied &= !(1 << number);
            }
            return Some((first + number, tlp));
        }
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
        let mut train = Train::new(self.ports[p].wire, std::mem::take(&mut self.sent));
        let (port, pool) = (&mut self.ports[p], &mut self.pools[pool]);
        let source = &mut self.sources[stream as usize];
        let device = &mut self.devices[source.device as usize];
        let mut at = from;
        let done = loop {
            if at >= ahead.horizon {
                break ControlFlow::Continue(at);
            }
            if train.sent.len() == TRAIN_TLPS_MAX {
                break ControlFlow::Break(at);
            }
            let Some(tlp) = source.write() else {
                // A fence is sent by itself.
                break if source.is_writing() {
                    ControlFlow::Break(NEVER)
                } else {
                    ControlFlow::Continue(at)
                };
            };
            let ready = tlp.ready.max(device.write_ready());
            if ready > at {
                at = ready;
                continue;
            }
            let units = data_units(Class::Posted, tlp);
            match port.take_credits(pool, units, at, ahead) {
                ControlFlow::Continue(next) => at = next,
                done @ ControlFlow::Break(_) => break done,
            }
            device.spend_write(at, u64::from(tlp.bytes()));
            source.advance_by(u64::from(tlp.bytes()));
            at = train.add(Class::Posted, tlp, at);
            port.free = at;
        };
        self.after_train(p, slot, Class::Posted, train);
        done
    }

    /// Counts the TLPs of a train, and forwards them.
    fn after_train(&mut self, p: usize, slot: u32, class: Class, train: Train) {
        if !train.sent.is_empty() {
            let here = &self.slots[slot as usize];
            let empty = match here.source {
                Some(stream) => self.sources[stream as usize].is_spent(),
                None => here.is_empty(),
            };
            let port = &mut self.ports[p];
            if empty {
                port.occupied &= !(1 << (slot - port.slots.start));
            }
            port.tally.add(&train.tally);
            port.turn_after(slot - port.slots.start);
            if here.ingress.is_none() {
                self.tlps += train.tally.tlps;
            }
        }
        self.depart(p, slot, class, train.sent);
    }

    /// Sends a TLP at `at`; returns the time at which the link is free again.
    #[inline(always)]
    pub(super) fn send(&mut self, p: usize, choice: Choice, at: Ps) -> Ps {
        let Choice { slot, class, tlp } = choice;
        let pool = self.pool_of(p, slot, class);
        let units = data_units(class, tlp);
        self.pools[pool].take(units);
        let bytes = self.ports[p].wire.bytes(class, tlp);
        if self.ports[p].arbiter == Arbiter::WeightedFair {
            self.served_fairly(p, slot, bytes);
        }
        let here = &mut self.slots[slot as usize];
        let port = &mut self.ports[p];
        let duration = port.wire.duration(bytes);
        let free = at + duration;
        port.served(slot - port.slots.start, here);
        port.free = free;
        port.end_starvation(at);
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

    /// Records that a stream sent its head.
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

/// The time until which all queues wait, if a TLP of `units` has its credits at `next`: `next`, or the time at which
/// another TLP is ready. `None` if another may need fewer credits.
#[inline(always)]
fn all_starve_until(slots: &[Slot], at: Ps, units: u32, next: Ps) -> Option<Ps> {
    slots.iter().try_fold(next, |next, slot| {
        let front = slot.writes().front()?;
        if front.ready > at {
            Some(next.min(front.ready))
        } else {
            (data_units(Class::Posted, front) >= units).then_some(next)
        }
    })
}
