//! Weighted fair queueing by bytes: who has had the least for its weight goes next.
//!
//! Start-time fair queueing (Goyal, Vin and Cheng, 1996). A TLP's start tag is the finish tag of the
//! TLP before it in its slot, or virtual time if that is later; its finish tag lies its bytes, over
//! the slot's weight, behind. The least start tag goes, and is then virtual time. A start tag does
//! not depend on which TLP of a slot goes, so ordering and credits may still decide that.
//!
//! A tag is given once: what waited while another was served keeps the one it had, or it would
//! never get ahead of whoever is served. Tags change only where a TLP is sent, never where a choice
//! is tried, so it does not matter how often a port looks.

use super::Engine;

/// Virtual time at a port, for one channel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Clock {
    /// The start tag of the TLP served last.
    now: u64,
    /// The slots, by bit, that could have gone in the choice at hand.
    could_go: u64,
}

/// What a slot has had.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tags {
    /// The start tag of what waits here since before the last choice.
    start: Option<u64>,
    /// The finish tag of the TLP that it sent last.
    finish: u64,
}

impl Clock {
    /// Begins a choice.
    pub(super) fn begin(&mut self) {
        self.could_go = 0;
    }

    /// Notes that slot `number` of a port can go; its start tag.
    pub(super) fn note(&mut self, number: u32, tags: &Tags) -> u64 {
        self.could_go |= 1 << number;
        tags.start_at(self.now)
    }
}

impl Tags {
    /// The start tag of what waits, if virtual time is `now`.
    fn start_at(&self, now: u64) -> u64 {
        self.start.unwrap_or_else(|| self.finish.max(now))
    }
}

impl Engine {
    /// Notes that a slot of port `p` was chosen and sends `wire_bytes`: virtual time moves on, and
    /// whoever could have gone as well keeps its tag.
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
        here.tags = Tags {
            start: None,
            finish,
        };
        // One that waited for credits may be served with an old tag; time does not go back for it.
        clock.now = clock.now.max(start);
    }
}
