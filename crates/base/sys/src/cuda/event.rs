//! A CUDA event: it has passed when all work before it in its stream is done.

use std::{
    thread,
    time::{Duration, Instant},
};

use cudarc::driver::sys::{CUevent, CUstream};
use straightway_core::Result;

use super::code::Code;
use super::context::Context;

/// `CU_EVENT_DISABLE_TIMING`: the device writes no timestamps, which are not used. `CU_EVENT_BLOCKING_SYNC` is not set:
/// with it the device raises an interrupt after every copy, and a load of 16 GB on an H200 takes 310 ms instead of 303.
const FLAGS: u32 = 2;

/// The bounds of the sleep between two queries of an event.
const SLEEP_MIN: Duration = Duration::from_micros(20);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// A CUDA event. It is created once and recorded many times.
#[derive(Debug)]
pub(crate) struct Event {
    context: Context,
    raw: CUevent,
}

// SAFETY: the driver's events may be used from any thread.
unsafe impl Send for Event {}
// SAFETY: as above, and from several threads at once.
unsafe impl Sync for Event {}

impl Event {
    pub(crate) fn new(context: &Context) -> Result<Self> {
        let _entered = context.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a valid place for the answer, and a context is current.
        let code = unsafe { (context.api().event_create)(&raw mut raw, FLAGS) };
        context.check(code, "make an event on")?;
        Ok(Self {
            context: context.clone(),
            raw,
        })
    }

    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Records the event after all work now in `stream`.
    ///
    /// # Safety
    /// `stream` is a live stream of this event's context, which is current.
    pub(crate) unsafe fn record(&self, stream: CUstream) -> Result<(), Code> {
        // SAFETY: the event is live, and the caller guarantees the stream.
        unsafe { (self.context.api().event_record)(self.raw, stream) }.ok()
    }

    /// Makes later work in `stream` wait until the event has passed. The driver lets a stream of another device wait too.
    ///
    /// # Safety
    /// `stream` is a live stream, and this event's context is current.
    pub(crate) unsafe fn hold(&self, stream: CUstream) -> Result<(), Code> {
        // SAFETY: the event is live, and the caller guarantees the stream.
        unsafe { (self.context.api().stream_wait_event)(stream, self.raw, 0) }.ok()
    }

    /// Whether the event has passed.
    pub(crate) fn is_passed(&self) -> Result<bool, Code> {
        // SAFETY: the event is live; the call needs no current context.
        match unsafe { (self.context.api().event_query)(self.raw) } {
            Code::SUCCESS => Ok(true),
            Code::NOT_READY => Ok(false),
            code => Err(code),
        }
    }

    /// Blocks until the event has passed.
    ///
    /// It sleeps between queries, because `cuEventSynchronize` would occupy a core. A sleep lasts an eighth of the time
    /// waited so far, so little time is lost.
    pub(crate) fn wait(&self) -> Result<(), Code> {
        let start = Instant::now();
        while !self.is_passed()? {
            thread::sleep((start.elapsed() / 8).clamp(SLEEP_MIN, SLEEP_MAX));
        }
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if !self.context.is_alive() {
            return;
        }
        // SAFETY: made in `new`, destroyed once here; the driver lets pending records finish.
        let code = unsafe { (self.context.api().event_destroy)(self.raw) };
        if let Err(code) = code.ok() {
            tracing::warn!(?code, "an event was not destroyed");
        }
    }
}
