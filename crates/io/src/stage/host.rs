//! Copies into and out of host memory: made by the lane's own thread, one at a time, while the drive is busy.
//!
//! They are put off until the lane asks for one, so that it can first give the drive new work. A virtual drive may
//! answer for all of its queue at once, and would stand still while a whole queue is copied.

use std::{collections::VecDeque, sync::Arc};

use straightway_core::Result;
use straightway_sys::{Region, Slot, Window, cuda::Span};

use super::{Copied, Copy, Heading, Stage};

/// Copies by the CPU.
#[derive(Debug, Default)]
pub(crate) struct HostStage {
    pending: VecDeque<Pending>,
    /// Lists that were used before, so that no copy has to allocate one.
    spare: Vec<Vec<Span>>,
}

/// A copy that is still to be made.
#[derive(Debug)]
struct Pending {
    copy: Copy,
    region: Arc<Region>,
    spans: Vec<Span>,
}

impl Stage for HostStage {
    fn ring(&self, count: usize, bytes: usize) -> Result<Vec<Slot>> {
        Slot::ring(count, bytes)
    }

    fn start(&mut self, copy: Copy, region: &Arc<Region>, spans: &[Span]) {
        let mut own = self.spare.pop().unwrap_or_default();
        own.extend_from_slice(spans);
        self.pending.push_back(Pending {
            copy,
            region: Arc::clone(region),
            spans: own,
        });
    }

    fn poll(&mut self, done: &mut Vec<Copied>, wait: bool) {
        if !wait {
            return;
        }
        let Some(Pending {
            mut copy,
            region,
            mut spans,
        }) = self.pending.pop_front()
        else {
            return;
        };
        for span in spans.drain(..) {
            let window = Window::new(&region, span.memory_offset as u64, span.bytes);
            match copy.heading {
                Heading::Region => window.fill_from(&copy.slot, span.slot_offset),
                Heading::Slot => window.spill_into(&mut copy.slot, span.slot_offset),
            }
        }
        self.spare.push(spans);
        done.push(Copied {
            tag: copy.tag,
            slot: Some(copy.slot),
            outcome: Ok(()),
        });
    }

    fn is_by_hand(&self) -> bool {
        true
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_made_one_at_a_time_and_only_when_waited_for() {
        let mut stage = HostStage::default();
        let mut region = Arc::new(Region::host(64).unwrap());
        let slots = stage.ring(2, 4096).unwrap();
        for (tag, mut slot) in (0..).zip(slots) {
            slot.as_mut_slice().fill(tag + 1);
            let copy = Copy {
                tag: u32::from(tag),
                slot,
                heading: Heading::Region,
            };
            let span = Span {
                slot_offset: 0,
                memory_offset: usize::from(tag) * 32,
                bytes: 32,
            };
            stage.start(copy, &region, &[span]);
        }
        let mut done = Vec::new();
        stage.poll(&mut done, false);
        assert_eq!((done.len(), stage.in_flight()), (0, 2));
        for made in 1..=2 {
            stage.poll(&mut done, true);
            assert_eq!((done.len(), stage.in_flight()), (made, 2 - made));
        }
        let tags: Vec<_> = done.iter().map(|copied| copied.tag).collect();
        assert_eq!(tags, [0, 1]);
        let bytes = Arc::get_mut(&mut region).unwrap().as_slice();
        assert!(bytes[..32] == [1; 32] && bytes[32..] == [2; 32]);
    }
}
