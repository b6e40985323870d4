//! Memory that bytes land in or leave from.
//!
//! A region is an address, a length and a place, never a `&[u8]`: device memory has no such thing,
//! and host memory that a drive is writing to must not have one either. While a transfer runs, its
//! parts hold [`Window`]s, and each window an `Arc` of the region; the bytes of a host region are
//! lent out only by `&mut`, which needs the last `Arc`. A region freed or read while in use is thus
//! not an error but impossible.

use std::sync::Arc;

use straightway_core::{Place, Result};

use crate::{memory::HostMemory, slot::Slot};

/// Memory that bytes land in or leave from.
#[derive(Debug)]
pub struct Region {
    memory: HostMemory,
}

impl Region {
    /// Host memory, faulted in.
    pub fn host(bytes: u64) -> Result<Self> {
        let memory = HostMemory::new(bytes)?;
        memory.populate();
        Ok(Self { memory })
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        Place::Host
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.memory.bytes() as u64
    }

    /// Its address.
    pub fn address(&self) -> u64 {
        self.memory.start().addr().get() as u64
    }

    /// Its bytes.
    pub fn as_slice(&mut self) -> &[u8] {
        self.as_mut_slice()
    }

    /// Its bytes, to write.
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: the memory is mapped, zeroed at first, and as long as it says; `&mut self` means
        // that no window is left, for each holds an `Arc` of the region.
        unsafe { std::slice::from_raw_parts_mut(self.memory.start().as_ptr(), self.memory.bytes()) }
    }
}

/// Part of a region that an I/O or a copy is about.
///
/// Windows that overlap must not be written at the same time. `Transfer` refuses moves that would
/// write a byte twice, and a plan has every byte exactly once, so windows made from a plan do not.
#[derive(Clone, Debug)]
pub struct Window {
    region: Arc<Region>,
    offset: u64,
    bytes: usize,
}

impl Window {
    /// `bytes` bytes of `region` from `offset` on.
    ///
    /// # Panics
    ///
    /// Where that is not inside the region.
    pub fn new(region: &Arc<Region>, offset: u64, bytes: usize) -> Self {
        let end = offset.checked_add(bytes as u64);
        assert!(
            end.is_some_and(|end| end <= region.bytes()),
            "a window lies inside its region"
        );
        Self {
            region: Arc::clone(region),
            offset,
            bytes,
        }
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies from `slot`, beginning at `from`, into the whole window.
    pub fn fill_from(&self, slot: &Slot, from: usize) {
        let source = &slot.as_slice()[from..from + self.bytes];
        // SAFETY: both ranges are in bounds; a slot's memory is never a region's, so they do not
        // overlap; no reference to the region's bytes exists while windows do, and windows that
        // are written at the same time do not overlap (see the type).
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), self.pointer(), self.bytes) }
    }

    /// Copies the whole window into `slot`, beginning at `to`.
    pub fn spill_into(&self, slot: &mut Slot, to: usize) {
        let target = &mut slot.as_mut_slice()[to..to + self.bytes];
        // SAFETY: as in `fill_from`, the other way round.
        unsafe { std::ptr::copy_nonoverlapping(self.pointer(), target.as_mut_ptr(), self.bytes) }
    }

    pub(crate) fn pointer(&self) -> *mut u8 {
        let offset = usize::try_from(self.offset).expect("it lies inside memory");
        // SAFETY: the offset lies inside the region.
        unsafe { self.region.memory.start().as_ptr().add(offset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_in_use_cannot_be_read() {
        let mut region = Arc::new(Region::host(8192).unwrap());
        let window = Window::new(&region, 4096, 4096);
        assert!(Arc::get_mut(&mut region).is_none());
        let mut slot = Slot::ring(1, 4096).unwrap().remove(0);
        slot.as_mut_slice().fill(7);
        window.fill_from(&slot, 0);
        drop(window);
        let bytes = Arc::get_mut(&mut region).unwrap().as_slice();
        assert!(bytes[..4096].iter().all(|b| *b == 0) && bytes[4096..].iter().all(|b| *b == 7));
    }

    #[test]
    #[should_panic(expected = "a window lies inside its region")]
    fn a_window_outside_its_region_is_our_mistake() {
        let region = Arc::new(Region::host(4096).unwrap());
        let _ = Window::new(&region, u64::MAX, 2);
    }
}
