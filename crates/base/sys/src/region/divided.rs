//! A region that is temporarily divided into slots, so that many copies to and from a GPU can each own a
//! part of it.

use std::sync::Arc;

use straightway_core::{Error, ErrorKind, Extent, Result};

use super::{Memory, Region, length};
use crate::{memory::HostMemory, slot::Slot};

/// The rest of a region while slots own its bytes.
#[derive(Debug)]
pub struct Divided {
    memory: Arc<HostMemory>,
    bytes: u64,
}

impl Region {
    /// Turns parts of a host region that it owns into slots. The region is consumed. [`Divided::unite`] restores it
    /// after all slots are dropped.
    ///
    /// Parts must be in order and must not overlap.
    pub fn divide(self, parts: &[Extent]) -> Result<(Divided, Vec<Slot>)> {
        let refuse = |why: &str| {
            let target = "the region";
            Err(Error::new(ErrorKind::Invalid, "divide", target, why.to_owned()))
        };
        let Memory::Host(memory) = self.memory else {
            return refuse("it is not host memory that it owns");
        };
        let mut end = 0;
        let mut slots = Vec::with_capacity(parts.len());
        for part in parts {
            let stop = part.offset.checked_add(part.bytes);
            if part.offset < end || stop.is_none_or(|stop| stop > self.bytes) {
                return refuse("the parts overlap, or one exceeds it");
            }
            end = part.end();
            slots.push(Slot::part(&memory, length(part.offset)?, length(part.bytes)?));
        }
        let bytes = self.bytes;
        Ok((Divided { memory, bytes }, slots))
    }
}

impl Divided {
    /// Restores the region, once all its slots are dropped.
    ///
    /// # Errors
    ///
    /// If a slot still exists: a copy that could not be waited for keeps its slot forever.
    pub fn unite(mut self) -> Result<Region> {
        if Arc::get_mut(&mut self.memory).is_none() {
            let message = "a copy still has part of it";
            return Err(Error::new(ErrorKind::Transient, "unite", "a region", message));
        }
        Ok(Region::new(Memory::Host(self.memory), self.bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_divided_region_is_restored_with_its_slots_bytes_after_they_are_dropped() {
        let region = Region::host(100).unwrap();
        let parts = [Extent::new(10, 20), Extent::new(30, 5)];
        let (divided, mut slots) = region.divide(&parts).unwrap();
        slots[0].as_mut_slice().fill(1);
        slots[1].as_mut_slice().fill(2);
        let last = slots.pop();
        drop(slots);
        let error = divided.unite().map(drop).unwrap_err();
        assert!(error.to_string().contains("still has part"), "{error}");
        drop(last);
        let (divided, mut slots) = Region::host(100).unwrap().divide(&parts).unwrap();
        slots[0].as_mut_slice().fill(1);
        drop(slots);
        let mut region = divided.unite().unwrap();
        let bytes = region.as_slice();
        assert!(bytes[10..30].iter().all(|b| *b == 1) && bytes[30..].iter().all(|b| *b == 0));
    }

    #[test]
    fn parts_that_overlap_or_exceed_the_region_are_refused() {
        for parts in [
            vec![Extent::new(0, 11), Extent::new(10, 5)],
            vec![Extent::new(90, 11)],
            vec![Extent::new(u64::MAX, 2)],
        ] {
            assert!(Region::host(100).unwrap().divide(&parts).is_err());
        }
    }
}
