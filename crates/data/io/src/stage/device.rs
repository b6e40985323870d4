//! Copies into and out of GPU memory, made by the device while the lane goes on.
//!
//! Each stage has one stream per GPU. A stream runs in order, so the oldest copy finishes first, and only it needs to
//! be checked.

use std::{collections::VecDeque, sync::Arc};

use straightway_core::Result;
use straightway_sys::{
    RingSpace, Slot,
    cuda::{Context, CopyError, Copying, CudaStreams, RegionSpan},
};

use super::{Copied, Copy, Regions, Stage, host};

/// Copies by the GPU.
#[derive(Debug)]
pub(crate) struct DeviceStage {
    context: Context,
    /// The memory of its ring.
    space: Arc<RingSpace>,
    streams: CudaStreams,
    copying: VecDeque<(u32, Copying)>,
    /// Finished copies: they could not be started, or involved no GPU.
    over: Vec<Copied>,
}

impl DeviceStage {
    /// A stage with a stream of its own on the context's GPU, and its ring in `space`.
    pub(crate) fn new(context: &Context, space: &Arc<RingSpace>) -> Result<Self> {
        let mut streams = CudaStreams::default();
        streams.on(context)?;
        Ok(Self {
            context: context.clone(),
            space: Arc::clone(space),
            streams,
            copying: VecDeque::new(),
            over: Vec::new(),
        })
    }

    /// Starts all parts of a copy, and waits for each but the last. Returns the last, in flight, or the slot if no GPU
    /// was involved.
    ///
    /// Regions in host memory or on another GPU are rare among those of one job: for example a counter next to the
    /// weights.
    fn launch(
        &mut self,
        copy: Copy,
        regions: &Regions,
        region_spans: &[RegionSpan],
    ) -> Result<Result<Copying, Slot>, Box<CopyError>> {
        let memory = |region_span: &RegionSpan| regions[region_span.region as usize].device_memory();
        let is_together = |a: &RegionSpan, b: &RegionSpan| match (memory(a), memory(b)) {
            (Some(a), Some(b)) => a.context().is_same(b.context()),
            (a, b) => a.is_none() && b.is_none(),
        };
        let Copy { slot, direction, .. } = copy;
        let mut state = Err(slot);
        for group in region_spans.chunk_by(is_together) {
            let mut slot = match state {
                Ok(under_way) => Copying::wait(under_way)?,
                Err(slot) => slot,
            };
            state = match memory(&group[0]).map(|memory| self.streams.on(memory.context())) {
                None => {
                    let mut spans = group.iter();
                    let copied = spans.try_for_each(|span| host::copy(direction, &mut slot, regions, span));
                    if let Err(error) = copied {
                        let slot = Some(slot);
                        return Err(Box::new(CopyError { slot, error }));
                    }
                    Err(slot)
                }
                Some(Ok(stream)) => Ok(stream.copy_with_regions(direction, slot, regions, group)?),
                Some(Err(error)) => {
                    let slot = Some(slot);
                    return Err(Box::new(CopyError { slot, error }));
                }
            };
        }
        Ok(state)
    }
}

impl Stage for DeviceStage {
    fn ring(&self, count: usize, bytes: usize) -> Result<Vec<Slot>> {
        self.space.pinned_ring(&self.context, count, bytes)
    }

    fn slot(&self, bytes: usize) -> Result<Option<Slot>> {
        self.space.pinned_slot(&self.context, bytes)
    }

    fn is_short(&self) -> bool {
        self.space.is_scarce()
    }

    fn idle_slot(&self, bytes: usize) -> Option<Slot> {
        self.space.take_idle(bytes)
    }

    fn keep(&self, slots: Vec<Slot>) -> Vec<Slot> {
        self.space.keep(slots);
        Vec::new()
    }

    fn start(&mut self, copy: Copy, regions: &Regions, region_spans: &[RegionSpan]) {
        let tag = copy.tag;
        match self.launch(copy, regions, region_spans) {
            Ok(Ok(copying)) => self.copying.push_back((tag, copying)),
            Ok(Err(slot)) => self.over.push(Copied::whole(tag, slot)),
            Err(refused) => self.over.push(failed(tag, *refused)),
        }
    }

    fn poll(&mut self, done: &mut Vec<Copied>, wait: bool) {
        let mut wait = wait && self.over.is_empty();
        done.append(&mut self.over);
        // A failed copy is done too: waiting for it returns its error at once.
        while let Some((_, oldest)) = self.copying.front()
            && (wait || oldest.is_done().unwrap_or(true))
        {
            wait = false;
            let (tag, copying) = self.copying.pop_front().expect("it was just looked at");
            done.push(match copying.wait() {
                Ok(slot) => Copied::whole(tag, slot),
                Err(refused) => failed(tag, *refused),
            });
        }
    }

    fn copies_on_poll(&self) -> bool {
        false
    }

    fn in_flight(&self) -> usize {
        self.copying.len() + self.over.len()
    }
}

fn failed(tag: u32, refused: CopyError) -> Copied {
    Copied {
        tag,
        slot: refused.slot,
        outcome: Err(refused.error),
    }
}
