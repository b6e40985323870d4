//! One slot of a pinned ring: a piece of host memory, and the event of its last copy.
//!
//! A slot is the only owner of its bytes. Whoever starts a copy gives the slot away and gets it
//! back when the copy's event has passed, so reusing a slot too early does not compile:
//!
//! ```compile_fail,E0382
//! # use std::sync::Arc;
//! # use straightway_sys::cuda::{DeviceMemory, Slot, Span, Stream};
//! fn reuse(stream: &Stream, mut slot: Slot, memory: &Arc<DeviceMemory>, spans: &[Span]) {
//!     let copying = stream.copy_to_device(slot, memory, spans);
//!     slot.bytes_mut().fill(0); // use of moved value
//! }
//! ```

use std::fmt;
use std::sync::Arc;

use straightway_core::Result;

use super::context::Context;
use super::event::Event;
use super::pinned::PinnedMemory;

/// A piece of pinned memory that can take part in one copy at a time.
pub struct Slot {
    memory: Arc<PinnedMemory>,
    offset: usize,
    len: usize,
    event: Option<Event>,
}

impl Slot {
    pub(super) fn new(memory: Arc<PinnedMemory>, offset: usize, len: usize) -> Self {
        Self {
            memory,
            offset,
            len,
            event: None,
        }
    }

    /// Makes the event that copies on `context` will need, so that the first copy need not.
    pub fn prepare(&mut self, context: &Context) -> Result<()> {
        self.event_on(context).map(|_| ())
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: within the pinned range, which is initialised; this slot is the only one for
        // these bytes, and no copy is under way while anybody can call this.
        unsafe { std::slice::from_raw_parts(self.address(), self.len) }
    }

    /// Its bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`.
        unsafe { std::slice::from_raw_parts_mut(self.address(), self.len) }
    }

    /// Where it starts, for reads that the kernel makes by itself.
    pub fn address(&self) -> *mut u8 {
        // SAFETY: `offset` lies within the pinned range.
        unsafe { self.memory.address().as_ptr().add(self.offset) }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: a slot of no bytes is refused. Here because `len` is.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The event for copies on `context`, made if the slot last served another device or none.
    pub(super) fn event_on(&mut self, context: &Context) -> Result<&Event> {
        if !self
            .event
            .as_ref()
            .is_some_and(|event| event.context().is_same(context))
        {
            self.event = Some(Event::new(context)?);
        }
        Ok(self.event.as_ref().expect("just made"))
    }

    pub(super) fn event(&self) -> Option<&Event> {
        self.event.as_ref()
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Slot({}..{} of {:?})",
            self.offset,
            self.offset + self.len,
            self.memory
        )
    }
}
