//! Memory that DMA can use: aligned, on huge pages where they help, faulted in on demand. It is the host's, or
//! mapped from a BAR of a PCI device ([`Provider`]); to the CPU both are the same.
//!
//! Anonymous mappings rather than the allocator: the kernel aligns them, gives them back at once,
//! and lets us ask for huge pages. A read of 4 GiB into 4 KiB pages spends a third of its CPU time
//! on page tables; on 2 MiB pages that part vanishes.

use std::{
    ptr::NonNull,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    thread::Builder,
};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use straightway_core::{Bytes, Error, Kind, PciAddress, Place, Result, extent::up};

use crate::{
    cuda::{Context, Pin},
    limit::available_memory,
    peer::Provider,
    root::Root,
};

/// A huge page on x86-64 and on most arm64 kernels.
const HUGE_BYTES: usize = 2 << 20;

/// From here on it is asked first whether there is so much: the kernel promises any amount, and ends the process
/// that uses what is not there.
const CHECKED_BYTES_MIN: u64 = 1 << 30;

/// Faulting in less than this is over before a thread has started.
const POPULATE_BYTES_MIN: usize = 32 << 20;

/// Beyond this many cores the memory itself is the limit.
const POPULATE_THREADS_MAX: usize = 8;

/// The next memory's number.
static IDS: AtomicU64 = AtomicU64::new(1);

/// Owned memory: of the host zeroed, and aligned to 2 MiB where it is at least that long; else aligned to a page.
#[derive(Debug)]
pub struct HostMemory {
    id: u64,
    start: NonNull<u8>,
    bytes: usize,
    map: NonNull<u8>,
    map_bytes: usize,
    /// The host, or the device whose BAR it is in.
    place: Place,
    /// Its registration with the CUDA driver, once it has one.
    pin: OnceLock<Pin>,
}

