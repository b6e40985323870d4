//! A CUDA stream: a queue of copies on a device, enqueued singly or in batches.

use std::sync::Arc;

use cudarc::driver::sys::{
    CUdeviceptr, CUmemLocation, CUmemLocationType, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUstream,
};
use straightway_core::{Error, ErrorKind, Result};

use super::code::Code;
use super::context::Context;
use super::device_memory::DeviceMemory;
use super::fence::Fence;
use crate::slot::Slot;

/// `CU_STREAM_NON_BLOCKING`: our copies and work on the null stream do not wait for each other.
const NON_BLOCKING: u32 = 1;

/// The maximum number of spans of one batched call, whose arrays are on the stack.
const BATCH_SPANS_MAX: usize = 64;

/// A piece of a copy: bytes of the slot, and their offset in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The offset in the slot.
    pub slot_offset: usize,
    /// The offset in the device memory.
    pub memory_offset: usize,
    /// The number of bytes.
    pub bytes: usize,
}

/// A span in one of several regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSpan {
    /// The index of the region.
    pub region: u32,
    /// The span of the slot and the region.
    pub span: Span,
}

/// A span in the driver's terms: an offset in the slot, an address on the device, and a length.
#[derive(Clone, Copy)]
pub(super) struct RawSpan {
    slot_offset: usize,
    address: u64,
    bytes: usize,
}

/// A CUDA stream for copies. Clones share it. Its copies run in order, and concurrently with those of other streams.
#[derive(Clone, Debug)]
pub struct CudaStream(Arc<Created>);

#[derive(Debug)]
struct Created {
    context: Context,
    raw: CUstream,
}

// SAFETY: the driver's streams may be used from any thread.
unsafe impl Send for Created {}
// SAFETY: as above, and from several threads at once.
unsafe impl Sync for Created {}

/// The direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyDirection {
    /// From the slot into device memory.
    ToDevice,
    /// From device memory into the slot.
    ToHost,
}

impl CudaStream {
    /// Creates a stream on the context's device.
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

    /// The driver's handle.
    pub(super) fn raw(&self) -> CUstream {
        self.0.raw
    }

    /// Records a fence after all work now in the stream.
    pub fn fence(&self) -> Result<Fence> {
        // SAFETY: the stream is live, and of that context.
        unsafe { Fence::record(self.context(), self.raw() as u64) }
    }

    /// Blocks until all work in the stream is done.
    pub(super) fn synchronize(&self) -> Result<(), Code> {
        // SAFETY: the stream is live; waiting needs no current context.
        unsafe { (self.context().api().stream_synchronize)(self.0.raw) }.ok()
    }

    /// # Safety
    /// Every raw span lies within the slot and live device memory, both of which outlive the copies; the context is
    /// current.
    pub(super) unsafe fn enqueue(
        &self,
        direction: CopyDirection,
        slot: &Slot,
        mut raw_spans: impl ExactSizeIterator<Item = RawSpan>,
    ) -> Result<(), Code> {
        let api = self.context().api();
        if api.memcpy_batch_async.is_some() && raw_spans.len() > 1 {
            while raw_spans.len() > 0 {
                // SAFETY: the caller guarantees it.
                unsafe { self.enqueue_batch(direction, slot, &mut raw_spans) }?;
            }
            return Ok(());
        }
        for raw_span in raw_spans {
            // SAFETY: the caller guarantees it.
            let code = unsafe {
                let host = slot.pointer().add(raw_span.slot_offset).cast();
                let (device, bytes) = (raw_span.address, raw_span.bytes);
                match direction {
                    CopyDirection::ToDevice => (api.memcpy_to_device_async)(device, host, bytes, self.0.raw),
                    CopyDirection::ToHost => (api.memcpy_to_host_async)(host, device, bytes, self.0.raw),
                }
            };
            code.ok()?;
        }
        Ok(())
    }

    /// Enqueues the next [`BATCH_SPANS_MAX`] raw spans in one driver call: a call per span makes small extents slow.
    ///
    /// # Safety
    /// As for `enqueue`.
    unsafe fn enqueue_batch(
        &self,
        direction: CopyDirection,
        slot: &Slot,
        raw_spans: &mut impl Iterator<Item = RawSpan>,
    ) -> Result<(), Code> {
        let mut host: [CUdeviceptr; BATCH_SPANS_MAX] = [0; BATCH_SPANS_MAX];
        let mut device: [CUdeviceptr; BATCH_SPANS_MAX] = [0; BATCH_SPANS_MAX];
        let mut bytes = [0; BATCH_SPANS_MAX];
        let mut count = 0;
        for raw_span in raw_spans.take(BATCH_SPANS_MAX) {
            host[count] = slot.pointer() as u64 + raw_span.slot_offset as u64;
            device[count] = raw_span.address;
            bytes[count] = raw_span.bytes;
            count += 1;
        }
        let (to, from) = match direction {
            CopyDirection::ToDevice => (&mut device, &mut host),
            CopyDirection::ToHost => (&mut host, &mut device),
        };
        let mut attributes = in_stream_order();
        let (mut first, mut failed) = (0, 0);
        let batch = self.context().api().memcpy_batch_async;
        let batch = batch.expect("the caller checked");
        // SAFETY: the arrays hold `count` entries and are read before the call returns; the one attribute applies from
        // entry 0 on; the caller guarantees the ranges.
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
        if !self.context.is_alive() {
            return;
        }
        // SAFETY: made in `new`, destroyed once here; each copy in flight holds a clone, so none is.
        let code = unsafe { (self.context.api().stream_destroy)(self.raw) };
        if let Err(code) = code.ok() {
            tracing::warn!(?code, "a stream was not destroyed");
        }
    }
}

/// Attributes of a batch: sources are read in stream order, as for a single asynchronous copy, and the
/// driver derives the locations from the addresses.
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

/// The raw span of a span, if it lies inside the memory and the slot, and is not empty.
pub(super) fn raw_span(slot: &Slot, memory: &DeviceMemory, span: &Span) -> Result<RawSpan> {
    let address = memory.place(span.memory_offset, span.bytes)?;
    let end = span.slot_offset.checked_add(span.bytes);
    if span.bytes == 0 || end.is_none_or(|end| end > slot.bytes()) {
        let message = format!("{span:?} is empty or exceeds its {} bytes", slot.bytes());
        return Err(Error::new(ErrorKind::Invalid, "copy with", "a slot", message));
    }
    Ok(RawSpan {
        slot_offset: span.slot_offset,
        address,
        bytes: span.bytes,
    })
}

/// Returns an error unless the slot is pinned.
pub(super) fn check_pinned(slot: &Slot) -> Result<()> {
    if slot.memory().is_pinned() {
        return Ok(());
    }
    // For pageable memory the driver would copy through its own buffer, and not asynchronously.
    let message = "its memory is not pinned";
    Err(Error::new(ErrorKind::Invalid, "copy with", "a slot", message))
}
