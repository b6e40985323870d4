//! Regions: the memory that transfers read into or write from.
//!
//! A region is an address, a length and a place, never a `&[u8]`: device memory cannot have one, and
//! host memory that a drive is writing to must not. While a transfer runs, its I/Os hold [`Window`]s, and
//! each window holds an `Arc` of the region. The bytes of a region are accessible only by `&mut`, which
//! needs the last `Arc`. A region can therefore not be freed or read while it is in use.

mod divided;

use std::{
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

use straightway_core::{Error, ErrorKind, Place, Result};

pub use divided::Divided;

use crate::{
    cuda::{Context, DeviceMemory, Driver, Owner},
    cufile::CufileRegistration,
    memory::HostMemory,
    shared::{self, folded::Folded},
    slot::Slot,
    streaming,
};

/// Memory that transfers read into or write from.
#[derive(Debug)]
pub struct Region {
    memory: Memory,
    bytes: u64,
    registration: Arc<CufileRegistration>,
}

#[derive(Debug)]
enum Memory {
    Host(Arc<HostMemory>),
    Lent(Lent),
    Device(Arc<DeviceMemory>),
    Deferred(Deferred),
}

/// GPU memory that is provided later.
#[derive(Debug)]
struct Deferred {
    context: Context,
    memory: OnceLock<Arc<DeviceMemory>>,
}

/// CPU-accessible memory of another owner, which is kept alive.
#[derive(Debug)]
struct Lent {
    start: NonNull<u8>,
    _owner: Owner,
}

// SAFETY: the memory may be used from any thread, as the lender promised, and the owner is `Send` and `Sync` itself.
unsafe impl Send for Lent {}
// SAFETY: as above; no reference to the bytes is ever made, and the copies allow races.
unsafe impl Sync for Lent {}

impl Region {
    /// Host memory, faulted in.
    pub fn host(bytes: u64) -> Result<Self> {
        let memory = HostMemory::new(bytes)?;
        memory.populate();
        Ok(Self::new(Memory::Host(Arc::new(memory)), bytes))
    }

    /// Host memory of another owner, such as a tensor. The owner is kept until the region is dropped.
    ///
    /// # Safety
    ///
    /// The range is mapped, initialised and writable from any thread as long as `owner` is kept. Others may read and
    /// write it meanwhile and then see a mixture, but nobody has a Rust reference to any of it until the region is
    /// dropped.
    pub unsafe fn lent_host(start: NonNull<u8>, bytes: u64, owner: Owner) -> Result<Self> {
        length(bytes)?;
        // It may be the mapping of a file that is truncated later. A copy to it is then an error.
        streaming::install();
        let lent = Lent { start, _owner: owner };
        Ok(Self::new(Memory::Lent(lent), bytes))
    }

    /// Memory of the context's GPU. It is not initialised.
    pub fn device(context: &Context, bytes: u64) -> Result<Self> {
        let memory = DeviceMemory::allocate(context, length(bytes.max(1))?)?;
        Ok(Self::new(Memory::Device(Arc::new(memory)), bytes))
    }

    /// Memory of that place. Pages of host memory are faulted in on first access, so that each lane clears
    /// its own pages while the other lanes move bytes.
    pub fn at(place: Place, bytes: u64) -> Result<Self> {
        match place {
            Place::Host => {
                let memory = Arc::new(HostMemory::new(bytes)?);
                Ok(Self::new(Memory::Host(memory), bytes))
            }
            Place::Gpu(number) => Self::device(&Driver::load()?.device(number)?.context()?, bytes),
            Place::P2p(address) => {
                let memory = Arc::new(HostMemory::in_bar(address, bytes)?);
                Ok(Self::new(Memory::Host(memory), bytes))
            }
        }
    }

    /// Faults in all pages of host memory now, so that a measurement does not include that.
    pub fn populate(&self) {
        if let Memory::Host(memory) = &self.memory {
            memory.populate();
        }
    }

    /// Memory of the context's GPU that belongs to another owner. The owner is kept until the region is dropped.
    ///
    /// Refused unless the driver confirms that all of it is memory of that GPU.
    ///
    /// # Safety
    ///
    /// As for [`DeviceMemory::lend`]: the range stays allocated as long as `owner` is kept.
    pub unsafe fn lent(context: &Context, address: u64, bytes: u64, owner: Owner) -> Result<Self> {
        // SAFETY: what the caller promised.
        let memory = unsafe { DeviceMemory::lend(context, address, length(bytes)?, owner) }?;
        Ok(Self::new(Memory::Device(Arc::new(memory)), bytes))
    }

    /// Existing GPU memory. Its other owners see what is written to it.
    pub fn of_device(memory: Arc<DeviceMemory>) -> Self {
        let bytes = memory.bytes() as u64;
        Self::new(Memory::Device(memory), bytes)
    }

    /// A region on the context's GPU whose memory is set later by [`provide`](Self::provide). It cannot be used before.
    pub fn deferred(context: &Context, bytes: u64) -> Self {
        let deferred = Deferred {
            context: context.clone(),
            memory: OnceLock::new(),
        };
        Self::new(Memory::Deferred(deferred), bytes)
    }

    /// Sets the memory of a deferred region, once. It must have the length of the region.
    pub fn provide(&self, memory: DeviceMemory) -> Result<()> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::Invalid, "provide memory to", "a region", why));
        let Memory::Deferred(deferred) = &self.memory else {
            return refuse("it already has memory");
        };
        if !memory.context().is_same(&deferred.context) || memory.bytes() as u64 != self.bytes {
            return refuse("the memory is of another GPU, or of another length");
        }
        match deferred.memory.set(Arc::new(memory)) {
            Ok(()) => Ok(()),
            Err(_) => refuse("it already has memory"),
        }
    }

    /// The context of its GPU, if it is on one.
    pub fn context(&self) -> Option<&Context> {
        match &self.memory {
            Memory::Host(_) | Memory::Lent(_) => None,
            Memory::Device(memory) => Some(memory.context()),
            Memory::Deferred(deferred) => Some(&deferred.context),
        }
    }

    /// Part of a GPU's memory as a separate region. The whole memory is kept until the region is dropped.
    pub fn part_of(memory: &Arc<DeviceMemory>, offset: u64, bytes: u64) -> Result<Self> {
        let part = memory.part(length(offset)?, length(bytes)?)?;
        Ok(Self::new(Memory::Device(Arc::new(part)), bytes))
    }

    fn new(memory: Memory, bytes: u64) -> Self {
        Self {
            memory,
            bytes,
            registration: Arc::default(),
        }
    }

    /// The place of its memory.
    pub fn place(&self) -> Place {
        match &self.memory {
            Memory::Host(memory) => memory.place(),
            Memory::Lent(_) => Place::Host,
            Memory::Device(memory) => Place::Gpu(memory.context().device().ordinal()),
            Memory::Deferred(deferred) => Place::Gpu(deferred.context.device().ordinal()),
        }
    }

    /// Whether it is host memory of its own, which nobody else can access before the region is dropped.
    pub fn is_own(&self) -> bool {
        matches!(self.memory, Memory::Host(_))
    }

    /// Its length.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its address.
    ///
    /// # Panics
    ///
    /// If its memory has not been provided yet.
    pub fn address(&self) -> u64 {
        match &self.memory {
            Memory::Host(_) | Memory::Lent(_) => self.host_start().addr().get() as u64,
            Memory::Device(_) | Memory::Deferred(_) => {
                let memory = self.device_memory();
                memory.expect("its memory was provided").address()
            }
        }
    }

    /// Its GPU memory, if it is on a GPU and its memory has been provided.
    pub fn device_memory(&self) -> Option<&Arc<DeviceMemory>> {
        match &self.memory {
            Memory::Host(_) | Memory::Lent(_) => None,
            Memory::Device(memory) => Some(memory),
            Memory::Deferred(deferred) => deferred.memory.get(),
        }
    }

    /// Pins host memory that it owns, until it is dropped. GPUs then access it by DMA, and copies run at the
    /// speed of the bus.
    pub fn pin(&self, context: &Context) -> Result<()> {
        match &self.memory {
            Memory::Host(memory) if memory.is_pinned() => Ok(()),
            Memory::Host(memory) if memory.place() == Place::Host => {
                // Pinning pages that are already faulted in takes half the time.
                memory.populate();
                memory.pin(context)
            }
            Memory::Host(_) | Memory::Lent(_) | Memory::Device(_) | Memory::Deferred(_) => {
                let message = "it is not host memory that it owns";
                Err(Error::new(ErrorKind::Invalid, "pin", "the region", message))
            }
        }
    }

    /// The start of host memory. Calling it for GPU memory, which the CPU cannot access, is a bug.
    fn host_start(&self) -> NonNull<u8> {
        match &self.memory {
            Memory::Host(memory) => memory.start(),
            Memory::Lent(lent) => lent.start,
            Memory::Device(_) | Memory::Deferred(_) => {
                panic!("the CPU cannot access GPU memory")
            }
        }
    }

    /// The bytes of host memory that it owns.
    ///
    /// # Panics
    ///
    /// If it is on a GPU, or lent: see [`read_at`](Self::read_at).
    pub fn as_slice(&mut self) -> &[u8] {
        self.as_mut_slice()
    }

    /// The bytes of host memory that it owns, for writing.
    ///
    /// # Panics
    ///
    /// If it is on a GPU, or lent: see [`write_at`](Self::write_at).
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let Memory::Host(memory) = &self.memory else {
            panic!("only host memory that a region owns has a slice");
        };
        let bytes = usize::try_from(self.bytes).expect("memory of that length was taken");
        // SAFETY: the memory is mapped, initialised, and as long as it says; `&mut self` means that
        // no window is left, because each holds an `Arc` of the region, and no slot, because dividing a
        // region into slots consumes it.
        unsafe { std::slice::from_raw_parts_mut(memory.start().as_ptr(), bytes) }
    }

    /// Copies the bytes at `offset` into `bytes`, for any place. For tests and checks: from a GPU it is slow.
    pub fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let at = self.position(offset, bytes.len())?;
        if let Some(memory) = self.device_memory() {
            return memory.read(at, bytes);
        }
        // SAFETY: the range is in bounds, and `bytes` is exclusive, so it does not overlap. Lent memory may be written
        // meanwhile, which the copy allows.
        unsafe { shared::copy(bytes.as_mut_ptr(), self.host_start().as_ptr().add(at), bytes.len()) };
        Ok(())
    }

    /// Copies `bytes` to `offset`, for any place. For tests and checks, as `read_at`.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.position(offset, bytes.len())?;
        if let Some(memory) = self.device_memory() {
            return memory.write(at, bytes);
        }
        // SAFETY: as in `read_at`, the other way round.
        unsafe { shared::copy(self.host_start().as_ptr().add(at), bytes.as_ptr(), bytes.len()) };
        Ok(())
    }

    /// `offset` as an index, if the `len` bytes that start there are in bounds.
    fn position(&self, offset: u64, len: usize) -> Result<usize> {
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= self.bytes);
        if !fits {
            let why = format!("{len} bytes at offset {offset} exceed its {} bytes", self.bytes);
            return Err(Error::new(ErrorKind::Invalid, "access", "a region", why));
        }
        length(offset)
    }

    /// Its registration with cuFile.
    pub fn registration(&self) -> &Arc<CufileRegistration> {
        &self.registration
    }
}

