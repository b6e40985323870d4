//! The slots of a lane: made when first needed, cut again when a job has longer portions.

use straightway_core::{Error, ErrorKind, Result};
use straightway_sys::Slot;

use super::Lane;
use crate::{
    board::{Board, FirstSlot, RingWork},
    settings::RingSize,
    stage::Stage,
    tally::Tally,
    tenant::now_s,
};

/// How soon a lane without a slot tries again to get one.
const SLOT_RETRY_S: f64 = 0.001;

/// A lane's slots.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The configured size.
    size: RingSize,
    /// The current cut of that memory.
    cut: RingSize,
    free: Vec<Slot>,
    /// The number of slots, free or in use, and their bytes. A slot may be longer than the cut.
    made: usize,
    made_bytes: usize,
    /// Whether slots are made one by one, when all are in use, and given back when the lane has no job.
    is_by_slot: bool,
    /// Whether no more memory could be pinned.
    is_full: bool,
    /// The slot that portions are unpacked into, while a job has packed ones.
    pub(super) spare: Option<Slot>,
}

impl Ring {
    /// A ring without slots yet.
    pub(crate) fn new(size: RingSize, is_by_slot: bool) -> Self {
        Self {
            size,
            cut: size,
            free: Vec::new(),
            made: 0,
            made_bytes: 0,
            is_by_slot,
            is_full: false,
            spare: None,
        }
    }

    /// The most slots that it can have.
    pub(super) fn slots_max(&self) -> usize {
        self.size.slots
    }

    /// Whether there are slots of at least `slot_bytes`.
    pub(super) fn holds(&self, slot_bytes: usize) -> bool {
        self.made > 0 && self.cut.slot_bytes >= slot_bytes
    }

    /// Whether no I/O and no copy has a slot. The spare one does not count.
    pub(super) fn is_idle(&self) -> bool {
        self.free.len() + usize::from(self.spare.is_some()) == self.made
    }

    /// Makes the slots, if there are none yet or they are shorter than `slot_bytes`. If slots are made one by one,
    /// makes the first. The ring must be idle when they are replaced.
    pub(super) fn make(&mut self, stage: &dyn Stage, slot_bytes: usize) -> Result<()> {
        if !self.holds(slot_bytes) {
            self.put_spare();
            self.give_back(stage);
            self.free.clear();
            (self.made, self.made_bytes) = (0, 0);
            self.cut = self.size.cut(slot_bytes);
            let slots = if self.is_by_slot { 1 } else { self.cut.slots };
            self.add(stage.ring(slots, self.cut.slot_bytes)?);
            tracing::trace!(self.made, "a ring is made");
        }
        Ok(())
    }

    /// Whether slots are made one by one, and it has none.
    fn lacks_first(&self) -> bool {
        self.is_by_slot && self.made == 0
    }

    /// Takes a slot that another lane has given back. Returns whether there was one.
    fn adopt(&mut self, stage: &dyn Stage) -> bool {
        self.cut = self.size;
        let slot = stage.idle_slot(self.cut.slot_bytes);
        let is_there = slot.is_some();
        self.add(slot);
        is_there
    }

    /// Makes the slots if there are none yet, else one more.
    pub(super) fn make_more(&mut self, stage: &dyn Stage) -> Result<()> {
        if self.holds(0) {
            return self.grow(stage);
        }
        self.make(stage, 0)
    }

    /// Makes one more slot, if slots are made one by one and the limit is not reached. If no more memory can be pinned,
    /// the ring stops growing.
    pub(super) fn grow(&mut self, stage: &dyn Stage) -> Result<()> {
        if !self.is_by_slot || self.is_full || self.made >= self.cut.slots {
            return Ok(());
        }
        let slot = stage.slot(self.cut.slot_bytes)?;
        self.is_full = slot.is_none();
        self.add(slot);
        tracing::trace!(self.made, "a ring has grown");
        Ok(())
    }

    /// Gives the free slots back, for other lanes, if slots are made one by one. A ring without slots makes them anew.
    pub(super) fn give_back(&mut self, stage: &dyn Stage) {
        if self.is_by_slot {
            let slots = std::mem::take(&mut self.free);
            self.made -= slots.len();
            self.made_bytes -= slots.iter().map(Slot::bytes).sum::<usize>();
            self.add(stage.keep(slots));
            self.is_full = false;
        }
    }

