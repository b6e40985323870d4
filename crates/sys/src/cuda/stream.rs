//! A queue of copies on a device, and the two ways to put one in.

use std::fmt;
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

/// A queue of copies. Clones share it; what is in it runs in order, what is in others runs beside.
#[derive(Clone)]
pub struct Stream(Arc<Created>);

struct Created {
    context: Context,
    raw: CUstream,
}

// SAFETY: the driver's streams may be used from any thread.
unsafe impl Send for Created {}
// SAFETY: as above, and from several threads at once.
unsafe impl Sync for Created {}

#[derive(Clone, Copy)]
pub(super) enum Direction {
    ToDevice,
    ToHost,
}

impl Stream {
    /// Makes one on the context's device.
    pub fn new(context: &Context) -> Result<Self> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a valid place for the answer, and a context is current.
        let code = unsafe { (context.api().stream_create)(&raw mut raw, NON_BLOCKING) };
        code.ok()
            .map_err(|code| context.error(code, "make a stream on"))?;
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
    pub fn wait(&self) -> Result<()> {
        self.synchronize()
            .map_err(|code| self.context().error(code, "wait for a stream of"))
    }

    pub(super) fn synchronize(&self) -> Result<(), Code> {
        // SAFETY: the stream is live; waiting needs no current context.
        unsafe { (self.context().api().stream_synchronize)(self.0.raw) }.ok()
    }

    /// # Safety
    /// Every span lies within the slot and the memory, both of which outlive the copies; the
    /// context is current.
    pub(super) unsafe fn enqueue(
        &self,
        direction: Direction,
        slot: &Slot,
        memory: &DeviceMemory,
        spans: &[Span],
    ) -> Result<(), Code> {
        let api = self.context().api();
        if api.memcpy_batch_async.is_some() && spans.len() > 1 {
            for batch in spans.chunks(BATCH_SPANS_MAX) {
                // SAFETY: as the caller vouches.
                unsafe { self.enqueue_batch(direction, slot, memory, batch) }?;
            }
            return Ok(());
        }
        for span in spans {
            let device = memory.address() + span.memory_offset as u64;
            // SAFETY: as the caller vouches.
            let code = unsafe {
                let host = slot.pointer().add(span.slot_offset).cast();
                match direction {
                    Direction::ToDevice => {
                        (api.memcpy_to_device_async)(device, host, span.bytes, self.0.raw)
                    }
                    Direction::ToHost => {
                        (api.memcpy_to_host_async)(host, device, span.bytes, self.0.raw)
                    }
                }
            };
            code.ok()?;
        }
        Ok(())
    }

    /// One driver call for many spans: a launch each is what makes small extents slow.
    ///
    /// # Safety
    /// As for `enqueue`, with at most [`BATCH_SPANS_MAX`] spans.
    unsafe fn enqueue_batch(
        &self,
        direction: Direction,
        slot: &Slot,
        memory: &DeviceMemory,
        spans: &[Span],
    ) -> Result<(), Code> {
        let mut host: [CUdeviceptr; BATCH_SPANS_MAX] = [0; BATCH_SPANS_MAX];
        let mut device: [CUdeviceptr; BATCH_SPANS_MAX] = [0; BATCH_SPANS_MAX];
        let mut bytes = [0; BATCH_SPANS_MAX];
        for (i, span) in spans.iter().enumerate() {
            host[i] = slot.pointer() as u64 + span.slot_offset as u64;
            device[i] = memory.address() + span.memory_offset as u64;
            bytes[i] = span.bytes;
        }
        let (to, from) = match direction {
            Direction::ToDevice => (&mut device, &mut host),
            Direction::ToHost => (&mut host, &mut device),
        };
        let mut attributes = in_stream_order();
        let (mut first, mut failed) = (0, 0);
        let batch = self
            .context()
            .api()
            .memcpy_batch_async
            .expect("the caller looked");
        // SAFETY: the arrays hold `spans.len()` entries and are read before the call returns; the
        // one attribute holds from entry 0 on; the ranges are as the caller vouches.
        let code = unsafe {
            batch(
                to.as_mut_ptr(),
                from.as_mut_ptr(),
                bytes.as_mut_ptr(),
                spans.len(),
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

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stream({:p} on {})", self.0.raw, self.context().device())
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

pub(super) fn check(slot: &Slot, memory: &DeviceMemory, spans: &[Span]) -> Result<()> {
    if !slot.memory().is_pinned() {
        // The driver would copy it by way of memory of its own, and not asynchronously.
        let message = "its memory is not pinned";
        return Err(Error::new(Kind::Invalid, "copy with", "a slot", message));
    }
    for span in spans {
        memory.place(span.memory_offset, span.bytes)?;
        let end = span.slot_offset.checked_add(span.bytes);
        if span.bytes == 0 || end.is_none_or(|end| end > slot.bytes()) {
            let message = format!(
                "{span:?} is empty or reaches beyond its {} bytes",
                slot.bytes()
            );
            return Err(Error::new(Kind::Invalid, "copy with", "a slot", message));
        }
    }
    Ok(())
}
