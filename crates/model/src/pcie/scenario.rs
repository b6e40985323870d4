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
//! A node with `count = 8` stands for eight, named `gpu0` to `gpu7`; a stream that names such a
//! group stands for one stream per member. What the scenario leaves out has a default, and every
//! default is listed with its origin in the outcome.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use super::link::{Generation, LANES, PAYLOADS};
use crate::{
    check::{Checked, Checker},
    seed::Seed,
};

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

/// The slowest and the fastest rate that makes sense.
const RATES: std::ops::RangeInclusive<Rate> = Rate(1e6)..=Rate(1e13);
/// Latencies: a link cannot be crossed in no time (the simulator's events need a future), and a
/// device that takes more than a second is broken.
const LATENCIES: std::ops::RangeInclusive<Seconds> = Seconds(1e-9)..=Seconds(1.0);
/// Latencies that may also be absent.
const PAUSES: std::ops::RangeInclusive<Seconds> = Seconds(0.0)..=Seconds(1.0);

/// A machine and its load.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// What this is, in a line.
    pub title: String,
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
    /// The tree.
    pub node: Vec<NodeSpec>,
    /// The load.
    pub stream: Vec<StreamSpec>,
    /// Published figures to set beside the outcome.
    #[serde(default)]
    pub published: Vec<Published>,
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
    /// Bytes in proportion to `weight`, by finish tags.
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
    /// Write TLPs a second its DMA engine can issue.
    pub dma_writes_per_s: Option<f64>,
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

/// A published figure, and how near the outcome should be.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// What it is, in words.
    pub what: String,
    /// What of the outcome it is compared to.
    pub measure: Measure,
    /// The figure, in bytes per second, per second, or seconds, as the measure has it.
    pub value: f64,
    /// The largest relative difference that counts as the same.
    pub tolerance: f64,
    /// Where it is from.
    pub source: String,
}

/// What of the outcome a published figure is compared to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Bytes per second of all streams together.
    Total,
    /// Bytes per second of the average stream.
    StreamMean,
    /// I/Os per second of all streams together.
    Iops,
    /// The median latency of an I/O, in seconds.
    LatencyMedian,
    /// The 99.9th percentile of it.
    LatencyP999,
    /// How long the average fence takes, in seconds.
    FenceMean,
}

