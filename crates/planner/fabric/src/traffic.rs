//! Traffic patterns: senders, receivers, sizes and start times.
//!
//! A scenario lists patterns, which expand into flows. Random patterns use separate parts of the seed, so that adding
//! one does not change the others.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Seconds, random::Seed};

use super::{
    bounds::{DURATION_MAX, FLOWS_MAX, HOPS_MAX},
    topology::{Network, narrow},
};
use crate::dcqcn::picoseconds;
use straightway_scenario::check::{Checkable, Checker};

/// A pattern of flows. Without `bytes` a flow sends until the run ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Traffic {
    /// Every host sends to one other, and each receives from one.
    Permutation(Permutation),
    /// Many hosts send to one at the same time.
    Incast(Incast),
    /// A periodic incast: micro-bursts.
    Burst(Burst),
    /// Every host sends to the host `by` places further, as in a ring collective.
    Shift(Shift),
    /// Every host sends to every other.
    AllToAll(AllToAll),
    /// One flow, or several between the same two hosts.
    Flow(Single),
}

/// See [`Traffic::Permutation`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Permutation {
    /// The bytes that each host sends.
    pub bytes: Option<Bytes>,
    /// The start time.
    #[serde(default)]
    pub start: Seconds,
}

/// See [`Traffic::Incast`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incast {
    /// The receiving host.
    pub receiver: String,
    /// The number of senders: the hosts from `first` on, wrapping around, without the receiver.
    pub senders: u32,
    /// The first sender; by default the host after the receiver.
    pub first: Option<String>,
    /// The bytes that each sends.
    pub bytes: Option<Bytes>,
    /// The start time.
    #[serde(default)]
    pub start: Seconds,
}

/// See [`Traffic::Burst`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Burst {
    /// The receiving host.
    pub receiver: String,
    /// The number of senders.
    pub senders: u32,
    /// The first sender; by default the host after the receiver.
    pub first: Option<String>,
    /// The bytes that each sends in one burst.
    pub bytes: Bytes,
    /// The start time of the first burst.
    #[serde(default)]
    pub start: Seconds,
    /// The time from one burst to the next.
    pub period: Seconds,
    /// The number of bursts.
    pub count: u32,
    /// The maximum random delay of a sender.
    #[serde(default)]
    pub jitter: Seconds,
}

/// See [`Traffic::Shift`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shift {
    /// The distance from sender to receiver, in hosts.
    pub by: u32,
    /// The bytes that each host sends.
    pub bytes: Option<Bytes>,
    /// The start time.
    #[serde(default)]
    pub start: Seconds,
}

/// See [`Traffic::AllToAll`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllToAll {
    /// The bytes that each pair sends.
    pub bytes: Bytes,
    /// The start time.
    #[serde(default)]
    pub start: Seconds,
}

/// See [`Traffic::Flow`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Single {
    /// The sender.
    pub from: String,
    /// The receiver.
    pub to: String,
    /// The bytes that are sent.
    pub bytes: Option<Bytes>,
    /// The start time.
    #[serde(default)]
    pub start: Seconds,
    /// The number of such flows.
    #[serde(default = "one")]
    pub count: u32,
    /// The switches on its path, in order, instead of the shortest path.
    #[serde(default)]
    pub via: Vec<String>,
}

fn one() -> u32 {
    1
}

/// One flow of a pattern.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Flow {
    pub(crate) from: u32,
    pub(crate) to: u32,
    /// The bytes to send; `None` to send until the end of the run.
    pub(crate) bytes: Option<u64>,
    pub(crate) start_ps: u64,
    /// The traffic entry it came from.
    pub(crate) entry: u32,
    /// Switches it must pass; empty for the shortest path.
    pub(crate) via: Vec<u32>,
}

impl Traffic {
    /// The label of the pattern in tables.
    pub fn label(&self) -> String {
        match self {
            Self::Permutation(_) => "permutation".to_owned(),
            Self::Incast(t) => format!("incast {}:1 → {}", t.senders, t.receiver),
            Self::Burst(t) => format!("{} bursts {}:1 → {}", t.count, t.senders, t.receiver),
            Self::Shift(t) => format!("shift by {}", t.by),
            Self::AllToAll(_) => "all to all".to_owned(),
            Self::Flow(t) if t.count == 1 => format!("{} → {}", t.from, t.to),
            Self::Flow(t) => format!("{} × {} → {}", t.count, t.from, t.to),
        }
    }

    /// The number of flows of the pattern.
    pub(crate) fn flows(&self, hosts: u64) -> u64 {
        match self {
            Self::Permutation(_) | Self::Shift(_) => hosts,
            Self::Incast(t) => u64::from(t.senders),
            Self::Burst(t) => u64::from(t.senders) * u64::from(t.count),
            Self::AllToAll(_) => hosts.saturating_mul(hosts - 1),
            Self::Flow(t) => u64::from(t.count),
        }
    }

