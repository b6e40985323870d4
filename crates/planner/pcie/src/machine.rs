//! A machine described by counts: its GPUs, ports, drives and switches, and the links between them.
//!
//! It is the only description of a cluster node, for all topics. The direct path of the cluster planner and `plan rail`
//! compute the minimum [cut](crate::cut) between its ports or drives and its GPUs; `sim pcie` simulates streams on its
//! tree. So all three use the same links.
//!
//! GPUs, ports and drives are spread evenly over the switches, as on a DGX. A group with `on = "host"` has root ports
//! of its own, as the storage ports of many nodes have.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};
use straightway_scenario::{
    check::{Checkable, Checker, RATE_ANY, TIME_ANY},
    provenance::{Basis, Citation},
};

use crate::{
    link::{Generation, LANES, PAYLOADS},
    node::{NodeKind, NodeSpec, PAYLOAD},
};

/// The source of the default machine.
pub const DGX_H100: Citation = Citation::read(
    "NVIDIA DGX H100 guide",
    "8 × 400 Gb/s; one Gen5 switch for two GPUs and two ports",
);

/// The number of GPUs of a machine that does not set it.
pub const GPUS: u64 = 8;

/// The published share of line rate that network links carry: the lowest, the median and the highest.
pub const LINK_EFFICIENCY: [f64; 3] = [0.77, 0.90, 1.0];

/// The source of [`LINK_EFFICIENCY`].
pub const LINK_EFFICIENCY_SOURCE: Citation = Citation::read(
    "21 published rates of nodes and storage servers (DDN, VAST, MLPerf Storage v1.0 to v3.0 and others)",
    "0.77 to 1.0 of line rate, median 0.90",
);

/// One node of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MachineSpec {
    /// The number of GPUs; absent for the number in the question.
    pub gpus: Option<u64>,
    /// The link of each GPU.
    pub gpu_link: LinkSpec,
    /// PCIe switches below the host; without any, all devices are on root ports.
    pub switches: u64,
    /// The link of each switch to the host.
    pub uplink: LinkSpec,
    /// Network ports.
    pub ports: Vec<Ports>,
    /// Drives.
    pub drives: Vec<Drives>,
    /// The largest payload of a TLP.
    pub mps: Bytes,
    /// The total rate between the host's root ports; absent for no limit.
    pub peer_rate: Option<Rate>,
}

/// A PCIe link by its generation and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkSpec {
    /// The generation.
    #[serde(rename = "gen")]
    pub generation: Generation,
    /// The lanes.
    pub lanes: u8,
}

/// Network ports of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ports {
    /// The number.
    pub count: u64,
    /// The line rate of one port, in one direction.
    pub rate: Rate,
    /// The share of the line rate that carries data.
    pub efficiency: f64,
    /// The link of each.
    pub link: LinkSpec,
    /// The attachment.
    pub on: Attachment,
}

/// Drives of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Drives {
    /// The number.
    pub count: u64,
    /// The read rate of one drive.
    pub rate: Rate,
    /// The write rate of one drive; absent for the read rate.
    pub write_rate: Option<Rate>,
    /// The latency until the first byte of a read.
    pub latency: Seconds,
    /// The link of each.
    pub link: LinkSpec,
    /// The attachment.
    pub on: Attachment,
}

/// The attachment of a group of devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attachment {
    /// The switches, spread evenly.
    #[default]
    Switch,
    /// Root ports of their own.
    Host,
}

const GEN5_X16: LinkSpec = LinkSpec {
    generation: Generation::Gen5,
    lanes: 16,
};

impl Default for MachineSpec {
    fn default() -> Self {
        Self {
            gpus: None,
            gpu_link: GEN5_X16,
            switches: 4,
            uplink: GEN5_X16,
            ports: vec![Ports::default()],
            drives: vec![Drives::default()],
            mps: PAYLOAD,
            peer_rate: None,
        }
    }
}

impl Default for Ports {
    fn default() -> Self {
        Self {
            count: 8,
            rate: Rate::gbit(400.0),
            efficiency: LINK_EFFICIENCY[1],
            link: GEN5_X16,
            on: Attachment::Switch,
        }
    }
}

impl Default for Drives {
    fn default() -> Self {
        Self {
            count: 8,
            rate: Rate(6.8e9),
            write_rate: None,
            latency: Seconds(80e-6),
            link: LinkSpec {
                generation: Generation::Gen4,
                lanes: 4,
            },
            on: Attachment::Switch,
        }
    }
}

impl Checkable for LinkSpec {
    fn check(&self, c: &mut Checker) {
        if !LANES.contains(&self.lanes) {
            c.refuse("lanes", self.lanes, "one of 1, 2, 4, 8, 16");
        }
    }
}

impl Checkable for MachineSpec {
    fn check(&self, c: &mut Checker) {
        if let Some(gpus) = self.gpus {
            c.count("gpus", gpus, 1..=1024);
        }
        c.nested("gpu_link", &self.gpu_link);
        c.count("switches", self.switches, 0..=64);
        c.nested("uplink", &self.uplink);
        c.each("ports", &self.ports, 0..=16);
        c.each("drives", &self.drives, 0..=16);
        if !PAYLOADS.iter().any(|bytes| u64::from(*bytes) == self.mps.0) {
            c.refuse("mps", self.mps, "one of 128, 256, 512, 1024, 2048, 4096");
        }
        if let Some(rate) = self.peer_rate {
            c.rate("peer_rate", rate, RATE_ANY);
        }
    }
}

