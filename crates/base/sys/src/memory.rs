//! Memory for DMA: aligned, on huge pages where they help, faulted in on demand. It is host memory, or mapped from a
//! BAR of a PCI device ([`Provider`]). The CPU accesses both in the same way.
//!
//! It uses anonymous mappings, not the allocator: the kernel aligns them, frees them at once, and supports huge
//! pages. A read of 4 GiB into 4 KiB pages spends a third of its CPU time on page tables. With 2 MiB pages that time
//! is negligible.

use std::{
    ptr::NonNull,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread::Builder,
};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use straightway_core::{Bytes, Error, ErrorKind, PciAddress, Place, Result, extent::up};

use crate::{
    cuda::{Context, Pin},
    memory_room,
    peer::Provider,
    streaming,
};

/// A huge page on x86-64 and on most arm64 kernels.
pub(crate) const HUGE_BYTES: usize = 2 << 20;

/// Faulting in less than this takes less time than starting a thread.
const POPULATE_BYTES_MIN: usize = 32 << 20;

/// With more cores than this, memory bandwidth is the limit.
const POPULATE_THREADS_MAX: usize = 8;

/// The id of the next memory.
static IDS: AtomicU64 = AtomicU64::new(1);

/// Owned memory. Host memory is zeroed, and aligned to 2 MiB if it is at least that long. Other memory is aligned to a
/// page.
#[derive(Debug)]
pub struct HostMemory {
    id: u64,
    start: NonNull<u8>,
    bytes: usize,
    map: Arc<Mapped>,
    /// The host, or the device that has the BAR.
    place: Place,
    /// Its registration with the CUDA driver, once it is pinned.
    pin: OnceLock<Pin>,
}

// SAFETY: the range belongs to this value alone and has no thread affinity; all access to its
// bytes goes through `Slot` (which is exclusive), `Region` (exclusive by `&mut`) or the kernel.
unsafe impl Send for HostMemory {}
// SAFETY: as above; `&HostMemory` gives out an address, never a reference to the bytes.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Maps `bytes` of zeroed memory. Nothing is faulted in yet. More than there is, or than the control group of the
    /// process may use, is refused.
    pub fn new(bytes: u64) -> Result<Self> {
        memory_room::reserve(bytes)?;
        let refused = |e: Errno| {
            memory_room::release(bytes);
            let target = format!("{} of host memory", Bytes(bytes));
            Error::os("allocate", target, e.into()).with_hint("ask for less, or free memory")
        };
        let (map, start) = Mapped::anonymous(bytes).map_err(refused)?;
        let bytes = usize::try_from(bytes).expect("it is shorter than the mapping");
        // SAFETY: the mapping is new.
        Ok(unsafe { Self::part(&map, start, bytes, Place::Host) })
    }

    /// A part of a mapping, of which it frees the pages when it is dropped. Host memory was reserved by the caller
    /// (`memory_room`).
    ///
    /// # Safety
    /// Nothing else uses the range, up to the next huge page if the mapping has several parts.
    pub(crate) unsafe fn part(map: &Arc<Mapped>, start: NonNull<u8>, bytes: usize, place: Place) -> Self {
        let skipped = start.addr().get().checked_sub(map.start.addr().get());
        let end = skipped.and_then(|skipped| skipped.checked_add(bytes));
        assert!(
            end.is_some_and(|end| end <= map.bytes),
            "the memory lies inside the mapping"
        );
        Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            start,
            bytes,
            map: Arc::clone(map),
            place,
            pin: OnceLock::new(),
        }
    }

    /// Maps `bytes` of a device's BAR memory, in whole pages. The content is not initialised.
    pub fn in_bar(provider: PciAddress, bytes: u64) -> Result<Self> {
        let whole = usize::try_from(up(bytes.max(1), 4096)).ok();
        let length = usize::try_from(bytes).ok().zip(whole);
        let (bytes, map_bytes) = length.ok_or_else(|| {
            let why = format!("{} exceed the address space", Bytes(bytes));
            Error::new(ErrorKind::Invalid, "use the BAR memory of", provider, why)
        })?;
        let map = Provider::at(provider).map(map_bytes)?;
        // The device may be removed while its memory is mapped. A copy to it is then an error.
        streaming::install();
        let mapped = Arc::new(Mapped {
            start: map,
            bytes: map_bytes,
        });
        // SAFETY: the mapping is new.
        Ok(unsafe { Self::part(&mapped, map, bytes, Place::P2p(provider)) })
    }

    /// The place of the memory.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Faults in every page now, so that the first transfer does not have to. The kernel zeroes pages at
    /// the speed of one core, so several threads share large memory.
    pub fn populate(&self) {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = (self.bytes / POPULATE_BYTES_MIN).clamp(1, cores.min(POPULATE_THREADS_MAX));
        let share = self.bytes.div_ceil(threads).next_multiple_of(HUGE_BYTES);
        std::thread::scope(|scope| {
            for number in 1..threads {
                let start = number * share;
                let work = move || self.populate_part(start, share);
                let thread = Builder::new().name(format!("straightway-populate-{number}"));
                // Without the thread its pages are faulted in by the first transfer.
                let _ = thread.spawn_scoped(scope, work);
            }
            self.populate_part(0, share);
        });
    }

    /// Faults in up to `bytes` bytes that start at `offset`.
    fn populate_part(&self, offset: usize, bytes: usize) {
        let bytes = bytes.min(self.bytes.max(1).saturating_sub(offset));
        if bytes == 0 {
            return;
        }
        // Linux before 5.14 lacks this advice: the first transfer then faults in the pages.
        // SAFETY: the range lies inside this value's own range, which has at least one byte;
        // populating changes no byte's value. BAR memory is always present.
        let _ = unsafe {
            let start = self.start.as_ptr().add(offset).cast();
            madvise(start, bytes, Advice::LinuxPopulateWrite)
        };
    }

    /// Faults in every page of fresh host memory by a write to it. Unlike [`populate`](Self::populate), it does not
    /// keep other threads of the process from mapping memory.
    pub(crate) fn touch(&mut self) {
        for offset in (0..self.bytes).step_by(4096) {
            // SAFETY: the byte lies inside this memory, which nothing else uses: it is borrowed mutably. It is volatile
            // because a write of 0 to zeroed memory has no other effect than the fault.
            unsafe { self.start.as_ptr().add(offset).write_volatile(0) };
        }
    }

    /// Pins it for DMA by all GPUs, until it is dropped.
    pub fn pin(&self, context: &Context) -> Result<()> {
        if self.is_pinned() {
            return Ok(());
        }
        // SAFETY: the range is this value's own, and its mapping outlives the pin: see `drop`.
        let pin = unsafe { Pin::new(context, self.start, self.bytes) }?;
        // Another thread's pin of the same memory would have been refused by the driver.
        let _ = self.pin.set(pin);
        Ok(())
    }

    /// Whether it is pinned.
    pub fn is_pinned(&self) -> bool {
        self.pin.get().is_some()
    }

    /// An id that is unique in this process and never reused.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its start.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        drop(self.pin.take());
        if self.place == Place::Host {
            memory_room::release(self.bytes as u64);
        }
        if Arc::strong_count(&self.map) > 1 {
            // The mapping has other parts. Only the pages of this one are freed.
            let bytes = self.bytes.next_multiple_of(HUGE_BYTES);
            // SAFETY: the range lies inside the mapping, whose parts begin at huge pages. Slots and windows into it hold
            // an `Arc` of this value, so none is left.
            let _ = unsafe { madvise(self.start.as_ptr().cast(), bytes, Advice::LinuxDontNeed) };
        }
    }
}

