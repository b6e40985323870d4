//! The fair share of each stream, computed without a simulation.
//!
//! Every link, memory, medium and DMA engine on a stream's path has a rate, and a byte of the stream has a cost there
//! (headers included). The rates of all streams are raised together until a resource is full, then those of the
//! remaining streams, and so on. The result is the max-min fair share. It is close to the result of round robin, and
//! immediate where a simulation takes seconds. It is not a bound of a single stream: an arbiter may prefer it, and
//! requests may take less than their share. A stream is also limited by its depth, and a device by its tags: the
//! amount in flight divided by its latency on an idle tree.

use std::collections::BTreeMap;

use super::{
    link::{Generation, Packet},
    scenario::Mode,
    topology::{PcieStream, PcieTopology, PortName, WORD_BYTES, initiator},
};

/// A resource with a rate that streams share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// A link, the inside of a host, or a memory; in wire bytes.
    Port(PortName),
    /// The reads of a drive's media, in bytes.
    MediaOut(usize),
    /// The writes of a drive's media, in bytes.
    MediaIn(usize),
    /// A DMA engine's writes, in TLPs.
    Writes(usize),
    /// A DMA engine's read requests.
    Reads(usize),
    /// A DMA engine's tags, in outstanding requests.
    Tags(usize),
}

/// The fair share of a stream, and its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FairShare {
    /// Bytes per second.
    pub bytes_per_s: f64,
    /// The resource that is full; `None` if the stream's own depth is the limit.
    pub by: Option<Resource>,
}

/// The fair share of every stream.
pub fn fair_shares(topology: &PcieTopology) -> Vec<FairShare> {
    let costs: Vec<BTreeMap<Resource, f64>> = topology.streams.iter().map(|s| costs(topology, s)).collect();
    let own: Vec<f64> = topology
        .streams
        .iter()
        .map(|s| depth_bytes_per_s(topology, s))
        .collect();
    let mut left: BTreeMap<Resource, f64> = BTreeMap::new();
    for resource in costs.iter().flat_map(BTreeMap::keys) {
        left.insert(*resource, capacity(topology, *resource));
    }
    let mut rates = vec![0.0; costs.len()];
    let mut by: Vec<Option<Option<Resource>>> = vec![None; costs.len()];
    while by.iter().any(Option::is_none) {
        let mut load: BTreeMap<Resource, f64> = BTreeMap::new();
        for (cost, _) in costs.iter().zip(&by).filter(|(_, by)| by.is_none()) {
            for (resource, each) in cost {
                *load.entry(*resource).or_default() += each;
            }
        }
        let full = load.iter().map(|(r, each)| (left[r].max(0.0) / each, *r));
        let full = full.min_by(|a, b| a.0.total_cmp(&b.0));
        let open = (0..costs.len()).filter(|i| by[*i].is_none());
        let depth = open.map(|i| (own[i] - rates[i], i)).min_by(|a, b| a.0.total_cmp(&b.0));
        let (depth_step, depth_stream) = depth.expect("a stream is open");
        let step = full.map_or(depth_step, |(step, _)| step.min(depth_step)).max(0.0);
        for i in (0..costs.len()).filter(|i| by[*i].is_none()) {
            rates[i] += step;
        }
        for (resource, each) in &load {
            *left.get_mut(resource).expect("every resource has a capacity") -= step * each;
        }
        match full {
            Some((least, resource)) if least <= depth_step => {
                for i in (0..costs.len()).filter(|i| costs[*i].contains_key(&resource)) {
                    by[i].get_or_insert(Some(resource));
                }
            }
            _ => by[depth_stream] = Some(None),
        }
    }
    let share = |(rate, by): (f64, Option<Option<Resource>>)| FairShare {
        bytes_per_s: rate,
        by: by.flatten(),
    };
    rates.into_iter().zip(by).map(share).collect()
}

