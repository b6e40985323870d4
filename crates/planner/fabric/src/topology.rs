//! The topology: hosts, switches and the links between them.
//!
//! A topology is a leaf–spine or a rail-optimised fabric given by a few numbers, or any graph given link by link. All
//! become a [`Network`]: numbered nodes, and every cable as two adjacent directed links, so that the reverse of link
//! `l` is `l ^ 1`.

mod check;

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use straightway_core::Rate;

/// The layout of a fabric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum FabricTopology {
    /// Hosts under leaves, every leaf wired to every spine.
    LeafSpine(LeafSpine),
    /// Servers with several adapters: adapter `r` of each server is on leaf `r` of its group.
    Rail(Rail),
    /// Any graph.
    Graph(Graph),
}

/// A two-tier fabric. Hosts are `h0`, `h1`, …; switches `leaf0`, …, `spine0`, ….
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeafSpine {
    /// Leaf switches.
    pub leaves: u32,
    /// Spine switches; none for a single leaf.
    #[serde(default)]
    pub spines: u32,
    /// Hosts under each leaf.
    pub hosts_per_leaf: u32,
    /// The rate of a host's link.
    pub host_rate: Rate,
    /// The rate of a link from leaf to spine; by default that of a host's link.
    #[serde(default)]
    pub uplink_rate: Option<Rate>,
    /// The cable between host and leaf, in metres.
    #[serde(default = "host_cable_m")]
    pub host_cable_m: f64,
    /// The cable between leaf and spine, in metres.
    #[serde(default = "uplink_cable_m")]
    pub uplink_cable_m: f64,
}

/// A rail-optimised fabric. Hosts are adapters, `s0r0` for rail 0 of server 0; switches `g0r0`
/// (the leaf of rail 0 in group 0) and `spine0`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rail {
    /// The number of servers.
    pub servers: u32,
    /// Adapters per server, each on its own rail.
    pub rails: u32,
    /// Servers whose rails share one set of leaves.
    pub servers_per_group: u32,
    /// Spine switches, wired to every leaf.
    #[serde(default)]
    pub spines: u32,
    /// The rate of an adapter's link.
    pub host_rate: Rate,
    /// The rate of a link from leaf to spine; by default that of an adapter's link.
    #[serde(default)]
    pub uplink_rate: Option<Rate>,
    /// The cable between adapter and leaf, in metres.
    #[serde(default = "host_cable_m")]
    pub host_cable_m: f64,
    /// The cable between leaf and spine, in metres.
    #[serde(default = "uplink_cable_m")]
    pub uplink_cable_m: f64,
}

/// A fabric link by link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Graph {
    /// Names of the hosts. A host has exactly one link.
    pub hosts: Vec<String>,
    /// Names of the switches.
    pub switches: Vec<String>,
    /// The cables.
    pub links: Vec<Cable>,
}

/// A cable of a [`Graph`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cable {
    /// The two nodes it joins.
    pub ends: [String; 2],
    /// Its rate in each direction.
    pub rate: Rate,
    /// Its length in metres.
    #[serde(default = "host_cable_m")]
    pub cable_m: f64,
}

// A rack's height and a row's length: the cables SN4280's headroom table starts from.
fn host_cable_m() -> f64 {
    5.0
}

fn uplink_cable_m() -> f64 {
    40.0
}

/// The fabric as the simulator uses it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Network {
    /// Names, hosts first.
    pub(crate) names: Vec<String>,
    pub(crate) hosts: u32,
    /// Directed links; `l ^ 1` is the reverse of `l`.
    pub(crate) links: Vec<Wire>,
    /// Links that leave each node.
    pub(crate) leaving: Vec<Vec<u32>>,
    by_name: HashMap<String, u32>,
}

/// One direction of a cable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wire {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) rate: Rate,
    pub(crate) cable_m: f64,
}

impl FabricTopology {
    /// The number of hosts.
    pub fn hosts(&self) -> u64 {
        match self {
            Self::LeafSpine(t) => u64::from(t.leaves) * u64::from(t.hosts_per_leaf),
            Self::Rail(t) => u64::from(t.servers) * u64::from(t.rails),
            Self::Graph(t) => t.hosts.len() as u64,
        }
    }

    /// Builds the network of a checked topology.
    pub(crate) fn network(&self) -> Network {
        match self {
            Self::LeafSpine(t) => t.network(),
            Self::Rail(t) => t.network(),
            Self::Graph(t) => t.network(),
        }
    }
}

