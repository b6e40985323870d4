//! A bitmap timing wheel: the event queue of a simulator.
//!
//! A binary heap costs the logarithm of the number of pending events for each event, and no longer fits the cache
//! with a million of them. Nearly all events of a network are due within microseconds, so they go into 4,096 short
//! slots (the *near* ring). Later events go into 4,096 slots, each as long as the near ring (the *far* ring), and the
//! few remaining ones into a heap. A bitmap finds the next occupied slot. Only the slot being emptied is sorted, as
//! 8-byte keys.
//!
//! The order is exactly that of a heap keyed by (time, order of insertion): two events of the same time leave in the
//! order of insertion, which makes a simulation reproducible.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

/// The number of slots of a ring: 64 words of 64 bits, which one word can summarise.
const RING_SLOTS: u64 = 4096;
const RING_BITS: u32 = RING_SLOTS.ilog2();
const RING_MASK: u64 = RING_SLOTS - 1;

/// The maximum slot length, in bits of time: an offset in a slot must fit half a sort key.
pub const SLOT_SHIFT_MAX: u32 = 32;

/// The end of a list.
const NIL: u32 = u32::MAX;

/// Events in the order of their time, and of their insertion for equal times.
#[derive(Debug)]
pub struct Wheel<T> {
    /// A slot is `1 << slot_shift` units of time long.
    slot_shift: u32,
    /// The time of the last event taken: no event may be pushed before it.
    now: u64,
    /// The slot being emptied, counted from time zero.
    slot: u64,
    len: usize,
    near: Ring,
    far: Ring,
    beyond: BinaryHeap<Reverse<Distant<T>>>,
    beyond_pushed: u64,
    nodes: Vec<Node<T>>,
    free: u32,
    /// Keys of the slot being emptied, latest first: offset in the slot, then index in `drained`.
    due: Vec<u64>,
    /// Keys pushed into the slot while it is being emptied.
    late: BinaryHeap<Reverse<u64>>,
    drained: Vec<T>,
    scratch: Vec<u32>,
}

/// A pending event, linked to the one pushed before it into the same slot.
#[derive(Clone, Copy, Debug)]
struct Node<T> {
    at: u64,
    item: T,
    next: u32,
}

/// Heads of the slots' lists, and a bitmap of the occupied slots.
#[derive(Debug)]
struct Ring {
    heads: Vec<u32>,
    words: [u64; 64],
    summary: u64,
}

/// An event beyond the far ring.
#[derive(Debug)]
struct Distant<T> {
    at: u64,
    pushed: u64,
    item: T,
}

