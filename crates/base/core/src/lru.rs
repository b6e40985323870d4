//! A map that forgets the least recently used entries beyond a limit.
//!
//! Each entry has a cost: 1 to bound the number of entries, or its length to bound the bytes. All operations take
//! constant time, insertions on average. Every value that was inserted leaves in one of three ways: it is removed, it is popped, or an insertion
//! passes it to its `evicted`. So a caller can free what a value stands for, such as a range of a file.
//!
//! An entry needs its key, its value, 16 bytes, and up to 12 bytes of the index, plus a ninth for growth: about 92 bytes
//! for a key of 32 bytes and a value of 24. Entries lie in one array without holes and link to each other by their
//! positions. The index has positions only, so a key is stored once.
//!
//! ```
//! use straightway_core::lru::Lru;
//!
//! let mut rows = Lru::new(10);
//! rows.insert("a", 1, 4, |_, _| {});
//! rows.insert("b", 2, 4, |_, _| {});
//! rows.get(&"a");
//! let mut gone = Vec::new();
//! rows.insert("c", 3, 4, |key, value| gone.push((key, value)));
//! assert_eq!(gone, [("b", 2)]);
//! ```

use std::{
    fmt,
    hash::{BuildHasher, Hash, RandomState},
};

use hashbrown::HashTable;

/// No entry: the end of the list.
const NONE: u32 = u32::MAX;

/// The array grows by 1/8, so that little of it is unused.
const GROWTH_SHIFT: u32 = 3;

/// The least number of entries that the array grows by.
const GROWTH_MIN: usize = 16;

/// A bounded map in order of use. `S` hashes the keys; the default one withstands keys that were chosen to collide.
#[derive(Clone)]
pub struct Lru<K, V, S = RandomState> {
    nodes: Vec<Node<K, V>>,
    /// The positions of the nodes, by the hashes of their keys.
    index: HashTable<u32>,
    hasher: S,
    newest: u32,
    oldest: u32,
    cost: u64,
    cost_max: u64,
}

#[derive(Clone)]
struct Node<K, V> {
    key: K,
    value: V,
    cost: u64,
    newer: u32,
    older: u32,
}

impl<K: Hash + Eq, V> Lru<K, V> {
    /// An empty map whose entries may cost `cost_max` together.
    pub fn new(cost_max: u64) -> Self {
        Self::with_hasher(cost_max, RandomState::new())
    }
}

impl<K: Hash + Eq, V, S: BuildHasher> Lru<K, V, S> {
    /// The same with a hasher, for example a cheap one for keys that are hashes already.
    pub fn with_hasher(cost_max: u64, hasher: S) -> Self {
        Self {
            nodes: Vec::new(),
            index: HashTable::new(),
            hasher,
            newest: NONE,
            oldest: NONE,
            cost: 0,
            cost_max,
        }
    }

    /// The number of entries.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether it has no entry.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The cost of all entries.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The value of a key, which becomes the most recently used one.
    pub fn get(&mut self, key: &K) -> Option<&mut V> {
        let at = self.find(key)?;
        self.unlink(at);
        self.link_newest(at);
        Some(&mut self.nodes[at as usize].value)
    }

    /// The value of a key. The order stays the same.
    pub fn peek(&self, key: &K) -> Option<&V> {
        self.find(key).map(|at| &self.nodes[at as usize].value)
    }

    /// Inserts an entry as the most recently used one. `evicted` gets the former value of the key, and then the least
    /// recently used entries until the rest fits. An entry that costs more than the limit is passed to `evicted` itself,
    /// and the others stay.
    ///
    /// # Panics
    ///
    /// If there would be 2^32 entries.
    pub fn insert(&mut self, key: K, value: V, cost: u64, mut evicted: impl FnMut(K, V)) {
        if let Some((key, value)) = self.remove(&key) {
            evicted(key, value);
        }
        if cost > self.cost_max {
            return evicted(key, value);
        }
        while self.cost_max - self.cost < cost
            && let Some((key, value)) = self.pop_oldest()
        {
            evicted(key, value);
        }
        // All positions fit into 32 bits, and `NONE` is none of them.
        let at = u32::try_from(self.nodes.len()).ok().filter(|at| *at != NONE);
        let at = at.expect("entries are counted by 32 bits");
        if self.nodes.len() == self.nodes.capacity() {
            let more = (self.nodes.len() >> GROWTH_SHIFT).max(GROWTH_MIN);
            self.nodes.reserve_exact(more);
        }
        let hash = self.hasher.hash_one(&key);
        self.nodes.push(Node {
            key,
            value,
            cost,
            newer: NONE,
            older: NONE,
        });
        let (nodes, hasher) = (&self.nodes, &self.hasher);
        let hash_of = |at: &u32| hasher.hash_one(&nodes[*at as usize].key);
        self.index.insert_unique(hash, at, hash_of);
        self.link_newest(at);
        self.cost += cost;
    }