// SAFETY: the mapping belongs to this value alone and has no thread affinity; all access to its
// bytes goes through `Slot` (which is exclusive), `Region` (exclusive by `&mut`) or the kernel.
unsafe impl Send for HostMemory {}
// SAFETY: as above; `&HostMemory` gives out an address, never a reference to the bytes.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    /// Maps `bytes` of zeroed memory. Nothing is faulted in yet.
    pub fn new(bytes: u64) -> Result<Self> {
        let target = format!("{} of host memory", Bytes(bytes));
        let hint = "ask for less, or free memory";
        let refused = |e: Errno| Error::os("allocate", &target, e.into()).with_hint(hint);
        if bytes >= CHECKED_BYTES_MIN
            && let Some(available) = available_memory(&Root::machine())
            && bytes > available
        {
            let why = format!("{} are available", Bytes(available));
            return Err(Error::new(Kind::Transient, "allocate", target, why).with_hint(hint));
        }
        let huge = bytes >= HUGE_BYTES as u64;
        let align = if huge { HUGE_BYTES } else { 4096 };
        // One huge page more than asked for, so that an aligned start can be found inside.
        let map_bytes = bytes.max(1).checked_add(align as u64);
        let map_bytes = map_bytes.and_then(|b| usize::try_from(up(b, 4096)).ok());
        let map_bytes = map_bytes.ok_or_else(|| refused(Errno::NOMEM))?;
        let bytes = usize::try_from(bytes).expect("it is shorter than the mapping");
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh private anonymous mapping at an address of the kernel's choice.
        let map = unsafe { mmap_anonymous(std::ptr::null_mut(), map_bytes, prot, flags) };
        let map = map.map_err(refused)?;
        let map = NonNull::new(map.cast::<u8>()).expect("a mapping is never at address 0");
        let skip = map.as_ptr().align_offset(align);
        // SAFETY: `skip` is below `align`, by which the mapping is longer than `bytes`.
        let start = unsafe { map.add(skip) };
        if huge {
            let (from, left) = (start.as_ptr().cast(), map_bytes - skip);
            // SAFETY: the range lies inside the mapping just made. Refusal only costs speed.
            let _ = unsafe { madvise(from, left, Advice::LinuxHugepage) };
        }
        let id = IDS.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            id,
            start,
            bytes,
            map,
            map_bytes,
            place: Place::Host,
            pin: OnceLock::new(),
        })
    }

    /// Maps `bytes` of a device's BAR memory, which hold whatever was there before. The provider has whole pages.
    pub fn in_bar(provider: PciAddress, bytes: u64) -> Result<Self> {
        let whole = usize::try_from(up(bytes.max(1), 4096)).ok();
        let length = usize::try_from(bytes).ok().zip(whole);
        let (bytes, map_bytes) = length.ok_or_else(|| {
            let why = format!("{} are more than memory can have", Bytes(bytes));
            Error::new(Kind::Invalid, "use the BAR memory of", provider, why)
        })?;
        let map = Provider::at(provider).map(map_bytes)?;
        Ok(Self {
            id: IDS.fetch_add(1, Ordering::Relaxed),
            start: map,
            bytes,
            map,
            map_bytes,
            place: Place::P2p(provider),
            pin: OnceLock::new(),
        })
    }

    /// Where it is.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Faults every page in now, so that the first transfer does not pay for it. The kernel zeroes
    /// what it hands out, at the speed of one core: where there is much, several cores ask for it.
    pub fn populate(&self) {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let threads = (self.bytes / POPULATE_BYTES_MIN).clamp(1, cores.min(POPULATE_THREADS_MAX));
        let share = self.bytes.div_ceil(threads).next_multiple_of(HUGE_BYTES);
        std::thread::scope(|scope| {
            for number in 1..threads {
                let start = number * share;
                let work = move || self.populate_part(start, share);
                let thread = Builder::new().name(format!("straightway-populate-{number}"));
                // Without the thread the pages come with the first transfer.
                let _ = thread.spawn_scoped(scope, work);
            }
            self.populate_part(0, share);
        });
    }

    /// Faults in what lies inside the memory of `bytes` bytes from `offset` on.
    fn populate_part(&self, offset: usize, bytes: usize) {
        let bytes = bytes.min(self.bytes.max(1).saturating_sub(offset));
        if bytes == 0 {
            return;
        }
        // Linux before 5.14 lacks it: the pages then come with the first transfer, as they would
        // have without this call.
        // SAFETY: the range lies inside this value's own mapping, which has at least one byte;
        // populating changes no byte's value. BAR memory is there from the start.
        let _ = unsafe {
            let start = self.start.as_ptr().add(offset).cast();
            madvise(start, bytes, Advice::LinuxPopulateWrite)
        };
    }

    /// Lets GPUs reach it by themselves, until it goes. Pinned once is pinned for all devices.
    pub fn pin(&self, context: &Context) -> Result<()> {
        if self.is_pinned() {
            return Ok(());
        }
        // SAFETY: the range is this value's own mapping, which outlives the pin: see `drop`.
        let pin = unsafe { Pin::new(context, self.start, self.bytes) }?;
        // Another thread's pin of the same memory would have been refused by the driver.
        let _ = self.pin.set(pin);
        Ok(())
    }

    /// Whether GPUs can reach it by themselves.
    pub fn is_pinned(&self) -> bool {
        self.pin.get().is_some()
    }

    /// A number that no other memory of this process has or will have.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Where it starts.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How long it is.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        drop(self.pin.take());
        // SAFETY: the mapping was made by `new` and nobody else unmaps it; slots and windows into
        // it hold an `Arc` of it, so none is left.
        let unmapped = unsafe { munmap(self.map.as_ptr().cast(), self.map_bytes) };
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
    fn more_than_there_is_is_an_error_that_names_the_figure() {
        let error = HostMemory::new(1 << 60).unwrap_err();
        assert!(
            error.to_string().contains("1024 PiB of host memory"),
            "{error}"
        );
        assert!(HostMemory::new(u64::MAX).is_err());
    }
}
