//! A ring buffer with a power-of-two capacity: half of the time of a simulation is spent at its two ends.
//!
//! The standard deque has any capacity and tests for the wrap on every access; here a mask does it. It grows when
//! full and never shrinks.

/// A queue of small values.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring<T> {
    places: Vec<T>,
    head: u32,
    len: u32,
}

impl<T: Copy + Default> Ring<T> {
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline(always)]
    pub(super) fn len(&self) -> u32 {
        self.len
    }

    #[inline(always)]
    pub(super) fn front(&self) -> Option<T> {
        (self.len > 0).then(|| self.places[self.place(0)])
    }

    #[inline(always)]
    pub(super) fn back(&self) -> Option<T> {
        (self.len > 0).then(|| self.places[self.place(self.len - 1)])
    }

    /// The index of the value `from_front`.
    #[inline(always)]
    fn place(&self, from_front: u32) -> usize {
        (self.head.wrapping_add(from_front)) as usize & (self.places.len() - 1)
    }

    #[inline(always)]
    pub(super) fn push_back(&mut self, value: T) {
        if self.len as usize == self.places.len() {
            self.grow();
        }
        let place = self.place(self.len);
        self.places[place] = value;
        self.len += 1;
    }

    #[inline(always)]
    pub(super) fn pop_front(&mut self) -> Option<T> {
        let value = self.front()?;
        self.head = self.head.wrapping_add(1);
        self.len -= 1;
        Some(value)
    }

    /// Inserts `value` behind all values for which `before` is true, searching from the back; true if it is the new
    /// front.
    #[inline(always)]
    pub(super) fn insert(&mut self, value: T, before: impl Fn(&T) -> bool) -> bool {
        let in_order = self.back().is_none_or(|last| before(&last));
        self.push_back(value);
        if in_order {
            return self.len == 1;
        }
        self.sink(before)
    }

    /// Moves the value at the back forward to its place; true if that is the front.
    #[cold]
    fn sink(&mut self, before: impl Fn(&T) -> bool) -> bool {
        for from_front in (1..self.len).rev() {
            let (here, ahead) = (self.place(from_front), self.place(from_front - 1));
            if before(&self.places[ahead]) {
                return false;
            }
            self.places.swap(here, ahead);
        }
        true
    }

    /// From front to back.
    pub(super) fn iter(&self) -> impl Iterator<Item = T> {
        (0..self.len).map(|from_front| self.places[self.place(from_front)])
    }

    #[cold]
    fn grow(&mut self) {
        if !self.places.is_empty() {
            let first = self.place(0);
            self.places.rotate_left(first);
        }
        self.head = 0;
        let wider = (2 * self.places.len()).max(8);
        self.places.resize(wider, T::default());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_ring_is_a_sorted_queue(steps in prop::collection::vec(prop::option::of(0u32..50), 0..300)) {
            let mut ring = Ring::default();
            let mut plain = VecDeque::new();
            for step in steps {
                if let Some(value) = step {
                    let first = ring.insert(value, |other| *other <= value);
                    let place = plain.partition_point(|other| *other <= value);
                    plain.insert(place, value);
                    prop_assert_eq!(first, place == 0);
                } else {
                    prop_assert_eq!(ring.pop_front(), plain.pop_front());
                }
                prop_assert_eq!(ring.front(), plain.front().copied());
                prop_assert_eq!(ring.back(), plain.back().copied());
                prop_assert_eq!(ring.iter().collect::<VecDeque<_>>(), plain.clone());
            }
        }
    }
}
