//! Slots: the small, owned, reusable buffers of a lane's ring.

use std::sync::Arc;

use straightway_core::Result;

use crate::memory::HostMemory;

/// One buffer of a ring. It owns its bytes: whoever holds the slot may read and write them, and an
/// I/O in flight holds the slot.
#[derive(Debug)]
pub struct Slot {
    memory: Arc<HostMemory>,
    offset: usize,
    bytes: usize,
}

impl Slot {
    /// Cuts fresh, faulted-in memory into `count` slots of `bytes` each.
    pub fn ring(count: usize, bytes: usize) -> Result<Vec<Self>> {
        let memory = Arc::new(HostMemory::new(count as u64 * bytes as u64)?);
        memory.populate();
        Ok(Self::cut(&memory, count, bytes))
    }

    /// Cuts `memory`, which nobody else uses, into `count` slots of `bytes` each.
    pub(crate) fn cut(memory: &Arc<HostMemory>, count: usize, bytes: usize) -> Vec<Self> {
        assert!(
            count * bytes <= memory.bytes(),
            "the slots fit into the memory"
        );
        let slot = |i| Self {
            memory: Arc::clone(memory),
            offset: i * bytes,
            bytes,
        };
        (0..count).map(slot).collect()
    }

    /// How many bytes it holds.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory that it is part of.
    pub fn memory(&self) -> &Arc<HostMemory> {
        &self.memory
    }

    /// Its bytes.
    pub fn as_slice(&self) -> &[u8] {
        // SAFETY: the range lies inside the memory (`ring` cut it so), which the `Arc` keeps
        // mapped; slots do not overlap and this one is borrowed, so nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.bytes) }
    }

    /// Its bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.pointer(), self.bytes) }
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        // SAFETY: the offset lies inside the memory.
        unsafe { self.memory.start().as_ptr().add(self.offset) }
    }
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
