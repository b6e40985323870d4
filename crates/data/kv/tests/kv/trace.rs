//! The hit ratio on a trace, compared with a simulated LRU.
//!
//! The trace is synthetic, of the kind of the Mooncake conversation trace: users come back with a conversation that has
//! grown, and few beginnings are shared by all. `STRAIGHTWAY_KV_TRACE` names a file with the real one (a line of JSON
//! for each request, with `hash_ids`), which is then used instead.

use std::collections::VecDeque;

use straightway_core::random::Seed;
use straightway_kv::Outcome;

use crate::fixture::{create, get, namespace, put};

/// The requests: the blocks of each, in order.
fn requests() -> Vec<Vec<u64>> {
    if let Some(path) = std::env::var_os("STRAIGHTWAY_KV_TRACE") {
        let text = std::fs::read_to_string(path).unwrap();
        let ids = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["hash_ids"].clone();
        return text
            .lines()
            .map(|line| serde_json::from_value(ids(line)).unwrap())
            .collect();
    }
    let mut random = Seed(7).rng();
    let mut users: Vec<Vec<u64>> = Vec::new();
    let mut fresh = 100;
    let mut requests = Vec::new();
    for _ in 0..400 {
        let user = if users.is_empty() || random.below(3) == 0 {
            // A new conversation begins with one of four system prompts.
            users.push(vec![random.below(4)]);
            users.len() - 1
        } else {
            // Recent users come back more often.
            users.len()
                - 1
                - usize::try_from(random.below(users.len() as u64).min(random.below(users.len() as u64))).unwrap()
        };
        let more = 1 + random.below(4);
        users[user].extend(fresh..fresh + more);
        fresh += more;
        requests.push(users[user].clone());
    }
    requests
}

/// The simplest LRU: a queue from the least to the most recently used block.
struct Simulated {
    blocks: VecDeque<u64>,
    capacity: usize,
}

impl Simulated {
    fn touch(&mut self, block: u64) -> bool {
        let at = self.blocks.iter().position(|one| *one == block);
        if let Some(at) = at {
            self.blocks.remove(at);
            self.blocks.push_back(block);
        }
        at.is_some()
    }

    fn put(&mut self, block: u64) {
        if self.touch(block) {
            return;
        }
        if self.blocks.len() == self.capacity {
            self.blocks.pop_front();
        }
        self.blocks.push_back(block);
    }
}

#[test]
fn the_hits_of_one_process_are_those_of_a_simulated_lru() {
    let requests = requests();
    for capacity in [30, 120] {
        let folder = tempfile::tempdir().unwrap();
        let tier = create(folder.path(), capacity);
        let mut simulated = Simulated {
            blocks: VecDeque::new(),
            capacity: tier.geometry().slots() as usize,
        };
        let (mut hits, mut expected, mut all) = (0, 0, 0);
        for blocks in &requests {
            all += blocks.len();
            // An engine loads the blocks that it finds from the start of a prompt, and stores the rest.
            let found = blocks.iter().take_while(|block| simulated.touch(**block)).count();
            expected += found;
            let known = blocks
                .iter()
                .take_while(|block| tier.lookup(namespace("m"), &crate::fixture::key(**block)).is_ok())
                .count();
            assert_eq!(known, found, "the order of eviction differs");
            hits += known;
            // One by one, as the simulation does: a batch cannot evict its own chunks.
            for block in &blocks[known..] {
                let done = put(&tier, namespace("m"), &[*block]);
                assert!(matches!(done.outcomes[0], Outcome::Stored | Outcome::Present));
                simulated.put(*block);
            }
        }
        assert_eq!(hits, expected);
        eprintln!("{capacity} chunks: {hits} of {all} blocks are hits");
        let last = &requests[requests.len() - 1][..1];
        assert_eq!(get(&tier, namespace("m"), last).receipt.hits, 1);
    }
}
