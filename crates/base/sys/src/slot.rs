//! Slots: the small, owned, reusable buffers of a lane's ring.
//!
//! A slot is the only owner of its bytes. Starting an I/O or a copy moves the slot into it, and its
//! completion returns the slot, so reusing a slot too early does not compile:
//!
//! ```compile_fail,E0382
//! # use std::sync::Arc;
//! # use straightway_sys::{Slot, cuda::{CopyDirection, CudaStream, DeviceMemory, Span}};
//! fn reuse(stream: &CudaStream, mut slot: Slot, memory: &Arc<DeviceMemory>, spans: &[Span]) {
//!     let copying = stream.copy(CopyDirection::ToDevice, slot, memory, spans);
//!     slot.as_mut_slice().fill(0); // use of moved value
//! }
//! ```

use std::sync::Arc;

use straightway_core::{Bytes, PciAddress, Result};

use crate::{
    cuda::{Context, Event},
    memory::HostMemory,
};

/// One buffer of a ring. It owns its bytes: the holder of the slot may read and write them, and an
/// I/O or a copy in flight holds the slot.
#[derive(Debug)]
pub struct Slot {
    memory: Arc<HostMemory>,
    offset: usize,
    bytes: usize,
    /// The event of its last copy to or from a GPU; created once, recorded many times.
    event: Option<Event>,
}

impl Slot {
    /// Allocates memory, faults it in and cuts it into `count` slots of `bytes` each.
    pub fn ring(count: usize, bytes: usize) -> Result<Vec<Self>> {
        let memory = Arc::new(HostMemory::new(size_of_slots(count, bytes))?);
        memory.populate();
        Ok(Self::cut(&memory, count, bytes))
    }

    /// The same with fewer slots, if there is not enough memory for `count`. If there is not enough for one, the error
    /// says what limits it.
    pub fn ring_up_to(count: usize, bytes: usize) -> Result<Vec<Self>> {
        let mut attempt = count.max(1);
        loop {
            match Self::ring(attempt, bytes) {
                Err(error) if attempt > 1 => {
                    tracing::debug!(%error, "trying with half the ring");
                    attempt /= 2;
                }
                made => return made,
            }
        }
    }

    /// A ring in the BAR memory of a device. It has fewer slots if there is not enough memory for `count`. If there is
    /// not enough for one, the error says how much is free.
    pub fn bar_ring(provider: PciAddress, count: usize, bytes: usize) -> Result<Vec<Self>> {
        let mut attempt = count.max(1);
        loop {
            let whole = size_of_slots(attempt, bytes);
            match HostMemory::in_bar(provider, whole) {
                Ok(memory) => return Ok(Self::cut(&Arc::new(memory), attempt, bytes)),
                Err(error) if attempt == 1 => return Err(error),
                Err(error) => {
                    tracing::debug!(%error, wanted = %Bytes(whole), "trying with half the ring");
                    attempt /= 2;
                }
            }
        }
    }

    /// Cuts `memory`, which has no other user, into `count` slots of `bytes` each.
    pub(crate) fn cut(memory: &Arc<HostMemory>, count: usize, bytes: usize) -> Vec<Self> {
        (0..count).map(|i| Self::part(memory, i * bytes, bytes)).collect()
    }

    /// A slot for a part of `memory` that no other slot uses.
    pub(crate) fn part(memory: &Arc<HostMemory>, offset: usize, bytes: usize) -> Self {
        let end = offset.checked_add(bytes);
        assert!(
            end.is_some_and(|end| end <= memory.bytes()),
            "the slot fits into the memory"
        );
        Self {
            memory: Arc::clone(memory),
            offset,
            bytes,
            event: None,
        }
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory that it is part of.
    pub fn memory(&self) -> &Arc<HostMemory> {
        &self.memory
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the range lies inside the memory (`part` checked it), which the `Arc` keeps mapped. Slots do not
        // overlap (`cut` and `Region::divide` make them from memory without another user) and this one is borrowed, so
        // nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.bytes) }
    }

    /// Its bytes, for writing.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.bytes) }
    }

    /// The address of its first byte, for DMA by the kernel or the GPU.
    pub fn pointer(&self) -> *mut u8 {
        // SAFETY: the offset lies inside the memory.
        unsafe { self.memory.start().as_ptr().add(self.offset) }
    }

    /// The event for copies on `context`. It is created if the slot has none for that context.
    pub(crate) fn event_on(&mut self, context: &Context) -> Result<&Event> {
        let made = self.event.as_ref();
        if !made.is_some_and(|event| event.context().is_same(context)) {
            self.event = Some(Event::new(context)?);
        }
        Ok(self.event.as_ref().expect("just made"))
    }

    /// The event of its last copy.
    pub(crate) fn event(&self) -> Option<&Event> {
        self.event.as_ref()
    }
}

/// The size of `count` slots of `bytes` each. A product that overflows is refused like any other size that is not
/// available.
pub(crate) fn size_of_slots(count: usize, bytes: usize) -> u64 {
    (count as u64).saturating_mul(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_a_ring_do_not_overlap() {
        let mut ring = Slot::ring(3, 4096).unwrap();
        for (i, slot) in (1..).zip(&mut ring) {
            slot.as_mut_slice().fill(i);
        }
        for (i, slot) in (1..).zip(&ring) {
            assert!(slot.as_slice().iter().all(|b| *b == i));
        }
    }
}