    /// Removes a key. Returns its entry.
    pub fn remove(&mut self, key: &K) -> Option<(K, V)> {
        let at = self.find(key)?;
        Some(self.take(at))
    }

    /// Removes the least recently used entry.
    pub fn pop_oldest(&mut self) -> Option<(K, V)> {
        (self.oldest != NONE).then(|| self.take(self.oldest))
    }

    /// The entries from the most to the least recently used one.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let mut at = self.newest;
        std::iter::from_fn(move || {
            let node = self.nodes.get(at as usize)?;
            at = node.older;
            Some((&node.key, &node.value))
        })
    }

    fn find(&self, key: &K) -> Option<u32> {
        let hash = self.hasher.hash_one(key);
        let found = self.index.find(hash, |at| self.nodes[*at as usize].key == *key);
        found.copied()
    }

    /// Removes the node at a position. The last node of the array takes the position.
    fn take(&mut self, at: u32) -> (K, V) {
        self.unlink(at);
        self.reindex(at, None);
        let last = u32::try_from(self.nodes.len() - 1).expect("positions fit into 32 bits");
        if last != at {
            self.reindex(last, Some(at));
        }
        let node = self.nodes.swap_remove(at as usize);
        if last != at {
            let Node { newer, older, .. } = self.nodes[at as usize];
            *self.newer_link(older) = at;
            *self.older_link(newer) = at;
        }
        self.cost -= node.cost;
        (node.key, node.value)
    }

    /// Changes the position of a node in the index, or removes it.
    fn reindex(&mut self, at: u32, to: Option<u32>) {
        let hash = self.hasher.hash_one(&self.nodes[at as usize].key);
        let entry = self.index.find_entry(hash, |found| *found == at);
        let Ok(mut entry) = entry else {
            unreachable!("every node is in the index")
        };
        match to {
            Some(to) => *entry.get_mut() = to,
            None => drop(entry.remove()),
        }
    }

    fn unlink(&mut self, at: u32) {
        let Node { newer, older, .. } = self.nodes[at as usize];
        *self.newer_link(older) = newer;
        *self.older_link(newer) = older;
    }

    fn link_newest(&mut self, at: u32) {
        let older = self.newest;
        let node = &mut self.nodes[at as usize];
        (node.newer, node.older) = (NONE, older);
        *self.newer_link(older) = at;
        self.newest = at;
    }

    /// The link from a node to the next newer one; that of `NONE` is the oldest node.
    fn newer_link(&mut self, at: u32) -> &mut u32 {
        match self.nodes.get_mut(at as usize) {
            Some(node) => &mut node.newer,
            None => &mut self.oldest,
        }
    }

    /// The link from a node to the next older one; that of `NONE` is the newest node.
    fn older_link(&mut self, at: u32) -> &mut u32 {
        match self.nodes.get_mut(at as usize) {
            Some(node) => &mut node.older,
            None => &mut self.newest,
        }
    }
}

