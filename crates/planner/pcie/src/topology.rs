//! The tree and its streams, expanded and checked, with all defaults filled in.
//!
//! A scenario has names and groups; the simulator needs nodes by index, with every default filled in, and the path of
//! each stream's data. Both the check (which refuses loops, second parents and unknown names with their field) and
//! the compilation use the same expansion, so a scenario that passes the first cannot fail the second.

mod names;
mod soundness;

use self::names::{Member, Names};
pub(super) use self::soundness::check;
use super::{
    link::Width,
    scenario::{Arbiter, Mode, NODES_MAX, NodeKind, NodeSpec, PcieScenario, StreamSpec},
};
use straightway_scenario::provenance::{Basis, Citation};

/// The maximum number of inputs of a port: one bit each of a machine word.
pub const PORT_INPUTS_MAX: usize = 64;

/// The forwarding time of a switch.
const SWITCH_LATENCY_S: f64 = 110e-9;
/// The forwarding time of a root port.
const ROOT_PORT_LATENCY_S: f64 = 10e-9;
/// The time of a host to answer a read. With two link crossings of 50 ns and 7 ns on the wire this gives the 506 ns
/// that pcie-bench measured on a Xeon E5-2637v3.
const HOST_LATENCY_S: f64 = 399e-9;
/// The time of a GPU or an HCA to answer a read of its memory.
const DEVICE_LATENCY_S: f64 = 500e-9;
/// A drive's media latency.
const DRIVE_LATENCY_S: f64 = 80e-6;
/// The word size for [`PcieNode::dma_partial_word_s`]. `bw_dma_off_rd.dat` of pcie-bench: an offset in the card's
/// memory costs nothing if it is a multiple of 8 bytes, and the same at 1, 2, 3, 4, 6 and 12.
pub(super) const WORD_BYTES: u32 = 8;

/// The time that a read waits for a posted write before it: 613 ns less 506 in pcie-bench.
const COMMIT_S: f64 = 106e-9;
/// The time of a host to pass a TLP from one root port to another.
const PEER_LATENCY_S: f64 = 150e-9;
/// The default rate between a root port and its host, which is no practical limit.
const INTERNAL_BYTES_PER_S: f64 = 1e12;

/// One node with every default filled in. Times are in seconds, rates in bytes per second.
#[derive(Clone, Debug)]
pub struct PcieNode {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: NodeKind,
    /// The parent.
    pub parent: Option<usize>,
    /// The PCIe link to the parent, if it is one.
    pub width: Option<Width>,
    /// The rate of that link for TLPs.
    pub link_bytes_per_s: f64,
    /// Its latency.
    pub link_latency_s: f64,
    /// The largest payload that the node accepts.
    pub mps_bytes: u32,
    /// The forwarding time.
    pub forward_s: f64,
    /// The time to answer a read.
    pub read_s: f64,
    /// The latency of an I/O until its first byte.
    pub media_s: f64,
    /// The mean of an exponential tail on the two.
    pub jitter_s: f64,
    /// The time from a posted write until a read behind it may start.
    pub commit_s: f64,
    /// The memory rate, reads and writes together.
    pub memory_bytes_per_s: Option<f64>,
    /// The read rate of its media.
    pub media_read_bytes_per_s: Option<f64>,
    /// The write rate of its media.
    pub media_write_bytes_per_s: Option<f64>,
    /// Write TLPs per second.
    pub dma_writes_per_s: Option<f64>,
    /// The pieces in which its engine processes a write.
    pub dma_chunk_bytes: u32,
    /// The completion size for reads shorter than the largest request.
    pub completion_bytes: u32,
    /// Read requests per second.
    pub dma_reads_per_s: Option<f64>,
    /// The time of its engine to copy a byte of a read I/O after all of it has arrived.
    pub dma_copy_s_per_byte: f64,
    /// The extra time of its engine for a read request that ends within a word of [`WORD_BYTES`].
    pub dma_partial_word_s: f64,
    /// The total rate between its root ports.
    pub peer_bytes_per_s: Option<f64>,
    /// The latency between its root ports.
    pub peer_s: f64,
    /// Outstanding reads.
    pub tags: u32,
    /// Its weight at a weighted arbiter.
    pub weight: u32,
    /// The arbiter of its ports.
    pub arbiter: Arbiter,
}

