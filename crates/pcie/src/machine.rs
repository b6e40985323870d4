//! A machine by its counts: how many GPUs, ports, drives and switches, and the links between them.
//!
//! It is the one description of a node that every topic uses. The planner and `plan rail` ask it for the
//! minimum [cut](crate::cut) between its ports or drives and its GPUs; `sim pcie` plays streams over the
//! tree it stands for; so all three speak of the same links.
//!
//! GPUs, ports and drives are spread evenly over the switches, as on a DGX. A group with `on = "host"` hangs
//! on root ports of its own, as the storage ports of many nodes do.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};
use straightway_scenario::{
    check::{Checked, Checker, RATE_ANY, TIME_ANY},
    provenance::Source,
};

use crate::{
    link::{Generation, LANES, PAYLOADS},
    node::{Kind, NodeSpec, PAYLOAD},
};

/// Where the default machine is from.
pub const DGX_H100: Source = Source::read(
    "NVIDIA DGX H100 guide",
    "8 × 400 Gb/s; one Gen5 switch for two GPUs and two ports",
);

/// The GPUs of a machine that does not say how many it has.
pub const GPUS: u64 = 8;

/// One node of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Machine {
    /// GPUs; absent for as many as the question speaks of.
    pub gpus: Option<u64>,
    /// The link of each GPU.
    pub gpu_link: Link,
    /// PCIe switches below the host; with none, everything hangs on root ports.
    pub switches: u64,
    /// The link of each switch to the host.
    pub uplink: Link,
    /// Network ports.
    pub ports: Vec<Ports>,
    /// Drives.
    pub drives: Vec<Drives>,
    /// The largest payload of a TLP.
    pub mps: Bytes,
    /// What the host passes between its root ports, in all; absent where that is no limit.
    pub peer_rate: Option<Rate>,
}

/// A PCIe link by its generation and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
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
    /// How many.
    pub count: u64,
    /// What one carries, in one direction.
    pub rate: Rate,
    /// The link of each.
    pub link: Link,
    /// What they hang on.
    pub on: Place,
}

/// Drives of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Drives {
    /// How many.
    pub count: u64,
    /// What one reads.
    pub rate: Rate,
    /// Until the first byte of a read comes.
    pub latency: Seconds,
    /// The link of each.
    pub link: Link,
    /// What they hang on.
    pub on: Place,
}

/// What a group of devices hangs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The switches, spread evenly.
    #[default]
    Switch,
    /// Root ports of their own.
    Host,
}

const GEN5_X16: Link = Link {
    generation: Generation::Gen5,
    lanes: 16,
};

impl Default for Machine {
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
            link: GEN5_X16,
            on: Place::Switch,
        }
    }
}

impl Default for Drives {
    fn default() -> Self {
        Self {
            count: 8,
            rate: Rate(6.8e9),
            latency: Seconds(80e-6),
            link: Link {
                generation: Generation::Gen4,
                lanes: 4,
            },
            on: Place::Switch,
        }
    }
}

impl Checked for Link {
    fn check(&self, c: &mut Checker) {
        if !LANES.contains(&self.lanes) {
            c.refuse("lanes", self.lanes, "one of 1, 2, 4, 8, 16");
        }
    }
}

impl Checked for Machine {
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

impl Checked for Ports {
    fn check(&self, c: &mut Checker) {
        c.count("count", self.count, 1..=64);
        c.rate("rate", self.rate, RATE_ANY);
        c.nested("link", &self.link);
    }
}

impl Checked for Drives {
    fn check(&self, c: &mut Checker) {
        c.count("count", self.count, 1..=64);
        c.rate("rate", self.rate, RATE_ANY);
        c.seconds("latency", self.latency, TIME_ANY);
        c.nested("link", &self.link);
    }
}

impl Machine {
    /// What all network ports carry together.
    pub fn ports_bytes_per_s(&self) -> f64 {
        self.ports.iter().map(|p| p.count as f64 * p.rate.0).sum()
    }

    /// What all drives read together.
    pub fn drives_bytes_per_s(&self) -> f64 {
        self.drives.iter().map(|d| d.count as f64 * d.rate.0).sum()
    }

    /// The machine as nodes of a tree: `host`, `switch`, `gpu`, `hca`, `nvme`, and for further kinds of ports
    /// and drives `hca-b`, `nvme-b` and so on.
    pub fn tree(&self, gpus: u64) -> Vec<NodeSpec> {
        let gpus = self.gpus.unwrap_or(gpus).max(1);
        let mut nodes = vec![NodeSpec {
            peer_rate: self.peer_rate,
            ..spec("host", Kind::Host, None)
        }];
        // No more switches than the most numerous group can fill.
        let counts = self.ports.iter().map(|p| p.count);
        let counts = counts.chain(self.drives.iter().map(|d| d.count));
        let most = counts.chain([gpus]).max().unwrap_or(1);
        let switches = self.switches.min(most);
        if switches > 0 {
            nodes.push(linked(
                "switch",
                Kind::Switch,
                "host",
                switches,
                self.uplink,
            ));
        }
        let parent = |place: Place| match place {
            Place::Switch if switches > 0 => "switch",
            _ => "host",
        };
        nodes.push(linked(
            "gpu",
            Kind::Gpu,
            parent(Place::Switch),
            gpus,
            self.gpu_link,
        ));
        for (i, ports) in self.ports.iter().enumerate() {
            let name = numbered("hca", i);
            nodes.push(NodeSpec {
                media_rate: Some(ports.rate),
                ..linked(&name, Kind::Hca, parent(ports.on), ports.count, ports.link)
            });
        }
        for (i, drives) in self.drives.iter().enumerate() {
            let name = numbered("nvme", i);
            nodes.push(NodeSpec {
                media_rate: Some(drives.rate),
                latency: Some(drives.latency),
                ..linked(
                    &name,
                    Kind::Drive,
                    parent(drives.on),
                    drives.count,
                    drives.link,
                )
            });
        }
        nodes
    }
}

/// `hca`, `hca-b`, `hca-c`.
fn numbered(name: &str, i: usize) -> String {
    match i {
        0 => name.to_owned(),
        _ => format!(
            "{name}-{}",
            char::from(b'a' + u8::try_from(i % 26).unwrap_or(0))
        ),
    }
}

fn linked(name: &str, kind: Kind, parent: &str, count: u64, link: Link) -> NodeSpec {
    NodeSpec {
        count: Some(count),
        generation: Some(link.generation),
        lanes: Some(link.lanes),
        ..spec(name, kind, Some(parent))
    }
}

fn spec(name: &str, kind: Kind, parent: Option<&str>) -> NodeSpec {
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