impl<K, V, S> fmt::Debug for Lru<K, V, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cost, cost_max, .. } = self;
        write!(f, "Lru({} entries, cost {cost} of {cost_max})", self.nodes.len())
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, DefaultHasher};

    use proptest::{collection::vec, prelude::*};

    use super::*;

    /// The simplest implementation: a list from the most to the least recently used entry.
    #[derive(Debug, Default)]
    struct Model {
        entries: Vec<(u8, u32, u64)>,
        cost_max: u64,
    }

    impl Model {
        fn remove(&mut self, key: u8) -> Option<(u8, u32)> {
            let at = self.entries.iter().position(|entry| entry.0 == key)?;
            let (key, value, _) = self.entries.remove(at);
            Some((key, value))
        }

        fn get(&mut self, key: u8) -> Option<u32> {
            let at = self.entries.iter().position(|entry| entry.0 == key)?;
            let entry = self.entries.remove(at);
            self.entries.insert(0, entry);
            Some(entry.1)
        }

        fn insert(&mut self, key: u8, value: u32, cost: u64) -> Vec<(u8, u32)> {
            let mut evicted: Vec<_> = self.remove(key).into_iter().collect();
            if cost > self.cost_max {
                evicted.push((key, value));
                return evicted;
            }
            while self.cost() + cost > self.cost_max {
                let (key, value, _) = self.entries.pop().unwrap();
                evicted.push((key, value));
            }
            self.entries.insert(0, (key, value, cost));
            evicted
        }

        fn cost(&self) -> u64 {
            self.entries.iter().map(|entry| entry.2).sum()
        }
    }

    #[derive(Clone, Debug)]
    enum Act {
        Insert(u8, u64),
        Get(u8),
        Remove(u8),
        Pop,
    }

    fn act() -> impl Strategy<Value = Act> {
        let key = || 0..24_u8;
        prop_oneof![
            4 => (key(), 0..12_u64).prop_map(|(key, cost)| Act::Insert(key, cost)),
            3 => key().prop_map(Act::Get),
            1 => key().prop_map(Act::Remove),
            1 => Just(Act::Pop),
        ]
    }

    /// Runs the same acts on a map and on the model.
    fn compare<S: BuildHasher>(mut lru: Lru<u8, u32, S>, acts: &[Act]) {
        let mut model = Model {
            cost_max: lru.cost_max,
            ..Model::default()
        };
        for (value, act) in (0..).zip(acts) {
            match *act {
                Act::Insert(key, cost) => {
                    let mut evicted = Vec::new();
                    lru.insert(key, value, cost, |key, value| evicted.push((key, value)));
                    assert_eq!(evicted, model.insert(key, value, cost));
                }
                Act::Get(key) => assert_eq!(lru.get(&key).copied(), model.get(key)),
                Act::Remove(key) => assert_eq!(lru.remove(&key), model.remove(key)),
                Act::Pop => {
                    let popped = model.entries.pop().map(|(key, value, _)| (key, value));
                    assert_eq!(lru.pop_oldest(), popped);
                }
            }
            let entries = lru.iter().map(|(key, value)| (*key, *value));
            let expected = model.entries.iter().map(|(key, value, _)| (*key, *value));
            assert!(entries.eq(expected), "{act:?}");
            assert_eq!((lru.len(), lru.cost()), (model.entries.len(), model.cost()));
            assert!(model.entries.iter().all(|(key, value, _)| lru.peek(key) == Some(value)));
        }
    }

    proptest! {
        #[test]
        fn it_behaves_like_a_list_in_order_of_use(cost_max in 0..60_u64, acts in vec(act(), 0..200)) {
            compare(Lru::new(cost_max), &acts);
            // Every key has the same hash.
            compare(Lru::with_hasher(cost_max, BuildHasherDefault::<Colliding>::new()), &acts);
        }
    }

    #[derive(Default)]
    struct Colliding;

    impl std::hash::Hasher for Colliding {
        fn finish(&self) -> u64 {
            7
        }

        fn write(&mut self, _: &[u8]) {}
    }

    #[test]
    fn an_entry_with_a_key_of_32_bytes_needs_at_most_96_bytes() {
        let mut lru = Lru::<[u8; 32], [u64; 3], BuildHasherDefault<DefaultHasher>>::with_hasher(
            u64::MAX,
            BuildHasherDefault::default(),
        );
        for number in 0..60_000_u64 {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            lru.insert(key, [number; 3], 1, |_, _| unreachable!("it has no limit"));
            let nodes_bytes = lru.nodes.capacity() * size_of::<Node<[u8; 32], [u64; 3]>>();
            let bytes = nodes_bytes + lru.index.allocation_size();
            assert!(
                number < 1000 || bytes <= lru.len() * 96,
                "{bytes} bytes for {} entries",
                lru.len()
            );
        }
    }

    #[test]
    fn costs_may_be_as_large_as_a_number_can_be() {
        let mut lru = Lru::new(u64::MAX);
        lru.insert(1, (), u64::MAX, |_, ()| unreachable!("it fits"));
        let mut evicted = Vec::new();
        lru.insert(2, (), u64::MAX, |key, ()| evicted.push(key));
        assert_eq!((evicted, lru.cost()), (vec![1], u64::MAX));
    }
}
