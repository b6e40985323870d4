//! The slots that chunks are read into, checked in and copied from, kept from one restore to the next:
//! pinned memory is dear to make.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use straightway_core::{Error, Kind, Result};
use straightway_io::Region;
use straightway_sys::{
    Slot, Window,
    cuda::{Context, Copying, Span},
};

use super::{scatter::CopyTo, streams::Streams};

/// Slots of one thread at most: one is read into while others are checked and copied.
const SLOTS_MAX: usize = 4;

/// One to read into and one to unpack into.
const SLOTS_MIN: usize = 2;

/// Copies of a thread that may be under way while it reads on. Slots that come back from a copy are still in the
/// processor's cache: with four in turn instead of two, a warm restore took half as long again on an H200.
const COPIES_MAX: usize = 1;

/// The slots of one thread, and its copies to GPUs.
#[derive(Debug)]
pub(crate) struct Ring {
    free: Vec<Slot>,
    slots: usize,
    /// How many it was to have.
    wanted: usize,
    slot_bytes: usize,
    is_pinned: bool,
    streams: Streams,
    /// Copies under way, and when their chunks came.
    copying: VecDeque<(Instant, Copying)>,
    /// How long it took from there until they had arrived.
    landed: Vec<Duration>,
}

/// Rings that nobody uses now.
#[derive(Debug, Default)]
pub(crate) struct Rings {
    kept: Mutex<Vec<Ring>>,
}

impl Rings {
    /// A ring of slots of at least `slot_bytes`, pinned where a GPU is to copy from them. New ones take
    /// `ring_bytes` at most, if two slots fit into that.
    pub(crate) fn take(
        &self,
        slot_bytes: usize,
        ring_bytes: usize,
        context: Option<&Context>,
    ) -> Result<Ring> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let fits =
            |ring: &Ring| ring.slot_bytes >= slot_bytes && (ring.is_pinned || context.is_none());
        if let Some(number) = kept.iter().position(fits) {
            return Ok(kept.swap_remove(number));
        }
        drop(kept);
        let slots = (ring_bytes / slot_bytes).clamp(SLOTS_MIN, SLOTS_MAX);
        let free = match context {
            Some(context) => Slot::pinned_ring(context, slots, slot_bytes)?,
            None => Slot::ring(slots, slot_bytes)?,
        };
        if free.len() < SLOTS_MIN {
            let message = "there is too little of it for two chunks";
            let target = "pinned memory";
            return Err(Error::new(Kind::Transient, "read through", target, message)
                .with_hint("let the process lock more memory (`ulimit -l`)"));
        }
        Ok(Ring {
            slots: free.len(),
            wanted: slots,
            free,
            slot_bytes,
            is_pinned: context.is_some(),
            streams: Streams::default(),
            copying: VecDeque::new(),
            landed: Vec::new(),
        })
    }

    /// Keeps a ring for the next restore, unless slots of it were lost.
    pub(crate) fn give_back(&self, ring: Ring) {
        if ring.copying.is_empty() && ring.free.len() >= SLOTS_MIN {
            let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
            kept.push(ring);
        }
    }
}

impl Ring {
    /// How many slots it has.
    pub(crate) fn slots(&self) -> usize {
        self.slots
    }

    /// How many it was to have. Fewer could be pinned, perhaps.
    pub(crate) fn wanted(&self) -> usize {
        self.wanted
    }

    /// How many slots are free.
    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// How much of it is in use.
    pub(crate) fn used_bytes(&self) -> u64 {
        ((self.slots - self.free.len()) * self.slot_bytes) as u64
    }

    /// How much of it is pinned.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        if self.is_pinned {
            (self.slots * self.slot_bytes) as u64
        } else {
            0
        }
    }

    /// How long each chunk took to arrive since this was asked last.
    pub(crate) fn landed(&mut self) -> impl Iterator<Item = Duration> {
        self.landed.drain(..)
    }

    /// A free slot, the one that was used last. Copies are waited for where there is none, or where too many
    /// are under way.
    pub(crate) fn slot(&mut self) -> Result<Option<Slot>> {
        while self.copying.len() > COPIES_MAX || (self.free.is_empty() && !self.copying.is_empty())
        {
            self.land()?;
        }
        Ok(self.free.pop())
    }

    /// Takes a slot back.
    pub(crate) fn put(&mut self, slot: Slot) {
        self.free.push(slot);
    }

    /// Waits for all copies.
    pub(crate) fn settle(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        while !self.copying.is_empty() {
            outcome = outcome.and(self.land());
        }
        outcome
    }

    fn land(&mut self) -> Result<()> {
        let Some((since, oldest)) = self.copying.pop_front() else {
            return Ok(());
        };
        match oldest.wait() {
            Ok(slot) => {
                self.landed.push(since.elapsed());
                self.free.push(slot);
            }
            Err(refused) => {
                self.free.extend(refused.slot);
                return Err(refused.error);
            }
        }
        Ok(())
    }

    /// Copies bytes of a chunk, which came at `since` and begins at `start` in the slot, to where they go. Where they go to a
    /// GPU, the last copy is still under way when this returns.
    pub(crate) fn deliver(
        &mut self,
        slot: Slot,
        start: usize,
        copies: &[CopyTo],
        regions: &[Arc<Region>],
        since: Instant,
    ) -> Result<()> {
        let mut slot = Some(slot);
        let same = |a: &CopyTo, b: &CopyTo| a.region == b.region;
        for group in copies.chunk_by(same) {
            let region = &regions[group[0].region];
            let Some(memory) = region.device_memory() else {
                let slot = slot.as_ref().expect("it is back after each copy");
                for copy in group {
                    Window::new(region, copy.at, copy.bytes).fill_from(slot, start + copy.from);
                }
                continue;
            };
            let span = |copy: &CopyTo| Span {
                slot_offset: start + copy.from,
                memory_offset: usize::try_from(copy.at).expect("it lies inside memory"),
                bytes: copy.bytes,
            };
            let spans: Vec<_> = group.iter().map(span).collect();
            let stream = self.streams.on(memory.context())?;
            let own = slot.take().expect("it is back after each copy");
            let copying = stream
                .copy_to_device(own, memory, &spans)
                .map_err(|refused| refused.error)?;
            let is_last = std::ptr::eq(group.as_ptr_range().end, copies.as_ptr_range().end);
            if is_last {
                self.copying.push_back((since, copying));
            } else {
                slot = Some(copying.wait().map_err(|refused| refused.error)?);
            }
        }
        if let Some(slot) = slot {
            self.landed.push(since.elapsed());
            self.free.push(slot);
        }
        Ok(())
    }
}
