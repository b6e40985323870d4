//! What is simulated: a tree of devices and the streams between them, as TOML.
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
//! Instead of a tree, `[machine]` describes a node by its counts ([`Machine`]): its parts are called `host`,
//! `switch`, `gpu`, `hca` and `nvme`.
//!
//! A node with `count = 8` stands for eight, named `gpu0` to `gpu7`; a stream that names such a
//! group stands for one stream per member. What the scenario leaves out has a default, and every
//! default is listed with its origin in the outcome.

mod limits;

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Seconds};

use super::{
    machine::{GPUS, Machine},
    node::PAYLOAD,
};

pub use super::node::{Arbiter, Kind, NodeSpec};
use straightway_scenario::{claim::Claim, seed::Seed};

/// The most nodes after groups are expanded: ten racks of the largest machine there is.
pub const NODES_MAX: usize = 4096;
/// The most streams after groups are expanded.
pub const STREAMS_MAX: usize = 1024;
/// The most TLPs one simulation may need: two minutes of work on one core.
pub const TLPS_MAX: u64 = 1_000_000_000;
/// The longest time that is simulated.
pub const SIMULATED_MAX: Seconds = Seconds(1000.0);
/// The most I/Os a stream keeps in flight: an NVMe queue holds 65,536.
pub const DEPTH_MAX: u64 = 65_536;
/// The most virtual channels; the specification has eight traffic classes.
pub const CHANNELS_MAX: usize = 8;

/// A machine and its load.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What this is, in a line.
    pub title: String,
    /// What it is, in a paragraph or two.
    #[serde(default)]
    pub about: String,
    /// Where randomness starts; only latencies with a `jitter` draw from it.
    #[serde(default)]
    pub seed: Seed,
    /// The published text whose claims are set beside the outcome.
    #[serde(default)]
    pub article: Option<Article>,
    /// What holds for every link and device that does not say otherwise.
    #[serde(default)]
    pub pcie: Settings,
    /// Receive buffers of switches, per link and virtual channel.
    #[serde(default)]
    pub credits: Credits,
    /// Traffic classes and virtual channels: a what-if, for real machines use one.
    #[serde(default)]
    pub channels: Channels,
    /// A machine by its counts, instead of a tree or before further nodes of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Machine>,
    /// The tree.
    #[serde(default)]
    pub node: Vec<NodeSpec>,
    /// The load.
    pub stream: Vec<StreamSpec>,
    /// Published figures to set beside the outcome.
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

/// What holds for every link and device that does not say otherwise.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// The largest payload of a TLP.
    pub mps: Bytes,
    /// The largest read request.
    pub mrrs: Bytes,
    /// How a port chooses between those that want to send.
    pub arbiter: Arbiter,
    /// From the last bit into a link to the first bit out: serdes and both link layers.
    pub link_latency: Seconds,
    /// Whether completions may pass posted writes.
    pub relaxed_ordering: bool,
    /// Outstanding read requests of a device.
    pub tags: u64,
}

/// What a receiver promises to hold, per link and virtual channel.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Credits {
    /// Posted TLPs.
    pub posted_headers: u64,
    /// Their payload.
    pub posted_data: Bytes,
    /// Read requests.
    pub nonposted_headers: u64,
    /// Completions, in switches; endpoints and root ports must take all they asked for.
    pub completion_headers: u64,
    /// Their payload.
    pub completion_data: Bytes,
}

/// How traffic classes are told apart.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Channels {
    /// How many virtual channels.
    pub count: u64,
    /// The virtual channel of each traffic class, from class 0 on; classes beyond go to the last.
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

/// Who moves the data of a stream.
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
    /// Where the data comes from.
    pub from: String,
    /// Where it goes.
    pub to: String,
    /// Who moves it; a drive or an HCA at either end does, else the source.
    pub mode: Option<Mode>,
    /// Bytes to move.
    pub size: Bytes,
    /// Bytes of one I/O.
    pub io: Bytes,
    /// I/Os in flight.
    #[serde(default = "one")]
    pub depth: u64,
    /// When it starts.
    #[serde(default)]
    pub start: Seconds,
    /// Its traffic class.
    #[serde(default)]
    pub tc: u64,
    /// Its share at its own device's arbiter.
    #[serde(default = "one")]
    pub weight: u64,
    /// Bytes written between two ordering fences, each a read that waits for all writes before it.
    pub fence: Option<Bytes>,
}

fn one() -> u64 {
    1
}

impl Scenario {
    /// A machine without load.
    pub(crate) fn of(machine: Machine) -> Self {
        Self {
            title: String::new(),
            about: String::new(),
            seed: Seed::default(),
            article: None,
            pcie: Settings::default(),
            credits: Credits::default(),
            channels: Channels::default(),
            machine: Some(machine),
            node: Vec::new(),
            stream: Vec::new(),
            claims: Vec::new(),
        }
    }

    /// The scenario with its machine written out as nodes.
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

impl Default for Settings {
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
        self.map.get(at).copied().unwrap_or_else(|| {
            if self.map.is_empty() {
                tc.min(last)
            } else {
                last
            }
        })
    }
}
