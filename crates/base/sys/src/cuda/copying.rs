//! A copy in flight. It owns the memory that the device reads and writes, and returns the slot when done.

use std::mem;
use std::sync::Arc;

use straightway_core::{Error, ErrorKind, Result};

use super::code::Code;
use super::device_memory::DeviceMemory;
use super::event::Event;
use super::stream::{CopyDirection, CudaStream, RawSpan, RegionSpan, Span, check_pinned, raw_span};
use crate::{region::Region, slot::Slot};

/// A copy in flight between a slot and device memory. Dropping it waits for its end.
#[derive(Debug)]
pub struct Copying {
    /// The resources of the copy, until it is done.
    held: Option<Held>,
}

#[derive(Debug)]
struct Held {
    slot: Slot,
    memory: Kept,
    stream: CudaStream,
}

/// The device memory of a copy, kept until it is done.
#[derive(Debug)]
#[expect(dead_code, reason = "it is kept, and named in a log, but not used")]
enum Kept {
    One(Arc<DeviceMemory>),
    Regions(Arc<[Arc<Region>]>),
}

/// An error of a copy that did not start, or was not completed.
#[derive(Debug)]
pub struct CopyError {
    /// The slot, unless the device may still be using it.
    pub slot: Option<Slot>,
    /// The error.
    pub error: Error,
}

impl CudaStream {
    /// Starts copying spans between the slot and device memory.
    pub fn copy(
        &self,
        direction: CopyDirection,
        slot: Slot,
        memory: &Arc<DeviceMemory>,
        spans: &[Span],
    ) -> Result<Copying, Box<CopyError>> {
        if let Err(error) = self.hold_for([memory].into_iter()) {
            let slot = Some(slot);
            return Err(Box::new(CopyError { slot, error }));
        }
        let kept = Kept::One(Arc::clone(memory));
        let of = |slot: &Slot, span: &Span| raw_span(slot, memory, span);
        // SAFETY: each raw span lies in `memory`, which is kept.
        unsafe { self.start(direction, slot, kept, spans, of) }
    }

    /// Starts copying between the slot and several regions, which are all on this stream's GPU.
    pub fn copy_with_regions(
        &self,
        direction: CopyDirection,
        slot: Slot,
        regions: &Arc<[Arc<Region>]>,
        region_spans: &[RegionSpan],
    ) -> Result<Copying, Box<CopyError>> {
        let of = |slot: &Slot, region_span: &RegionSpan| {
            let region = regions.get(region_span.region as usize);
            let memory = region.and_then(|region| region.device_memory());
            let memory = memory.filter(|memory| memory.context().is_same(self.context()));
            let memory = memory.ok_or_else(|| {
                let message = "it is not on this GPU";
                Error::new(ErrorKind::Invalid, "copy to", "a region", message)
            })?;
            raw_span(slot, memory, &region_span.span)
        };
        let memories = region_spans.iter().filter_map(|region_span| {
            let region = regions.get(region_span.region as usize)?;
            region.device_memory()
        });
        if let Err(error) = self.hold_for(memories) {
            let slot = Some(slot);
            return Err(Box::new(CopyError { slot, error }));
        }
        let kept = Kept::Regions(Arc::clone(regions));
        // SAFETY: each raw span lies in one of `regions`, which are kept.
        unsafe { self.start(direction, slot, kept, region_spans, of) }
    }

    /// Makes the stream wait for the fences of these memories. Neighbours usually share a fence.
    fn hold_for<'a>(&self, memories: impl Iterator<Item = &'a Arc<DeviceMemory>>) -> Result<()> {
        let mut last = None;
        for fence in memories.filter_map(|memory| memory.fence()) {
            if !last.is_some_and(|last| Arc::ptr_eq(last, fence)) {
                // SAFETY: the stream is live.
                unsafe { fence.hold(self.raw()) }?;
            }
            last = Some(fence);
        }
        Ok(())
    }

    /// Starts a copy. From the first span that the driver accepts, the slot is in flight: after a later
    /// failure it is returned only when the stream is empty.
    ///
    /// # Safety
    /// The spans that `of` returns lie in device memory that `kept` keeps.
    unsafe fn start<T>(
        &self,
        direction: CopyDirection,
        mut slot: Slot,
        kept: Kept,
        list: &[T],
        of: impl Fn(&Slot, &T) -> Result<RawSpan>,
    ) -> Result<Copying, Box<CopyError>> {
        let ready = check_pinned(&slot).and_then(|()| {
            list.iter().try_for_each(|one| of(&slot, one).map(drop))?;
            slot.event_on(self.context())?;
            self.context().enter()
        });
        let entered = match ready {
            Ok(entered) => entered,
            Err(error) => {
                let slot = Some(slot);
                return Err(Box::new(CopyError { slot, error }));
            }
        };
        let raw_spans = list.iter().map(|one| of(&slot, one).expect("checked above"));
        // SAFETY: every raw span lies in the slot, and as the caller guarantees in what `kept` keeps; slot and memory
        // are owned by `Copying` until the event recorded here has passed; the context is current.
        let started = unsafe { self.enqueue(direction, &slot, raw_spans) }.and_then(|()| {
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
            // Part of the copy may be in flight, so this waits for it.
            Err(code) => Err(Box::new(held.refused(code, "start a copy on", Code::SUCCESS))),
        }
    }
}

impl Copying {
    /// Whether the copy is done, without waiting. After an error `wait` returns at once.
    pub fn is_done(&self) -> Result<bool> {
        let held = self.held.as_ref();
        let held = held.expect("held until `wait`, which takes it by value");
        let passed = held.event().is_passed();
        passed.map_err(|code| held.stream.context().error(code, "finish a copy on"))
    }

    /// Blocks until the copy is done, and returns the slot.
    pub fn wait(mut self) -> Result<Slot, Box<CopyError>> {
        let held = self.held.take().expect("held until now");
        match held.event().wait() {
            Ok(()) => Ok(held.slot),
            Err(code) => Err(Box::new(held.refused(code, "finish a copy on", code))),
        }
    }
}

impl Held {
    fn event(&self) -> &Event {
        let event = self.slot.event();
        event.expect("recorded when the copy was started")
    }

    /// The error of a copy that failed with `code`, once nothing of it is in flight. `seen` is the code of its event.
    fn refused(self, code: Code, operation: &'static str, seen: Code) -> CopyError {
        let error = self.stream.context().error(code, operation);
        let slot = self.release(seen);
        CopyError { slot, error }
    }

    /// Returns the slot, once nothing in the stream can access it. `seen` is the code of its event.
    ///
    /// A dead context runs nothing, so its memory can be released. If the driver confirms neither that the
    /// stream is empty nor that the context is dead, slot and device memory are leaked: that is better than
    /// a copy into memory that has another owner by then.
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
