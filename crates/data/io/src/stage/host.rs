//! Copies into and out of host memory, made on the lane's own thread, one at a time, while the drive is busy.
//!
//! They are deferred until the lane polls for one, so that it can first submit new I/Os. A virtual drive may complete
//! its whole queue at once, and would be idle while all of it is copied.

use std::{collections::VecDeque, sync::Arc};

use straightway_core::{PciAddress, Place, Result};
use straightway_sys::{
    Region, Slot, Window,
    cuda::{CopyDirection, RegionSpan},
};

use super::{Copied, Copy, Regions, Stage};

/// Copies by the CPU.
#[derive(Debug, Default)]
pub(crate) struct HostStage {
    pending: VecDeque<Pending>,
    /// Lists to reuse, so that a copy does not allocate.
    spare: Vec<Vec<RegionSpan>>,
    /// The device whose BAR holds the ring, if it is not in host memory.
    provider: Option<PciAddress>,
}

impl HostStage {
    /// A stage with its ring at `place`.
    pub(crate) fn with_ring_at(place: Place) -> Self {
        let provider = match place {
            Place::P2p(provider) => Some(provider),
            Place::Host | Place::Gpu(_) => None,
        };
        Self {
            provider,
            ..Self::default()
        }
    }
}

/// A copy that has not been made yet.
#[derive(Debug)]
struct Pending {
    copy: Copy,
    regions: Regions,
    region_spans: Vec<RegionSpan>,
}

/// Makes one copy between a slot and host memory. Fails if pages of that memory are gone.
pub(super) fn copy(
    direction: CopyDirection,
    slot: &mut Slot,
    regions: &[Arc<Region>],
    region_span: &RegionSpan,
) -> Result<()> {
    let span = region_span.span;
    let region = &regions[region_span.region as usize];
    let window = Window::new(region, span.memory_offset as u64, span.bytes);
    match direction {
        CopyDirection::ToDevice => window.fill_from(slot, span.slot_offset),
        CopyDirection::ToHost => {
            window.spill_into(slot, span.slot_offset);
            Ok(())
        }
    }
}

impl Stage for HostStage {
    fn ring(&self, count: usize, bytes: usize) -> Result<Vec<Slot>> {
        match self.provider {
            Some(provider) => Slot::bar_ring(provider, count, bytes),
            None => Slot::ring_up_to(count, bytes),
        }
    }

    fn start(&mut self, copy: Copy, regions: &Regions, region_spans: &[RegionSpan]) {
        let mut own = self.spare.pop().unwrap_or_default();
        own.extend_from_slice(region_spans);
        self.pending.push_back(Pending {
            copy,
            regions: Arc::clone(regions),
            region_spans: own,
        });
    }

    fn poll(&mut self, done: &mut Vec<Copied>, wait: bool) {
        if !wait {
            return;
        }
        let Some(Pending {
            copy: mut made,
            regions,
            mut region_spans,
        }) = self.pending.pop_front()
        else {
            return;
        };
        let outcome = region_spans
            .drain(..)
            .try_for_each(|span| copy(made.direction, &mut made.slot, &regions, &span));
        self.spare.push(region_spans);
        done.push(Copied {
            tag: made.tag,
            slot: Some(made.slot),
            outcome,
        });
    }

    fn copies_on_poll(&self) -> bool {
        true
    }

    fn in_flight(&self) -> usize {
        self.pending.len()
    }
}

#[cfg(test)]
mod tests {
    use straightway_sys::cuda::Span;

    use super::*;

    #[test]
    fn copies_are_made_one_at_a_time_and_only_by_a_waiting_poll() {
        let mut stage = HostStage::default();
        let mut regions: Regions = [Arc::new(Region::host(64).unwrap())].into();
        let slots = stage.ring(2, 4096).unwrap();
        for (tag, mut slot) in (0..).zip(slots) {
            slot.as_mut_slice().fill(tag + 1);
            let copy = Copy {
                tag: u32::from(tag),
                slot,
                direction: CopyDirection::ToDevice,
            };
            let span = Span {
                slot_offset: 0,
                memory_offset: usize::from(tag) * 32,
                bytes: 32,
            };
            stage.start(copy, &regions, &[RegionSpan { region: 0, span }]);
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
        let region = &mut Arc::get_mut(&mut regions).unwrap()[0];
        let bytes = Arc::get_mut(region).unwrap().as_slice();
        assert!(bytes[..32] == [1; 32] && bytes[32..] == [2; 32]);
    }
}
