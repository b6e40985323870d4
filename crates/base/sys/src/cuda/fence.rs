//! A fence: memory of another library may be written to after it has passed.
//!
//! A caching allocator (PyTorch's, CuPy's pool) can return memory that was just freed, while earlier work in its
//! stream still uses it. An event is therefore recorded in that stream when the memory is allocated, and copies into
//! the memory wait for it on the device. Reads from storage do not wait.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::CUstream;
use straightway_core::Result;

use super::code::Code;
use super::context::Context;
use super::event::Event;

/// An event in another library's stream.
#[derive(Debug)]
pub struct Fence {
    event: Event,
    /// Whether it is known to have passed, so that it need not be queried again.
    is_passed: AtomicBool,
}

impl Fence {
    /// Records a fence after all work now in a stream. The stream is given by its handle; 0 is the default stream.
    ///
    /// # Safety
    ///
    /// The handle is that of a live stream of the context's device, or 0.
    pub unsafe fn record(context: &Context, stream: u64) -> Result<Self> {
        let event = Event::new(context)?;
        let entered = context.enter()?;
        // SAFETY: the caller guarantees the stream, and the context is current.
        let recorded = unsafe { event.record(stream as CUstream) };
        drop(entered);
        recorded.map_err(|code| context.error(code, "record an event in a stream of"))?;
        Ok(Self {
            event,
            is_passed: AtomicBool::new(false),
        })
    }

    /// Blocks until the fence has passed.
    pub fn wait(&self) -> Result<()> {
        let waited = self.event.wait();
        waited.map_err(|code| self.event.context().error(code, "wait for a stream of"))
    }

    /// Makes later work in `stream` wait, unless the fence has already passed.
    ///
    /// # Safety
    ///
    /// The stream is live. It may be of another device.
    pub(super) unsafe fn hold(&self, stream: CUstream) -> Result<()> {
        // SAFETY: the caller guarantees it.
        let held = unsafe { self.hold_unless_passed(stream) };
        held.map_err(|code| self.event.context().error(code, "wait for a stream of"))
    }

    /// # Safety
    /// As in `hold`.
    unsafe fn hold_unless_passed(&self, stream: CUstream) -> Result<(), Code> {
        if self.is_passed.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.event.is_passed()? {
            self.is_passed.store(true, Ordering::Release);
            return Ok(());
        }
        let entered = self.event.context().enter();
        let _entered = entered.map_err(|_| Code::INVALID_VALUE)?;
        // SAFETY: the caller guarantees the stream, and the event's context is current.
        unsafe { self.event.hold(stream) }
    }
}
