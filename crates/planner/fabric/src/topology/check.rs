//! Checks of a topology: rates, one link per host, and bounded sizes.

use std::collections::{HashMap, HashSet};

use straightway_core::Rate;

use super::{
    super::bounds::{CABLE_M_MAX, HOSTS_MAX, LINKS_MAX, RATE_MAX, RATE_MIN, SWITCHES_MAX},
    Cable, FabricTopology, Graph, LeafSpine, Rail,
};
use straightway_scenario::check::{Checkable, Checker};

impl Checkable for FabricTopology {
    fn check(&self, c: &mut Checker) {
        match self {
            Self::LeafSpine(t) => c.nested("leaf_spine", t),
            Self::Rail(t) => c.nested("rail", t),
            Self::Graph(t) => c.nested("graph", t),
        }
    }
}

/// Refuses a fabric that is too large; `field` is the one that multiplies.
fn check_scale(c: &mut Checker, field: &str, hosts: u64, cables: u64) {
    if !(2..=HOSTS_MAX).contains(&hosts) {
        let allowed = format!("from 2 to {HOSTS_MAX} hosts in all");
        c.refuse(field, format!("{hosts} hosts in all"), allowed);
    }
    if cables > LINKS_MAX as u64 {
        let allowed = format!("at most {LINKS_MAX} cables in all");
        c.refuse(field, format!("{cables} cables in all"), allowed);
    }
}

fn check_wires(c: &mut Checker, host: (Rate, f64), uplink: (Option<Rate>, f64)) {
    c.rate("host_rate", host.0, RATE_MIN..=RATE_MAX);
    if let Some(rate) = uplink.0 {
        c.rate("uplink_rate", rate, RATE_MIN..=RATE_MAX);
    }
    c.range("host_cable_m", host.1, 0.0..=CABLE_M_MAX, "m");
    c.range("uplink_cable_m", uplink.1, 0.0..=CABLE_M_MAX, "m");
}

impl Checkable for LeafSpine {
    fn check(&self, c: &mut Checker) {
        c.count("leaves", u64::from(self.leaves), 1..=SWITCHES_MAX);
        c.count("hosts_per_leaf", u64::from(self.hosts_per_leaf), 1..=HOSTS_MAX);
        c.count("spines", u64::from(self.spines), 0..=SWITCHES_MAX);
        if self.leaves > 1 && self.spines == 0 {
            c.refuse("spines", 0, "at least 1 where there are several leaves");
        }
        let hosts = u64::from(self.leaves) * u64::from(self.hosts_per_leaf);
        let cables = hosts + u64::from(self.leaves) * u64::from(self.spines);
        check_scale(c, "hosts_per_leaf", hosts, cables);
        check_wires(
            c,
            (self.host_rate, self.host_cable_m),
            (self.uplink_rate, self.uplink_cable_m),
        );
    }
}

impl Checkable for Rail {
    fn check(&self, c: &mut Checker) {
        c.count("servers", u64::from(self.servers), 1..=HOSTS_MAX);
        c.count("rails", u64::from(self.rails), 1..=64);
        let group = u64::from(self.servers_per_group);
        c.count("servers_per_group", group, 1..=HOSTS_MAX);
        c.count("spines", u64::from(self.spines), 0..=SWITCHES_MAX);
        if group == 0 {
            return;
        }
        let leaves = u64::from(self.servers.div_ceil(self.servers_per_group)) * u64::from(self.rails);
        if leaves > 1 && self.spines == 0 {
            let why = format!("at least 1, to join the {leaves} leaves");
            c.refuse("spines", 0, why);
        }
        let hosts = u64::from(self.servers) * u64::from(self.rails);
        check_scale(c, "servers", hosts, hosts + leaves * u64::from(self.spines));
        check_wires(
            c,
            (self.host_rate, self.host_cable_m),
            (self.uplink_rate, self.uplink_cable_m),
        );
    }
}

impl Checkable for Graph {
    fn check(&self, c: &mut Checker) {
        check_scale(c, "hosts", self.hosts.len() as u64, self.links.len() as u64);
        if self.switches.len() as u64 > SWITCHES_MAX {
            c.refuse("switches", self.switches.len(), format!("at most {SWITCHES_MAX}"));
            return;
        }
        let mut names = HashSet::new();
        for (field, list) in [("hosts", &self.hosts), ("switches", &self.switches)] {
            for (i, name) in list.iter().enumerate() {
                if name.is_empty() || name.contains("->") {
                    c.refuse(&format!("{field}[{i}]"), name, "a name without `->`");
                } else if !names.insert(name.as_str()) {
                    c.refuse(&format!("{field}[{i}]"), name, "a name used once");
                }
            }
        }
        c.each("links", &self.links, 1..=LINKS_MAX);
        self.check_ends(c, &names);
    }
}

impl Graph {
    /// Checks that every end exists, that no cable is a loop, and that a host has one link, since it does not forward.
    fn check_ends(&self, c: &mut Checker, names: &HashSet<&str>) {
        let mut host_links: HashMap<&str, usize> = self.hosts.iter().map(|h| (h.as_str(), 0)).collect();
        for (i, cable) in self.links.iter().enumerate() {
            let field = format!("links[{i}].ends");
            let [a, b] = [cable.ends[0].as_str(), cable.ends[1].as_str()];
            if a == b {
                c.refuse(&field, a, "two different nodes");
            }
            for (side, end) in [a, b].into_iter().enumerate() {
                if !names.contains(end) {
                    c.refuse(&format!("{field}[{side}]"), end, "a listed host or switch");
                }
                if let Some(links) = host_links.get_mut(end) {
                    *links += 1;
                    if *links == 2 {
                        c.refuse(&format!("{field}[{side}]"), end, "one link for each host");
                    }
                }
            }
        }
        for (i, host) in self.hosts.iter().enumerate() {
            if host_links.get(host.as_str()) == Some(&0) {
                c.refuse(&format!("hosts[{i}]"), host, "a host with a link");
            }
        }
    }
}

impl Checkable for Cable {
    fn check(&self, c: &mut Checker) {
        c.rate("rate", self.rate, RATE_MIN..=RATE_MAX);
        c.range("cable_m", self.cable_m, 0.0..=CABLE_M_MAX, "m");
    }
}
