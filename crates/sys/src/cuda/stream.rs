//! A queue of copies on a device, and the two ways to put one in.

use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemLocation, CUmemLocationType, CUmemcpyAttributes, CUmemcpySrcAccessOrder,
    CUstream,
};
use straightway_core::{Error, Kind, Result};

use super::code::Code;
use super::context::Context;
use super::device_memory::DeviceMemory;
use crate::slot::Slot;

/// `CU_STREAM_NON_BLOCKING`: our copies do not wait for work on the null stream, nor it for them.
const NON_BLOCKING: u32 = 1;

/// How many spans one batched call takes; their arrays live on the stack.
const BATCH_SPANS_MAX: usize = 64;

/// A piece of a copy: these bytes of the slot, and where they stand in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where in the slot.
    pub slot_offset: usize,
    /// Where in the device memory.
    pub memory_offset: usize,
    /// How many.
    pub bytes: usize,
}

/// A span, and which of several regions it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Landing {
    /// Which of the regions.
    pub region: u32,
    /// Where in the slot, and where in the region.
    pub span: Span,
}

/// One copy as the driver takes it: an offset in the slot, an address on the device, and how many bytes.
#[derive(Clone, Copy)]
pub(super) struct Stretch {
    slot_offset: usize,
    address: u64,
    bytes: usize,
}

/// A queue of copies. Clones share it; what is in it runs in order, what is in others runs beside.
#[derive(Clone, Debug)]
pub struct Stream(Arc<Created>);

#[derive(Debug)]
struct Created {
    context: Context,
    raw: CUstream,
}

// SAFETY: the driver's streams may be used from any thread.
unsafe impl Send for Created {}
// SAFETY: as above, and from several threads at once.
unsafe impl Sync for Created {}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the slot into device memory.
    ToDevice,
    /// From device memory into the slot.
    ToHost,
}

impl Stream {
    /// Makes one on the context's device.
    pub fn new(context: &Context) -> Result<Self> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a valid place for the answer, and a context is current.
        let code = unsafe { (context.api().stream_create)(&raw mut raw, NON_BLOCKING) };
        context.check(code, "make a stream on")?;
        Ok(Self(Arc::new(Created {
            context: context.clone(),
            raw,
        })))
    }

    /// The context it runs on.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// What the driver knows it by.
    pub(super) fn raw(&self) -> CUstream {
        self.0.raw
    }

    /// Sleeps until all that is in the stream is done.
    pub(super) fn synchronize(&self) -> Result<(), Code> {
        // SAFETY: the stream is live; waiting needs no current context.
        unsafe { (self.context().api().stream_synchronize)(self.0.raw) }.ok()
    }

    /// # Safety
    /// Every stretch lies within the slot and live device memory, both of which outlive the copies; the context is
    /// current.
    pub(super) unsafe fn enqueue(
        &self,
        direction: Direction,
        slot: &Slot,
        mut stretches: impl ExactSizeIterator<Item = Stretch>,
    ) -> Result<(), Code> {
        let api = self.context().api();
        if api.memcpy_batch_async.is_some() && stretches.len() > 1 {
            while stretches.len() > 0 {
                // SAFETY: as the caller vouches.
                unsafe { self.enqueue_batch(direction, slot, &mut stretches) }?;
            }
            return Ok(());
        }
        for stretch in stretches {
            // SAFETY: as the caller vouches.
            let code = unsafe {
                let host = slot.pointer().add(stretch.slot_offset).cast();
                let (device, bytes) = (stretch.address, stretch.bytes);
                match direction {
                    Direction::ToDevice => {
                        (api.memcpy_to_device_async)(device, host, bytes, self.0.raw)
                    }
                    Direction::ToHost => {
                        (api.memcpy_to_host_async)(host, device, bytes, self.0.raw)
                    }
                }
            };
            code.ok()?;
        }
        Ok(())
    }

    /// One driver call for the next [`BATCH_SPANS_MAX`] stretches: a launch each is what makes small extents slow.
    ///
    /// # Safety
    /// As for `enqueue`.
    unsafe fn enqueue_batch(
        &self,
        direction: Direction,
        slot: &Slot,
        stretches: &mut impl Iterator<Item = Stretch>,
    ) -> Result<(), Code> {
        let mut host: [CUdeviceptr; BATCH_SPANS_MAX] = [0; BATCH_SPANS_MAX];
        let mut device: [CUdeviceptr; BATCH_SPANS_MAX] = [0; BATCH_SPANS_MAX];
        let mut bytes = [0; BATCH_SPANS_MAX];
        let mut count = 0;
        for stretch in stretches.take(BATCH_SPANS_MAX) {
            host[count] = slot.pointer() as u64 + stretch.slot_offset as u64;
            device[count] = stretch.address;
            bytes[count] = stretch.bytes;
            count += 1;
        }
        let (to, from) = match direction {
            Direction::ToDevice => (&mut device, &mut host),
            Direction::ToHost => (&mut host, &mut device),
        };
        let mut attributes = in_stream_order();
        let (mut first, mut failed) = (0, 0);
        let batch = self.context().api().memcpy_batch_async;
        let batch = batch.expect("the caller looked");
        // SAFETY: the arrays hold `count` entries and are read before the call returns; the one attribute holds from
        // entry 0 on; the ranges are as the caller vouches.
        let code = unsafe {
            batch(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                bytes.as_mut_ptr(),
                count,
                &raw mut attributes,
                &raw mut first,
                1,
                &raw mut failed,
                self.0.raw,
            )
        };
        code.ok()
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once here; each copy in flight holds a clone, so none is.
        let code = unsafe { (self.context.api().stream_destroy)(self.raw) };
        if let Err(code) = code.ok() {
            tracing::warn!(?code, "a stream was not destroyed");
        }
    }
}

/// Sources are read when the stream gets to them, like those of a single asynchronous copy; the
/// driver finds the places out from the addresses.
fn in_stream_order() -> CUmemcpyAttributes {
    let anywhere = CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_INVALID,
        id: 0,
    };
    CUmemcpyAttributes {
        srcAccessOrder: CUmemcpySrcAccessOrder::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
        srcLocHint: anywhere,
        dstLocHint: anywhere,
        flags: 0,
    }
}

/// Where a span is on the device, if it lies inside the memory and the slot, and is not empty.
pub(super) fn stretch(slot: &Slot, memory: &DeviceMemory, span: &Span) -> Result<Stretch> {
    let address = memory.place(span.memory_offset, span.bytes)?;
    let end = span.slot_offset.checked_add(span.bytes);
    if span.bytes == 0 || end.is_none_or(|end| end > slot.bytes()) {
        let message = format!(
            "{span:?} is empty or reaches beyond its {} bytes",
            slot.bytes()
        );
        return Err(Error::new(Kind::Invalid, "copy with", "a slot", message));
    }
    Ok(Stretch {
        slot_offset: span.slot_offset,
        address,
        bytes: span.bytes,
    })
}

/// An error unless the device can copy with the slot by itself.
pub(super) fn check_pinned(slot: &Slot) -> Result<()> {
    if slot.memory().is_pinned() {
        return Ok(());
    }
    // The driver would copy it by way of memory of its own, and not asynchronously.
    let message = "its memory is not pinned";
    Err(Error::new(Kind::Invalid, "copy with", "a slot", message))
}