impl LeafSpine {
    fn network(&self) -> Network {
        let hosts = self.leaves * self.hosts_per_leaf;
        let mut net = Network::new(
            (0..hosts).map(|h| format!("h{h}")),
            (0..self.leaves)
                .map(|l| format!("leaf{l}"))
                .chain((0..self.spines).map(|s| format!("spine{s}"))),
        );
        for host in 0..hosts {
            let leaf = hosts + host / self.hosts_per_leaf;
            net.join(host, leaf, self.host_rate, self.host_cable_m);
        }
        let uplink = self.uplink_rate.unwrap_or(self.host_rate);
        let leaves = hosts..hosts + self.leaves;
        net.mesh(leaves, self.spines, uplink, self.uplink_cable_m);
        net
    }
}

impl Rail {
    fn groups(&self) -> u32 {
        self.servers.div_ceil(self.servers_per_group)
    }

    fn network(&self) -> Network {
        let hosts = self.servers * self.rails;
        let leaves = self.groups() * self.rails;
        let mut net = Network::new(
            (0..hosts).map(|h| format!("s{}r{}", h / self.rails, h % self.rails)),
            (0..leaves)
                .map(|l| format!("g{}r{}", l / self.rails, l % self.rails))
                .chain((0..self.spines).map(|s| format!("spine{s}"))),
        );
        for host in 0..hosts {
            let group = host / self.rails / self.servers_per_group;
            let leaf = hosts + group * self.rails + host % self.rails;
            net.join(host, leaf, self.host_rate, self.host_cable_m);
        }
        let uplink = self.uplink_rate.unwrap_or(self.host_rate);
        net.mesh(hosts..hosts + leaves, self.spines, uplink, self.uplink_cable_m);
        net
    }
}

impl Graph {
    fn network(&self) -> Network {
        let mut net = Network::new(self.hosts.iter().cloned(), self.switches.iter().cloned());
        for cable in &self.links {
            let [a, b] = [0, 1].map(|i| net.node(&cable.ends[i]).expect("the ends of a checked graph exist"));
            net.join(a, b, cable.rate, cable.cable_m);
        }
        net
    }
}

impl Network {
    fn new(hosts: impl Iterator<Item = String>, switches: impl Iterator<Item = String>) -> Self {
        let mut names: Vec<String> = hosts.collect();
        let hosts = narrow(names.len());
        names.extend(switches);
        let by_name = (0..).zip(&names).map(|(i, n)| (n.clone(), i)).collect();
        let leaving = vec![Vec::new(); names.len()];
        Self {
            names,
            hosts,
            links: Vec::new(),
            leaving,
            by_name,
        }
    }

    /// Adds a switch that is not part of the layout, and returns it.
    pub(crate) fn add_switch(&mut self, name: String) -> u32 {
        let node = narrow(self.names.len());
        self.by_name.insert(name.clone(), node);
        self.names.push(name);
        self.leaving.push(Vec::new());
        node
    }

    /// Joins two nodes by a cable; returns the link from `a` to `b`.
    pub(crate) fn join(&mut self, a: u32, b: u32, rate: Rate, cable_m: f64) -> u32 {
        let there = narrow(self.links.len());
        for (from, to) in [(a, b), (b, a)] {
            self.leaving[from as usize].push(narrow(self.links.len()));
            self.links.push(Wire {
                from,
                to,
                rate,
                cable_m,
            });
        }
        there
    }

    /// Joins every one of `leaves` to every one of the `spines` that follow them.
    fn mesh(&mut self, leaves: std::ops::Range<u32>, spines: u32, rate: Rate, cable_m: f64) {
        let first = leaves.end;
        for leaf in leaves {
            for spine in first..first + spines {
                self.join(leaf, spine, rate, cable_m);
            }
        }
    }

    /// Moves a host behind a new switch and a slower link, which models a receiver that cannot keep up.
    pub(crate) fn put_behind(&mut self, host: u32, name: String, rate: Rate) -> u32 {
        let adapter = self.add_switch(name);
        let uplink = self.leaving[host as usize][0] as usize;
        self.links[uplink].from = adapter;
        self.links[uplink ^ 1].to = adapter;
        let moved = std::mem::take(&mut self.leaving[host as usize]);
        self.leaving[adapter as usize] = moved;
        self.join(host, adapter, rate, 0.0);
        adapter
    }

