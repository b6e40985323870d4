//! GPU memory, allocated here or lent by another owner.
//!
//! It is allocated with plain `cuMemAlloc`, because cuFile refuses memory of the stream-ordered pools. Lent
//! memory is an address that belongs to another owner, such as a tensor. It is accepted only after the
//! driver has confirmed that every byte of it is memory of this device.

use std::ffi::c_uint;
use std::fmt;
use std::sync::Arc;

use cudarc::driver::sys::CUpointer_attribute_enum as Attribute;
use straightway_core::{Bytes, Error, ErrorKind, Result};

use super::Owner;
use super::code::Code;
use super::context::Context;
use super::fence::Fence;

/// The driver's type of device memory (`CU_MEMORYTYPE_DEVICE`).
const MEMORY_TYPE_DEVICE: u64 = 2;

/// A range of device memory. Dropping it frees allocated memory, or releases the owner of lent memory.
#[derive(Debug)]
pub struct DeviceMemory {
    context: Context,
    address: u64,
    len: usize,
    /// The owner of lent memory; `None` if it was allocated here.
    lender: Option<Owner>,
    /// The fence that copies from and to it wait for.
    after: Option<Arc<Fence>>,
}

impl DeviceMemory {
    /// Allocates `len` bytes on the context's device. They are not initialised.
    pub fn allocate(context: &Context, len: usize) -> Result<Self> {
        if len == 0 {
            return Err(context.error(Code::INVALID_VALUE, "allocate 0 bytes on"));
        }
        let entered = context.enter()?;
        let mut address = 0;
        // SAFETY: `address` is a valid place for the answer, and a context is current.
        let code = unsafe { (context.api().mem_alloc)(&raw mut address, len) };
        drop(entered);
        code.ok().map_err(|code| not_allocated(context, code, len))?;
        Ok(Self {
            context: context.clone(),
            address,
            len,
            lender: None,
            after: None,
        })
    }

    /// Borrows `len` bytes at `address` from `owner`, which is kept until this is dropped.
    ///
    /// Refused unless the driver confirms that all of it is memory of the context's device.
    ///
    /// # Safety
    ///
    /// The range stays allocated as long as `owner` is kept. The driver confirms only the present state, not the owner
    /// or the lifetime. Others may use the memory meanwhile: a race on a GPU mixes bytes, and Rust has no reference to
    /// them.
    pub unsafe fn lend(context: &Context, address: u64, len: usize, owner: Owner) -> Result<Self> {
        let memory = Self {
            context: context.clone(),
            address,
            len,
            lender: Some(owner),
            after: None,
        };
        memory.verify()?;
        Ok(memory)
    }

    /// Makes copies wait for a fence in a stream of the owner.
    #[must_use]
    pub fn after(mut self, fence: &Arc<Fence>) -> Self {
        self.after = Some(Arc::clone(fence));
        self
    }

    /// The fence that copies wait for.
    pub(super) fn fence(&self) -> Option<&Arc<Fence>> {
        self.after.as_ref()
    }

    /// A part of this memory, which keeps the whole alive.
    pub fn part(self: &Arc<Self>, offset: usize, len: usize) -> Result<Self> {
        if len == 0 {
            return Err(self.refused("0 bytes are not a valid range".to_owned()));
        }
        Ok(Self {
            context: self.context.clone(),
            address: self.place(offset, len)?,
            len,
            lender: Some(Arc::clone(self) as Owner),
            after: self.after.clone(),
        })
    }