impl Checkable for Ports {
    fn check(&self, c: &mut Checker) {
        c.count("count", self.count, 1..=64);
        c.rate("rate", self.rate, RATE_ANY);
        c.range("efficiency", self.efficiency, 0.01..=1.0, "");
        c.nested("link", &self.link);
    }
}

impl Checkable for Drives {
    fn check(&self, c: &mut Checker) {
        c.count("count", self.count, 1..=64);
        c.rate("rate", self.rate, RATE_ANY);
        if let Some(rate) = self.write_rate {
            c.rate("write_rate", rate, RATE_ANY);
        }
        c.seconds("latency", self.latency, TIME_ANY);
        c.nested("link", &self.link);
    }
}

impl Ports {
    /// The data rate of one port: its efficiency applied to its line rate.
    pub fn data_rate(&self) -> Rate {
        Rate(self.rate.0 * self.efficiency)
    }
}

impl Drives {
    /// The write rate of one drive.
    pub fn write_rate(&self) -> Rate {
        self.write_rate.unwrap_or(self.rate)
    }
}

impl MachineSpec {
    /// The total data rate of all network ports.
    pub fn ports_bytes_per_s(&self) -> f64 {
        self.ports.iter().map(|p| p.count as f64 * p.data_rate().0).sum()
    }

    /// The total line rate of all network ports.
    pub fn line_bytes_per_s(&self) -> f64 {
        self.ports.iter().map(|p| p.count as f64 * p.rate.0).sum()
    }

    /// Adds the efficiency of each kind of port to a basis. `root` is the path of the machine.
    pub fn assume_efficiency(&self, basis: &mut Basis, root: &str) {
        let [low, _, high] = LINK_EFFICIENCY;
        for (i, ports) in self.ports.iter().enumerate() {
            let path = format!("{root}.ports[{i}].efficiency");
            basis
                .parameter(
                    path,
                    "share of a port's line rate that carries data",
                    ports.efficiency,
                    "",
                    LINK_EFFICIENCY_SOURCE,
                )
                .between(low, high, LINK_EFFICIENCY_SOURCE);
        }
    }

    /// Returns the machine as nodes of a tree: `host`, `switch`, `gpu`, `hca`, `nvme`, and for further kinds of ports
    /// and drives `hca-b`, `nvme-b` and so on.
    pub fn tree(&self, gpus: u64) -> Vec<NodeSpec> {
        let gpus = self.gpus.unwrap_or(gpus).max(1);
        let mut nodes = vec![NodeSpec {
            peer_rate: self.peer_rate,
            ..spec("host", NodeKind::Host, None)
        }];
        // No more switches than the most numerous group can fill.
        let counts = self.ports.iter().map(|p| p.count);
        let counts = counts.chain(self.drives.iter().map(|d| d.count));
        let most = counts.chain([gpus]).max().unwrap_or(1);
        let switches = self.switches.min(most);
        if switches > 0 {
            nodes.push(linked("switch", NodeKind::Switch, "host", switches, self.uplink));
        }
        let parent = |place: Attachment| match place {
            Attachment::Switch if switches > 0 => "switch",
            _ => "host",
        };
        nodes.push(linked(
            "gpu",
            NodeKind::Gpu,
            parent(Attachment::Switch),
            gpus,
            self.gpu_link,
        ));
        for (i, ports) in self.ports.iter().enumerate() {
            let name = numbered("hca", i);
            nodes.push(NodeSpec {
                media_rate: Some(ports.data_rate()),
                ..linked(&name, NodeKind::Hca, parent(ports.on), ports.count, ports.link)
            });
        }
        for (i, drives) in self.drives.iter().enumerate() {
            let name = numbered("nvme", i);
            nodes.push(NodeSpec {
                media_rate: Some(drives.rate),
                media_write_rate: drives.write_rate,
                latency: Some(drives.latency),
                ..linked(&name, NodeKind::Drive, parent(drives.on), drives.count, drives.link)
            });
        }
        nodes
    }
}

/// `hca`, `hca-b`, `hca-c`.
fn numbered(name: &str, i: usize) -> String {
    match i {
        0 => name.to_owned(),
        _ => format!("{name}-{}", char::from(b'a' + u8::try_from(i % 26).unwrap_or(0))),
    }
}

fn linked(name: &str, kind: NodeKind, parent: &str, count: u64, link: LinkSpec) -> NodeSpec {
    NodeSpec {
        count: Some(count),
        generation: Some(link.generation),
        lanes: Some(link.lanes),
        ..spec(name, kind, Some(parent))
    }
}

fn spec(name: &str, kind: NodeKind, parent: Option<&str>) -> NodeSpec {
    NodeSpec {
        id: name.to_owned(),
        kind,
        parent: parent.map(str::to_owned),
        count: None,
        generation: None,
        lanes: None,
        rate: None,
        link_latency: None,
        mps: None,
        latency: None,
        jitter: None,
        commit: None,
        memory_rate: None,
        media_rate: None,
        media_write_rate: None,
        dma_writes_per_s: None,
        dma_chunk: None,
        dma_latency: None,
        dma_copy_rate: None,
        dma_partial_word: None,
        completion: None,
        dma_reads_per_s: None,
        peer_rate: None,
        tags: None,
        weight: None,
        arbiter: None,
    }
}
