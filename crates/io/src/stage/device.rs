//! Copies into and out of GPU memory: made by the device, while the lane goes on.
//!
//! One stream for each stage. What is in a stream runs in order, so the oldest copy is done first,
//! and only it needs to be asked about.

use std::{collections::VecDeque, sync::Arc};

use straightway_core::{Error, Kind, Result};
use straightway_sys::{
    Region, Slot,
    cuda::{Context, Copying, Refused, Span, Stream},
};

use super::{Copied, Copy, Heading, Stage};

/// Copies by the GPU.
#[derive(Debug)]
pub(crate) struct DeviceStage {
    stream: Stream,
    flying: VecDeque<(u32, Copying)>,
    /// Copies that could not be started.
    refused: Vec<Copied>,
}

impl DeviceStage {
    /// A stage with a stream of its own on the context's GPU.
    pub(crate) fn new(context: &Context) -> Result<Self> {
        Ok(Self {
            stream: Stream::new(context)?,
            flying: VecDeque::new(),
            refused: Vec::new(),
        })
    }
}

impl Stage for DeviceStage {
    fn ring(&self, count: usize, bytes: usize) -> Result<Vec<Slot>> {
        Slot::pinned_ring(self.stream.context(), count, bytes)
    }

    fn start(&mut self, copy: Copy, region: &Arc<Region>, spans: &[Span]) {
        let Copy { tag, slot, heading } = copy;
        let started = match (region.device_memory(), heading) {
            (Some(memory), Heading::Region) => self.stream.copy_to_device(slot, memory, spans),
            (Some(memory), Heading::Slot) => self.stream.copy_to_host(slot, memory, spans),
            (None, _) => Err(Box::new(Refused {
                slot: Some(slot),
                error: Error::new(Kind::Invalid, "copy to", "the region", "it is not on a GPU"),
            })),
        };
        match started {
            Ok(copying) => self.flying.push_back((tag, copying)),
            Err(refused) => self.refused.push(failed(tag, *refused)),
        }
    }

    fn poll(&mut self, done: &mut Vec<Copied>, wait: bool) {
        let mut wait = wait && self.refused.is_empty();
        done.append(&mut self.refused);
        // A copy that failed is done too: waiting for it returns at once, with its error.
        while let Some((_, oldest)) = self.flying.front()
            && (wait || oldest.is_done().unwrap_or(true))
        {
            wait = false;
            let (tag, copying) = self.flying.pop_front().expect("it was just looked at");
            done.push(match copying.wait() {
                Ok(slot) => Copied {
                    tag,
                    slot: Some(slot),
                    outcome: Ok(()),
                },
                Err(refused) => failed(tag, *refused),
            });
        }
    }

    fn is_by_hand(&self) -> bool {
        false
    }

    fn in_flight(&self) -> usize {
        self.flying.len() + self.refused.len()
    }
}

fn failed(tag: u32, refused: Refused) -> Copied {
    Copied {
        tag,
        slot: refused.slot,
        outcome: Err(refused.error),
    }
}
