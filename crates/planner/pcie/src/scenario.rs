//! The input of a simulation: a tree of devices and the streams between them, as TOML.
//!
//! ```toml
//! title = "a drive and a GPU on one switch"
//!
//! [[node]]
//! id = "host"
//! kind = "host"
//!
//! [[node]]
//! id = "switch"
//! kind = "switch"
//! parent = "host"
//! gen = 5
//! lanes = 16
//!
//! [[node]]
//! id = "gpu"
//! kind = "gpu"
//! parent = "switch"
//! gen = 5
//! lanes = 16
//!
//! [[node]]
//! id = "nvme"
//! kind = "drive"
//! parent = "switch"
//! gen = 5
//! lanes = 4
//!
//! [[stream]]
//! from = "nvme"
//! to = "gpu"
//! size = "64MiB"
//! io = "1MiB"
//! depth = 8
//! ```
//!
//! Instead of a tree, `[machine]` describes a node by counts ([`MachineSpec`]): its parts are called `host`,
//! `switch`, `gpu`, `hca` and `nvme`.
//!
//! A node with `count = 8` stands for eight, named `gpu0` to `gpu7`; a stream that names such a group stands for one
//! stream per member. Omitted values have defaults, and the outcome lists every default with its origin.

mod limits;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Seconds, random::Seed};

use super::{
    machine::{GPUS, MachineSpec},
    node::PAYLOAD,
};

pub use super::node::{Arbiter, NodeKind, NodeSpec};
use straightway_scenario::claim::Claim;

/// The maximum number of nodes after groups are expanded: ten racks of the largest existing machine.
pub const NODES_MAX: usize = 4096;
/// The maximum number of streams after groups are expanded.
pub const STREAMS_MAX: usize = 1024;
/// The maximum number of TLPs of a simulation: two minutes of work on one core.
pub const TLPS_MAX: u64 = 1_000_000_000;
/// The maximum simulated time.
pub const SIMULATED_MAX: Seconds = Seconds(1000.0);
/// The maximum queue depth of a stream: an NVMe queue holds 65,536.
pub const DEPTH_MAX: u64 = 65_536;
/// The maximum number of virtual channels; the specification has eight traffic classes.
pub const CHANNELS_MAX: usize = 8;

/// A machine and its load.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieScenario {
    /// The title, in one line.
    pub title: String,
    /// A description, in a paragraph or two.
    #[serde(default)]
    pub about: String,
    /// The seed of random numbers, which only latencies with a `jitter` use.
    #[serde(default)]
    pub seed: Seed,
    /// The processor of the host, such as `Xeon E3-1226 v3`: the outcome warns about those that the model does not fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// The published text whose claims are compared with the outcome.
    #[serde(default)]
    pub article: Option<Article>,
    /// The defaults of all links and devices.
    #[serde(default)]
    pub pcie: PcieSettings,
    /// Receive buffers of switches, per link and virtual channel.
    #[serde(default)]
    pub credits: Credits,
    /// Traffic classes and virtual channels: a what-if, since real machines use one.
    #[serde(default)]
    pub channels: Channels,
    /// A machine described by counts, instead of a tree or in addition to its nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachineSpec>,
    /// The tree.
    #[serde(default)]
    pub node: Vec<NodeSpec>,
    /// The load.
    pub stream: Vec<StreamSpec>,
    /// Published figures to compare with the outcome.
    #[serde(default)]
    pub claims: Vec<Claim>,
}

/// A published text with claims that can be checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Article {
    /// On DMA scheduling and PCIe arbitration under many streams.
    Contention,
    /// On flit mode in PCIe 6.0.
    Flit,
}

/// The defaults of all links and devices.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PcieSettings {
    /// The largest payload of a TLP.
    pub mps: Bytes,
    /// The largest read request.
    pub mrrs: Bytes,
    /// How a port chooses between inputs that have something to send.
    pub arbiter: Arbiter,
    /// The time from the last bit into a link to the first bit out: serdes and both link layers.
    pub link_latency: Seconds,
    /// Whether completions may pass posted writes.
    pub relaxed_ordering: bool,
    /// Outstanding read requests of a device.
    pub tags: u64,
}

