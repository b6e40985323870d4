//! The gain of a single change of the tree.
//!
//! One at a time, every device at the end of a stream is moved to every other possible parent, and every link on a
//! stream's path is made twice as wide or a generation newer. Each such tree is simulated. Of equal devices (same
//! kind, parent, link and number of streams) only one is tried, so eight equal drives are tried once.

use std::{collections::BTreeSet, ops::ControlFlow};

use rayon::prelude::*;
use serde::Serialize;
use straightway_core::{Rate, Result};

use super::{
    PcieScenario, PcieTopology,
    bottleneck::Bottleneck,
    link::{LANES, Width},
    outcome::PcieOutcome,
    run,
    topology::PortName,
};

/// The maximum number of changes that are tried.
const CHANGES_MAX: usize = 256;

/// The result of one change.
#[derive(Clone, Debug, Serialize)]
pub struct WhatIf {
    /// The change.
    pub change: TreeChange,
    /// The change as text.
    pub text: String,
    /// The total rate with the change; absent if the streams were never steady at the same time.
    pub total_bytes_per_s: Option<Rate>,
    /// The gain over the unchanged tree, as a share. Without a total of both it compares all bytes over all time.
    pub gain: f64,
    /// The bottleneck with the change.
    pub bottleneck: Bottleneck,
}

/// One change of a tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TreeChange {
    /// A device is moved.
    Move {
        /// The device.
        device: String,
        /// Its new parent.
        to: String,
    },
    /// A link gets more lanes or a newer generation.
    Link {
        /// The node below it.
        device: String,
        /// Its new generation and width.
        width: String,
    },
}

/// Tries every single change of a checked scenario, largest gain first. `base` is its outcome.
pub fn what_if(
    scenario: &PcieScenario,
    base: &PcieOutcome,
    look: impl Fn(f64) -> ControlFlow<()> + Sync,
) -> Result<Vec<WhatIf>> {
    let topology = PcieTopology::new(scenario);
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
                gain: gain(&outcome, base),
                bottleneck: outcome.bottleneck,
            })
        })
        .collect::<Result<_>>()?;
    // Stable: changes with equal gain stay in the order of the scenario.
    found.sort_by(|a, b| b.gain.total_cmp(&a.gain));
    Ok(found)
}

/// The gain of a changed tree over `base`.
fn gain(changed: &PcieOutcome, base: &PcieOutcome) -> f64 {
    let (now, before) = match (changed.total_bytes_per_s, base.total_bytes_per_s) {
        (Some(now), Some(before)) => (now, before),
        _ => (changed.overall_bytes_per_s, base.overall_bytes_per_s),
    };
    now.0 / before.0 - 1.0
}

fn words(change: &TreeChange) -> String {
    match change {
        TreeChange::Move { device, to } => format!("move {device} to {to}"),
        TreeChange::Link { device, width } => format!("make the link of {device} {width}"),
    }
}

/// Every move of a device at the end of a stream to another parent.
fn moves(topology: &PcieTopology) -> Vec<(TreeChange, PcieTopology)> {
    let mut changes = Vec::new();
    for device in distinct(topology, |t, n| !t.nodes[n].kind.branches() && streams_at(t, n) > 0) {
        for (place, node) in topology.nodes.iter().enumerate() {
            if !node.kind.branches() || topology.nodes[device].parent == Some(place) {
                continue;
            }
            let mut tree = topology.clone();
            tree.nodes[device].parent = Some(place);
            tree.refit();
            let change = TreeChange::Move {
                device: topology.nodes[device].name.clone(),
                to: node.name.clone(),
            };
            changes.push((change, tree));
        }
    }
    changes
}

/// Every link on a stream's path, twice as wide or a generation newer.
fn links(topology: &PcieTopology) -> Vec<(TreeChange, PcieTopology)> {
    let ways = topology.streams.iter().flat_map(|s| topology.ports(s.from, s.to));
    let used: BTreeSet<usize> = ways
        .filter_map(|port| match port {
            PortName::Up(n) | PortName::Down(n) => Some(n),
            PortName::Peer(_) | PortName::Memory(_) => None,
        })
        .collect();
    let mut changes = Vec::new();
    for node in distinct(topology, |_, n| used.contains(&n)) {
        let Some(width) = topology.nodes[node].width else {
            continue;
        };
        let wider = LANES.into_iter().find(|lanes| *lanes > width.lanes);
        let wider = wider.map(|lanes| Width { lanes, ..width });
        let newer = width.generation.next().map(|generation| Width { generation, ..width });
        for width in [wider, newer].into_iter().flatten() {
            let mut tree = topology.clone();
            tree.nodes[node].width = Some(width);
            tree.refit();
            let change = TreeChange::Link {
                device: topology.nodes[node].name.clone(),
                width: width.to_string(),
            };
            changes.push((change, tree));
        }
    }
    changes
}

/// The nodes that `wanted` selects, one of each class of equal nodes.
fn distinct(topology: &PcieTopology, wanted: impl Fn(&PcieTopology, usize) -> bool) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let wanted = (0..topology.nodes.len()).filter(|n| wanted(topology, *n));
    wanted
        .filter(|n| {
            let node = &topology.nodes[*n];
            // A branch equals no other: its children may differ.
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

/// The parents of the other ends of a node's streams.
fn partners(topology: &PcieTopology, node: usize) -> BTreeSet<Option<usize>> {
    let ends = topology.streams.iter().filter_map(|s| match node {
        n if n == s.from => Some(s.to),
        n if n == s.to => Some(s.from),
        _ => None,
    });
    ends.map(|n| topology.nodes[n].parent).collect()
}

fn streams_at(topology: &PcieTopology, node: usize) -> usize {
    let streams = topology.streams.iter();
    streams.filter(|s| s.from == node || s.to == node).count()
}
