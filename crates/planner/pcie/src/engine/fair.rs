//! Weighted fair queueing by bytes: the input with the least service for its weight goes next.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng, 1996). The start tag of a TLP is the finish tag of the TLP before
//! it in its slot, or virtual time if that is later; its finish tag is the start tag plus its bytes divided by the
//! slot's weight. The TLP with the least start tag goes, and its tag becomes virtual time. A start tag does not
//! depend on which TLP of a slot goes, so ordering and credits may still decide that.
//!
//! A tag is given once: a slot that waits while another is served keeps its tag, otherwise it would never get ahead.
//! Tags change only when a TLP is sent, not when a choice is tried, so the number of tries does not matter.

use super::Engine;

/// Virtual time at a port, for one channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// The start tag of the TLP served last.
    now: u64,
    /// The slots, by bit, that are able to send in the current choice.
    could_go: u64,
}

/// The tags of a slot.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tags {
    /// The start tag of a TLP that has waited since before the last choice.
    start: Option<u64>,
    /// The finish tag of the last TLP sent.
    finish: u64,
}

impl Clock {
    /// Begins a choice.
    pub(super) fn begin(&mut self) {
        self.could_go = 0;
    }

    /// Records that slot `number` of a port can go, and returns its start tag.
    pub(super) fn note(&mut self, number: u32, tags: &Tags) -> u64 {
        self.could_go |= 1 << number;
        tags.start_at(self.now)
    }
}

impl Tags {
    /// The start tag of the waiting TLP, if virtual time is `now`.
    fn start_at(&self, now: u64) -> u64 {
        self.start.unwrap_or_else(|| self.finish.max(now))
    }
}

impl Engine {
    /// Records that a slot of port `p` was chosen and sends `wire_bytes`: virtual time advances, and the other slots
    /// that were able to send keep their tags.
    pub(super) fn served_fairly(&mut self, p: usize, slot: u32, wire_bytes: u32) {
        let port = &mut self.ports[p];
        let channel = usize::from(self.slots[slot as usize].channel);
        let clock = &mut port.clocks[channel];
        let mut others = clock.could_go & !(1 << (slot - port.slots.start));
        while others != 0 {
            let tags = &mut self.slots[(port.slots.start + others.trailing_zeros()) as usize].tags;
            others &= others - 1;
            tags.start = Some(tags.start_at(clock.now));
        }
        let here = &mut self.slots[slot as usize];
        let start = here.tags.start_at(clock.now);
        // 2^10 is the largest weight: no share is rounded away.
        let finish = start + (u64::from(wire_bytes) << 10) / u64::from(here.weight);
        here.tags = Tags { start: None, finish };
        // A slot that waited for credits may have an old tag; virtual time does not go back.
        clock.now = clock.now.max(start);
    }
}