    /// The bytes and the start time of each of its flows.
    pub(crate) fn load(&self) -> (Option<Bytes>, Seconds) {
        match self {
            Self::Permutation(t) => (t.bytes, t.start),
            Self::Incast(t) => (t.bytes, t.start),
            Self::Burst(t) => (Some(t.bytes), t.start),
            Self::Shift(t) => (t.bytes, t.start),
            Self::AllToAll(t) => (Some(t.bytes), t.start),
            Self::Flow(t) => (t.bytes, t.start),
        }
    }

    /// Expands the pattern into flows. Names have been checked.
    pub(crate) fn unfold(&self, entry: u32, net: &Network, seed: Seed, flows: &mut Vec<Flow>) {
        let (bytes, start) = self.load();
        let flow = |from: u32, to: u32| Flow {
            from,
            to,
            bytes: bytes.map(|b| b.0),
            start_ps: picoseconds(start),
            entry,
            via: Vec::new(),
        };
        let host = |name: &str| net.node(name).expect("a checked name");
        match self {
            Self::Permutation(_) => {
                let order = cycle(net.hosts, seed);
                let receivers = order.iter().cycle().skip(1);
                flows.extend(order.iter().zip(receivers).map(|(a, b)| flow(*a, *b)));
            }
            Self::Shift(t) => {
                flows.extend((0..net.hosts).map(|h| flow(h, (h + t.by) % net.hosts)));
            }
            Self::AllToAll(_) => {
                // Each host starts with the one after it, so that not all begin with host 0.
                for by in 1..net.hosts {
                    flows.extend((0..net.hosts).map(|h| flow(h, (h + by) % net.hosts)));
                }
            }
            Self::Incast(t) => {
                let to = host(&t.receiver);
                let first = t.first.as_deref().map(host);
                flows.extend(senders(net, to, first, t.senders).map(|from| flow(from, to)));
            }
            Self::Burst(t) => {
                let to = host(&t.receiver);
                let first = t.first.as_deref().map(host);
                let mut rng = seed.rng();
                for burst in 0..t.count {
                    let begin = picoseconds(t.start) + u64::from(burst) * picoseconds(t.period);
                    for from in senders(net, to, first, t.senders) {
                        let late = rng.below(picoseconds(t.jitter) + 1);
                        flows.push(Flow {
                            start_ps: begin + late,
                            ..flow(from, to)
                        });
                    }
                }
            }
            Self::Flow(t) => {
                let via: Vec<u32> = t.via.iter().map(|name| host(name)).collect();
                let one = Flow {
                    via,
                    ..flow(host(&t.from), host(&t.to))
                };
                flows.extend(std::iter::repeat_n(one, t.count as usize));
            }
        }
    }

    /// Checks names and counts against the fabric.
    pub(crate) fn check_against(&self, net: &Network, c: &mut Checker) {
        let others = u64::from(net.hosts) - 1;
        let senders = |c: &mut Checker, receiver: &str, first: Option<&str>, senders: u32| {
            check_host(net, c, "receiver", receiver);
            if let Some(first) = first {
                check_host(net, c, "first", first);
            }
            c.count("senders", u64::from(senders), 1..=others);
        };
        c.within(self.key(), |c| match self {
            Self::Permutation(_) | Self::AllToAll(_) => {}
            Self::Incast(t) => senders(c, &t.receiver, t.first.as_deref(), t.senders),
            Self::Burst(t) => senders(c, &t.receiver, t.first.as_deref(), t.senders),
            Self::Shift(t) => c.count("by", u64::from(t.by), 1..=others),
            Self::Flow(t) => {
                check_host(net, c, "from", &t.from);
                check_host(net, c, "to", &t.to);
                if t.from == t.to {
                    c.refuse("to", &t.to, "another host than the sender");
                }
                for (i, name) in t.via.iter().enumerate() {
                    if net.node(name).is_none_or(|n| net.is_host(n)) {
                        c.refuse(&format!("via[{i}]"), name, "a switch of the topology");
                    }
                }
            }
        });
    }

    /// Its key in TOML.
    pub(crate) fn key(&self) -> &'static str {
        match self {
            Self::Permutation(_) => "permutation",
            Self::Incast(_) => "incast",
            Self::Burst(_) => "burst",
            Self::Shift(_) => "shift",
            Self::AllToAll(_) => "all_to_all",
            Self::Flow(_) => "flow",
        }
    }
}

fn check_host(net: &Network, c: &mut Checker, field: &str, name: &str) {
    if net.node(name).is_none_or(|n| !net.is_host(n)) {
        let last = &net.names[net.hosts as usize - 1];
        let allowed = format!("a host of the topology, {} to {last}", net.names[0]);
        c.refuse(field, name, allowed);
    }
}

