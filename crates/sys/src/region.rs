//! Memory that bytes land in or leave from.
//!
//! A region is an address, a length and a place, never a `&[u8]`: device memory has no such thing,
//! and host memory that a drive is writing to must not have one either. While a transfer runs, its
//! parts hold [`Window`]s, and each window an `Arc` of the region; the bytes of a region are lent
//! out only by `&mut`, which needs the last `Arc`. A region freed or read while in use is thus not
//! an error but impossible.

mod divided;

use std::{
    ptr::NonNull,
    sync::{Arc, OnceLock},
};

use straightway_core::{Error, Kind, PciAddress, Place, Result};

pub use divided::Divided;

use crate::{
    cuda::{Context, DeviceMemory, Driver, Owner},
    cufile::Registration,
    memory::HostMemory,
    peer::Provider,
    root::Root,
    shared,
    slot::Slot,
    streaming,
};

/// Memory that bytes land in or leave from.
#[derive(Debug)]
pub struct Region {
    memory: Memory,
    bytes: u64,
    registration: Arc<Registration>,
}

#[derive(Debug)]
enum Memory {
    Host(Arc<HostMemory>),
    Lent(Lent),
    Device(Arc<DeviceMemory>),
    Late(Late),
}

/// Memory of a GPU that its owner gives later.
#[derive(Debug)]
struct Late {
    context: Context,
    given: OnceLock<Arc<DeviceMemory>>,
}

/// Memory of somebody else's that the CPU reaches, who is kept.
#[derive(Debug)]
struct Lent {
    start: NonNull<u8>,
    place: Place,
    _owner: Owner,
}

// SAFETY: whoever lent it promised that nobody else uses the memory, from whatever thread, and the
// owner is `Send` and `Sync` itself.
unsafe impl Send for Lent {}
// SAFETY: as above; `&Lent` gives out an address, never a reference to the bytes.
unsafe impl Sync for Lent {}

impl Region {
    /// Host memory, faulted in.
    pub fn host(bytes: u64) -> Result<Self> {
        let memory = HostMemory::new(bytes)?;
        memory.populate();
        Ok(Self::new(Memory::Host(Arc::new(memory)), bytes))
    }

    /// Host memory that is somebody else's, a tensor's say, who is kept until the region goes.
    ///
    /// # Safety
    ///
    /// The range is mapped, initialised and writable as long as `owner` is kept, and until the
    /// region is dropped nobody else reads or writes it.
    pub unsafe fn lent_host(start: NonNull<u8>, bytes: u64, owner: Owner) -> Result<Self> {
        length(bytes)?;
        let lent = Lent {
            start,
            place: Place::Host,
            _owner: owner,
        };
        Ok(Self::new(Memory::Lent(lent), bytes))
    }

    /// Memory in a BAR of a device that somebody else has mapped, who is kept until the region goes: a GPU's memory as
    /// its driver exports it, with pages of its BAR1.
    ///
    /// Refused unless every page of it lies inside a BAR of that device.
    ///
    /// # Safety
    ///
    /// As for [`lent_host`](Self::lent_host), and the pages stay where they are as long as `owner` is kept.
    pub unsafe fn lent_bar(
        device: PciAddress,
        start: NonNull<u8>,
        bytes: u64,
        owner: Owner,
    ) -> Result<Self> {
        Provider::at(device).check(start, length(bytes)?, &Root::machine())?;
        let lent = Lent {
            start,
            place: Place::P2p(device),
            _owner: owner,
        };
        Ok(Self::new(Memory::Lent(lent), bytes))
    }

    /// Memory of the context's GPU, which holds whatever was there before.
    pub fn device(context: &Context, bytes: u64) -> Result<Self> {
        let memory = DeviceMemory::allocate(context, length(bytes.max(1))?)?;
        Ok(Self::new(Memory::Device(Arc::new(memory)), bytes))
    }

    /// Memory of that place. Of the host's, pages come with the first bytes that go there: each lane
    /// then clears its own while the others move theirs.
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

    /// Brings in all pages of host memory now, so that a measurement does not pay for them.
    pub fn populate(&self) {
        if let Memory::Host(memory) = &self.memory {
            memory.populate();
        }
    }

