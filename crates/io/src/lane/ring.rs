//! The slots of a lane: made when they are first needed, cut again when a job has longer portions.

use straightway_core::{Error, Kind, Result};
use straightway_sys::Slot;

use crate::{settings::RingSize, stage::Stage, tally::Tally};

/// A lane's slots.
#[derive(Debug)]
pub(crate) struct Ring {
    /// How much memory it may have.
    size: RingSize,
    /// How that is cut now.
    cut: RingSize,
    free: Vec<Slot>,
    /// How many slots there are, whoever holds them now.
    made: usize,
    /// Whether slots are made one by one, when all that there are are in use.
    grows: bool,
    /// The slot that portions are unpacked into, while a job has such.
    pub(super) spare: Option<Slot>,
}

impl Ring {
    /// A ring without slots yet.
    pub(crate) fn new(size: RingSize, grows: bool) -> Self {
        Self {
            size,
            cut: size,
            free: Vec::new(),
            made: 0,
            grows,
            spare: None,
        }
    }

    /// How many slots it has at the most.
    pub(super) fn slots_max(&self) -> usize {
        self.size.slots
    }

    /// Whether there are slots, and they are long enough.
    pub(super) fn holds(&self, slot_bytes: usize) -> bool {
        self.made > 0 && self.cut.slot_bytes >= slot_bytes
    }

    /// Whether nobody has a slot of it.
    pub(super) fn is_home(&self) -> bool {
        self.free.len() == self.made
    }

    /// Makes the slots, if there are none yet or they are shorter than `slot_bytes`; the first one, if they are made one
    /// by one. None may be in use then.
    pub(super) fn make(&mut self, stage: &dyn Stage, slot_bytes: usize) -> Result<()> {
        if !self.holds(slot_bytes) {
            self.free.clear();
            self.made = 0;
            self.cut = self.size.cut(slot_bytes);
            let slots = if self.grows { 1 } else { self.cut.slots };
            self.free = stage.ring(slots, self.cut.slot_bytes)?;
            self.made = self.free.len();
            tracing::trace!(self.made, "a ring is made");
        }
        Ok(())
    }

    /// Makes the slots, if there are none yet, or one more.
    pub(super) fn make_more(&mut self, stage: &dyn Stage) -> Result<()> {
        if self.holds(0) {
            return self.grow(stage);
        }
        self.make(stage, 0)
    }

    /// Makes one slot more, if slots are made one by one and not all are there. Where no more memory can be pinned the ring
    /// stays as it is.
    pub(super) fn grow(&mut self, stage: &dyn Stage) -> Result<()> {
        if !self.grows || self.made >= self.cut.slots {
            return Ok(());
        }
        let slot = stage.slot(self.cut.slot_bytes)?;
        self.grows = slot.is_some();
        self.made += usize::from(slot.is_some());
        self.free.extend(slot);
        tracing::trace!(self.made, "a ring has grown");
        Ok(())
    }

    /// Whether there is a slot to unpack into. One is set aside as soon as it is free.
    pub(super) fn has_spare(&mut self) -> Result<bool> {
        if self.made < 2 {
            let message = "there is too little of it for two portions";
            let target = "pinned memory";
            return Err(Error::new(Kind::Transient, "read through", target, message)
                .with_hint("let the process lock more memory (`ulimit -l`)"));
        }
        if self.spare.is_none() {
            self.spare = self.free.pop();
        }
        Ok(self.spare.is_some())
    }

    /// Whether no slot is free.
    pub(super) fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// A free slot, the one that was used last: it may still be in the processor's cache.
    pub(super) fn take(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Takes a slot back. A copy that failed may have kept its own, which then is lost.
    pub(super) fn put(&mut self, slot: Option<Slot>) {
        self.made -= usize::from(slot.is_none());
        self.free.extend(slot);
    }

    /// Takes the spare slot back.
    pub(super) fn put_spare(&mut self) {
        self.free.extend(self.spare.take());
    }

    /// How much of it is in use.
    pub(super) fn used_bytes(&self) -> u64 {
        ((self.made - self.free.len()) * self.cut.slot_bytes) as u64
    }

    /// Enters its size in the books.
    pub(super) fn book(&self, tally: &mut Tally) {
        tally.pinned_bytes = (self.made * self.cut.slot_bytes) as u64;
        // One that grows has made as many as it needed so far.
        let wanted = if self.grows {
            self.made
        } else {
            self.cut.slots
        };
        tally.note_ring(self.made, wanted);
    }
}
