//! The minimum cut of a tree: the rate that it carries from a set of sources to a set of sinks.
//!
//! Every link is two edges, one per direction, with the payload rate at the largest TLP. A host that limits the
//! traffic between its root ports is two vertices with that limit between them. The maximum flow is found by Dinic's
//! algorithm. Each sink gets an equal share, as the GPUs of a job do: the largest total at which the flow still fills
//! every share is found by a few Newton steps on the cut.

use std::collections::VecDeque;

use crate::{
    link::Packet,
    scenario::NodeKind,
    topology::{PcieTopology, PortName},
};

/// The maximum number of Newton steps; each removes at least one sink from the cut.
const STEPS_MAX: usize = 64;

/// Shares closer than this are the same.
const SAME: f64 = 1e-9;

/// A capacity that is no limit.
const NO_LIMIT: f64 = 1e18;

/// The rate that a tree carries, and its limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// Payload per second, all sinks together.
    pub bytes_per_s: f64,
    /// The kind of link or device that most of the cut runs through.
    pub what: &'static str,
}

/// The kind of an edge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    PortLinks,
    DriveLinks,
    GpuLinks,
    Uplinks,
    Sockets,
    Peers,
    Memory,
    PortRates,
    DriveRates,
    /// The share of a sink, which is not part of the tree.
    Share,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::PortLinks => "PCIe links of the network ports",
            Self::DriveLinks => "PCIe links of the drives",
            Self::GpuLinks => "PCIe links of the GPUs",
            Self::Uplinks => "uplinks of the PCIe switches",
            Self::Sockets => "links between the sockets",
            Self::Peers => "peer traffic through the root complex",
            Self::Memory => "memory",
            Self::PortRates => "network ports",
            Self::DriveRates => "drives",
            Self::Share => "shares of the GPUs",
        }
    }
}

/// A directed edge. Its reverse is the edge with the last bit of the index flipped.
#[derive(Debug)]
struct Edge {
    to: usize,
    left: f64,
    full: f64,
    part: Part,
}

/// A flow network.
#[derive(Debug, Default)]
struct Network {
    edges: Vec<Edge>,
    leaving: Vec<Vec<usize>>,
}

/// Returns the rate that `topology` carries from `from` to `to`, with an equal share for every sink. The rates of the
/// ports and drives themselves count only if `with_media`.
pub fn minimum(topology: &PcieTopology, from: &[usize], to: &[usize], with_media: bool) -> Cut {
    let sinks = to.len() as f64;
    let (mut network, source, target) = network(topology, from, to, with_media);
    let shares: Vec<usize> = (0..network.edges.len())
        .filter(|e| network.edges[*e].part == Part::Share && e % 2 == 0)
        .collect();
    // The last vertices are the sinks' memories.
    let stored = network.leaving.len() - to.len()..network.leaving.len();
    let mut total = network.flow(source, target);
    let mut what = network.cut_part(source);
    for _ in 0..STEPS_MAX {
        network.refill();
        for edge in &shares {
            (network.edges[*edge].left, network.edges[*edge].full) = (total / sinks, total / sinks);
        }
        let carried = network.flow(source, target);
        if carried >= total * (1.0 - SAME) {
            break;
        }
        // The cut runs through the shares of `satisfied` sinks and through links of a fixed capacity.
        let reached = network.reached(source);
        let satisfied = stored.clone().filter(|vertex| reached[*vertex]).count() as f64;
        let fixed = carried - satisfied * total / sinks;
        what = network.cut_part(source);
        total = fixed / (1.0 - satisfied / sinks);
    }
    Cut {
        bytes_per_s: total,
        what: what.name(),
    }
}

/// The vertex at which traffic enters a node.
fn inner(node: usize) -> usize {
    2 * node
}

/// The vertex from which traffic leaves a node downwards; they differ only for a host.
fn outer(node: usize) -> usize {
    2 * node + 1
}

