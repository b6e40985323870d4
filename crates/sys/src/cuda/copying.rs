//! A copy under way. It owns what the device is reading and writing, and gives it back when done.

use std::fmt;
use std::mem;
use std::sync::Arc;

use straightway_core::{Error, Kind, Result};

use super::code::Code;
use super::device_memory::DeviceMemory;
use super::stream::{Direction, Landing, Span, Stream, Stretch, check_pinned, stretch};
use crate::{region::Region, slot::Slot};

/// A copy between a slot and device memory. Dropping it waits for it.
pub struct Copying {
    /// Everything the copy uses, until it is settled.
    held: Option<Held>,
}

struct Held {
    slot: Slot,
    memory: Kept,
    stream: Stream,
}

/// The device memory of a copy, kept until it is done.
enum Kept {
    One(Arc<DeviceMemory>),
    Regions(Arc<[Arc<Region>]>),
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(memory) => memory.fmt(f),
            Self::Regions(regions) => regions.fmt(f),
        }
    }
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
    /// Starts copying spans of the slot into device memory.
    pub fn copy_to_device(
        &self,
        slot: Slot,
        memory: &Arc<DeviceMemory>,
        spans: &[Span],
    ) -> Result<Copying, Box<Refused>> {
        self.copy_one(Direction::ToDevice, slot, memory, spans)
    }

    /// Starts copying spans of device memory into the slot.
    pub fn copy_to_host(
        &self,
        slot: Slot,
        memory: &Arc<DeviceMemory>,
        spans: &[Span],
    ) -> Result<Copying, Box<Refused>> {
        self.copy_one(Direction::ToHost, slot, memory, spans)
    }

    fn copy_one(
        &self,
        direction: Direction,
        slot: Slot,
        memory: &Arc<DeviceMemory>,
        spans: &[Span],
    ) -> Result<Copying, Box<Refused>> {
        let kept = Kept::One(Arc::clone(memory));
        let of = |slot: &Slot, span: &Span| stretch(slot, memory, span);
        // SAFETY: each stretch lies in `memory`, which is kept.
        unsafe { self.copy(direction, slot, kept, spans, of) }
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
        let kept = Kept::Regions(Arc::clone(regions));
        // SAFETY: each stretch lies in one of `regions`, which are kept.
        unsafe { self.copy(direction, slot, kept, landings, of) }
    }

    /// From the first stretch that the driver took, the slot is in flight: whatever goes wrong after
    /// that, it is not given back before the stream has run dry.
    ///
    /// # Safety
    /// What `of` answers lies in device memory that `kept` keeps.
    unsafe fn copy<T>(
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
            Err(error) => return Err(Refused::before_start(slot, error)),
        };
        let stretches = list
            .iter()
            .map(|one| of(&slot, one).expect("found good above"));
        // SAFETY: every stretch lies in the slot, and by the caller's word in what `kept` keeps; slot and memory are owned by `Copying` until the event recorded
        // here has passed; the context is current.
        let started = unsafe { self.enqueue(direction, &slot, stretches) }.and_then(|()| {
            let event = slot.event().expect("prepared above");
            // SAFETY: the stream is live, of the event's context, and that is current.
            unsafe { event.record(self.raw()) }
        });
        drop(entered);
        let copying = Copying::new(self.clone(), slot, kept);
        match started {
            Ok(()) => Ok(copying),
            Err(code) => Err(copying.abandon(self.context().error(code, "start a copy on"))),
        }
    }
}

impl Refused {
    fn before_start(slot: Slot, error: Error) -> Box<Self> {
        Box::new(Self {
            slot: Some(slot),
            error,
        })
    }
}

impl Copying {
    fn new(stream: Stream, slot: Slot, memory: Kept) -> Self {
        Self {
            held: Some(Held {
                slot,
                memory,
                stream,
            }),
        }
    }

    /// Whether the copy is done, without waiting. An error ends it too: `wait` then returns at once.
    pub fn is_done(&self) -> Result<bool> {
        let held = self
            .held
            .as_ref()
            .expect("held until `wait`, which takes it by value");
        let event = held
            .slot
            .event()
            .expect("recorded when the copy was started");
        event
            .is_passed()
            .map_err(|code| held.stream.context().error(code, "finish a copy on"))
    }

    /// Sleeps until the copy is done, and gives the slot back.
    pub fn wait(mut self) -> Result<Slot, Box<Refused>> {
        let held = self.held.take().expect("held until now");
        match held
            .slot
            .event()
            .expect("recorded when the copy was started")
            .wait()
        {
            Ok(()) => Ok(held.slot),
            Err(code) => {
                let error = held.stream.context().error(code, "finish a copy on");
                Err(Box::new(Refused {
                    slot: held.release(code),
                    error,
                }))
            }
        }
    }

    /// Gives up a copy that was started by half: waits for the half that is under way.
    fn abandon(mut self, error: Error) -> Box<Refused> {
        let held = self.held.take().expect("held until now");
        Box::new(Refused {
            slot: held.release(Code::SUCCESS),
            error,
        })
    }
}

impl Held {
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
        let passed = held.slot.event().map_or(Ok(()), super::event::Event::wait);
        if let Err(code) = passed {
            drop(held.release(code));
        }
    }
}

impl fmt::Debug for Copying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(held) = &self.held else {
            return f.write_str("Copying(done)");
        };
        write!(
            f,
            "Copying({:?}, {:?}, {:?})",
            held.slot, held.memory, held.stream
        )
    }
}
