//! The memory for the pinned rings of several lanes: one mapping, and the slots that no lane uses now.
//!
//! The kernel lets no thread of a process map memory while another one faults in a range, and the reverse. If each of
//! 15 lanes maps its own slots, the first slot is pinned after 8 to 12 ms on the host of an H200, and an allocation of
//! GPU memory waits as long. With one mapping for all of them, it is pinned after 1 ms.
//!
//! Lanes that finish their jobs leave their slots here. The next ones, of any kind, find them pinned and in the CPU
//! cache.

use std::{
    cmp::Reverse,
    ptr::NonNull,
    sync::{
        Arc, MutexGuard,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use straightway_core::{Lock, Place, Result};

use crate::{
    cuda::Context,
    memory::{HUGE_BYTES, HostMemory, Mapped},
    memory_room,
    slot::{Slot, size_of_slots},
};

/// Memory of this length and more is not a part.
const PART_BYTES_MAX: usize = 64 << 20;

/// Memory for the pinned rings of one GPU. Only the parts that were taken use memory. The default has no mapping: each
/// ring is then a mapping of its own.
#[derive(Debug, Default)]
pub struct RingSpace {
    whole: Option<Whole>,
    /// Pinned slots that no lane uses, in the order of their last use.
    idle: Lock<Vec<Slot>>,
    /// Whether memory could not be pinned once. The second slot of a lane could then be missing as another's first.
    is_scarce: AtomicBool,
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
    /// A mapping for `rings` rings of `bytes` each, every one in up to `parts` parts. There is none if the process may
    /// not have that much address space.
    pub fn new(rings: usize, parts: usize, bytes: u64) -> Self {
        // Each part begins at a huge page.
        let skipped = (parts as u64).saturating_mul(HUGE_BYTES as u64);
        let each = bytes.saturating_add(skipped);
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
        Self {
            whole,
            ..Self::default()
        }
    }

    /// A pinned ring for copies with a GPU. Each slot has its event. All expensive set-up happens here, not in the
    /// copies. A ring of one slot is an idle one, if there is one.
    ///
    /// Pinned memory is scarce in some containers. If `count` slots cannot be pinned, the ring has fewer. If not even
    /// one can, the error says what that requires.
    pub fn pinned_ring(&self, context: &Context, count: usize, bytes: usize) -> Result<Vec<Slot>> {
        if count == 1
            && let Some(slot) = self.reuse(bytes)
        {
            return Ok(vec![slot]);
        }
        let mut attempt = count.max(1);
        let memory = loop {
            match self.pinned_memory(context, size_of_slots(attempt, bytes)) {
                Ok(memory) => break memory,
                Err(error) if attempt == 1 => {
                    self.note_scarcity();
                    return Err(error);
                }
                Err(error) => {
                    tracing::warn!(%error, "trying with half the ring");
                    attempt /= 2;
                }
            }
        };
        let mut slots = Slot::cut(&memory, attempt, bytes);
        for slot in &mut slots {
            slot.event_on(context)?;
        }
        Ok(slots)
    }

    /// One more slot for a pinned ring; `None` if no more memory can be pinned. An idle slot is then left to a lane
    /// that has none.
    pub fn pinned_slot(&self, context: &Context, bytes: usize) -> Result<Option<Slot>> {
        if self.is_scarce() {
            return Ok(None);
        }
        if let Some(slot) = self.reuse(bytes) {
            return Ok(Some(slot));
        }
        let memory = match self.pinned_memory(context, bytes as u64) {
            Ok(memory) => memory,
            Err(error) => {
                tracing::warn!(%error, "the ring does not grow");
                self.note_scarcity();
                return Ok(None);
            }
        };
        let mut slot = Slot::part(&memory, 0, bytes);
        slot.event_on(context)?;
        Ok(Some(slot))
    }

    /// Takes back slots that were made in this space.
    pub fn keep(&self, slots: impl IntoIterator<Item = Slot>) {
        self.idle().extend(slots);
    }

    /// The shortest idle slot of at least `bytes`, of several the one that was used last. If all are shorter, frees as
    /// much of their memory as the caller will allocate, so that slots of many lengths do not add up.
    fn reuse(&self, bytes: usize) -> Option<Slot> {
        let mut idle = self.idle();
        let fitting = idle.iter().enumerate().filter(|(_, slot)| slot.bytes() >= bytes);
        if let Some((best, _)) = fitting.min_by_key(|(at, slot)| (slot.bytes(), Reverse(*at))) {
            return Some(idle.remove(best));
        }
        let mut freed_bytes = 0;
        let is_enough = |slot: &Slot| {
            freed_bytes += slot.bytes();
            freed_bytes >= bytes
        };
        let count = idle.iter().position(is_enough).map_or(idle.len(), |last| last + 1);
        let shorter: Vec<_> = idle.drain(..count).collect();
        // Unpinning takes time.
        drop(idle);
        drop(shorter);
        None
    }

    /// An idle slot of at least `bytes`, if there is one. Nothing is made or freed.
    pub fn take_idle(&self, bytes: usize) -> Option<Slot> {
        let mut idle = self.idle();
        let at = idle.iter().rposition(|slot| slot.bytes() >= bytes)?;
        Some(idle.remove(at))
    }

    /// Whether memory could not be pinned once.
    pub fn is_scarce(&self) -> bool {
        self.is_scarce.load(Ordering::Relaxed)
    }

    /// Notes that memory could not be pinned.
    fn note_scarcity(&self) {
        self.is_scarce.store(true, Ordering::Relaxed);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.idle.lock()
    }

    fn pinned_memory(&self, context: &Context, bytes: u64) -> Result<Arc<HostMemory>> {
        let memory = self.faulted_in(bytes)?;
        memory.pin(context)?;
        Ok(Arc::new(memory))
    }

    /// Fresh memory with all pages faulted in: the next part, or a mapping of its own.
    fn faulted_in(&self, bytes: u64) -> Result<HostMemory> {
        memory_room::reserve(bytes)?;
        let part = self.whole.as_ref().and_then(|whole| whole.take(bytes));
        if let Some(mut memory) = part {
            memory.touch();
            return Ok(memory);
        }
        memory_room::release(bytes);
        let memory = HostMemory::new(bytes)?;
        memory.populate();
        Ok(memory)
    }
}

impl Whole {
    /// The next `bytes` bytes, from a huge page on. `None` if too little is left. Shorter memory than a huge page would
    /// occupy a whole one. Long memory is faulted in by several threads. The caller has reserved the memory.
    fn take(&self, bytes: u64) -> Option<HostMemory> {
        let bytes = usize::try_from(bytes).ok()?;
        if !(HUGE_BYTES..PART_BYTES_MAX).contains(&bytes) {
            return None;
        }
        let length = bytes.next_multiple_of(HUGE_BYTES);
        let next = |taken: usize| taken.checked_add(length).filter(|end| *end <= self.bytes);
        let taken = self
            .taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .ok()?;
        // SAFETY: the counter shows that the range lies inside the mapping and was not taken before.
        unsafe {
            let start = self.start.add(taken);
            Some(HostMemory::part(&self.map, start, bytes, Place::Host))
        }
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
            memory.start().addr().get().wrapping_sub(whole.start.addr().get())
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
    fn a_dropped_part_frees_all_its_pages_and_the_others_keep_their_bytes() {
        let space = RingSpace::new(2, 1, 4 << 20);
        let take = || space.faulted_in(3 << 20).unwrap();
        let (gone, kept) = (take(), take());
        let address = gone.start().as_ptr();
        // The whole second huge page belongs to the part.
        for address in [address, address.wrapping_add((4 << 20) - 1), kept.start().as_ptr()] {
            // SAFETY: the mapping has these bytes, and nothing else uses them.
            unsafe { address.write(7) };
        }
        drop(gone);
        // SAFETY: the range is still mapped by the space, and `kept` is alive.
        unsafe {
            assert_eq!(address.read(), 0, "a new page");
            assert_eq!(address.add((4 << 20) - 1).read(), 0, "the last page");
            assert_eq!(kept.start().as_ptr().read(), 7);
        }
    }

    #[test]
    fn short_and_long_memory_is_not_a_part() {
        let space = RingSpace::new(1, 1, 128 << 20);
        for bytes in [0, 4096, (HUGE_BYTES - 1) as u64, PART_BYTES_MAX as u64] {
            drop(space.faulted_in(bytes).unwrap());
        }
        let taken = || space.whole.as_ref().unwrap().taken.load(Ordering::Relaxed);
        assert_eq!(taken(), 0);
        drop(space.faulted_in(HUGE_BYTES as u64).unwrap());
        assert_eq!(taken(), HUGE_BYTES);
        assert!(space.faulted_in(u64::MAX).is_err());
    }

    #[test]
    fn the_shortest_slot_that_fits_is_reused_and_of_several_the_last() {
        let space = RingSpace::default();
        let slots = [4096, 8192, 4096, 8192].map(|bytes| Slot::ring(1, bytes).unwrap().remove(0));
        let [a, b, c, d] = slots.each_ref().map(|slot| slot.memory().id());
        space.keep(slots);
        let reused = [8192, 4096, 1, 1].map(|bytes| space.reuse(bytes).unwrap());
        assert_eq!(reused.each_ref().map(|slot| slot.memory().id()), [d, c, a, b]);
        assert!(space.reuse(1).is_none());
    }

    #[test]
    fn short_slots_make_room_for_a_longer_one() {
        let space = RingSpace::default();
        let slots = || Slot::ring(5, 4096).unwrap();
        let lengths = || space.idle().len();
        for (bytes, left) in [(4097, 3), (8192, 3), (8193, 2), (1 << 20, 0)] {
            space.idle().clear();
            space.keep(slots());
            assert!(space.reuse(bytes).is_none());
            assert_eq!(lengths(), left, "of 5 slots for one of {bytes}");
        }
    }

    #[test]
    fn address_space_that_is_refused_leaves_every_ring_its_own_mapping() {
        let space = RingSpace::new(usize::MAX, 1, u64::MAX);
        assert!(space.whole.is_none());
        assert_eq!(space.faulted_in(4096).unwrap().bytes(), 4096);
    }
}