    /// Memory of the context's GPU that is somebody else's, who is kept until the region goes.
    ///
    /// Refused unless the driver confirms that all of it is memory of that GPU.
    ///
    /// # Safety
    ///
    /// As for [`DeviceMemory::lend`]: the range stays allocated as long as `owner` is kept, and until the region is
    /// dropped nobody else uses it.
    pub unsafe fn lent(context: &Context, address: u64, bytes: u64, owner: Owner) -> Result<Self> {
        // SAFETY: what the caller promised.
        let memory = unsafe { DeviceMemory::lend(context, address, length(bytes)?, owner) }?;
        Ok(Self::new(Memory::Device(Arc::new(memory)), bytes))
    }

    /// Memory of a GPU that is there already. Its other owners see what goes there.
    pub fn of_device(memory: Arc<DeviceMemory>) -> Self {
        let bytes = memory.bytes() as u64;
        Self::new(Memory::Device(memory), bytes)
    }

    /// Memory of the context's GPU that [`give`](Self::give) will name. Until then nobody may use it.
    pub fn late(context: &Context, bytes: u64) -> Self {
        let late = Late {
            context: context.clone(),
            given: OnceLock::new(),
        };
        Self::new(Memory::Late(late), bytes)
    }

    /// Names the memory of a region that was made without. It has as many bytes, and is named once.
    pub fn give(&self, memory: DeviceMemory) -> Result<()> {
        let refuse = |why: &str| Err(Error::new(Kind::Invalid, "give memory to", "a region", why));
        let Memory::Late(late) = &self.memory else {
            return refuse("it has memory already");
        };
        if !memory.context().is_same(&late.context) || memory.bytes() as u64 != self.bytes {
            return refuse("the memory is of another GPU, or of another length");
        }
        match late.given.set(Arc::new(memory)) {
            Ok(()) => Ok(()),
            Err(_) => refuse("it has memory already"),
        }
    }

    /// The context of the GPU that it is on, if it is on one.
    pub fn context(&self) -> Option<&Context> {
        match &self.memory {
            Memory::Host(_) | Memory::Lent(_) => None,
            Memory::Device(memory) => Some(memory.context()),
            Memory::Late(late) => Some(&late.context),
        }
    }

    /// Part of a GPU's memory as a region of its own. The whole is kept until the region goes.
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

    /// Where it is.
    pub fn place(&self) -> Place {
        match &self.memory {
            Memory::Host(memory) => memory.place(),
            Memory::Lent(lent) => lent.place,
            Memory::Device(memory) => Place::Gpu(memory.context().device().ordinal()),
            Memory::Late(late) => Place::Gpu(late.context.device().ordinal()),
        }
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Its address.
    ///
    /// # Panics
    ///
    /// Where its memory was not given yet.
    pub fn address(&self) -> u64 {
        match &self.memory {
            Memory::Host(_) | Memory::Lent(_) => self.host_start().addr().get() as u64,
            Memory::Device(_) | Memory::Late(_) => {
                let memory = self.device_memory();
                memory.expect("its memory was given").address()
            }
        }
    }

    /// The GPU's memory that it is, if it is on one and its memory was given.
    pub fn device_memory(&self) -> Option<&Arc<DeviceMemory>> {
        match &self.memory {
            Memory::Host(_) | Memory::Lent(_) => None,
            Memory::Device(memory) => Some(memory),
            Memory::Late(late) => late.given.get(),
        }
    }

    /// Lets GPUs reach host memory of its own by themselves, until it goes: copies between the two
    /// then run at the speed of the bus.
    pub fn pin(&self, context: &Context) -> Result<()> {
        match &self.memory {
            Memory::Host(memory) if memory.is_pinned() => Ok(()),
            Memory::Host(memory) if memory.place() == Place::Host => {
                // Pages that are there already are pinned in half the time.
                memory.populate();
                memory.pin(context)
            }
            Memory::Host(_) | Memory::Lent(_) | Memory::Device(_) | Memory::Late(_) => {
                let message = "it is not host memory of our own";
                Err(Error::new(Kind::Invalid, "pin", "the region", message))
            }
        }
    }

    /// Where host memory begins. A GPU's has no address that the CPU may use, and asking for it is
    /// our mistake.
    fn host_start(&self) -> NonNull<u8> {
        match &self.memory {
            Memory::Host(memory) => memory.start(),
            Memory::Lent(lent) => lent.start,
            Memory::Device(_) | Memory::Late(_) => {
                panic!("the CPU does not reach into memory of a GPU")
            }
        }
    }

    /// The bytes of a host region.
    ///
    /// # Panics
    ///
    /// If it is on a GPU: see [`read_at`](Self::read_at).
    pub fn as_slice(&mut self) -> &[u8] {
        self.as_mut_slice()
    }

    /// The bytes of a host region, to write.
    ///
    /// # Panics
    ///
    /// If it is on a GPU: see [`write_at`](Self::write_at).
    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        let bytes = usize::try_from(self.bytes).expect("memory of that length was taken");
        // SAFETY: the memory is mapped, initialised, and as long as it says; `&mut self` means that
        // no window is left, for each holds an `Arc` of the region, and no slot, for a region that
        // is divided into slots is not there.
        unsafe { std::slice::from_raw_parts_mut(self.host_start().as_ptr(), bytes) }
    }

