//! Checks that a scenario's tree is a tree, that its streams have valid ends, and that its load can be simulated.

use straightway_core::Bytes;

use super::{PORT_INPUTS_MAX, PcieStream, PcieTopology, initiator, mode, names::Names};
use crate::scenario::{Mode, NODES_MAX, NodeKind, PcieScenario, SIMULATED_MAX, STREAMS_MAX, TLPS_MAX};
use straightway_scenario::check::Checker;

/// Refuses an invalid tree, invalid streams and an excessive load.
pub(crate) fn check(scenario: &PcieScenario, c: &mut Checker) {
    let scenario = &*scenario.expanded();
    if expanded(scenario) > NODES_MAX as u64 {
        let most = format!("at most {NODES_MAX} after groups are expanded");
        c.refuse("node", format!("{} nodes", expanded(scenario)), most);
        return;
    }
    // An empty group is refused by its own range; its children cannot be checked.
    if scenario.node.iter().any(|node| node.count == Some(0)) {
        return;
    }
    let names = Names::of(scenario);
    let sound = check_tree(scenario, &names, c);
    let ends = check_ends(scenario, &names, c);
    // The load is checked only on a valid tree with values in range.
    if sound && ends && c.is_clean() {
        check_load(scenario, c);
    }
}

fn expanded(scenario: &PcieScenario) -> u64 {
    let counts = scenario.node.iter().map(|n| n.count.unwrap_or(1));
    counts.fold(0, u64::saturating_add)
}

/// Refuses duplicate names, unknown parents, a second root, loops and children of leaves.
fn check_tree(scenario: &PcieScenario, names: &Names, c: &mut Checker) -> bool {
    let mut sound = true;
    let mut refuse = |field: String, value: &str, allowed: &str| {
        sound = false;
        c.refuse(&field, value, allowed);
    };
    for (i, id) in &names.duplicates {
        let allowed = "a name no other node has: a node has one parent and is declared once";
        refuse(format!("node[{i}].id"), id, allowed);
    }
    let roots: Vec<usize> = (0..scenario.node.len())
        .filter(|i| scenario.node[*i].parent.is_none())
        .collect();
    for i in roots.iter().skip(1) {
        let allowed = "a parent: only the first node without one is the root";
        refuse(format!("node[{i}].parent"), "nothing", allowed);
    }
    if roots.is_empty() {
        refuse("node".into(), "no root", "one node of kind \"host\" without a parent");
    }
    for &root in roots.iter().take(1) {
        let spec = &scenario.node[root];
        if spec.kind != NodeKind::Host || spec.count.is_some_and(|n| n > 1) {
            refuse(
                format!("node[{root}].kind"),
                &spec.id,
                "the root is one node of kind \"host\"",
            );
        }
    }
    for (i, spec) in scenario.node.iter().enumerate() {
        let Some(parent) = &spec.parent else { continue };
        let allowed = match names.groups.get(parent) {
            None => "the id of another node",
            Some(&(above, _)) if !names.members[above].kind(scenario).branches() => "a host, a root port or a switch",
            Some(&(above, _)) if loops(scenario, names, names.members[above].spec) => {
                "a parent that leads to the root: this one leads back to itself"
            }
            Some(_) => continue,
        };
        refuse(format!("node[{i}].parent"), parent, allowed);
    }
    sound
}

/// Whether the ancestors of a node never reach a root.
fn loops(scenario: &PcieScenario, names: &Names, from: usize) -> bool {
    let mut at = from;
    for _ in 0..=scenario.node.len() {
        let Some(parent) = &scenario.node[at].parent else {
            return false;
        };
        let Some((above, _)) = names.groups.get(parent) else {
            return false;
        };
        at = names.members[*above].spec;
    }
    true
}

