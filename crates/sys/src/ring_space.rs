//! Address space for the rings of several lanes, mapped at once.
//!
//! The kernel lets no thread of a process map memory while another one faults in a range, and the reverse. If each of
//! 15 lanes maps its own slots, the first slot is pinned after 8 to 12 ms on the host of an H200, and an allocation of
//! GPU memory waits as long. With one mapping for all of them, it is pinned after 1 ms.

use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use straightway_core::{Place, Result, extent::up};

use crate::memory::{HUGE_BYTES, HostMemory, Mapped};

/// Address space for rings. Memory is used only for the parts that were taken. The default is empty: each ring is then
/// a mapping of its own.
#[derive(Debug, Default)]
pub struct RingSpace {
    whole: Option<Whole>,
}

/// The mapping, of which a first part is in use.
#[derive(Debug)]
struct Whole {
    map: Arc<Mapped>,
    start: NonNull<u8>,
    bytes: usize,
    taken: AtomicUsize,
}

// SAFETY: it is an address that belongs to the mapping, which is `Send` and `Sync`.
unsafe impl Send for Whole {}
// SAFETY: as above; parts are taken by an atomic counter.
unsafe impl Sync for Whole {}

impl RingSpace {
    /// Address space for `rings` rings of `bytes` each, every one in up to `parts` parts. It is empty if the process may
    /// not have that much.
    pub fn new(rings: usize, parts: usize, bytes: u64) -> Self {
        // Each part begins at a huge page.
        let each = bytes.saturating_add((parts * HUGE_BYTES) as u64);
        let bytes = each.saturating_mul(rings as u64);
        let mapped = Mapped::anonymous(bytes).inspect_err(|error| {
            tracing::debug!(%error, bytes, "each ring is mapped separately");
        });
        let whole = mapped.ok().map(|(map, start)| Whole {
            map,
            start,
            bytes: usize::try_from(bytes).expect("it is shorter than the mapping"),
            taken: AtomicUsize::new(0),
        });
        Self { whole }
    }

    /// Fresh memory with all pages faulted in: the next part, or a mapping of its own if too little is left.
    pub(crate) fn faulted_in(&self, bytes: u64) -> Result<HostMemory> {
        let part = self.whole.as_ref().and_then(|whole| whole.take(bytes));
        let mut memory = part.map_or_else(|| HostMemory::new(bytes), Ok)?;
        memory.touch();
        Ok(memory)
    }
}

impl Whole {
    /// The next `bytes` bytes, from a huge page on.
    fn take(&self, bytes: u64) -> Option<HostMemory> {
        let bytes = usize::try_from(bytes).ok()?;
        let length = usize::try_from(up(bytes as u64, HUGE_BYTES as u64)).ok()?;
        let next = |taken: usize| taken.checked_add(length).filter(|end| *end <= self.bytes);
        let taken = self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .ok()?;
        // SAFETY: the counter shows that the range lies inside the mapping.
        let start = unsafe { self.start.add(taken) };
        Some(HostMemory::part(&self.map, start, bytes, Place::Host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_overlap_and_a_ring_that_does_not_fit_has_its_own_mapping() {
        let space = RingSpace::new(2, 1, 3 << 20);
        let memories = [5 << 20, 3 << 20, 3 << 20].map(|bytes| space.faulted_in(bytes).unwrap());
        let [first, second, other] = &memories;
        let distance = |memory: &HostMemory| {
            let whole = space.whole.as_ref().unwrap();
            memory
                .start()
                .addr()
                .get()
                .wrapping_sub(whole.start.addr().get())
        };
        assert_eq!((distance(first), distance(second)), (0, 6 << 20));
        assert!(distance(other) >= 10 << 20, "it is outside");
        assert!(
            memories
                .iter()
                .all(|m| m.start().addr().get().is_multiple_of(HUGE_BYTES))
        );
    }

    #[test]
    fn a_dropped_part_gives_its_pages_back_and_the_others_keep_their_bytes() {
        let space = RingSpace::new(2, 1, 4 << 20);
        let (gone, kept) = (
            space.faulted_in(4 << 20).unwrap(),
            space.faulted_in(4 << 20).unwrap(),
        );
        for memory in [&gone, &kept] {
            // SAFETY: both are fresh, and nothing else uses them.
            unsafe { memory.start().as_ptr().write(7) };
        }
        let address = gone.start().as_ptr();
        drop(gone);
        // SAFETY: the range is still mapped by the space, and `kept` is alive.
        unsafe {
            assert_eq!(address.read(), 0, "a new page");
            assert_eq!(kept.start().as_ptr().read(), 7);
        }
    }

    #[test]
    fn address_space_that_is_refused_leaves_every_ring_its_own_mapping() {
        let space = RingSpace::new(usize::MAX, 1, u64::MAX);
        assert!(space.whole.is_none());
        assert_eq!(space.faulted_in(4096).unwrap().bytes(), 4096);
    }
}
