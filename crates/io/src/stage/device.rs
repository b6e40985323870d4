//! Copies into and out of GPU memory: made by the device, while the lane goes on.
//!
//! One stream for each stage. What is in a stream runs in order, so the oldest copy is done first,
//! and only it needs to be asked about.

use std::collections::VecDeque;

use straightway_core::Result;
use straightway_sys::{
    Slot,
    cuda::{Context, Copying, Landing, Refused, Streams},
};

use super::{Copied, Copy, Regions, Stage, host};

/// Copies by the GPU.
#[derive(Debug)]
pub(crate) struct DeviceStage {
    context: Context,
    streams: Streams,
    flying: VecDeque<(u32, Copying)>,
    /// Copies that are over already: they could not be started, or had nothing for a GPU.
    over: Vec<Copied>,
}

impl DeviceStage {
    /// A stage with a stream of its own on the context's GPU.
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let mut streams = Streams::default();
        streams.on(context)?;
        Ok(Self {
            context: context.clone(),
            streams,
            flying: VecDeque::new(),
            over: Vec::new(),
        })
    }

    /// Starts all parts of a copy but the last, and waits for each. Answers the last, under way, or the slot where
    /// there was nothing for a GPU.
    ///
    /// Regions in host memory or on another GPU are rare among those of one job: a counter beside the weights, say.
    fn launch(
        &mut self,
        copy: Copy,
        regions: &Regions,
        landings: &[Landing],
    ) -> Result<Result<Copying, Slot>, Box<Refused>> {
        let memory = |landing: &Landing| regions[landing.region as usize].device_memory();
        let is_together = |a: &Landing, b: &Landing| match (memory(a), memory(b)) {
            (Some(a), Some(b)) => a.context().is_same(b.context()),
            (a, b) => a.is_none() && b.is_none(),
        };
        let Copy {
            slot, direction, ..
        } = copy;
        let mut state = Err(slot);
        for group in landings.chunk_by(is_together) {
            let mut slot = match state {
                Ok(under_way) => Copying::wait(under_way)?,
                Err(slot) => slot,
            };
            state = match memory(&group[0]).map(|memory| self.streams.on(memory.context())) {
                None => {
                    for landing in group {
                        host::copy(direction, &mut slot, regions, landing);
                    }
                    Err(slot)
                }
                Some(Ok(stream)) => Ok(stream.copy_with_regions(direction, slot, regions, group)?),
                Some(Err(error)) => {
                    let slot = Some(slot);
                    return Err(Box::new(Refused { slot, error }));
                }
            };
        }
        Ok(state)
    }
}

impl Stage for DeviceStage {
    fn ring(&self, count: usize, bytes: usize) -> Result<Vec<Slot>> {
        Slot::pinned_ring(&self.context, count, bytes)
    }

    fn slot(&self, bytes: usize) -> Result<Option<Slot>> {
        Slot::pinned(&self.context, bytes)
    }

    fn start(&mut self, copy: Copy, regions: &Regions, landings: &[Landing]) {
        let tag = copy.tag;
        match self.launch(copy, regions, landings) {
            Ok(Ok(copying)) => self.flying.push_back((tag, copying)),
            Ok(Err(slot)) => self.over.push(Copied::whole(tag, slot)),
            Err(refused) => self.over.push(failed(tag, *refused)),
        }
    }

    fn poll(&mut self, done: &mut Vec<Copied>, wait: bool) {
        let mut wait = wait && self.over.is_empty();
        done.append(&mut self.over);
        // A copy that failed is done too: waiting for it returns at once, with its error.
        while let Some((_, oldest)) = self.flying.front()
            && (wait || oldest.is_done().unwrap_or(true))
        {
            wait = false;
            let (tag, copying) = self.flying.pop_front().expect("it was just looked at");
            done.push(match copying.wait() {
                Ok(slot) => Copied::whole(tag, slot),
                Err(refused) => failed(tag, *refused),
            });
        }
    }

    fn is_by_hand(&self) -> bool {
        false
    }

    fn in_flight(&self) -> usize {
        self.flying.len() + self.over.len()
    }
}

fn failed(tag: u32, refused: Refused) -> Copied {
    Copied {
        tag,
        slot: refused.slot,
        outcome: Err(refused.error),
    }
}
