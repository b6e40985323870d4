//! A copy under way. It owns what the device is reading and writing, and gives it back when done.

use std::mem;
use std::sync::Arc;

use straightway_core::{Error, Kind, Result};

use super::code::Code;
use super::device_memory::DeviceMemory;
use super::event::Event;
use super::stream::{Direction, Landing, Span, Stream, Stretch, check_pinned, stretch};
use crate::{region::Region, slot::Slot};

/// A copy between a slot and device memory. Dropping it waits for it.
#[derive(Debug)]
pub struct Copying {
    /// Everything the copy uses, until it is settled.
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    slot: Slot,
    memory: Kept,
    stream: Stream,
}

/// The device memory of a copy, kept until it is done.
#[derive(Debug)]
#[expect(dead_code, reason = "it is kept, and named in a log, but not used")]
enum Kept {
    One(Arc<DeviceMemory>),
    Regions(Arc<[Arc<Region>]>),
}

/// A copy that did not happen, or not wholly.
#[derive(Debug)]
pub struct Refused {
    /// The slot, unless the device may still be using it.
    pub slot: Option<Slot>,
    /// What went wrong.
    pub error: Error,
}

impl Stream {
    /// Starts copying spans between the slot and device memory.
    pub fn copy(
        &self,
        direction: Direction,
        slot: Slot,
        memory: &Arc<DeviceMemory>,
        spans: &[Span],
    ) -> Result<Copying, Box<Refused>> {
        if let Err(error) = self.hold_for([memory].into_iter()) {
            let slot = Some(slot);
            return Err(Box::new(Refused { slot, error }));
        }
        let kept = Kept::One(Arc::clone(memory));
        let of = |slot: &Slot, span: &Span| stretch(slot, memory, span);
        // SAFETY: each stretch lies in `memory`, which is kept.
        unsafe { self.start(direction, slot, kept, spans, of) }
    }

    /// Starts copying between the slot and several regions, which are all on this stream's GPU.
    pub fn copy_with_regions(
        &self,
        direction: Direction,
        slot: Slot,
        regions: &Arc<[Arc<Region>]>,
        landings: &[Landing],
    ) -> Result<Copying, Box<Refused>> {
        let of = |slot: &Slot, landing: &Landing| {
            let region = regions.get(landing.region as usize);
            let memory = region.and_then(|region| region.device_memory());
            let memory = memory.filter(|memory| memory.context().is_same(self.context()));
            let memory = memory.ok_or_else(|| {
                let message = "it is not on this GPU";
                Error::new(Kind::Invalid, "copy to", "a region", message)
            })?;
            stretch(slot, memory, &landing.span)
        };
        let memories = landings.iter().filter_map(|landing| {
            let region = regions.get(landing.region as usize)?;
            region.device_memory()
        });
        if let Err(error) = self.hold_for(memories) {
            let slot = Some(slot);
            return Err(Box::new(Refused { slot, error }));
        }
        let kept = Kept::Regions(Arc::clone(regions));
        // SAFETY: each stretch lies in one of `regions`, which are kept.
        unsafe { self.start(direction, slot, kept, landings, of) }
    }

    /// Makes the stream wait for what the copies with these memories wait for. Neighbours mostly have one fence.
    fn hold_for<'a>(&self, memories: impl Iterator<Item = &'a Arc<DeviceMemory>>) -> Result<()> {
        let mut last = None;
        for fence in memories.filter_map(|memory| memory.fence()) {
            if !last.is_some_and(|last| Arc::ptr_eq(last, fence)) {
                fence.hold(self)?;
            }
            last = Some(fence);
        }
        Ok(())
    }

    /// From the first stretch that the driver took, the slot is in flight: whatever goes wrong after
    /// that, it is not given back before the stream has run dry.
    ///
    /// # Safety
    /// What `of` answers lies in device memory that `kept` keeps.
    unsafe fn start<T>(
        &self,
        direction: Direction,
        mut slot: Slot,
        kept: Kept,
        list: &[T],
        of: impl Fn(&Slot, &T) -> Result<Stretch>,
    ) -> Result<Copying, Box<Refused>> {
        let ready = check_pinned(&slot).and_then(|()| {
            list.iter().try_for_each(|one| of(&slot, one).map(drop))?;
            slot.event_on(self.context())?;
            self.context().enter()
        });
        let entered = match ready {
            Ok(entered) => entered,
            Err(error) => {
                let slot = Some(slot);
                return Err(Box::new(Refused { slot, error }));
            }
        };
        let stretches = list
            .iter()
            .map(|one| of(&slot, one).expect("found good above"));
        // SAFETY: every stretch lies in the slot, and by the caller's word in what `kept` keeps; slot and memory are
        // owned by `Copying` until the event recorded here has passed; the context is current.
        let started = unsafe { self.enqueue(direction, &slot, stretches) }.and_then(|()| {
            let event = slot.event().expect("prepared above");
            // SAFETY: the stream is live, of the event's context, and that is current.
            unsafe { event.record(self.raw()) }
        });
        drop(entered);
        let held = Held {
            slot,
            memory: kept,
            stream: self.clone(),
        };
        match started {
            Ok(()) => Ok(Copying { held: Some(held) }),
            // Part of it may be under way: that is waited for.
            Err(code) => Err(held.refused(code, "start a copy on", Code::SUCCESS)),
        }
    }
}

impl Copying {
    /// Whether the copy is done, without waiting. An error ends it too: `wait` then returns at once.
    pub fn is_done(&self) -> Result<bool> {
        let held = self.held.as_ref();
        let held = held.expect("held until `wait`, which takes it by value");
        let passed = held.event().is_passed();
        passed.map_err(|code| held.stream.context().error(code, "finish a copy on"))
    }

    /// Sleeps until the copy is done, and gives the slot back.
    pub fn wait(mut self) -> Result<Slot, Box<Refused>> {
        let held = self.held.take().expect("held until now");
        match held.event().wait() {
            Ok(()) => Ok(held.slot),
            Err(code) => Err(held.refused(code, "finish a copy on", code)),
        }
    }
}

impl Held {
    fn event(&self) -> &Event {
        let event = self.slot.event();
        event.expect("recorded when the copy was started")
    }

    /// A copy that failed with `code`, once nothing of it is under way; `seen` is what its event answered.
    fn refused(self, code: Code, operation: &'static str, seen: Code) -> Box<Refused> {
        let error = self.stream.context().error(code, operation);
        let slot = self.release(seen);
        Box::new(Refused { slot, error })
    }

    /// The slot, once nothing in the stream can touch it; `seen` is what its event answered.
    ///
    /// A context that died runs nothing, so its memory is free to go. If the driver can say neither
    /// that the stream is dry nor that the context is dead, slot and device memory are kept for
    /// good: a leak is better than a copy into memory that has become someone else's.
    fn release(self, seen: Code) -> Option<Slot> {
        let settled = match self.stream.synchronize() {
            Ok(()) => true,
            Err(code) => code.is_fatal() || seen.is_fatal(),
        };
        if settled {
            return Some(self.slot);
        }
        tracing::error!(memory = ?self.memory, "a copy that cannot be waited for keeps its memory");
        mem::forget(self);
        None
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        if let Err(code) = held.event().wait() {
            drop(held.release(code));
        }
    }
}