/// Refuses streams whose ends are unknown, the same, or cannot start a transfer.
fn check_ends(scenario: &PcieScenario, names: &Names, c: &mut Checker) -> bool {
    let mut sound = true;
    let mut streams = 0;
    for (i, spec) in scenario.stream.iter().enumerate() {
        let mut refuse = |field: &str, value: &str, allowed: &str| {
            sound = false;
            c.refuse(&format!("stream[{i}].{field}"), value, allowed);
        };
        let mut known = true;
        for (field, name) in [("from", &spec.from), ("to", &spec.to)] {
            match names.groups.get(name) {
                None => refuse(field, name, "the id of a node"),
                Some(&(first, _)) if names.members[first].kind(scenario).forwards() => {
                    refuse(field, name, "a host, a drive, an HCA or a GPU: data ends there");
                }
                Some(_) => continue,
            }
            known = false;
        }
        if !known {
            continue;
        }
        let pairs = names.pairs(spec);
        streams += pairs.len();
        for (from, to) in pairs {
            let mode = mode(
                spec,
                names.members[from].kind(scenario),
                names.members[to].kind(scenario),
            );
            let by = if mode == Mode::Write { from } else { to };
            if from == to {
                refuse("to", &spec.to, "another node than `from`");
                break;
            }
            if names.members[by].kind(scenario) == NodeKind::Host {
                let allowed = "a mode in which a device moves the data: hosts have no DMA engine";
                refuse("mode", &format!("{mode:?}").to_lowercase(), allowed);
                break;
            }
            if spec.fence.is_some() && mode == Mode::Read {
                refuse("fence", "on a read", "only on writes: a read's data is its own proof");
                break;
            }
        }
    }
    if streams > STREAMS_MAX {
        let most = format!("at most {STREAMS_MAX} after groups are expanded");
        c.refuse("stream", format!("{streams} streams"), most);
        sound = false;
    }
    sound
}

/// Refuses loads that take too long, and ports with too many inputs.
fn check_load(scenario: &PcieScenario, c: &mut Checker) {
    let topology = PcieTopology::new(scenario);
    let names = Names::of(scenario);
    let specs = scenario.stream.iter().enumerate();
    let owners = specs.flat_map(|(i, spec)| std::iter::repeat_n(i, names.pairs(spec).len()));
    let mut tlps = 0u64;
    for (spec, stream) in owners.zip(&topology.streams) {
        tlps = tlps.saturating_add(topology.tlps(stream));
        if tlps > TLPS_MAX {
            let field = format!("stream[{spec}].size");
            let value = format!(
                "{} in I/Os of {}: {tlps} TLPs so far",
                Bytes(stream.size_bytes),
                Bytes(stream.io_bytes)
            );
            c.refuse(&field, value, format!("at most {TLPS_MAX} TLPs in all"));
            return;
        }
        let seconds = stream.start_s + least_seconds(&topology, stream);
        if seconds > SIMULATED_MAX.0 {
            let value = format!("{} takes {seconds:.1} s at the least", Bytes(stream.size_bytes));
            c.refuse(
                &format!("stream[{spec}].size"),
                value,
                format!("at most {} s of simulated time", SIMULATED_MAX.0),
            );
            return;
        }
    }
    let channels = usize::try_from(scenario.channels.count).expect("checked to be small");
    let inputs_max = PORT_INPUTS_MAX / channels - 1;
    for (i, node) in topology.nodes.iter().enumerate() {
        let children = topology.nodes.iter().filter(|n| n.parent == Some(i)).count();
        let starts = topology.streams.iter().filter(|s| initiator(s) == i).count();
        if children.max(starts) > inputs_max {
            let (value, what) = if children >= starts {
                (children, "links below it")
            } else {
                (starts, "streams that it moves (raise `depth` instead)")
            };
            let most = format!("at most {inputs_max} {what}");
            c.refuse("node", format!("{value} on {}", node.name), most);
        }
    }
}

/// The shortest time a stream can take alone.
fn least_seconds(topology: &PcieTopology, stream: &PcieStream) -> f64 {
    let way = topology.way(stream.from, stream.to);
    let links = way.iter().filter(|n| {
        let parent = topology.nodes[**n].parent;
        parent.is_some_and(|p| way.contains(&p))
    });
    let slowest = links
        .map(|n| topology.nodes[*n].link_bytes_per_s)
        .fold(f64::MAX, f64::min);
    let media = topology.nodes[initiator(stream)].media_s;
    let rounds = (stream.size_bytes / stream.io_bytes) as f64 / stream.depth as f64;
    (stream.size_bytes as f64 / slowest).max(rounds * media)
}