    /// The node of that name.
    pub(crate) fn node(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    pub(crate) fn is_host(&self, node: u32) -> bool {
        node < self.hosts
    }

    /// A link's name, such as `leaf0->h0`.
    pub(crate) fn link_name(&self, link: u32) -> String {
        let wire = &self.links[link as usize];
        let name = |node: u32| &self.names[node as usize];
        format!("{}->{}", name(wire.from), name(wire.to))
    }

    /// The link of that name.
    pub(crate) fn link(&self, name: &str) -> Option<u32> {
        let (from, to) = name.split_once("->")?;
        let (from, to) = (self.node(from.trim())?, self.node(to.trim())?);
        let mut leaving = self.leaving[from as usize].iter().copied();
        leaving.find(|l| self.links[*l as usize].to == to)
    }
}

/// A count that a check has bounded far below 2^32.
pub(crate) fn narrow(count: usize) -> u32 {
    u32::try_from(count).expect("the input's bounds keep counts below 2^32")
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::check::read;

    const LEAF_SPINE: &str = "[leaf_spine]\nleaves = 4\nspines = 2\nhosts_per_leaf = 8\n\
                              host_rate = \"100Gb/s\"\n";
    const TRIANGLE: &str = "[graph]\nhosts = [\"a\", \"b\"]\nswitches = [\"s\", \"t\"]\n\
        [[graph.links]]\nends = [\"a\", \"s\"]\nrate = \"100Gb/s\"\n\
        [[graph.links]]\nends = [\"s\", \"t\"]\nrate = \"100Gb/s\"\n\
        [[graph.links]]\nends = [\"t\", \"b\"]\nrate = \"100Gb/s\"\n";

    fn refused(text: &str) -> String {
        read::<FabricTopology>(text).unwrap_err().to_string()
    }

    #[test]
    fn a_leaf_spine_has_a_link_each_way_for_every_cable() {
        let net = read::<FabricTopology>(LEAF_SPINE).unwrap().network();
        assert_eq!((net.hosts, net.links.len()), (32, 2 * (32 + 8)));
        for (l, wire) in net.links.iter().enumerate() {
            let back = &net.links[l ^ 1];
            assert_eq!((wire.from, wire.to), (back.to, back.from));
        }
        let link = net.link("leaf1->h9").unwrap();
        assert_eq!(net.link_name(link), "leaf1->h9");
    }

    #[test]
    fn a_rail_joins_adapter_r_of_every_server_of_a_group_to_one_leaf() {
        let rail = Rail {
            servers: 6,
            rails: 4,
            servers_per_group: 4,
            spines: 2,
            host_rate: Rate::gbit(400.0),
            uplink_rate: None,
            host_cable_m: 5.0,
            uplink_cable_m: 40.0,
        };
        let net = rail.network();
        for (host, leaf) in [("s0r2", "g0r2"), ("s3r2", "g0r2"), ("s4r2", "g1r2")] {
            assert!(net.link(&format!("{host}->{leaf}")).is_some(), "{host}");
        }
    }

    #[test]
    fn a_slow_receiver_is_a_switch_before_a_slow_link() {
        let mut net = read::<FabricTopology>(TRIANGLE).unwrap().network();
        let b = net.node("b").unwrap();
        net.put_behind(b, "b.nic".to_owned(), Rate::gbit(10.0));
        assert!(net.link("t->b.nic").is_some() && net.link("b.nic->b").is_some());
        assert_eq!(net.leaving[b as usize].len(), 1);
    }

    #[test]
    fn impossible_graphs_are_refused_with_field_value_and_line() {
        assert_eq!(
            refused(&TRIANGLE.replace("[\"t\", \"b\"]", "[\"t\", \"c\"]")),
            "line 11: graph.links[2].ends[1] = c: allowed is a listed host or switch\n\
             line 2: graph.hosts[1] = b: allowed is a host with a link"
        );
        let two = TRIANGLE.replace("[\"s\", \"t\"]\nrate", "[\"s\", \"a\"]\nrate");
        assert!(refused(&two).contains("allowed is one link for each host"));
        let looped = TRIANGLE.replace("[\"s\", \"t\"]\nrate", "[\"s\", \"s\"]\nrate");
        assert!(refused(&looped).contains("two different nodes"));
    }

    #[test]
    fn zero_rates_and_absurd_sizes_are_refused() {
        assert!(refused(&LEAF_SPINE.replace("100Gb/s", "0")).starts_with("line 5:"));
        assert!(refused(&LEAF_SPINE.replace("= 8", "= 4000000")).contains("hosts in all"));
        assert!(refused(&LEAF_SPINE.replace("spines = 2", "")).contains("several leaves"));
    }
}
