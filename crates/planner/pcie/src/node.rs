//! The nodes of a machine's tree.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use crate::link::Generation;

/// The default largest payload of a TLP.
pub const PAYLOAD: Bytes = Bytes(256);

/// The kind of a tree node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeKind {
    /// A root complex and its memory: the root of the tree, or a further socket below it.
    Host,
    /// A root port of the host, with its own devices.
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

/// One node of the tree, or `count` equal ones.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeSpec {
    /// Its name; a group's members are numbered.
    pub id: String,
    /// Its kind.
    pub kind: NodeKind,
    /// The parent; only the root has none.
    pub parent: Option<String>,
    /// The number of equal nodes.
    pub count: Option<u64>,
    /// The generation of the link to the parent.
    #[serde(rename = "gen")]
    pub generation: Option<Generation>,
    /// Its lanes.
    pub lanes: Option<u8>,
    /// The rate of a link that is not a PCIe link: between sockets, or inside a root complex.
    pub rate: Option<Rate>,
    /// Latency of the link to the parent.
    pub link_latency: Option<Seconds>,
    /// The largest payload that this node accepts.
    pub mps: Option<Bytes>,
    /// The forwarding time of a switch, the media latency of a drive, or the time of a read from memory.
    pub latency: Option<Seconds>,
    /// The mean of an exponential tail on that latency.
    pub jitter: Option<Seconds>,
    /// The time from a posted write until a read behind it may start.
    pub commit: Option<Seconds>,
    /// The memory rate, reads and writes together.
    pub memory_rate: Option<Rate>,
    /// The rate at which a drive reads its media, or an HCA receives from its network.
    pub media_rate: Option<Rate>,
    /// The rate at which a drive writes its media, or an HCA sends.
    pub media_write_rate: Option<Rate>,
    /// Write TLPs per second that its DMA engine can issue; pieces of `dma_chunk` if that is given.
    pub dma_writes_per_s: Option<f64>,
    /// The pieces in which its DMA engine processes a write: a TLP takes one turn per piece.
    pub dma_chunk: Option<Bytes>,
    /// The delay that its DMA engine adds to every I/O before the first TLP.
    pub dma_latency: Option<Seconds>,
    /// The rate at which its DMA engine copies a read I/O into the device's memory after all of it has arrived. It
    /// delays the end of each I/O but limits no rate: the engine receives the next I/O meanwhile.
    pub dma_copy_rate: Option<Rate>,
    /// The extra time of its DMA engine for a read request that ends within an 8-byte word.
    pub dma_partial_word: Option<Seconds>,
    /// The completion size for reads shorter than the largest request; absent for the largest payload.
    pub completion: Option<Bytes>,
    /// Read requests per second that its DMA engine can issue.
    pub dma_reads_per_s: Option<f64>,
    /// The total rate between a host's root ports.
    pub peer_rate: Option<Rate>,
    /// Outstanding read requests.
    pub tags: Option<u64>,
    /// Its weight at a weighted arbiter upstream or downstream of it.
    pub weight: Option<u64>,
    /// The arbiter of this node's ports.
    pub arbiter: Option<Arbiter>,
}

/// How a port chooses between inputs that have something to send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arbiter {
    /// One TLP each in turn: the default of the specification.
    #[default]
    RoundRobin,
    /// `weight` TLPs each in turn.
    WeightedRoundRobin,
    /// Bytes in proportion to `weight`, by start tags.
    WeightedFair,
}

impl NodeKind {
    /// Whether it forwards TLPs instead of consuming them.
    pub fn forwards(self) -> bool {
        matches!(self, Self::Switch | Self::RootPort)
    }

    /// Whether it may have children.
    pub fn branches(self) -> bool {
        matches!(self, Self::Host) || self.forwards()
    }
}