/// A mapping. It is unmapped when its last part is dropped.
#[derive(Debug)]
pub(crate) struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to this value alone and has no thread affinity.
unsafe impl Send for Mapped {}
// SAFETY: as above; `&Mapped` gives no access to the bytes.
unsafe impl Sync for Mapped {}

impl Mapped {
    /// Maps at least `bytes` of zeroed memory. Nothing is faulted in yet. Returns the mapping and the first aligned
    /// address in it, from which `bytes` bytes are mapped.
    pub(crate) fn anonymous(bytes: u64) -> Result<(Arc<Self>, NonNull<u8>), Errno> {
        let huge = bytes >= HUGE_BYTES as u64;
        let align = if huge { HUGE_BYTES } else { 4096 };
        // One huge page more than asked for, so that an aligned start can be found inside.
        let map_bytes = bytes.max(1).checked_add(align as u64);
        let map_bytes = map_bytes.and_then(|b| usize::try_from(up(b, 4096)).ok());
        let map_bytes = map_bytes.ok_or(Errno::NOMEM)?;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice.
        let map = unsafe { mmap_anonymous(std::ptr::null_mut(), map_bytes, prot, flags) }?;
        let map = NonNull::new(map.cast::<u8>()).expect("a mapping is never at address 0");
        let mapped = Arc::new(Self {
            start: map,
            bytes: map_bytes,
        });
        let skip = map.as_ptr().align_offset(align);
        // SAFETY: `skip` is below `align`, by which the mapping is longer than `bytes`.
        let start = unsafe { map.add(skip) };
        if huge {
            let (from, left) = (start.as_ptr().cast(), map_bytes - skip);
            // SAFETY: the range lies inside the mapping just made. Refusal only costs speed.
            let _ = unsafe { madvise(from, left, Advice::LinuxHugepage) };
        }
        Ok((mapped, start))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and nobody else unmaps it; its parts hold an `Arc` of it, so none is
        // left.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "the mapping was ours");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_aligned_for_its_size() {
        let page = HostMemory::new(5).unwrap();
        assert!(page.start().addr().get().is_multiple_of(4096));
        let huge = HostMemory::new(3 << 20).unwrap();
        assert!(huge.start().addr().get().is_multiple_of(HUGE_BYTES));
        huge.populate();
        assert_ne!(page.id(), huge.id());
    }

    #[test]
    fn an_allocation_beyond_the_available_memory_is_an_error_with_its_size() {
        let error = HostMemory::new(1 << 60).unwrap_err();
        assert!(error.to_string().contains("1024 PiB of host memory"), "{error}");
        assert!(HostMemory::new(u64::MAX).is_err());
    }
}
