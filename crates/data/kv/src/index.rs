//! The index of a process: where the chunk of a key may be.
//!
//! The truth is in the journals. The index has only numbers of slots, found by a hash of the key, so that a chunk needs
//! little memory: 4 bytes and a control byte in a table that is at least half full, and 8 bytes for the hash. An entry
//! may be out of date, because other processes evict too; whoever uses it reads the record.
//!
//! A second, smaller table remembers the hashes of keys that were evicted, for the reason of a miss. It forgets: a key
//! whose place another one took counts as never stored.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

use crate::key::Key;

/// No hash.
const NONE: u64 = 0;

/// The most hashes of evicted keys that are remembered: 8 MiB of memory.
const EVICTED_MAX: usize = 1 << 20;

/// An index.
#[derive(Debug)]
pub(crate) struct Index {
    table: HashTable<u32>,
    /// The hash of the key in each slot; `NONE` if the index has no entry for it.
    prints: Vec<u64>,
    evicted: Vec<u64>,
    /// Seeded for each process, so that nobody can choose keys that collide.
    hasher: RandomState,
}

impl Index {
    /// An empty index for that many slots.
    pub(crate) fn new(slots: u32) -> Self {
        let remembered = (slots as usize).next_power_of_two().min(EVICTED_MAX);
        Self {
            table: HashTable::new(),
            prints: vec![NONE; slots as usize],
            evicted: vec![NONE; remembered],
            hasher: RandomState::new(),
        }
    }

    /// The hash of a key.
    pub(crate) fn print(&self, key: &Key) -> u64 {
        self.hasher.hash_one(key).max(1)
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The slots that may have a key with this hash.
    pub(crate) fn candidates(&self, print: u64) -> impl Iterator<Item = u32> {
        let slots = self.table.iter_hash(print).copied();
        slots.filter(move |slot| self.prints[*slot as usize] == print)
    }

    /// Enters a key. The slot's former one was evicted.
    pub(crate) fn insert(&mut self, slot: u32, print: u64) {
        if self.prints[slot as usize] == print {
            return;
        }
        if let Some(former) = self.remove(slot) {
            self.note_evicted(former);
        }
        self.prints[slot as usize] = print;
        let prints = &self.prints;
        self.table.insert_unique(print, slot, |slot| prints[*slot as usize]);
    }

    /// Removes the entry of a slot. Returns the hash of its key, if it had one.
    pub(crate) fn remove(&mut self, slot: u32) -> Option<u64> {
        let print = std::mem::replace(&mut self.prints[slot as usize], NONE);
        if print == NONE {
            return None;
        }
        if let Ok(entry) = self.table.find_entry(print, |found| *found == slot) {
            entry.remove();
        }
        Some(print)
    }

    /// Remembers that the key with this hash was evicted.
    pub(crate) fn note_evicted(&mut self, print: u64) {
        let place = self.place(print);
        self.evicted[place] = print;
    }

    /// Whether the key with this hash was evicted, as far as that is remembered.
    pub(crate) fn was_evicted(&self, print: u64) -> bool {
        self.evicted[self.place(print)] == print
    }

    /// The memory of the index.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.table.allocation_size() + 8 * (self.prints.len() + self.evicted.len())
    }

    fn place(&self, print: u64) -> usize {
        // The length is a power of two.
        usize::try_from(print & (self.evicted.len() as u64 - 1)).expect("it is an index")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_found_replaced_and_removed() {
        let mut index = Index::new(1000);
        let keys: Vec<_> = (0..1000_u32).map(|number| Key::of(&number.to_le_bytes())).collect();
        for (slot, key) in (0..).zip(&keys) {
            index.insert(slot, index.print(key));
        }
        let found = |index: &Index, key: &Key| index.candidates(index.print(key)).collect::<Vec<_>>();
        for (slot, key) in (0..).zip(&keys) {
            assert_eq!(found(&index, key), [slot]);
        }
        index.insert(7, index.print(&keys[8]));
        assert_eq!(found(&index, &keys[7]), []);
        assert_eq!(found(&index, &keys[8]).len(), 2);
        assert_eq!(index.remove(7), Some(index.print(&keys[8])));
        assert_eq!((index.remove(7), index.len()), (None, 999));
        assert!(index.was_evicted(index.print(&keys[7])));
        assert!(!index.was_evicted(index.print(&keys[9])));
    }
}