/// All hosts in random order: each sends to the next, so none sends to itself.
fn cycle(hosts: u32, seed: Seed) -> Vec<u32> {
    let mut order: Vec<u32> = (0..hosts).collect();
    seed.rng().shuffle(&mut order);
    order
}

/// The hosts from `first` on, wrapping around, without the receiver.
fn senders(net: &Network, receiver: u32, first: Option<u32>, count: u32) -> impl Iterator<Item = u32> + use<> {
    let hosts = net.hosts;
    let first = first.unwrap_or((receiver + 1) % hosts);
    (0..hosts)
        .map(move |i| narrow((first as usize + i as usize) % hosts as usize))
        .filter(move |h| *h != receiver)
        .take(count as usize)
}

impl Checkable for Traffic {
    fn check(&self, c: &mut Checker) {
        c.within(self.key(), |c| {
            let (bytes, start) = self.load();
            if let Some(bytes) = bytes {
                c.bytes("bytes", bytes, Bytes(1)..=Bytes(1 << 50));
            }
            c.seconds("start", start, Seconds(0.0)..=DURATION_MAX);
            if let Self::Burst(t) = self {
                c.seconds("period", t.period, Seconds(1e-9)..=DURATION_MAX);
                c.seconds("jitter", t.jitter, Seconds(0.0)..=DURATION_MAX);
                c.count("count", u64::from(t.count), 1..=1_000_000);
                let last = Seconds(t.start.0 + t.period.0 * f64::from(t.count));
                if last > DURATION_MAX {
                    c.refuse("count", t.count, format!("all bursts within {DURATION_MAX}"));
                }
            }
            if let Self::Flow(t) = self {
                c.count("count", u64::from(t.count), 1..=FLOWS_MAX);
                if t.via.len() > HOPS_MAX {
                    c.refuse("via", t.via.len(), format!("at most {HOPS_MAX} switches"));
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;
    use straightway_core::Rate;

    use super::*;
    use crate::topology::{FabricTopology, LeafSpine};

    fn net(hosts: u32) -> Network {
        FabricTopology::LeafSpine(LeafSpine {
            leaves: 1,
            spines: 0,
            hosts_per_leaf: hosts,
            host_rate: Rate::gbit(100.0),
            uplink_rate: None,
            host_cable_m: 5.0,
            uplink_cable_m: 40.0,
        })
        .network()
    }

    fn unfolded(traffic: &Traffic, hosts: u32, seed: u64) -> Vec<Flow> {
        let mut flows = Vec::new();
        traffic.unfold(0, &net(hosts), Seed(seed), &mut flows);
        assert_eq!(flows.len() as u64, traffic.flows(u64::from(hosts)));
        flows
    }

    proptest! {
        #[test]
        fn in_a_permutation_each_host_sends_once_receives_once_and_never_to_itself(
            hosts in 2u32..300,
            seed: u64,
        ) {
            let pattern = Traffic::Permutation(Permutation { bytes: None, start: Seconds(0.0) });
            let flows = unfolded(&pattern, hosts, seed);
            let senders: HashSet<u32> = flows.iter().map(|f| f.from).collect();
            let receivers: HashSet<u32> = flows.iter().map(|f| f.to).collect();
            prop_assert_eq!((senders.len(), receivers.len()), (hosts as usize, hosts as usize));
            prop_assert!(flows.iter().all(|f| f.from != f.to));
        }
    }

    #[test]
    fn an_incast_wraps_around_and_skips_the_receiver() {
        let incast = Traffic::Incast(Incast {
            receiver: "h6".to_owned(),
            senders: 7,
            first: None,
            bytes: Some(Bytes(1)),
            start: Seconds(0.0),
        });
        let from: Vec<u32> = unfolded(&incast, 8, 1).iter().map(|f| f.from).collect();
        assert_eq!(from, [7, 0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn bursts_start_a_period_apart_with_their_jitter() {
        let burst = Traffic::Burst(Burst {
            receiver: "h0".to_owned(),
            senders: 4,
            first: None,
            bytes: Bytes(1000),
            start: Seconds(1e-6),
            period: Seconds(1e-5),
            count: 3,
            jitter: Seconds(1e-6),
        });
        for (i, flow) in unfolded(&burst, 8, 1).iter().enumerate() {
            let begin = 1_000_000 + (i as u64 / 4) * 10_000_000;
            assert!((begin..=begin + 1_000_000).contains(&flow.start_ps));
        }
    }

    #[test]
    fn all_to_all_has_every_ordered_pair_once() {
        let pattern = Traffic::AllToAll(AllToAll {
            bytes: Bytes(1),
            start: Seconds(0.0),
        });
        let flows = unfolded(&pattern, 9, 1);
        let pairs: HashSet<(u32, u32)> = flows.iter().map(|f| (f.from, f.to)).collect();
        assert_eq!(pairs.len(), 72);
    }
}