/// The receive buffer credits, per link and virtual channel.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Credits {
    /// Posted TLPs.
    pub posted_headers: u64,
    /// Their payload.
    pub posted_data: Bytes,
    /// Read requests.
    pub nonposted_headers: u64,
    /// Completions, in switches; endpoints and root ports must accept all completions they requested.
    pub completion_headers: u64,
    /// Their payload.
    pub completion_data: Bytes,
}

/// The mapping of traffic classes to virtual channels.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Channels {
    /// The number of virtual channels.
    pub count: u64,
    /// The virtual channel of each traffic class, from class 0 on; further classes use the last.
    pub map: Vec<u64>,
    /// How a port chooses between channels.
    pub arbiter: ChannelArbiter,
    /// TLPs in turn per channel, for `weighted`.
    pub weights: Vec<u64>,
}

/// How a port chooses between virtual channels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChannelArbiter {
    /// The highest channel that can send.
    #[default]
    Strict,
    /// `weights` TLPs each in turn.
    Weighted,
}

/// The side that moves the data of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The source writes, with posted TLPs.
    Write,
    /// The destination reads, with requests and completions.
    Read,
}

/// One stream, or one per member of a group.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamSpec {
    /// The source.
    pub from: String,
    /// The destination.
    pub to: String,
    /// The side that moves the data; by default a drive or an HCA at either end, else the source.
    pub mode: Option<Mode>,
    /// Bytes to move.
    pub size: Bytes,
    /// Bytes of one I/O.
    pub io: Bytes,
    /// I/Os in flight.
    #[serde(default = "one")]
    pub depth: u64,
    /// The start time.
    #[serde(default)]
    pub start: Seconds,
    /// Its traffic class.
    #[serde(default)]
    pub tc: u64,
    /// Its weight at its own device's arbiter.
    #[serde(default = "one")]
    pub weight: u64,
    /// Bytes written between two ordering fences, each a read that waits for all writes before it.
    pub fence: Option<Bytes>,
}

fn one() -> u64 {
    1
}

impl PcieScenario {
    /// Returns a machine without load.
    pub(crate) fn of(machine: MachineSpec) -> Self {
        Self {
            title: String::new(),
            about: String::new(),
            seed: Seed::default(),
            cpu: None,
            article: None,
            pcie: PcieSettings::default(),
            credits: Credits::default(),
            channels: Channels::default(),
            machine: Some(machine),
            node: Vec::new(),
            stream: Vec::new(),
            claims: Vec::new(),
        }
    }

    /// Returns the scenario with its machine expanded to nodes.
    pub(crate) fn expanded(&self) -> Cow<'_, Self> {
        let Some(machine) = &self.machine else {
            return Cow::Borrowed(self);
        };
        let mut expanded = self.clone();
        expanded.machine = None;
        expanded.pcie.mps = machine.mps;
        expanded.node = machine.tree(GPUS);
        expanded.node.extend(self.node.iter().cloned());
        Cow::Owned(expanded)
    }
}

impl Default for PcieSettings {
    fn default() -> Self {
        Self {
            mps: PAYLOAD,
            mrrs: Bytes(512),
            arbiter: Arbiter::RoundRobin,
            link_latency: Seconds(50e-9),
            relaxed_ordering: false,
            tags: 256,
        }
    }
}

impl Default for Credits {
    fn default() -> Self {
        Self {
            posted_headers: 256,
            posted_data: Bytes::kib(64),
            nonposted_headers: 256,
            completion_headers: 256,
            completion_data: Bytes::kib(64),
        }
    }
}

impl Default for Channels {
    fn default() -> Self {
        Self {
            count: 1,
            map: Vec::new(),
            arbiter: ChannelArbiter::Strict,
            weights: Vec::new(),
        }
    }
}

impl Channels {
    /// The virtual channel that carries traffic class `tc`.
    pub fn of(&self, tc: u64) -> u64 {
        let at = usize::try_from(tc).unwrap_or(usize::MAX);
        let last = self.count.saturating_sub(1);
        self.map
            .get(at)
            .copied()
            .unwrap_or_else(|| if self.map.is_empty() { tc.min(last) } else { last })
    }
}