/// One stream with every default filled in.
#[derive(Clone, Debug)]
pub struct PcieStream {
    /// `from → to`.
    pub name: String,
    /// The source node.
    pub from: usize,
    /// The destination node.
    pub to: usize,
    /// The side that moves the data.
    pub mode: Mode,
    /// Bytes to move.
    pub size_bytes: u64,
    /// Bytes of one I/O.
    pub io_bytes: u64,
    /// I/Os in flight.
    pub depth: u64,
    /// The start time.
    pub start_s: f64,
    /// The virtual channel.
    pub channel: u32,
    /// Its weight at its device's arbiter.
    pub weight: u32,
    /// Bytes between two fences.
    pub fence_bytes: Option<u64>,
    /// The largest payload that every node on its path accepts.
    pub mps_bytes: u32,
    /// The largest read request.
    pub mrrs_bytes: u32,
}

/// A resource that serves TLPs one after another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PortName {
    /// The link from a node to its parent.
    Up(usize),
    /// The link from its parent to a node.
    Down(usize),
    /// The connection between a host's root ports, if it has a rate.
    Peer(usize),
    /// A node's memory, if it has a rate.
    Memory(usize),
}

/// A compiled scenario.
#[derive(Clone, Debug)]
pub struct PcieTopology {
    /// The nodes; a parent comes before its children.
    pub nodes: Vec<PcieNode>,
    /// The streams.
    pub streams: Vec<PcieStream>,
}

impl PcieTopology {
    /// Fills in every default of a scenario that passed its check.
    pub fn new(scenario: &PcieScenario) -> Self {
        let scenario = &*scenario.expanded();
        let names = Names::of(scenario);
        let nodes: Vec<PcieNode> = names
            .members
            .iter()
            .map(|m| node(scenario, &scenario.node[m.spec], m))
            .collect();
        let mut streams = Vec::new();
        for spec in &scenario.stream {
            for (from, to) in names.pairs(spec) {
                streams.push(stream(scenario, spec, &nodes, from, to));
            }
        }
        let mut topology = Self { nodes, streams };
        topology.refit();
        topology
    }

    /// Recomputes the values that follow from parents and link widths.
    pub(super) fn refit(&mut self) {
        for i in 0..self.nodes.len() {
            if let (Some(width), Some(parent)) = (self.nodes[i].width, self.nodes[i].parent) {
                let mps = self.nodes[i].mps_bytes.min(self.nodes[parent].mps_bytes);
                self.nodes[i].link_bytes_per_s = width.usable_bytes_per_s(mps);
            }
        }
        for i in 0..self.streams.len() {
            let way = self.way(self.streams[i].from, self.streams[i].to);
            let mps = way.iter().map(|n| self.nodes[*n].mps_bytes).min();
            self.streams[i].mps_bytes = mps.expect("a way has its two ends");
        }
    }

    /// The nodes from `from` up to the nearest common ancestor and down to `to`, both included.
    pub fn way(&self, from: usize, to: usize) -> Vec<usize> {
        way(&self.nodes, from, to)
    }

    /// The ports that a TLP crosses from one node to another.
    pub fn ports(&self, start: usize, end: usize) -> Vec<PortName> {
        let nodes = &self.nodes;
        let way = self.way(start, end);
        let mut ports = Vec::new();
        for (k, pair) in way.windows(2).enumerate() {
            let (here, next) = (pair[0], pair[1]);
            let climbs = nodes[here].parent == Some(next);
            ports.push(if climbs {
                PortName::Up(here)
            } else {
                PortName::Down(next)
            });
            // At the top, the TLP passes through the host that joins the two sides.
            let after = way.get(k + 2);
            let turns = climbs && after.is_some_and(|a| nodes[*a].parent == Some(next));
            if turns && nodes[next].peer_bytes_per_s.is_some() {
                ports.push(PortName::Peer(next));
            }
        }
        if nodes[end].memory_bytes_per_s.is_some() {
            ports.push(PortName::Memory(end));
        }
        ports
    }

    /// The label of a port: `sw0 → host`, `memory of gpu1`.
    pub fn port_label(&self, port: PortName) -> String {
        let name = |n: usize| self.nodes[n].name.as_str();
        let above = |n: usize| self.nodes[n].parent.map_or("nothing", name);
        match port {
            PortName::Up(n) => format!("{} → {}", name(n), above(n)),
            PortName::Down(n) => format!("{} → {}", above(n), name(n)),
            PortName::Peer(n) => format!("peer traffic of {}", name(n)),
            PortName::Memory(n) => format!("memory of {}", name(n)),
        }
    }

