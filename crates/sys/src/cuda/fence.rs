//! The moment from which memory of another library may be written to.
//!
//! A library that keeps freed memory for later (PyTorch's caching allocator, CuPy's pool) hands it out again at once, while
//! work that its stream was given before may still use it. So a mark is put into that stream when the memory is handed
//! out, and copies into the memory wait for it on the device. Reads from storage do not wait.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::sys::CUstream;
use straightway_core::Result;

use super::code::Code;
use super::context::Context;
use super::event::Event;
use super::stream::Stream;

/// A mark in another library's stream.
#[derive(Debug)]
pub struct Fence {
    event: Event,
    /// Whether it was found to be passed: it need not be asked about again.
    is_passed: AtomicBool,
}

impl Fence {
    /// Puts a mark behind all the work that is now in a stream, which is named by its handle; 0 is the default stream.
    ///
    /// # Safety
    ///
    /// The handle is that of a live stream of the context's device, or 0.
    pub unsafe fn record(context: &Context, stream: u64) -> Result<Self> {
        let event = Event::new(context)?;
        let entered = context.enter()?;
        // SAFETY: the caller vouches for the stream, and the context is current.
        let recorded = unsafe { event.record(stream as CUstream) };
        drop(entered);
        recorded.map_err(|code| context.error(code, "put a mark into a stream of"))?;
        Ok(Self {
            event,
            is_passed: AtomicBool::new(false),
        })
    }

    /// Puts a mark behind all the work that is now in a stream of ours.
    pub fn behind(stream: &Stream) -> Result<Self> {
        // SAFETY: the stream is live, and of that context.
        unsafe { Self::record(stream.context(), stream.raw() as u64) }
    }

    /// Sleeps until the mark is passed.
    pub fn wait(&self) -> Result<()> {
        let waited = self.event.wait();
        waited.map_err(|code| self.event.context().error(code, "wait for a stream of"))
    }

    /// Makes what is put into `stream` from here on wait, if the mark is not passed yet.
    pub(super) fn hold(&self, stream: &Stream) -> Result<()> {
        let held = self.hold_unless_passed(stream);
        held.map_err(|code| stream.context().error(code, "wait for a stream of"))
    }

    fn hold_unless_passed(&self, stream: &Stream) -> Result<(), Code> {
        if self.is_passed.load(Ordering::Acquire) {
            return Ok(());
        }
        if self.event.is_passed()? {
            self.is_passed.store(true, Ordering::Release);
            return Ok(());
        }
        let entered = self.event.context().enter();
        let _entered = entered.map_err(|_| Code::INVALID_VALUE)?;
        // SAFETY: the stream is live, of the event's device, and a context of that is current.
        unsafe { self.event.hold(stream.raw()) }
    }
}