impl<T: Copy> Wheel<T> {
    /// An empty wheel at time zero whose slots are `1 << slot_shift` units long. Some tens of events per slot are
    /// best; the order does not depend on it.
    pub fn new(slot_shift: u32) -> Self {
        assert!(slot_shift <= SLOT_SHIFT_MAX, "the slot is too long to sort");
        Self {
            slot_shift,
            now: 0,
            slot: 0,
            len: 0,
            near: Ring::new(),
            far: Ring::new(),
            beyond: BinaryHeap::new(),
            beyond_pushed: 0,
            nodes: Vec::new(),
            free: NIL,
            due: Vec::new(),
            late: BinaryHeap::new(),
            drained: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// The number of pending events.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no event is pending.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an event at a time that is not before the last one taken.
    #[inline]
    pub fn push(&mut self, at: u64, item: T) {
        assert!(at >= self.now, "an event cannot be due in the past");
        self.len += 1;
        let slot = at >> self.slot_shift;
        if slot == self.slot {
            let key = self.key(at, self.drained.len());
            self.drained.push(item);
            self.late.push(Reverse(key));
            return;
        }
        let ahead = (slot >> RING_BITS) - (self.slot >> RING_BITS);
        if ahead == 0 {
            let head = self.near.set(slot & RING_MASK);
            self.link(head, at, item, |wheel, node| {
                wheel.near.heads[index(slot & RING_MASK)] = node;
            });
        } else if ahead < RING_SLOTS {
            let window = (slot >> RING_BITS) & RING_MASK;
            let head = self.far.set(window);
            self.link(head, at, item, |wheel, node| {
                wheel.far.heads[index(window)] = node;
            });
        } else {
            let pushed = self.beyond_pushed;
            self.beyond_pushed += 1;
            self.beyond.push(Reverse(Distant { at, pushed, item }));
        }
    }

    /// Takes the next event and its time.
    #[inline]
    pub fn pop(&mut self) -> Option<(u64, T)> {
        if self.due.is_empty() && self.late.is_empty() && !self.advance() {
            return None;
        }
        let key = match (self.due.last(), self.late.peek()) {
            (Some(&due), Some(&Reverse(late))) if late < due => self.take_late(),
            (Some(&due), _) => {
                self.due.pop();
                due
            }
            (None, _) => self.take_late(),
        };
        self.len -= 1;
        self.now = (self.slot << self.slot_shift) + (key >> 32);
        Some((self.now, self.drained[index(key & 0xffff_ffff)]))
    }

    fn take_late(&mut self) -> u64 {
        self.late.pop().expect("one of the two queues holds it").0
    }

    /// The sort key of an event in the slot being emptied.
    #[inline]
    fn key(&self, at: u64, place: usize) -> u64 {
        let offset = at - (self.slot << self.slot_shift);
        assert!(place < u32::MAX as usize, "a slot holds too many events");
        (offset << 32) | place as u64
    }

    /// Stores an event before `head` and hands the new head to `set`.
    #[inline]
    fn link(&mut self, head: u32, at: u64, item: T, set: impl FnOnce(&mut Self, u32)) {
        let node = Node { at, item, next: head };
        let place = if self.free == NIL {
            self.nodes.push(node);
            u32::try_from(self.nodes.len() - 1).expect("fewer than 2^32 events are pending")
        } else {
            let place = self.free;
            self.free = self.nodes[place as usize].next;
            self.nodes[place as usize] = node;
            place
        };
        set(self, place);
    }

    /// Moves to the next occupied slot; false if there is none.
    fn advance(&mut self) -> bool {
        self.drained.clear();
        let next = (self.slot & RING_MASK) + 1;
        let found = self.near.first_from(next).or_else(|| {
            self.next_window()
                .then(|| self.near.first_from(0).expect("a window was unfolded"))
        });
        let Some(slot) = found else { return false };
        self.slot = (self.slot & !RING_MASK) | slot;
        self.sort_slot(slot);
        true
    }

    /// Gathers the events of a near slot and sorts their keys.
    fn sort_slot(&mut self, slot: u64) {
        let mut place = self.near.clear(slot);
        let last = place;
        let mut tail = place;
        let start = self.slot << self.slot_shift;
        while place != NIL {
            let node = &self.nodes[place as usize];
            self.due.push((node.at - start) << 32);
            self.drained.push(node.item);
            tail = place;
            place = node.next;
        }
        self.nodes[tail as usize].next = self.free;
        self.free = last;
        // The list ran from the newest to the oldest.
        self.drained.reverse();
        let count = self.due.len() as u64;
        for (i, key) in self.due.iter_mut().enumerate() {
            *key |= count - 1 - i as u64;
        }
        self.due.sort_unstable_by(|a, b| b.cmp(a));
    }

    /// Expands the next occupied window into the near ring; false if there is none.
    fn next_window(&mut self) -> bool {
        let here = self.slot >> RING_BITS;
        let far = self
            .far
            .first_around(here & RING_MASK)
            .map(|window| here + (window.wrapping_sub(here) & RING_MASK));
        let beyond = self
            .beyond
            .peek()
            .map(|Reverse(distant)| distant.at >> self.slot_shift >> RING_BITS);
        let Some(window) = [far, beyond].into_iter().flatten().min() else {
            return false;
        };
        self.slot = window << RING_BITS;
        self.fetch_distant(window);
        self.unfold(window);
        true
    }

    /// Moves events that are now within reach into the far ring, before newer ones can be pushed there, so that equal
    /// times keep their order.
    fn fetch_distant(&mut self, window: u64) {
        while let Some(Reverse(distant)) = self.beyond.peek() {
            let theirs = distant.at >> self.slot_shift >> RING_BITS;
            if theirs - window >= RING_SLOTS {
                return;
            }
            let Some(Reverse(distant)) = self.beyond.pop() else {
                return;
            };
            let head = self.far.set(theirs & RING_MASK);
            self.link(head, distant.at, distant.item, |wheel, node| {
                wheel.far.heads[index(theirs & RING_MASK)] = node;
            });
        }
    }

    /// Distributes a window of the far ring over the near ring, oldest first.
    fn unfold(&mut self, window: u64) {
        let mut place = self.far.clear(window & RING_MASK);
        let mut scratch = std::mem::take(&mut self.scratch);
        while place != NIL {
            scratch.push(place);
            place = self.nodes[place as usize].next;
        }
        for place in scratch.drain(..).rev() {
            let slot = (self.nodes[place as usize].at >> self.slot_shift) & RING_MASK;
            self.nodes[place as usize].next = self.near.set(slot);
            self.near.heads[index(slot)] = place;
        }
        self.scratch = scratch;
    }
}

impl Ring {
    fn new() -> Self {
        Self {
            heads: vec![NIL; index(RING_SLOTS)],
            words: [0; 64],
            summary: 0,
        }
    }

    /// Marks a slot as occupied and returns its previous head.
    #[inline]
    fn set(&mut self, slot: u64) -> u32 {
        self.words[index(slot >> 6)] |= 1 << (slot & 63);
        self.summary |= 1 << (slot >> 6);
        self.heads[index(slot)]
    }

    /// Empties a slot and returns its head.
    fn clear(&mut self, slot: u64) -> u32 {
        let word = index(slot >> 6);
        self.words[word] &= !(1 << (slot & 63));
        if self.words[word] == 0 {
            self.summary &= !(1 << word);
        }
        std::mem::replace(&mut self.heads[index(slot)], NIL)
    }

    /// The first occupied slot at or after `slot`, without wrapping.
    fn first_from(&self, slot: u64) -> Option<u64> {
        if slot >= RING_SLOTS {
            return None;
        }
        let word = slot >> 6;
        let rest = self.words[index(word)] & (u64::MAX << (slot & 63));
        if rest != 0 {
            return Some((word << 6) + u64::from(rest.trailing_zeros()));
        }
        // Two shifts, since a shift by 64 overflows.
        let words = self.summary & (u64::MAX << word << 1);
        (words != 0).then(|| {
            let word = u64::from(words.trailing_zeros());
            (word << 6) + u64::from(self.words[index(word)].trailing_zeros())
        })
    }

    /// The first occupied slot after `slot`, wrapping around.
    fn first_around(&self, slot: u64) -> Option<u64> {
        self.first_from(slot + 1).or_else(|| self.first_from(0))
    }
}

impl<T> PartialEq for Distant<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Distant<T> {}

impl<T> PartialOrd for Distant<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Distant<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.pushed).cmp(&(other.at, other.pushed))
    }
}

