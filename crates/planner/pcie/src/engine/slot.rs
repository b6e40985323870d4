//! One input of a port: a queue for each class of TLP, and the ordering rules between them.

use super::{
    Ps,
    fair::Tags,
    ring::Ring,
    tlp::{CLASSES, Class, Tlp},
    wake::NEVER,
};

/// The credits that a slot returns when a TLP leaves it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ingress {
    /// The port that sent the TLP.
    pub(super) port: u32,
    /// The first of its pools for this slot's channel.
    pub(super) pool: u32,
    /// The latency of a returned credit.
    pub(super) latency: Ps,
}

/// One input of a port.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) queues: [Ring<Tlp>; CLASSES],
    /// `None` if the TLPs start here.
    pub(super) ingress: Option<Ingress>,
    /// The stream that generates its TLPs in place of the queues.
    pub(super) source: Option<u32>,
    pub(super) channel: u8,
    pub(super) weight: u32,
    /// TLPs left of its turn, in weighted round robin.
    pub(super) left: u32,
    /// Its tags, in weighted fair queueing.
    pub(super) tags: Tags,
}

impl Slot {
    pub(super) fn new(ingress: Option<Ingress>, source: Option<u32>, channel: u8, weight: u32) -> Self {
        Self {
            queues: Default::default(),
            ingress,
            source,
            channel,
            weight,
            left: weight,
            tags: Tags::default(),
        }
    }

    /// Whether the front of `class` may leave before the posted writes in the same slot.
    #[inline(always)]
    pub(super) fn in_order(&self, class: Class, ready: Ps, relaxed: bool) -> bool {
        if class == Class::Posted || (relaxed && class == Class::Completion) {
            return true;
        }
        let first = self.writes().front();
        first.is_none_or(|write| write.ready > ready)
    }

    /// Its posted writes.
    #[inline(always)]
    pub(super) fn writes(&self) -> &Ring<Tlp> {
        &self.queues[Class::Posted as usize]
    }

    /// The class that certainly goes first, and the latest ready time for which this holds: the only class with TLPs,
    /// or posted writes that came before all others.
    #[inline(always)]
    pub(super) fn leader(&self, relaxed: bool) -> Option<(Class, Ps)> {
        let [posted, requests, completions] = &self.queues;
        let empty = (posted.is_empty(), requests.is_empty(), completions.is_empty());
        match empty {
            (false, true, true) => Some((Class::Posted, NEVER)),
            (true, false, true) => Some((Class::NonPosted, NEVER)),
            (true, true, false) => Some((Class::Completion, NEVER)),
            (false, _, true) => self.writes_lead(requests),
            (false, true, false) if !relaxed => self.writes_lead(completions),
            _ => None,
        }
    }

    /// Posted writes as the leader, if they came before `others`.
    #[inline(always)]
    fn writes_lead(&self, others: &Ring<Tlp>) -> Option<(Class, Ps)> {
        let write = self.writes().front()?;
        let other = others.front()?;
        (write.ready <= other.ready).then_some((Class::Posted, other.ready))
    }

    /// Whether no TLP waits here.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.source.is_none() && self.queues.iter().all(Ring::is_empty)
    }
}