    /// Copies what is at `offset` into `bytes`, wherever the region is. For tests and checks: from
    /// a GPU it is slow.
    pub fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let at = self.position(offset, bytes.len())?;
        if let Some(memory) = self.device_memory() {
            return memory.read(at, bytes);
        }
        bytes.copy_from_slice(&self.as_slice()[at..at + bytes.len()]);
        Ok(())
    }

    /// Copies `bytes` to `offset`, wherever the region is. For tests and checks, as `read_at`.
    pub fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        let at = self.position(offset, bytes.len())?;
        if let Some(memory) = self.device_memory() {
            return memory.write(at, bytes);
        }
        self.as_mut_slice()[at..at + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// `offset` as an index, if `len` bytes from there on lie inside.
    fn position(&self, offset: u64, len: usize) -> Result<usize> {
        let fits = offset
            .checked_add(len as u64)
            .is_some_and(|end| end <= self.bytes);
        if !fits {
            let why = format!("{len} bytes at {offset} reach beyond its {}", self.bytes);
            return Err(Error::new(Kind::Invalid, "reach into", "a region", why));
        }
        length(offset)
    }

    /// What cuFile knows it by.
    pub fn registration(&self) -> &Arc<Registration> {
        &self.registration
    }
}

/// A length or an offset inside memory.
fn length(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| {
        let message = format!("{bytes} bytes are more than memory can have");
        Error::new(Kind::Invalid, "make", "a region", message)
    })
}

/// Part of a region that an I/O or a copy is about.
///
/// Windows may overlap: then what is written last stays, and a copy made meanwhile may have parts of both. That is a
/// race, but not one that Rust forbids: while a window exists no reference to the region's bytes does, and through
/// windows only the kernel, a device or [`shared::copy`] reach them. Transfers do not even race: `Transfer` refuses
/// moves that would write a byte twice, and a plan has every byte exactly once.
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

    /// The region it is part of.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where in the region it begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Copies from `slot`, beginning at `from`, into the whole window of a host region.
    pub fn fill_from(&self, slot: &Slot, from: usize) {
        let source = &slot.as_slice()[from..][..self.bytes];
        // SAFETY: both ranges are in bounds; a slot's memory is never a region's, so they do not overlap; no reference
        // to the region's bytes exists while windows do, and the copy allows a race (see the type).
        unsafe { streaming::copy(self.pointer(), source.as_ptr(), self.bytes) };
    }

    /// Copies the whole window of a host region into `slot`, beginning at `to`.
    pub fn spill_into(&self, slot: &mut Slot, to: usize) {
        let target = &mut slot.as_mut_slice()[to..][..self.bytes];
        // SAFETY: as in `fill_from`, the other way round.
        unsafe { shared::copy(target.as_mut_ptr(), self.pointer(), self.bytes) }
    }

    /// The address of a host region's window. Memory of a GPU has none that the CPU may use, and
    /// asking for it is our mistake.
    pub(crate) fn pointer(&self) -> *mut u8 {
        let offset = usize::try_from(self.offset).expect("it lies inside memory");
        // SAFETY: the offset lies inside the region.
        unsafe { self.region.host_start().as_ptr().add(offset) }
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
    fn memory_that_was_lent_is_written_to_and_its_owner_is_kept_until_the_region_goes() {
        let owner: Owner = Arc::new(());
        let mut bytes = vec![1_u8; 100];
        let start = NonNull::new(bytes.as_mut_ptr()).unwrap();
        // SAFETY: the vector outlives the region and is not touched while that is there.
        let mut region = unsafe { Region::lent_host(start, 100, Arc::clone(&owner)) }.unwrap();
        region.write_at(99, b"z").unwrap();
        assert_eq!(region.place(), Place::Host);
        assert_eq!(region.as_slice()[..99], [1; 99]);
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
