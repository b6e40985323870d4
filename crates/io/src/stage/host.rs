//! Copies into and out of host memory: made here and now, by the lane's own thread.

use std::sync::Arc;

use straightway_core::Result;
use straightway_sys::{Region, Slot, Window, cuda::Span};

use super::{Copied, Copy, Heading, Stage};

/// Copies by the CPU.
#[derive(Debug, Default)]
pub(crate) struct HostStage {
    done: Vec<Copied>,
}

impl Stage for HostStage {
    fn ring(&self, count: usize, bytes: usize) -> Result<Vec<Slot>> {
        Slot::ring(count, bytes)
    }

    fn start(&mut self, mut copy: Copy, region: &Arc<Region>, spans: &[Span]) {
        for span in spans {
            let window = Window::new(region, span.memory_offset as u64, span.bytes);
            match copy.heading {
                Heading::Region => window.fill_from(&copy.slot, span.slot_offset),
                Heading::Slot => window.spill_into(&mut copy.slot, span.slot_offset),
            }
        }
        self.done.push(Copied {
            tag: copy.tag,
            slot: Some(copy.slot),
            outcome: Ok(()),
        });
    }

    fn poll(&mut self, done: &mut Vec<Copied>, _wait: bool) {
        done.append(&mut self.done);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }
}
