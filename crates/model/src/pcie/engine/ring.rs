//! A queue in a power of two of places: half of a simulation is spent at its two ends.
//!
//! The standard deque keeps any capacity and tests for the wrap on every access; here a mask does
//! it. It grows when full and never shrinks.

/// A queue of small values.
#[derive(Clone, Debug, Default)]
pub(super) struct Ring<T> {
    places: Vec<T>,
    head: usize,
    len: usize,
}

impl<T: Copy + Default> Ring<T> {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    pub(super) fn front(&self) -> Option<T> {
        (self.len > 0).then(|| self.at(0))
    }

    #[inline]
    pub(super) fn back(&self) -> Option<T> {
        (self.len > 0).then(|| self.at(self.len - 1))
    }

    /// The value at `place`, counted from the front.
    #[inline]
    fn at(&self, place: usize) -> T {
        let mask = self.places.len() - 1;
        self.places[(self.head + place) & mask]
    }

    #[inline]
    pub(super) fn push_back(&mut self, value: T) {
        if self.len == self.places.len() {
            self.grow();
        }
        let mask = self.places.len() - 1;
        self.places[(self.head + self.len) & mask] = value;
        self.len += 1;
    }

    #[inline]
    pub(super) fn pop_front(&mut self) -> Option<T> {
        let value = self.front()?;
        self.head = (self.head + 1) & (self.places.len() - 1);
        self.len -= 1;
        Some(value)
    }

    /// Puts `value` behind all that `before` says stand before it, looking from the back; true
    /// when it is the new front.
    #[inline]
    pub(super) fn insert(&mut self, value: T, before: impl Fn(&T) -> bool) -> bool {
        self.push_back(value);
        let mask = self.places.len() - 1;
        let mut place = self.len - 1;
        while place > 0 {
            let (here, ahead) = ((self.head + place) & mask, (self.head + place - 1) & mask);
            if before(&self.places[ahead]) {
                return false;
            }
            self.places.swap(here, ahead);
            place -= 1;
        }
        true
    }

    /// From front to back.
    pub(super) fn iter(&self) -> impl Iterator<Item = T> {
        (0..self.len).map(|place| self.at(place))
    }

    #[cold]
    fn grow(&mut self) {
        self.places.rotate_left(self.head);
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
                match step {
                    Some(value) => {
                        let first = ring.insert(value, |other| *other <= value);
                        let place = plain.partition_point(|other| *other <= value);
                        plain.insert(place, value);
                        prop_assert_eq!(first, place == 0);
                    }
                    None => prop_assert_eq!(ring.pop_front(), plain.pop_front()),
                }
                prop_assert_eq!(ring.front(), plain.front().copied());
                prop_assert_eq!(ring.back(), plain.back().copied());
                prop_assert_eq!(ring.iter().collect::<VecDeque<_>>(), plain.clone());
            }
        }
    }
}
