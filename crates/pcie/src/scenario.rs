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
use straightway_core::{Bytes, Rate, Seconds};

use super::{
    link::Generation,
    machine::{GPUS, Machine},
};
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

/// How a port chooses between those that want to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arbiter {
    /// One TLP each in turn: what the specification has as its default.
    #[default]
    RoundRobin,
    /// `weight` TLPs each in turn.
    WeightedRoundRobin,
    /// Bytes in proportion to `weight`, by start tags.
    WeightedFair,
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

/// What a node of the tree is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A root complex and its memory: the root of the tree, or a further socket below it.
    Host,
    /// A root port that splits off the host, for what hangs on it alone.
    RootPort,
    /// A switch.
    Switch,
    /// An NVMe drive.
    Drive,
    /// A host channel adapter or NIC.
    Hca,
    /// A GPU.
    Gpu,
}

/// One node of the tree, or `count` alike.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Its name; a group's members are numbered.
    pub id: String,
    /// What it is.
    pub kind: Kind,
    /// What it hangs on; only the root has none.
    pub parent: Option<String>,
    /// How many alike.
    pub count: Option<u64>,
    /// The generation of the link to the parent.
    #[serde(rename = "gen")]
    pub generation: Option<Generation>,
    /// Its lanes.
    pub lanes: Option<u8>,
    /// The rate of a link that is no PCIe link: between sockets, or inside a root complex.
    pub rate: Option<Rate>,
    /// Latency of the link to the parent.
    pub link_latency: Option<Seconds>,
    /// Largest payload this node takes.
    pub mps: Option<Bytes>,
    /// A switch's forwarding time, a drive's media latency, or how long a read of its memory takes.
    pub latency: Option<Seconds>,
    /// The mean of an exponential tail on that latency.
    pub jitter: Option<Seconds>,
    /// How long a posted write takes until a read behind it may start.
    pub commit: Option<Seconds>,
    /// What its memory takes or gives, both together.
    pub memory_rate: Option<Rate>,
    /// What a drive reads from its media, or an HCA receives from its network.
    pub media_rate: Option<Rate>,
    /// What a drive writes to its media, or an HCA sends.
    pub media_write_rate: Option<Rate>,
    /// Write TLPs a second its DMA engine can issue; pieces of `dma_chunk` where that is given.
    pub dma_writes_per_s: Option<f64>,
    /// The pieces in which its DMA engine works on a write: a TLP takes as many turns as it has pieces.
    pub dma_chunk: Option<Bytes>,
    /// What its DMA engine adds to every I/O before the first TLP.
    pub dma_latency: Option<Seconds>,
    /// The completions in which it answers a read shorter than the largest request; absent for the largest payload.
    pub completion: Option<Bytes>,
    /// Read requests a second its DMA engine can issue.
    pub dma_reads_per_s: Option<f64>,
    /// What a host passes between two of its root ports, in all.
    pub peer_rate: Option<Rate>,
    /// Outstanding read requests.
    pub tags: Option<u64>,
    /// Its share at a weighted arbiter upstream or downstream of it.
    pub weight: Option<u64>,
    /// How the ports of this node choose.
    pub arbiter: Option<Arbiter>,
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
            mps: Bytes(256),
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

impl Kind {
    /// Whether it passes TLPs on rather than taking them.
    pub fn forwards(self) -> bool {
        matches!(self, Self::Switch | Self::RootPort)
    }

    /// Whether others may hang on it.
    pub fn branches(self) -> bool {
        matches!(self, Self::Host) || self.forwards()
    }
}