/// The tree as a network, with its source and its target.
fn network(topology: &PcieTopology, from: &[usize], to: &[usize], with_media: bool) -> (Network, usize, usize) {
    let nodes = &topology.nodes;
    let (source, target) = (2 * nodes.len(), 2 * nodes.len() + 1);
    let mut network = Network::default();
    network.leaving.resize(target + 1, Vec::new());
    for (i, node) in nodes.iter().enumerate() {
        let peer = node.peer_bytes_per_s.unwrap_or(NO_LIMIT);
        network.add(inner(i), outer(i), peer, Part::Peers);
        let Some(parent) = node.parent else { continue };
        let part = match node.kind {
            NodeKind::Hca => Part::PortLinks,
            NodeKind::Drive => Part::DriveLinks,
            NodeKind::Gpu => Part::GpuLinks,
            NodeKind::Switch | NodeKind::RootPort => Part::Uplinks,
            NodeKind::Host => Part::Sockets,
        };
        let mps = node.mps_bytes.min(nodes[parent].mps_bytes);
        for (port, a, b) in [
            // Traffic that goes up from a host does not use its peer rate.
            (PortName::Up(i), inner(i), inner(parent)),
            (PortName::Down(i), outer(parent), outer(i)),
        ] {
            let (rate, width) = topology.port_rate(port);
            let header = width.map_or(0, |w| Packet::Write.overhead_bytes(w.generation));
            let payload = rate * f64::from(mps) / f64::from(mps + header);
            network.add(a, b, payload, part);
        }
    }
    for i in from {
        let media = nodes[*i].media_read_bytes_per_s.filter(|_| with_media);
        let part = match nodes[*i].kind {
            NodeKind::Drive => Part::DriveRates,
            _ => Part::PortRates,
        };
        let start = if nodes[*i].kind.branches() {
            outer(*i)
        } else {
            inner(*i)
        };
        network.add(source, start, media.unwrap_or(NO_LIMIT), part);
    }
    for i in to {
        // A root host receives at its inner vertex, a device below it at its outer one.
        let end = if nodes[*i].parent.is_none() {
            inner(*i)
        } else {
            outer(*i)
        };
        let memory = nodes[*i].memory_bytes_per_s.unwrap_or(NO_LIMIT);
        let stored = network.leaving.len();
        network.leaving.push(Vec::new());
        network.add(end, stored, memory, Part::Memory);
        network.add(stored, target, NO_LIMIT, Part::Share);
    }
    (network, source, target)
}

impl Network {
    fn add(&mut self, from: usize, to: usize, capacity: f64, part: Part) {
        for (at, to, capacity) in [(from, to, capacity), (to, from, 0.0)] {
            self.leaving[at].push(self.edges.len());
            self.edges.push(Edge {
                to,
                left: capacity,
                full: capacity,
                part,
            });
        }
    }

    /// Resets all flow.
    fn refill(&mut self) {
        for edge in &mut self.edges {
            edge.left = edge.full;
        }
    }

    /// The maximum flow.
    fn flow(&mut self, source: usize, target: usize) -> f64 {
        let mut total = 0.0;
        loop {
            let levels = self.levels(source);
            if levels[target] == usize::MAX {
                return total;
            }
            let mut next = vec![0; self.leaving.len()];
            loop {
                let pushed = self.push(source, target, NO_LIMIT, &levels, &mut next);
                if pushed <= 0.0 {
                    break;
                }
                total += pushed;
            }
        }
    }

    /// Sends as much as fits along one path of rising levels.
    fn push(&mut self, at: usize, target: usize, most: f64, levels: &[usize], next: &mut [usize]) -> f64 {
        if at == target {
            return most;
        }
        while let Some(&e) = self.leaving[at].get(next[at]) {
            let (to, left) = (self.edges[e].to, self.edges[e].left);
            if self.is_open(e) && levels[to] == levels[at] + 1 {
                let pushed = self.push(to, target, most.min(left), levels, next);
                if pushed > 0.0 {
                    self.edges[e].left -= pushed;
                    self.edges[e ^ 1].left += pushed;
                    return pushed;
                }
            }
            next[at] += 1;
        }
        0.0
    }

    /// Whether an edge has capacity left, rounding errors aside.
    fn is_open(&self, edge: usize) -> bool {
        let pair = self.edges[edge].full.max(self.edges[edge ^ 1].full);
        self.edges[edge].left > pair * 1e-12
    }

    fn levels(&self, source: usize) -> Vec<usize> {
        let mut levels = vec![usize::MAX; self.leaving.len()];
        levels[source] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(at) = queue.pop_front() {
            for e in &self.leaving[at] {
                let to = self.edges[*e].to;
                if self.is_open(*e) && levels[to] == usize::MAX {
                    levels[to] = levels[at] + 1;
                    queue.push_back(to);
                }
            }
        }
        levels
    }

    /// The vertices on the source's side of the cut.
    fn reached(&self, source: usize) -> Vec<bool> {
        self.levels(source).iter().map(|l| *l != usize::MAX).collect()
    }

    /// The kind of edge that carries most of the cut, shares aside.
    fn cut_part(&self, source: usize) -> Part {
        let reached = self.reached(source);
        let mut parts: Vec<(Part, f64)> = Vec::new();
        let inside = self.leaving.iter().zip(&reached).filter(|(_, reached)| **reached);
        for (leaving, _) in inside {
            for e in leaving.iter().filter(|e| *e % 2 == 0) {
                let edge = &self.edges[*e];
                if reached[edge.to] || edge.part == Part::Share {
                    continue;
                }
                match parts.iter_mut().find(|(part, _)| *part == edge.part) {
                    Some((_, sum)) => *sum += edge.full,
                    None => parts.push((edge.part, edge.full)),
                }
            }
        }
        let most = parts.iter().max_by(|a, b| a.1.total_cmp(&b.1));
        most.map_or(Part::Share, |(part, _)| *part)
    }
}