    /// The rate of a port in wire bytes per second, and its width if it is a PCIe link.
    pub fn port_rate(&self, port: PortName) -> (f64, Option<Width>) {
        match port {
            PortName::Up(n) | PortName::Down(n) => (self.nodes[n].link_bytes_per_s, self.nodes[n].width),
            PortName::Peer(n) => (self.nodes[n].peer_bytes_per_s.unwrap_or(f64::MAX), None),
            PortName::Memory(n) => (self.nodes[n].memory_bytes_per_s.unwrap_or(f64::MAX), None),
        }
    }

    /// The number of TLPs of a stream, fences and completions included.
    pub fn tlps(&self, stream: &PcieStream) -> u64 {
        let per_io = |bytes: u64| {
            let payloads = bytes.div_ceil(u64::from(stream.mps_bytes));
            match stream.mode {
                Mode::Write => payloads,
                Mode::Read => payloads + bytes.div_ceil(u64::from(stream.mrrs_bytes)),
            }
        };
        let (ios, tail) = (stream.size_bytes / stream.io_bytes, stream.size_bytes % stream.io_bytes);
        let fences = stream.fence_bytes.map_or(0, |f| 2 * stream.size_bytes.div_ceil(f));
        ios.saturating_mul(per_io(stream.io_bytes)) + per_io(tail) + fences
    }

    /// Adds every default that was used to `basis`, with its origin.
    pub fn assume(&self, basis: &mut Basis) {
        let guess = |place| Citation::quoted("typical of current parts, not measured here", place);
        let bench = |place| Citation::read("pcie-bench, NFP6000 on a Xeon E5-2637v3", place);
        let has = |kind: NodeKind| self.nodes.iter().any(|n| n.kind == kind);
        let same = |kind: NodeKind, get: fn(&PcieNode) -> f64, s: f64| {
            has(kind)
                && self
                    .nodes
                    .iter()
                    .any(|n| n.kind == kind && get(n).total_cmp(&s).is_eq())
        };
        if same(NodeKind::Switch, |n| n.forward_s, SWITCH_LATENCY_S) {
            basis.assume(
                "switch forwarding",
                SWITCH_LATENCY_S * 1e9,
                "ns",
                guess("`latency` of a switch"),
            );
        }
        if same(NodeKind::Host, |n| n.read_s, HOST_LATENCY_S) {
            let place = "8 B reads, median 506 ns, less the wire";
            basis.assume("host read latency", HOST_LATENCY_S * 1e9, "ns", bench(place));
        }
        if same(NodeKind::Gpu, |n| n.read_s, DEVICE_LATENCY_S) {
            basis.assume(
                "GPU read latency",
                DEVICE_LATENCY_S * 1e9,
                "ns",
                guess("`latency` of a gpu"),
            );
        }
        if same(NodeKind::Drive, |n| n.media_s, DRIVE_LATENCY_S) {
            basis.assume(
                "drive media latency",
                DRIVE_LATENCY_S * 1e6,
                "µs",
                guess("`latency` of a drive"),
            );
        }
        if self.streams.iter().any(|s| s.fence_bytes.is_some()) {
            let place = "write-then-read 613 ns less read 506 ns";
            basis.assume("commit of a posted write", COMMIT_S * 1e9, "ns", bench(place));
        }
    }
}

/// The nodes from `from` up to the nearest common ancestor and down to `to`, both included.
fn way(nodes: &[PcieNode], from: usize, to: usize) -> Vec<usize> {
    let mut up: Vec<usize> = ancestors(nodes, from).collect();
    let mut down: Vec<usize> = ancestors(nodes, to).collect();
    while up.len() > 1 && down.len() > 1 && up[up.len() - 2] == down[down.len() - 2] {
        up.pop();
        down.pop();
    }
    down.pop();
    up.extend(down.into_iter().rev());
    up
}

/// A node, its parent, and so on up to the root.
fn ancestors(nodes: &[PcieNode], from: usize) -> impl Iterator<Item = usize> {
    std::iter::successors(Some(from), |at| nodes[*at].parent).take(NODES_MAX + 1)
}