    /// Adds new slots.
    fn add(&mut self, slots: impl IntoIterator<Item = Slot>) {
        for slot in slots {
            self.made += 1;
            self.made_bytes += slot.bytes();
            self.free.push(slot);
        }
    }

    /// Whether there is a slot to unpack into. Sets one aside as soon as one is free.
    pub(super) fn has_spare(&mut self, stage: &dyn Stage) -> Result<bool> {
        if self.made < 2 && self.is_by_slot {
            self.add(stage.ring(1, self.cut.slot_bytes)?);
        }
        if self.made < 2 {
            let message = "it has room for fewer than two portions";
            return Err(Error::new(ErrorKind::Transient, "read through", "the ring", message)
                .with_hint("let the process lock more memory (`ulimit -l`), or raise the limit of its control group"));
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

    /// Takes the free slot that was used last: it may still be in the CPU cache.
    pub(super) fn take(&mut self) -> Option<Slot> {
        self.free.pop()
    }

    /// Returns a slot to the ring. A failed copy may have kept its slot, which is then lost.
    pub(super) fn put(&mut self, slot: Option<Slot>) {
        if slot.is_none() {
            self.made -= 1;
            self.made_bytes = self.made_bytes.saturating_sub(self.cut.slot_bytes);
        }
        self.free.extend(slot);
    }

    /// Returns the spare slot to the ring.
    pub(super) fn put_spare(&mut self) {
        self.free.extend(self.spare.take());
    }

    /// The bytes of all slots in use.
    pub(super) fn used_bytes(&self) -> u64 {
        ((self.made - self.free.len()) * self.cut.slot_bytes) as u64
    }

    /// Records its size in the tally.
    pub(super) fn book(&self, tally: &mut Tally) {
        tally.pinned_bytes = self.made_bytes as u64;
        // A ring that can grow has made as many slots as it needed so far.
        let wanted = if self.is_by_slot && !self.is_full {
            self.made
        } else {
            self.cut.slots
        };
        tally.note_ring(self.made, wanted);
    }
}

impl Lane {
    /// Works on the ring of a lane without jobs.
    pub(crate) fn work_on_ring(&mut self, work: RingWork, board: &Board) -> Result<()> {
        let done = match work {
            RingWork::Make => self.ring.make_more(self.stage.as_ref()),
            RingWork::GiveBack => {
                self.ring.give_back(self.stage.as_ref());
                Ok(())
            }
        };
        self.note_slots(board);
        done
    }

    /// Tells the other lanes whether it has slots, if slots are made one by one.
    pub(super) fn note_slots(&self, board: &Board) {
        if self.ring.is_by_slot {
            board.note_slots(self.number, !self.ring.lacks_first());
        }
    }

    /// Gets a first slot before it takes a chunk, if slots are made one by one. Pinned memory may not suffice for a
    /// slot for each lane; the lanes that have one then take all chunks. Without a slot, returns when to try again, or
    /// `None` if there is nothing to do.
    pub(super) fn equip(&mut self, board: &Board) -> Result<(), Option<f64>> {
        if !self.ring.lacks_first() {
            return Ok(());
        }
        let is_there = match board.claim_slot(self.number) {
            FirstSlot::NotNeeded => return Err(None),
            FirstSlot::Await => self.ring.adopt(self.stage.as_ref()),
            FirstSlot::Make => match self.ring.make(self.stage.as_ref(), 0) {
                Ok(()) => true,
                Err(error) => {
                    if self.stage.is_short() {
                        board.do_without(self.number, &error);
                    } else {
                        board.fail(self.number, &error);
                    }
                    false
                }
            },
        };
        if is_there {
            self.note_slots(board);
            return Ok(());
        }
        Err(Some(now_s() + SLOT_RETRY_S))
    }

    /// Does the requested work on the ring while jobs run.
    pub(super) fn answer_for_ring(&mut self, board: &Board) {
        if let Some((work, answer)) = board.ring_of(self.number) {
            let done = match work {
                RingWork::Make => self.work_on_ring(work, board),
                // It does so when its jobs are over.
                RingWork::GiveBack => Ok(()),
            };
            // The receiver may be gone.
            let _ = answer.send(done);
        }
    }
}