/// The rate of a resource.
pub(super) fn capacity(topology: &PcieTopology, resource: Resource) -> f64 {
    let node = |n: usize| &topology.nodes[n];
    match resource {
        Resource::Port(port) => topology.port_rate(port).0,
        Resource::MediaOut(n) => node(n).media_read_bytes_per_s.unwrap_or(f64::MAX),
        Resource::MediaIn(n) => node(n).media_write_bytes_per_s.unwrap_or(f64::MAX),
        Resource::Writes(n) => node(n).dma_writes_per_s.unwrap_or(f64::MAX),
        Resource::Reads(n) => node(n).dma_reads_per_s.unwrap_or(f64::MAX),
        Resource::Tags(n) => f64::from(node(n).tags),
    }
}

/// The cost of a byte of a stream at every resource on its path.
pub(super) fn costs(topology: &PcieTopology, stream: &PcieStream) -> BTreeMap<Resource, f64> {
    let mut costs = BTreeMap::new();
    let mover = initiator(stream);
    let node = &topology.nodes[mover];
    let bytes = stream.size_bytes as f64;
    let payloads = pieces(stream, stream.mps_bytes) as f64 / bytes;
    let requests = pieces(stream, stream.mrrs_bytes) as f64 / bytes;
    let chunk = node.dma_chunk_bytes.min(stream.mps_bytes);
    let turns = pieces(stream, chunk) as f64 / bytes;
    let completions = completions(topology, stream) as f64 / bytes;
    let mut add = |port: PortName, packet: Packet, per_byte: f64| {
        let generation = topology.port_rate(port).1.map_or(Generation::Gen5, |w| w.generation);
        let header = f64::from(packet.overhead_bytes(generation));
        let is_link = matches!(port, PortName::Up(_) | PortName::Down(_));
        let cost = match (packet, is_link) {
            (Packet::Read, true) => header * per_byte,
            (Packet::Read, false) if matches!(port, PortName::Memory(_)) => 1.0,
            (Packet::Read, false) => 0.0,
            (_, true) => 1.0 + header * per_byte,
            (_, false) => 1.0,
        };
        *costs.entry(Resource::Port(port)).or_insert(0.0) += cost;
    };
    match stream.mode {
        Mode::Write => {
            let ports = topology.ports(stream.from, stream.to);
            for port in ports {
                add(port, Packet::Write, payloads);
            }
        }
        Mode::Read => {
            let out = topology.ports(stream.to, stream.from);
            for port in out {
                add(port, Packet::Read, requests);
            }
            let back = topology.ports(stream.from, stream.to);
            for port in back {
                add(port, Packet::Completion, completions);
            }
        }
    }
    match stream.mode {
        Mode::Write => {
            node.media_read_bytes_per_s
                .map(|_| costs.insert(Resource::MediaOut(mover), 1.0));
            node.dma_writes_per_s
                .map(|_| costs.insert(Resource::Writes(mover), turns));
        }
        Mode::Read => {
            node.media_write_bytes_per_s
                .map(|_| costs.insert(Resource::MediaIn(mover), 1.0));
            if let Some(reads_per_s) = node.dma_reads_per_s {
                let held = node.dma_partial_word_s * reads_per_s * partial_words(stream) as f64;
                costs.insert(Resource::Reads(mover), requests + held / bytes);
            }
            costs.insert(Resource::Tags(mover), requests * request_s(topology, stream));
        }
    }
    costs.retain(|_, cost| *cost > 0.0);
    costs
}

/// The total number of pieces of at most `piece_bytes` in a stream's I/Os.
fn pieces(stream: &PcieStream, piece_bytes: u32) -> u64 {
    let piece = u64::from(piece_bytes);
    let whole = stream.size_bytes / stream.io_bytes;
    let rest = stream.size_bytes % stream.io_bytes;
    whole * stream.io_bytes.div_ceil(piece) + rest.div_ceil(piece)
}

