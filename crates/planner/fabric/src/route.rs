//! The links of a flow: a shortest path, chosen by hash among equal ones.
//!
//! As with ECMP, the path of a flow is fixed, so it is computed once and stored as a sequence of link numbers;
//! forwarding a packet is then one table lookup. Hosts do not forward.

use std::collections::VecDeque;

use super::{
    topology::{Network, narrow},
    traffic::Flow,
};
use straightway_core::random::Seed;

/// The paths of all flows, concatenated in one table.
#[derive(Debug, Default)]
pub(crate) struct Routes {
    links: Vec<u32>,
    starts: Vec<u32>,
}

/// The distance of an unreachable node.
const UNREACHED: u32 = u32::MAX;

impl Routes {
    /// The links of a flow's path, in order.
    pub(crate) fn path(&self, flow: u32) -> &[u32] {
        let [start, end] = [0, 1].map(|i| self.starts[flow as usize + i] as usize);
        &self.links[start..end]
    }

    /// The index at which a flow's path starts in the table.
    pub(crate) fn start(&self, flow: u32) -> u32 {
        self.starts[flow as usize]
    }

    /// The link at an index of the table.
    #[inline]
    pub(crate) fn link(&self, place: u32) -> u32 {
        self.links[place as usize]
    }

    /// Finds a path for every flow; the error is the first flow without a path.
    pub(crate) fn find(net: &Network, flows: &[Flow], seed: Seed) -> Result<Self, usize> {
        let attached = |host: u32| net.links[net.leaving[host as usize][0] as usize].to;
        // Flows are sorted by their last switch, so that one table of distances is kept at a time.
        let mut order: Vec<usize> = (0..flows.len()).collect();
        order.sort_by_key(|f| attached(flows[*f].to));
        let mut paths: Vec<Vec<u32>> = vec![Vec::new(); flows.len()];
        let mut distances = (UNREACHED, Vec::new());
        for f in order {
            let flow = &flows[f];
            paths[f] = if flow.via.is_empty() {
                let last = attached(flow.to);
                if distances.0 != last {
                    distances = (last, distances_to(net, last));
                }
                let mut rng = seed.part(f as u64).rng();
                shortest(net, flow, &distances.1, |n| rng.below(n)).ok_or(f)?
            } else {
                along(net, flow).ok_or(f)?
            };
        }
        let mut routes = Self::default();
        for path in &paths {
            routes.starts.push(narrow(routes.links.len()));
            routes.links.extend(path);
        }
        routes.starts.push(narrow(routes.links.len()));
        Ok(routes)
    }
}

/// The distance in links of each node from switch `to`.
pub(crate) fn distances_to(net: &Network, to: u32) -> Vec<u32> {
    let mut distance = vec![UNREACHED; net.names.len()];
    distance[to as usize] = 0;
    let mut queue = VecDeque::from([to]);
    while let Some(node) = queue.pop_front() {
        for link in &net.leaving[node as usize] {
            let there = net.links[*link as usize].to;
            if distance[there as usize] == UNREACHED {
                distance[there as usize] = distance[node as usize] + 1;
                if !net.is_host(there) {
                    queue.push_back(there);
                }
            }
        }
    }
    distance
}

/// A shortest path; `choose` picks one of n equal ones.
fn shortest(net: &Network, flow: &Flow, distance: &[u32], mut choose: impl FnMut(u64) -> u64) -> Option<Vec<u32>> {
    let mut path = Vec::new();
    let mut node = flow.from;
    while distance[node as usize] != 0 {
        let here = distance[node as usize];
        if here == UNREACHED {
            return None;
        }
        let closer = |link: &&u32| {
            let to = net.links[**link as usize].to;
            distance[to as usize] < here && !net.is_host(to)
        };
        let leaving = &net.leaving[node as usize];
        let ways = leaving.iter().filter(closer).count() as u64;
        let chosen = usize::try_from(choose(ways)).expect("below a count");
        let link = *leaving.iter().filter(closer).nth(chosen)?;
        path.push(link);
        node = net.links[link as usize].to;
    }
    path.push(last_hop(net, node, flow.to)?);
    Some(path)
}

/// The path through the switches a flow names.
fn along(net: &Network, flow: &Flow) -> Option<Vec<u32>> {
    let mut node = flow.from;
    let mut path = Vec::new();
    for next in flow.via.iter().copied().chain([flow.to]) {
        path.push(last_hop(net, node, next)?);
        node = next;
    }
    Some(path)
}

fn last_hop(net: &Network, from: u32, to: u32) -> Option<u32> {
    let mut leaving = net.leaving[from as usize].iter().copied();
    leaving.find(|l| net.links[*l as usize].to == to)
}

#[cfg(test)]
mod tests {
    use straightway_core::Rate;

    use super::*;
    use crate::topology::{FabricTopology, LeafSpine};

    fn net() -> Network {
        FabricTopology::LeafSpine(LeafSpine {
            leaves: 4,
            spines: 8,
            hosts_per_leaf: 16,
            host_rate: Rate::gbit(100.0),
            uplink_rate: None,
            host_cable_m: 5.0,
            uplink_cable_m: 40.0,
        })
        .network()
    }

    fn flow(from: u32, to: u32) -> Flow {
        Flow {
            from,
            to,
            ..Flow::default()
        }
    }

    #[test]
    fn a_path_is_connected_and_shortest() {
        let net = net();
        let flows: Vec<Flow> = (0..64)
            .flat_map(|a| (0..64).map(move |b| flow(a, b)))
            .filter(|f| f.from != f.to)
            .collect();
        let routes = Routes::find(&net, &flows, Seed(1)).unwrap();
        for (f, flow) in (0..).zip(&flows) {
            let path = routes.path(f);
            let same_leaf = flow.from / 16 == flow.to / 16;
            assert_eq!(path.len(), if same_leaf { 2 } else { 4 });
            let mut node = flow.from;
            for link in path {
                assert_eq!(net.links[*link as usize].from, node);
                node = net.links[*link as usize].to;
            }
            assert_eq!(node, flow.to);
        }
    }

    #[test]
    fn the_hash_spreads_flows_over_all_spines_and_follows_the_seed() {
        let net = net();
        let flows = vec![flow(0, 63); 800];
        let uplinks = |seed| {
            let routes = Routes::find(&net, &flows, Seed(seed)).unwrap();
            (0..800).map(|f| routes.path(f)[1]).collect::<Vec<u32>>()
        };
        let mut counts = [0; 8];
        for link in uplinks(1) {
            let spine = net.links[link as usize].to - (64 + 4);
            counts[spine as usize] += 1;
        }
        assert!(counts.iter().all(|c| (60..140).contains(c)), "{counts:?}");
        assert_eq!(uplinks(1), uplinks(1));
        assert_ne!(uplinks(1), uplinks(2));
    }

    #[test]
    fn a_named_path_is_taken_and_an_impossible_one_refused() {
        let net = net();
        let via = |names: [&str; 3]| Flow {
            via: names.map(|n| net.node(n).unwrap()).to_vec(),
            ..flow(0, 63)
        };
        let flows = [via(["leaf0", "spine5", "leaf3"])];
        let routes = Routes::find(&net, &flows, Seed(1)).unwrap();
        assert_eq!(net.link_name(routes.path(0)[2]), "spine5->leaf3");
        let wrong = [flow(0, 1), via(["leaf0", "leaf1", "leaf3"])];
        assert_eq!(Routes::find(&net, &wrong, Seed(1)).unwrap_err(), 1);
    }
}
