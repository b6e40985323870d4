//! The protocol of a slot: how one process writes a chunk while others read it.
//!
//! The state of a slot is one word. It is even if the slot has a chunk, and then it is the generation of that chunk. It
//! is odd while the slot is written, and zero if it was never used. It only grows.
//!
//! The writer holds the lease of the segment:
//!
//! 1. [`begin`] makes the state odd. From now on no reader finds a chunk here.
//! 2. It writes the bytes to the slot, and waits for them.
//! 3. [`publish`] writes the other words of the record, and then the next even state.
//!
//! A reader needs no lock:
//!
//! 1. [`read`] copies the record. It counts if the state was even and the same before and after, and if its checksum
//!    matches.
//! 2. The reader reads the bytes of the slot, and checks them against the proof in the record.
//! 3. [`is_current`] looks at the state again. If it is another one, the bytes may be those of another chunk.
//!
//! A process that dies leaves an odd state or a complete record. The next holder of the lease uses a slot with an odd
//! state as a free one. The bytes of a dead process's last write may still reach the drive then; only the proof tells
//! such bytes from the right ones, so every load checks it.
//!
//! `protocol/tests.rs` runs this code in every order of steps, with every crash.

use crate::{
    format::RECORD_WORDS,
    record::{BODY, Position, Record, STATE},
};

/// Words that several processes share. Loads and stores of one word are atomic, and are seen by all in their order.
pub(crate) trait Words {
    /// The word at an index; `None` if it is lost.
    fn load(&self, at: usize) -> Option<u64>;

    /// Changes the word at an index; `None` if it is lost.
    fn store(&self, at: usize, value: u64) -> Option<()>;
}

/// What a slot has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    /// It was never used.
    Empty,
    /// It is being written, or the process that wrote it died.
    Busy,
    /// Its record is damaged.
    Damaged,
    /// A chunk.
    Stored(Record),
}

/// What the slot has whose record begins at `base`; `None` if its words are lost.
pub(crate) fn read(words: &impl Words, base: usize, position: Position) -> Option<Slot> {
    let state = words.load(base + STATE)?;
    if state == 0 {
        return Some(Slot::Empty);
    }
    if !state.is_multiple_of(2) {
        return Some(Slot::Busy);
    }
    let mut copy = [0; RECORD_WORDS];
    copy[STATE] = state;
    for at in BODY {
        copy[at] = words.load(base + at)?;
    }
    if words.load(base + STATE)? != state {
        return Some(Slot::Busy);
    }
    Some(Record::decode(&copy, position).map_or(Slot::Damaged, Slot::Stored))
}

/// Whether the slot still has the chunk of this generation.
pub(crate) fn is_current(words: &impl Words, base: usize, generation: u64) -> bool {
    words.load(base + STATE) == Some(generation)
}

/// Marks the slot as being written. Returns the generation of the chunk that will be published; `None` if the words are
/// lost. Only the holder of the segment's lease may call it.
pub(crate) fn begin(words: &impl Words, base: usize) -> Option<u64> {
    let state = words.load(base + STATE)?;
    // The next odd number: a crashed write left an odd one. A damaged state must not overflow.
    let busy = state.checked_add(2).map_or(1, |next| (next - 1) | 1);
    words.store(base + STATE, busy)?;
    Some(busy + 1)
}

/// Publishes a chunk whose bytes are in the slot. Its generation is the one that [`begin`] returned.
pub(crate) fn publish(words: &impl Words, base: usize, record: &Record) -> Option<()> {
    let encoded = record.encode();
    for at in BODY {
        words.store(base + at, encoded[at])?;
    }
    words.store(base + STATE, encoded[STATE])
}

#[cfg(test)]
mod tests;