/// A table index from a number that is known to be below the table's length.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "slots and places are below 2^32")]
const fn index(number: u64) -> usize {
    number as usize
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A step of a test: push an event that far ahead of now, or pop one.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Push(u64),
        Pop,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            3 => (0u64..2000).prop_map(Step::Push),
            1 => (0u64..5).prop_map(Step::Push),
            1 => (0u64..50_000_000).prop_map(Step::Push),
            1 => (0u64..1 << 45).prop_map(Step::Push),
            4 => Just(Step::Pop),
        ]
    }

    fn assert_same_as_heap(shift: u32, steps: &[Step]) {
        let mut wheel = Wheel::new(shift);
        let mut heap = BinaryHeap::new();
        let mut now = 0;
        let drain = steps.iter().copied().chain(vec![Step::Pop; steps.len()]);
        for (pushed, step) in drain.enumerate() {
            match step {
                Step::Push(ahead) => {
                    wheel.push(now + ahead, pushed);
                    heap.push(Reverse((now + ahead, pushed)));
                }
                Step::Pop => {
                    let got = wheel.pop();
                    assert_eq!(got, heap.pop().map(|Reverse(event)| event));
                    now = got.map_or(now, |(at, _)| at);
                }
            }
            assert_eq!(wheel.len(), heap.len());
        }
        assert!(wheel.is_empty());
    }

    proptest! {
        #[test]
        fn events_leave_in_the_order_of_a_heap(
            shift in 0u32..20,
            steps in prop::collection::vec(step(), 1..400),
        ) {
            assert_same_as_heap(shift, &steps);
        }
    }

    #[test]
    fn a_million_events_at_one_instant_keep_their_order() {
        let mut wheel = Wheel::new(10);
        for i in 0..1_000_000u32 {
            wheel.push(0, i);
        }
        for i in 0..1_000_000u32 {
            assert_eq!(wheel.pop(), Some((0, i)));
        }
    }

    #[test]
    #[should_panic(expected = "in the past")]
    fn an_event_in_the_past_panics() {
        let mut wheel = Wheel::new(4);
        wheel.push(100, ());
        wheel.pop();
        wheel.push(99, ());
    }
}
