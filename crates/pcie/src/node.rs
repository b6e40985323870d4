//! The nodes of a machine's tree.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use crate::link::Generation;

/// The largest payload of a TLP where nothing else is said.
pub const PAYLOAD: Bytes = Bytes(256);

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
    /// The rate at which its DMA engine moves a read I/O on into the device's memory, once all of it has arrived. It
    /// delays the end of each I/O and limits no rate: the engine receives the next I/O meanwhile.
    pub dma_copy_rate: Option<Rate>,
    /// How much longer its DMA engine is busy with a read request that ends within an 8-byte word.
    pub dma_partial_word: Option<Seconds>,
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
