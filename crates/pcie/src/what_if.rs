//! What one change of the tree would bring.
//!
//! Every device at the end of a stream is moved to every other place it could hang, every link on
//! a stream's way is made twice as wide or a generation newer, one at a time, and each such tree is
//! simulated. Devices that nothing tells apart (same kind, same place, same link, as many streams)
//! stand for each other, so eight equal drives are tried once.

use std::{collections::BTreeSet, ops::ControlFlow};

use rayon::prelude::*;
use serde::Serialize;
use straightway_core::{Rate, Result};

use super::{
    Scenario, Topology,
    bottleneck::Limit,
    link::{LANES, Width},
    outcome::Outcome,
    run,
    topology::PortName,
};

/// The most changes that are tried.
const CHANGES_MAX: usize = 256;

/// What one change brings.
#[derive(Clone, Debug, Serialize)]
pub struct WhatIf {
    /// The change.
    pub change: Change,
    /// In words.
    pub text: String,
    /// All streams together, with it.
    pub total_bytes_per_s: Rate,
    /// How much that is more than without, as a share.
    pub gain: f64,
    /// What holds most streams back then.
    pub bottleneck: Limit,
}

/// One change of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// A device hangs somewhere else.
    Move {
        /// The device.
        device: String,
        /// Its new place.
        to: String,
    },
    /// A link gets more lanes or a newer generation.
    Link {
        /// What hangs on it.
        device: String,
        /// Its new generation and width.
        width: String,
    },
}

/// Tries every single change of a checked scenario, the most gain first. `base` is its outcome.
pub fn what_if(
    scenario: &Scenario,
    base: &Outcome,
    look: impl Fn(f64) -> ControlFlow<()> + Sync,
) -> Result<Vec<WhatIf>> {
    let topology = Topology::new(scenario);
    let mut changes = moves(&topology);
    changes.extend(links(&topology));
    changes.truncate(CHANGES_MAX);
    let mut found: Vec<WhatIf> = changes
        .into_par_iter()
        .map(|(change, tree)| {
            let outcome = run(scenario, &tree, &look)?;
            Ok(WhatIf {
                text: words(&change),
                change,
                total_bytes_per_s: outcome.total_bytes_per_s,
                gain: outcome.total_bytes_per_s.0 / base.total_bytes_per_s.0 - 1.0,
                bottleneck: outcome.bottleneck,
            })
        })
        .collect::<Result<_>>()?;
    // Stable: what gains the same stays in the order of the scenario.
    found.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    Ok(found)
}

fn words(change: &Change) -> String {
    match change {
        Change::Move { device, to } => format!("move {device} to {to}"),
        Change::Link { device, width } => format!("make the link of {device} {width}"),
    }
}

/// Every move of one device at the end of a stream to another place.
fn moves(topology: &Topology) -> Vec<(Change, Topology)> {
    let mut changes = Vec::new();
    for device in unlike(topology, |t, n| {
        !t.nodes[n].kind.branches() && streams_at(t, n) > 0
    }) {
        for (place, node) in topology.nodes.iter().enumerate() {
            if !node.kind.branches() || topology.nodes[device].parent == Some(place) {
                continue;
            }
            let mut tree = topology.clone();
            tree.nodes[device].parent = Some(place);
            tree.refit();
            let change = Change::Move {
                device: topology.nodes[device].name.clone(),
                to: node.name.clone(),
            };
            changes.push((change, tree));
        }
    }
    changes
}

/// Every link on a stream's way, twice as wide or a generation newer.
fn links(topology: &Topology) -> Vec<(Change, Topology)> {
    let ways = topology
        .streams
        .iter()
        .flat_map(|s| topology.ports(s.from, s.to));
    let used: BTreeSet<usize> = ways
        .filter_map(|port| match port {
            PortName::Up(n) | PortName::Down(n) => Some(n),
            PortName::Peer(_) | PortName::Memory(_) => None,
        })
        .collect();
    let mut changes = Vec::new();
    for node in unlike(topology, |_, n| used.contains(&n)) {
        let Some(width) = topology.nodes[node].width else {
            continue;
        };
        let wider = LANES.into_iter().find(|lanes| *lanes > width.lanes);
        let wider = wider.map(|lanes| Width { lanes, ..width });
        let newer = width.generation.next().map(|generation| Width {
            generation,
            ..width
        });
        for width in [wider, newer].into_iter().flatten() {
            let mut tree = topology.clone();
            tree.nodes[node].width = Some(width);
            tree.refit();
            let change = Change::Link {
                device: topology.nodes[node].name.clone(),
                width: width.to_string(),
            };
            changes.push((change, tree));
        }
    }
    changes
}

/// The nodes that `wanted` names, one of each that nothing tells apart.
fn unlike(topology: &Topology, wanted: impl Fn(&Topology, usize) -> bool) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let wanted = (0..topology.nodes.len()).filter(|n| wanted(topology, *n));
    wanted
        .filter(|n| {
            let node = &topology.nodes[*n];
            // A branch is like no other: what hangs on it may differ.
            let own = node.kind.branches().then_some(*n);
            let rates = [node.media_read_bytes_per_s, node.memory_bytes_per_s];
            let key = format!(
                "{own:?} {:?} {:?} {:?} {rates:?} {:?} {}",
                node.kind,
                node.parent,
                node.width,
                partners(topology, *n),
                streams_at(topology, *n),
            );
            seen.insert(key)
        })
        .collect()
}

/// Where the other ends of a node's streams hang.
fn partners(topology: &Topology, node: usize) -> BTreeSet<Option<usize>> {
    let ends = topology.streams.iter().filter_map(|s| match node {
        n if n == s.from => Some(s.to),
        n if n == s.to => Some(s.from),
        _ => None,
    });
    ends.map(|n| topology.nodes[n].parent).collect()
}

fn streams_at(topology: &Topology, node: usize) -> usize {
    let streams = topology.streams.iter();
    streams.filter(|s| s.from == node || s.to == node).count()
}
