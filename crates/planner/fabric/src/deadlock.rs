//! Deadlock: links that wait for each other in a cycle, permanently.
//!
//! *Is it possible?* Only if the flows' paths contain a cycle of buffers, each of which drains into the next
//! ([`possible_cycle`]). This is a property of the routes and is checked before the run. *Has it happened?* The
//! engine searches for a cycle of links that have been paused since the last check, each waiting for packets to leave
//! by the next.

use std::collections::HashSet;

use serde::Serialize;
use straightway_core::Seconds;

use super::{
    route::Routes,
    topology::{Network, narrow},
};

/// A cycle of links that wait for each other.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Deadlock {
    /// The time at which it was detected.
    pub seen: Seconds,
    /// The links, each waiting for the next and the last for the first.
    pub cycle: Vec<String>,
    /// Bytes stuck in the switches at the ends of these links.
    pub stuck_bytes: u64,
}

/// A cycle of links in which each one's buffer drains into the next, if the paths contain one.
pub(crate) fn possible_cycle(net: &Network, routes: &Routes, flows: u32) -> Option<Vec<String>> {
    let mut after: Vec<Vec<u32>> = vec![Vec::new(); net.links.len()];
    let mut seen = HashSet::new();
    for flow in 0..flows {
        for pair in routes.path(flow).windows(2) {
            if seen.insert((pair[0], pair[1])) {
                after[pair[0] as usize].push(pair[1]);
            }
        }
    }
    let cycle = find_cycle(&after)?;
    Some(cycle.iter().map(|l| net.link_name(*l)).collect())
}

/// A cycle in a graph given by each node's successors.
pub(crate) fn find_cycle(after: &[Vec<u32>]) -> Option<Vec<u32>> {
    #[derive(Clone, Copy, PartialEq)]
    enum Mark {
        New,
        OnPath,
        Done,
    }
    let mut marks = vec![Mark::New; after.len()];
    for start in 0..narrow(after.len()) {
        if marks[start as usize] != Mark::New {
            continue;
        }
        marks[start as usize] = Mark::OnPath;
        // The path so far, and how many successors of each node have been tried.
        let mut path = vec![(start, 0)];
        while let Some((node, tried)) = path.last_mut() {
            let (node, next) = (*node, after[*node as usize].get(*tried).copied());
            *tried += 1;
            match next {
                None => {
                    marks[node as usize] = Mark::Done;
                    path.pop();
                }
                Some(next) if marks[next as usize] == Mark::OnPath => {
                    let from = path.iter().position(|(n, _)| *n == next)?;
                    return Some(path[from..].iter().map(|(n, _)| *n).collect());
                }
                Some(next) if marks[next as usize] == Mark::New => {
                    marks[next as usize] = Mark::OnPath;
                    path.push((next, 0));
                }
                Some(_) => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_graph_whose_edges_all_go_up_has_no_cycle_and_one_edge_back_makes_one(
            edges in prop::collection::vec((0u32..30, 1u32..30), 0..80),
            back in 0u32..29,
        ) {
            let mut after = vec![Vec::new(); 31];
            for (from, by) in edges {
                after[from as usize].push((from + by).min(30));
            }
            prop_assert_eq!(find_cycle(&after), None);
            for node in back..30 {
                after[node as usize].push(node + 1);
            }
            after[30].push(back);
            let cycle = find_cycle(&after).expect("30 leads back");
            for (i, node) in cycle.iter().enumerate() {
                let next = cycle[(i + 1) % cycle.len()];
                prop_assert!(after[*node as usize].contains(&next));
            }
        }
    }
}