    /// Its start in the device's address space.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.len
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Copies `bytes` to `offset` and waits for the end of the copy.
    ///
    /// For small data and tests: from pageable memory the copy runs at a tenth of the bus's speed.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<()> {
        let address = self.place(offset, bytes.len())?;
        self.context.check_alive()?;
        let _entered = self.context.enter()?;
        let api = self.context.api();
        // SAFETY: `place` proved the device range to be ours; the source is a live slice. The call
        // may return before the copy out of the driver's staging buffer is done, so this waits for the
        // null stream.
        let code = unsafe {
            let copied = (api.memcpy_to_device)(address, bytes.as_ptr().cast(), bytes.len());
            copied
                .ok()
                .and_then(|()| (api.stream_synchronize)(std::ptr::null_mut()).ok())
        };
        code.map_err(|code| api.error(code, "write to", self))
    }

    /// Copies the bytes at `offset` into `bytes` and waits for the end of the copy.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let address = self.place(offset, bytes.len())?;
        self.context.check_alive()?;
        let _entered = self.context.enter()?;
        let api = self.context.api();
        // SAFETY: `place` proved the device range to be ours; the target is a live slice, and the
        // call returns only when the copy is done.
        let code = unsafe { (api.memcpy_to_host)(bytes.as_mut_ptr().cast(), address, bytes.len()) };
        api.check(code, "read from", self)
    }

    /// The address of `len` bytes at `offset`, if they are in bounds.
    pub(crate) fn place(&self, offset: usize, len: usize) -> Result<u64> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.address + offset as u64),
            _ => {
                let message = format!("{len} bytes at offset {offset} exceed its {} bytes", self.len);
                Err(Error::new(ErrorKind::Invalid, "access", self, message))
            }
        }
    }

    /// Checks the allocations of the range. There may be several: memory that is mapped in pieces, such as
    /// PyTorch's expandable segments, is one address range with many allocations.
    fn verify(&self) -> Result<()> {
        let end = self.address.checked_add(self.len as u64).filter(|_| self.len > 0);
        let Some(end) = end else {
            return Err(self.refused(format!("{} bytes there are not a valid range", self.len)));
        };
        let _entered = self.context.enter()?;
        let mut at = self.address;
        while at < end {
            at = self.allocation_end(at)?;
        }
        Ok(())
    }

    /// The end of the allocation at `at`, if it belongs to this device.
    fn allocation_end(&self, at: u64) -> Result<u64> {
        let kind = self.ask(Attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at)?;
        if kind != MEMORY_TYPE_DEVICE {
            return Err(self.refused(format!("{at:#x} is host memory")));
        }
        let managed = self.ask(Attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED, at)?;
        // A boolean of one byte or four, depending on the version.
        if managed & 0xff != 0 {
            return Err(self.refused(format!("{at:#x} is managed memory, which may move")));
        }
        let ordinal = self.ask(Attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at)?;
        if ordinal != u64::from(self.context.device().ordinal()) {
            return Err(self.refused(format!("{at:#x} is memory of cuda:{ordinal}")));
        }
        let start = self.ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at)?;
        let bytes = self.ask(Attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE, at)?;
        match start.checked_add(bytes) {
            Some(end) if end > at => Ok(end),
            _ => Err(self.refused(format!("the driver reports no range for {at:#x}"))),
        }
    }

    /// Queries an attribute of an address. A boolean has one byte, most values four, addresses and sizes eight. Bytes
    /// that the driver does not write stay zero, which gives the right number on a little-endian machine.
    fn ask(&self, attribute: Attribute, at: u64) -> Result<u64> {
        const { assert!(cfg!(target_endian = "little")) };
        // The widest value of any attribute has 16 bytes.
        let mut value = [0_u64; 2];
        let place = value.as_mut_ptr().cast();
        // SAFETY: the place is as wide as the widest value, and every bit pattern is valid.
        let code = unsafe { (self.context.api().pointer_get_attribute)(place, attribute as c_uint, at) };
        code.ok().map_err(|code| {
            let cause = self.context.api().name(code);
            self.refused(format!("{at:#x} is not memory that the driver knows: {cause}"))
        })?;
        Ok(value[0])
    }

    fn refused(&self, message: String) -> Error {
        Error::new(ErrorKind::Invalid, "borrow", self, message)
            .with_hint("lend memory of the right device that is allocated and not yet freed")
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // After a reset of the context, its address may belong to somebody else's memory.
        if self.lender.is_some() || !self.context.is_alive() {
            return;
        }
        // A failed push does not prevent the free: addresses are unified, so the driver finds the device
        // without a current context.
        let entered = self.context.enter();
        // SAFETY: allocated in `allocate`, freed once here; every copy in flight holds an `Arc` of
        // this memory, so none is.
        let code = unsafe { (self.context.api().mem_free)(self.address) };
        drop(entered);
        if let Err(code) = code.ok() {
            tracing::warn!(memory = %self, ?code, "device memory was not freed");
        }
    }
}

impl fmt::Display for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let device = self.context.device();
        let (bytes, at) = (Bytes(self.len as u64), self.address);
        write!(f, "{bytes} at {at:#x} of {device}")
    }
}

fn not_allocated(context: &Context, code: Code, len: usize) -> Error {
    let wanted = Bytes(len as u64);
    if code != Code::OUT_OF_MEMORY {
        return context.error(code, "allocate memory on");
    }
    let free = context
        .memory_free()
        .map_or_else(|_| "an unknown amount".into(), |b| b.to_string());
    let (device, message) = (context.device(), format!("{wanted} wanted, {free} free"));
    Error::new(ErrorKind::Transient, "allocate memory on", device, message)
        .with_hint("free memory of the device, or load less at a time")
}