/// A length or an offset inside memory.
fn length(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| {
        let message = format!("{bytes} bytes exceed the address space");
        Error::new(ErrorKind::Invalid, "make", "a region", message)
    })
}

/// The part of a region that an I/O or a copy uses.
///
/// Windows may overlap: then the last write wins, and a concurrent copy may contain parts of both. That is a race, but
/// not undefined behaviour: while a window exists there is no reference to the region's bytes, and only the kernel, a
/// device or [`shared::copy`] access them through windows. Transfers do not race: `Transfer` refuses moves that would
/// write a byte twice, and a plan has every byte exactly once.
#[derive(Clone, Debug)]
pub struct Window {
    region: Arc<Region>,
    offset: u64,
    bytes: usize,
}

impl Window {
    /// A window of `bytes` bytes of `region` that starts at `offset`.
    ///
    /// # Panics
    ///
    /// If that is not inside the region.
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

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The region it is part of.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Its offset in the region.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Fills the window of a host region with the bytes of `slot` that start at `from`.
    ///
    /// Returns an error if pages of the region are gone: the file behind lent memory was truncated, or the device with
    /// its BAR was removed. Part of the window was then written.
    pub fn fill_from(&self, slot: &Slot, from: usize) -> Result<()> {
        let source = &slot.as_slice()[from..][..self.bytes];
        // SAFETY: both ranges are in bounds. They do not overlap: a slot owns its bytes, and a region that was divided
        // into slots was consumed, so no window of it is left. No reference to the region's bytes exists while windows
        // do, and the copy allows a race (see the type).
        let is_whole = unsafe { streaming::copy(self.pointer(), source.as_ptr(), self.bytes) };
        if is_whole { Ok(()) } else { Err(self.lost()) }
    }

