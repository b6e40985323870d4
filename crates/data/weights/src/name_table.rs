//! Finds tensors by name: a hash table of tensor numbers. The names themselves are in the tensors.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable, hash_table::Entry};

use super::Tensor;

/// A hash table from tensor names to tensor numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct NameTable {
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl NameTable {
    /// An empty table with room for `tensors` entries.
    pub(crate) fn with_capacity(tensors: usize) -> Self {
        Self {
            numbers: HashTable::with_capacity(tensors),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// Adds one of `tensors`. The error is the number of the tensor that already has its name.
    pub(crate) fn enter(&mut self, tensors: &[Tensor], number: usize) -> Result<(), usize> {
        let hash_of = |number: &u32| self.hasher.hash_one(&*tensors[*number as usize].name);
        let name = &*tensors[number].name;
        let is_same = |other: &u32| *tensors[*other as usize].name == *name;
        let number = u32::try_from(number).expect("there are few enough");
        match self.numbers.entry(hash_of(&number), is_same, hash_of) {
            Entry::Occupied(there) => Err(*there.get() as usize),
            Entry::Vacant(place) => {
                place.insert(number);
                Ok(())
            }
        }
    }

    /// The number of the tensor with this name.
    pub(crate) fn find(&self, tensors: &[Tensor], name: &str) -> Option<usize> {
        let is_it = |number: &u32| *tensors[*number as usize].name == *name;
        let number = self.numbers.find(self.hasher.hash_one(name), is_it)?;
        Some(*number as usize)
    }
}