fn one() -> u64 {
    1
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

impl Checked for Scenario {
    fn check(&self, c: &mut Checker) {
        c.nested("pcie", &self.pcie);
        c.nested("credits", &self.credits);
        c.nested("channels", &self.channels);
        c.each("node", &self.node, 1..=NODES_MAX);
        c.each("stream", &self.stream, 1..=STREAMS_MAX);
        c.each("published", &self.published, 0..=64);
        super::topology::check(self, c);
    }
}

/// Refuses a payload size the specification does not know.
fn payload(c: &mut Checker, field: &str, bytes: Bytes) {
    if !PAYLOADS.iter().any(|known| u64::from(*known) == bytes.0) {
        c.refuse(field, bytes, "128, 256, 512, 1024, 2048 or 4096 bytes");
    }
}

impl Checked for Settings {
    fn check(&self, c: &mut Checker) {
        payload(c, "mps", self.mps);
        payload(c, "mrrs", self.mrrs);
        c.seconds("link_latency", self.link_latency, LATENCIES);
        // Ten-bit tags; the first 256 are reserved for eight-bit ones.
        c.count("tags", self.tags, 1..=1024);
    }
}

impl Checked for Credits {
    fn check(&self, c: &mut Checker) {
        // A receiver must take at least one TLP of the largest payload, else nothing moves.
        let headers = 1..=4095;
        let data = Bytes(4096)..=Bytes::mib(16);
        c.count("posted_headers", self.posted_headers, headers.clone());
        c.bytes("posted_data", self.posted_data, data.clone());
        c.count("nonposted_headers", self.nonposted_headers, headers.clone());
        c.count("completion_headers", self.completion_headers, headers);
        c.bytes("completion_data", self.completion_data, data);
    }
}

impl Checked for Channels {
    fn check(&self, c: &mut Checker) {
        let most = CHANNELS_MAX as u64;
        c.count("count", self.count, 1..=most);
        for (i, vc) in self.map.iter().enumerate() {
            c.count(&format!("map[{i}]"), *vc, 0..=self.count.saturating_sub(1));
        }
        for (i, weight) in self.weights.iter().enumerate() {
            c.count(&format!("weights[{i}]"), *weight, 1..=1024);
        }
        let lengths = [("map", self.map.len()), ("weights", self.weights.len())];
        for (field, len) in lengths {
            if len > CHANNELS_MAX {
                c.refuse(
                    field,
                    format!("{len} entries"),
                    format!("at most {most} entries"),
                );
            }
        }
    }
}

impl Checked for NodeSpec {
    fn check(&self, c: &mut Checker) {
        if self.id.is_empty() || self.id.len() > 64 {
            c.refuse(
                "id",
                format!("{:?}", self.id),
                "a name of 1 to 64 characters",
            );
        }
        if let Some(count) = self.count {
            c.count("count", count, 1..=NODES_MAX as u64);
        }
        self.check_link(c);
        let rates = [
            ("memory_rate", self.memory_rate),
            ("media_rate", self.media_rate),
            ("media_write_rate", self.media_write_rate),
            ("peer_rate", self.peer_rate),
        ];
        for (field, rate) in rates {
            if let Some(rate) = rate {
                c.rate(field, rate, RATES);
            }
        }
        for (field, per_s) in [
            ("dma_writes_per_s", self.dma_writes_per_s),
            ("dma_reads_per_s", self.dma_reads_per_s),
        ] {
            if let Some(per_s) = per_s {
                c.range(field, per_s, 1e3..=1e10, "a second");
            }
        }
        let pauses = [
            ("latency", self.latency),
            ("jitter", self.jitter),
            ("commit", self.commit),
        ];
        for (field, pause) in pauses {
            if let Some(pause) = pause {
                c.seconds(field, pause, PAUSES);
            }
        }
        if let Some(tags) = self.tags {
            c.count("tags", tags, 1..=1024);
        }
        if let Some(weight) = self.weight {
            c.count("weight", weight, 1..=1024);
        }
        self.check_kind(c);
    }
}

impl NodeSpec {
    /// Checks the link to the parent.
    fn check_link(&self, c: &mut Checker) {
        if let Some(lanes) = self.lanes
            && !LANES.contains(&lanes)
        {
            c.refuse("lanes", lanes, "1, 2, 4, 8 or 16");
        }
        if let Some(rate) = self.rate {
            c.rate("rate", rate, RATES);
        }
        if let Some(latency) = self.link_latency {
            c.seconds("link_latency", latency, LATENCIES);
        }
        if let Some(mps) = self.mps {
            payload(c, "mps", mps);
        }
        let pcie = self.generation.is_some() && self.lanes.is_some();
        let half = self.generation.is_some() != self.lanes.is_some();
        if self.parent.is_some() && self.kind != Kind::RootPort {
            if half || pcie == self.rate.is_some() {
                c.refuse(
                    "gen",
                    self.link_text(),
                    "`gen` and `lanes` together, or `rate` for a link that is not PCIe",
                );
            }
        } else if self.parent.is_none() && (pcie || half || self.rate.is_some()) {
            c.refuse(
                "gen",
                self.link_text(),
                "no link: the root has nothing above it",
            );
        }
    }

    fn link_text(&self) -> String {
        let part = |name: &str, value: Option<String>| {
            value.map_or_else(|| format!("no {name}"), |v| format!("{name} {v}"))
        };
        [
            part("gen", self.generation.map(|g| u8::from(g).to_string())),
            part("lanes", self.lanes.map(|l| l.to_string())),
            part("rate", self.rate.map(|r| r.to_string())),
        ]
        .join(", ")
    }

    /// Refuses what makes no sense for this kind of node.
    fn check_kind(&self, c: &mut Checker) {
        let drive = matches!(self.kind, Kind::Drive | Kind::Hca);
        let host = self.kind == Kind::Host;
        let endpoint = !self.kind.forwards();
        let wrong = [
            (
                "media_rate",
                self.media_rate.is_some() && !drive,
                "only on a drive or an HCA",
            ),
            (
                "media_write_rate",
                self.media_write_rate.is_some() && !drive,
                "only on a drive or an HCA",
            ),
            (
                "peer_rate",
                self.peer_rate.is_some() && !host,
                "only on a host",
            ),
            (
                "memory_rate",
                self.memory_rate.is_some() && !endpoint,
                "only where data ends",
            ),
            (
                "commit",
                self.commit.is_some() && !endpoint,
                "only where data ends",
            ),
            (
                "jitter",
                self.jitter.is_some() && !endpoint,
                "only where data ends or starts",
            ),
        ];
        for (field, is_wrong, allowed) in wrong {
            if is_wrong {
                c.refuse(
                    field,
                    format!("given on a {:?}", self.kind).to_lowercase(),
                    allowed,
                );
            }
        }
    }
}

impl Checked for StreamSpec {
    fn check(&self, c: &mut Checker) {
        c.bytes("size", self.size, Bytes(1)..=Bytes(1 << 50));
        c.bytes("io", self.io, Bytes(1)..=Bytes::gib(4));
        c.count("depth", self.depth, 1..=DEPTH_MAX);
        c.seconds("start", self.start, Seconds(0.0)..=SIMULATED_MAX);
        c.count("tc", self.tc, 0..=7);
        c.count("weight", self.weight, 1..=1024);
        if let Some(fence) = self.fence {
            c.bytes("fence", fence, Bytes(64)..=Bytes::gib(4));
        }
    }
}

impl Checked for Published {
    fn check(&self, c: &mut Checker) {
        c.range("value", self.value, 1e-12..=1e18, "");
        c.range("tolerance", self.tolerance, 0.0..=1.0, "");
    }
}