/// The node whose DMA engine moves the data.
pub fn initiator(stream: &PcieStream) -> usize {
    match stream.mode {
        Mode::Write => stream.from,
        Mode::Read => stream.to,
    }
}

/// The side that moves the data: as given, or a drive or an HCA, else the source.
fn mode(spec: &StreamSpec, from: NodeKind, to: NodeKind) -> Mode {
    let engine = |kind| matches!(kind, NodeKind::Drive | NodeKind::Hca);
    spec.mode
        .unwrap_or(if engine(from) || (from != NodeKind::Host && !engine(to)) {
            Mode::Write
        } else {
            Mode::Read
        })
}

fn node(scenario: &PcieScenario, spec: &NodeSpec, member: &Member) -> PcieNode {
    let latency = spec.latency.map(|s| s.0);
    let width = spec
        .generation
        .zip(spec.lanes)
        .map(|(generation, lanes)| Width { generation, lanes });
    let forward_s = match spec.kind {
        NodeKind::Switch => latency.unwrap_or(SWITCH_LATENCY_S),
        NodeKind::RootPort => latency.unwrap_or(ROOT_PORT_LATENCY_S),
        _ => 0.0,
    };
    let (media_s, read_s) = match spec.kind {
        NodeKind::Drive => (latency.unwrap_or(DRIVE_LATENCY_S), DEVICE_LATENCY_S),
        NodeKind::Host => (0.0, latency.unwrap_or(HOST_LATENCY_S)),
        _ => (0.0, latency.unwrap_or(DEVICE_LATENCY_S)),
    };
    let media_s = media_s + spec.dma_latency.map_or(0.0, |s| s.0);
    let settings = &scenario.pcie;
    let narrow = |n: u64| u32::try_from(n).expect("checked to be small");
    PcieNode {
        name: member.name.clone(),
        kind: spec.kind,
        parent: member.parent,
        width,
        link_bytes_per_s: spec.rate.map_or(INTERNAL_BYTES_PER_S, |r| r.0),
        link_latency_s: spec.link_latency.unwrap_or(settings.link_latency).0,
        mps_bytes: narrow(spec.mps.unwrap_or(settings.mps).0),
        forward_s,
        read_s,
        media_s,
        jitter_s: spec.jitter.map_or(0.0, |s| s.0),
        commit_s: spec.commit.map_or(COMMIT_S, |s| s.0),
        memory_bytes_per_s: spec.memory_rate.map(|r| r.0),
        media_read_bytes_per_s: spec.media_rate.map(|r| r.0),
        media_write_bytes_per_s: spec.media_write_rate.or(spec.media_rate).map(|r| r.0),
        dma_writes_per_s: spec.dma_writes_per_s,
        dma_chunk_bytes: narrow(spec.dma_chunk.map_or(4096, |b| b.0)),
        completion_bytes: narrow(spec.completion.map_or(4096, |b| b.0)),
        dma_reads_per_s: spec.dma_reads_per_s,
        dma_copy_s_per_byte: spec.dma_copy_rate.map_or(0.0, |rate| 1.0 / rate.0),
        dma_partial_word_s: spec.dma_partial_word.map_or(0.0, |s| s.0),
        peer_bytes_per_s: spec.peer_rate.map(|r| r.0),
        peer_s: PEER_LATENCY_S,
        tags: narrow(spec.tags.unwrap_or(settings.tags)),
        weight: narrow(spec.weight.unwrap_or(1)),
        arbiter: spec.arbiter.unwrap_or(settings.arbiter),
    }
}

fn stream(scenario: &PcieScenario, spec: &StreamSpec, nodes: &[PcieNode], from: usize, to: usize) -> PcieStream {
    let narrow = |n: u64| u32::try_from(n).expect("checked to be small");
    PcieStream {
        name: format!("{} → {}", nodes[from].name, nodes[to].name),
        from,
        to,
        mode: mode(spec, nodes[from].kind, nodes[to].kind),
        size_bytes: spec.size.0,
        io_bytes: spec.io.0.min(spec.size.0),
        depth: spec.depth,
        start_s: spec.start.0,
        channel: narrow(scenario.channels.of(spec.tc)),
        weight: narrow(spec.weight),
        fence_bytes: spec.fence.map(|b| b.0),
        // Set by `refit`, which knows the path.
        mps_bytes: 0,
        mrrs_bytes: narrow(scenario.pcie.mrrs.0),
    }
}