    /// The error for a window whose pages are gone.
    #[cold]
    fn lost(&self) -> Error {
        let target = format!(
            "{} bytes to the target memory at {:#x}",
            self.bytes,
            self.pointer().addr()
        );
        let why = "pages of the target memory are gone: its file was truncated or its device removed";
        Error::new(ErrorKind::Invalid, "copy", target, why)
            .with_hint("use other memory, or map the file again after giving it its length")
    }

    /// Copies the window of a host region to offset `to` of `slot`.
    pub fn spill_into(&self, slot: &mut Slot, to: usize) {
        let target = &mut slot.as_mut_slice()[to..][..self.bytes];
        // SAFETY: as in `fill_from`, the other way round.
        unsafe { shared::copy(target.as_mut_ptr(), self.pointer(), self.bytes) }
    }

    /// Copies the window of a host region to `target`, which must be as long.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub fn copy_to(&self, target: &mut [u8]) {
        assert_eq!(target.len(), self.bytes, "a window is copied whole");
        // SAFETY: as in `spill_into`.
        unsafe { shared::copy(target.as_mut_ptr(), self.pointer(), self.bytes) }
    }

    /// A short form of the window of a host region with the same CRC-64/NVME; `None` if this CPU cannot compute it.
    /// Bytes that others write meanwhile may or may not be in it.
    pub fn folded(&self) -> Option<Folded> {
        // SAFETY: the range is in bounds. No reference to the region's bytes exists while windows do, and the fold allows
        // a race (see the type).
        unsafe { Folded::of(self.pointer(), self.bytes) }
    }

    /// The address of a host region's window. Calling it for GPU memory, which the CPU cannot access, is a bug.
    pub(crate) fn pointer(&self) -> *mut u8 {
        let offset = usize::try_from(self.offset).expect("it lies inside memory");
        // SAFETY: the offset lies inside the region.
        unsafe { self.region.host_start().as_ptr().add(offset) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // Other CPUs have no guarded copy: the fault would end the process.
    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_copy_to_pages_that_are_gone_is_an_error() {
        use rustix::mm::{MapFlags, ProtFlags, mmap};

        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a fresh mapping at an address of the kernel's choice. It is never unmapped.
        let start = unsafe { mmap(std::ptr::null_mut(), 8192, prot, flags, &file, 0) }.unwrap();
        let start = NonNull::new(start.cast()).unwrap();
        // SAFETY: only the region uses the mapping. A fault on its pages is handled.
        let region = unsafe { Region::lent_host(start, 8192, Arc::new(())) }.unwrap();
        let window = Window::new(&Arc::new(region), 0, 8192);
        let slot = Slot::ring(1, 8192).unwrap().remove(0);
        window.fill_from(&slot, 0).unwrap();
        file.set_len(0).unwrap();
        let error = window.fill_from(&slot, 0).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("are gone"), "{error}");
    }

    #[test]
    fn a_region_in_use_cannot_be_read() {
        let mut region = Arc::new(Region::host(8192).unwrap());
        let window = Window::new(&region, 4096, 4096);
        assert!(Arc::get_mut(&mut region).is_none());
        let mut slot = Slot::ring(1, 4096).unwrap().remove(0);
        slot.as_mut_slice().fill(7);
        window.fill_from(&slot, 0).unwrap();
        drop(window);
        let bytes = Arc::get_mut(&mut region).unwrap().as_slice();
        assert!(bytes[..4096].iter().all(|b| *b == 0) && bytes[4096..].iter().all(|b| *b == 7));
    }

    #[test]
    fn lent_memory_is_written_to_and_its_owner_is_kept_until_the_region_is_dropped() {
        let owner: Owner = Arc::new(());
        let mut bytes = vec![1_u8; 100];
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the vector outlives the region and is not used while the region exists.
        let mut region = unsafe { Region::lent_host(start, 100, Arc::clone(&owner)) }.unwrap();
        region.write_at(99, b"z").unwrap();
        assert_eq!(region.place(), Place::Host);
        let mut seen = [0; 99];
        region.read_at(0, &mut seen).unwrap();
        assert_eq!(seen, [1; 99]);
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(region);
        assert_eq!(Arc::strong_count(&owner), 1);
        assert_eq!(bytes[99], b'z');
    }

    #[test]
    fn bytes_outside_a_region_are_refused() {
        let mut region = Region::host(100).unwrap();
        region.write_at(95, b"abcde").unwrap();
        let mut seen = [0; 3];
        region.read_at(97, &mut seen).unwrap();
        assert_eq!(&seen, b"cde");
        assert!(region.read_at(98, &mut seen).is_err());
        assert!(region.write_at(u64::MAX, b"x").is_err());
    }

    #[test]
    #[should_panic(expected = "a window lies inside its region")]
    fn a_window_outside_its_region_is_our_mistake() {
        let region = Arc::new(Region::host(4096).unwrap());
        let _ = Window::new(&region, u64::MAX, 2);
    }
}
