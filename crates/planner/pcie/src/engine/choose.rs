//! Chooses the next TLP of a port: the channel, the input and the class that order, credits and arbiter allow.

use super::{
    Engine, Ps, data_units,
    tlp::{CLASS, CLASSES, Class, Tlp},
    wake::NEVER,
};
use crate::scenario::Arbiter;

/// The only source of TLPs of a port, if there is nothing to choose.
#[derive(Clone, Copy, Debug)]
pub(super) enum SoleSource {
    /// A slot, its leading class, and the time until which it leads.
    Queue(u32, Class, Ps),
    /// A slot and the stream that fills it.
    Source(u32, u32),
}

/// The TLP that goes next.
#[derive(Clone, Copy, Debug)]
pub(super) struct Choice {
    pub(super) slot: u32,
    pub(super) class: Class,
    pub(super) tlp: Tlp,
}

impl Engine {
    /// The only source of TLPs of a port, if there is nothing to choose: one occupied slot, a leading class, and an
    /// arbiter without state.
    #[inline(always)]
    pub(super) fn sole_source(&self, p: usize) -> Option<SoleSource> {
        let port = &self.ports[p];
        if !(port.arbiter_is_stateless && port.occupied.is_power_of_two()) {
            return None;
        }
        let number = port.slots.start + port.occupied.trailing_zeros();
        let slot = &self.slots[number as usize];
        match slot.source {
            Some(stream) => {
                let writing = self.sources[stream as usize].is_writing();
                writing.then_some(SoleSource::Source(number, stream))
            }
            None => slot
                .leader(self.relaxed)
                .map(|(class, until)| SoleSource::Queue(number, class, until)),
        }
    }

    /// The TLP that goes at `at` and its channel; if none can, the time at which one may.
    #[inline(always)]
    pub(super) fn choose(&mut self, p: usize, at: Ps) -> Result<(Choice, usize), Ps> {
        if self.ports[p].channel_slots.len() == 1 {
            return self.choose_among(p, 0, u64::MAX, at).map(|choice| (choice, 0));
        }
        let mut soonest = NEVER;
        for channel in self.ports[p].channels() {
            let among = self.ports[p].channel_slots[channel];
            match self.choose_among(p, channel, among, at) {
                Ok(choice) => return Ok((choice, channel)),
                Err(next) => soonest = soonest.min(next),
            }
        }
        Err(soonest)
    }

    /// The TLP of `among`, the slots of `channel`, that goes at `at` by the port's arbiter.
    #[inline(always)]
    fn choose_among(&mut self, p: usize, channel: usize, among: u64, at: Ps) -> Result<Choice, Ps> {
        let (turn, mut bits) = self.ports[p].in_turn(among);
        let first = self.ports[p].slots.start;
        let fair = self.ports[p].arbiter == Arbiter::WeightedFair;
        if fair {
            self.ports[p].clocks[channel].begin();
        }
        let mut best: Option<(u64, Choice)> = None;
        let mut soonest = NEVER;
        while bits != 0 {
            let number = (bits.trailing_zeros() + turn) % u64::BITS;
            bits &= bits - 1;
            match self.candidate(p, first + number, at) {
                Ok(choice) if !fair => return Ok(choice),
                Ok(choice) => {
                    let clock = &mut self.ports[p].clocks[channel];
                    let tag = clock.note(number, &self.slots[choice.slot as usize].tags);
                    if best.is_none_or(|(least, _)| tag < least) {
                        best = Some((tag, choice));
                    }
                }
                Err(next) => soonest = soonest.min(next),
            }
        }
        best.map(|(_, choice)| choice).ok_or(soonest)
    }

    /// The TLP that `slot` can send at `at`; if none, the time at which it may.
    #[inline(always)]
    fn candidate(&mut self, p: usize, slot: u32, at: Ps) -> Result<Choice, Ps> {
        if let Some(stream) = self.slots[slot as usize].source {
            return self.source_candidate(p, slot, stream, at);
        }
        if let Some((class, _)) = self.slots[slot as usize].leader(self.relaxed) {
            return self.queue_candidate(p, slot, class, at);
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
            // It is blocked by a posted write and goes after that write.
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

    /// As [`Self::candidate`], for the leading class, which nothing blocks.
    #[inline(always)]
    fn queue_candidate(&mut self, p: usize, slot: u32, class: Class, at: Ps) -> Result<Choice, Ps> {
        let front = self.slots[slot as usize].queues[class as usize].front();
        let tlp = front.expect("a leading class has a TLP");
        if tlp.ready > at {
            return Err(tlp.ready);
        }
        match self.credits_at(p, slot, class, tlp, at) {
            next if next > at => Err(next),
            _ => Ok(Choice { slot, class, tlp }),
        }
    }

    /// As [`Self::candidate`], for a slot whose TLPs a stream generates.
    #[inline(always)]
    fn source_candidate(&mut self, p: usize, slot: u32, stream: u32, at: Ps) -> Result<Choice, Ps> {
        let source = &self.sources[stream as usize];
        let device = &self.devices[source.device as usize];
        let head = source.head();
        let ready = head.tlp.ready.max(device.ready(&head, source.mode));
        if ready > at {
            return Err(if head.tlp.ready == NEVER { NEVER } else { ready });
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

    /// The time at which the receiver has credits for a TLP.
    #[inline(always)]
    pub(super) fn credits_at(&mut self, p: usize, slot: u32, class: Class, tlp: Tlp, at: Ps) -> Ps {
        let pool = self.pool_of(p, slot, class);
        let next = self.pools[pool].ready_at(at, data_units(class, tlp));
        if next > at {
            self.starving = true;
            self.credits_unknown |= self.ports[p].may_miss_credits(next);
        }
        next
    }

    #[inline(always)]
    pub(super) fn pool_of(&self, p: usize, slot: u32, class: Class) -> usize {
        let channel = usize::from(self.slots[slot as usize].channel);
        self.ports[p].pool as usize + channel * CLASSES + class as usize
    }
}