/// The number of a stream's read requests that end within a word.
fn partial_words(stream: &PcieStream) -> u64 {
    let of = |bytes: u64, ios: u64| {
        if bytes.is_multiple_of(u64::from(WORD_BYTES)) {
            0
        } else {
            ios
        }
    };
    let (ios, tail) = (stream.size_bytes / stream.io_bytes, stream.size_bytes % stream.io_bytes);
    of(stream.io_bytes, ios) + of(tail, 1)
}

/// The number of completions for a stream's reads: full requests are answered in the largest payloads, the rest of an
/// I/O in the completion size of the answering node.
fn completions(topology: &PcieTopology, stream: &PcieStream) -> u64 {
    let (mps, whole) = (u64::from(stream.mps_bytes), u64::from(stream.mrrs_bytes));
    let short = u64::from(topology.nodes[stream.from].completion_bytes).min(mps);
    let of = |bytes: u64| {
        let rest = bytes % whole;
        // A remainder that touches all lines of a full request is answered like a full request.
        let unit = if rest.next_multiple_of(short) < whole {
            short
        } else {
            mps
        };
        (bytes / whole) * whole.div_ceil(mps) + rest.div_ceil(unit)
    };
    let (ios, tail) = (stream.size_bytes / stream.io_bytes, stream.size_bytes % stream.io_bytes);
    ios * of(stream.io_bytes) + of(tail)
}

/// The time that a read request of a stream holds its tag on an idle tree: the latency in both directions, the
/// answer, and the time on every wire, where the completions after the first follow at the rate of the slowest wire.
fn request_s(topology: &PcieTopology, stream: &PcieStream) -> f64 {
    let wire_s = |port: &PortName, packet: Packet, bytes: u32| {
        let (rate, width) = topology.port_rate(*port);
        let overhead = width.map_or(0, |w| packet.overhead_bytes(w.generation));
        f64::from(bytes + overhead) / rate
    };
    let asked = u64::from(stream.mrrs_bytes).min(stream.io_bytes);
    let asked = u32::try_from(asked).expect("at most a request");
    let payload = stream.mps_bytes.min(asked);
    let there = topology.ports(stream.to, stream.from);
    let there: f64 = there.iter().map(|port| wire_s(port, Packet::Read, 0)).sum();
    let back = topology.ports(stream.from, stream.to);
    let back: Vec<f64> = back
        .iter()
        .map(|port| wire_s(port, Packet::Completion, payload))
        .collect();
    let slowest = back.iter().copied().fold(0.0, f64::max);
    let rest = f64::from(asked) / f64::from(payload) - 1.0;
    let answer = topology.nodes[stream.from].read_s;
    round_s(topology, stream) + answer + there + back.iter().sum::<f64>() + rest * slowest
}

/// The latency of the links and switches between the ends of a stream, in both directions together.
fn round_s(topology: &PcieTopology, stream: &PcieStream) -> f64 {
    let nodes = &topology.nodes;
    let crossing = |a: usize, b: usize| -> f64 {
        let way = topology.way(a, b);
        let links = way.windows(2).map(|pair| {
            let below = if nodes[pair[0]].parent == Some(pair[1]) {
                pair[0]
            } else {
                pair[1]
            };
            nodes[below].link_latency_s + nodes[pair[1]].forward_s
        });
        links.sum()
    };
    crossing(stream.from, stream.to) + crossing(stream.to, stream.from)
}

/// Little's law on an idle tree: the bytes in flight divided by the latency.
fn depth_bytes_per_s(topology: &PcieTopology, stream: &PcieStream) -> f64 {
    let nodes = &topology.nodes;
    let mover = initiator(stream);
    let answer = match stream.mode {
        Mode::Write => 0.0,
        Mode::Read => nodes[stream.from].read_s,
    };
    let copy = match stream.mode {
        Mode::Write => 0.0,
        Mode::Read => nodes[mover].dma_copy_s_per_byte * stream.io_bytes as f64,
    };
    let wait = nodes[mover].media_s + nodes[mover].jitter_s;
    let seconds = wait + round_s(topology, stream) + answer + copy;
    stream.depth as f64 * stream.io_bytes as f64 / seconds
}
