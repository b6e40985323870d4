//! Builds an engine from a topology: ports, slots, pools and the path of every stream.

use std::collections::BTreeMap;

use super::{
    ARRIVED, Engine, Flow, Hop, Ps,
    credit::{CreditLimit, Pool, UNIT_BYTES},
    fair::Clock,
    port::{Port, Wire},
    slot::{Ingress, Slot},
    source::{Device, Job, Pace, Source},
    tlp::CLASSES,
    wake::Wakes,
};
use crate::{
    link::{Generation, Packet},
    scenario::{Credits, Mode, NodeKind, PcieScenario},
    topology::{PcieNode, PcieStream, PcieTopology, PortName, initiator},
};

/// The buffer of a drive, by which its media may fall behind and catch up.
const MEDIA_BUFFER_BYTES: f64 = 64.0 * 1024.0;

/// The input by which a TLP enters a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Input {
    /// Another port of the node.
    Port(u32),
    /// A stream that starts here.
    Stream(u32),
    /// The node's answers to reads.
    Answers,
}

/// The builder of an engine.
pub(super) struct Builder<'a> {
    pub(super) topology: &'a PcieTopology,
    pub(super) scenario: &'a PcieScenario,
    pub(super) ports: Vec<Port>,
    names: Vec<PortName>,
    index: BTreeMap<PortName, u32>,
    pub(super) pools: Vec<Pool>,
    /// The slots of each port, by input and channel.
    pub(super) inputs: Vec<BTreeMap<(Input, u8), Slot>>,
    /// The paths, as ports and their inputs.
    pub(super) ways: Vec<Vec<(u32, Input)>>,
}

impl Engine {
    /// Builds an engine with all shortcuts.
    pub(crate) fn new(scenario: &PcieScenario, topology: &PcieTopology) -> Self {
        let mut builder = Builder::new(scenario, topology);
        builder.take_shortcuts();
        builder.finish()
    }

    /// Builds an engine without shortcuts: every decision is an event, every credit is counted.
    #[cfg(test)]
    pub(crate) fn without_shortcuts(scenario: &PcieScenario, topology: &PcieTopology) -> Self {
        let mut engine = Builder::new(scenario, topology).finish();
        for port in &mut engine.ports {
            port.window = 1;
        }
        engine
    }
}

impl<'a> Builder<'a> {
    fn new(scenario: &'a PcieScenario, topology: &'a PcieTopology) -> Self {
        let mut builder = Self {
            topology,
            scenario,
            ports: Vec::new(),
            names: Vec::new(),
            index: BTreeMap::new(),
            pools: Vec::new(),
            inputs: Vec::new(),
            ways: Vec::new(),
        };
        builder.add_ports();
        for number in 0..topology.streams.len() {
            builder.add_stream(number);
        }
        builder
    }

    fn add_ports(&mut self) {
        let nodes = &self.topology.nodes;
        for (i, node) in nodes.iter().enumerate() {
            if let Some(parent) = node.parent {
                let generation = node.width.map_or(Generation::Gen5, |w| w.generation);
                for (name, receiver, arbiter) in [
                    (PortName::Up(i), &nodes[parent], node.arbiter),
                    (PortName::Down(i), node, nodes[parent].arbiter),
                ] {
                    let crossing = ps(node.link_latency_s);
                    let latency = crossing + ps(receiver.forward_s);
                    let mut wire = Wire::new(node.link_bytes_per_s, latency, crossing);
                    let packets = [Packet::Write, Packet::Read, Packet::Completion];
                    wire.overhead = packets.map(|p| p.overhead_bytes(generation));
                    let mut port = Port::new(wire);
                    port.arbiter = arbiter;
                    let credit_limits = credit_limits(&self.scenario.credits, receiver.kind);
                    self.add_port(name, port, credit_limits);
                }
            }
            if let Some(rate) = node.peer_bytes_per_s {
                let latency = ps(node.peer_s);
                let mut wire = Wire::new(rate, latency, latency);
                // A request costs a beat of the internal bus.
                wire.overhead = [0, 4, 0];
                let mut port = Port::new(wire);
                port.arbiter = node.arbiter;
                let credit_limits = credit_limits(&self.scenario.credits, NodeKind::Switch);
                self.add_port(PortName::Peer(i), port, credit_limits);
            }
            if let Some(rate) = node.memory_bytes_per_s {
                let mut wire = Wire::new(rate, ps(shortest_link_s(nodes)), 0);
                wire.is_memory = true;
                let mut port = Port::new(wire);
                port.arbiter = node.arbiter;
                self.add_port(PortName::Memory(i), port, [None; CLASSES]);
            }
        }
    }

    fn add_port(&mut self, name: PortName, mut port: Port, credit_limits: [Option<CreditLimit>; CLASSES]) {
        port.pool = narrow(self.pools.len());
        let channels = &self.scenario.channels;
        for _ in 0..channels.count {
            self.pools.extend(credit_limits.map(Pool::new));
        }
        port.channel_slots = vec![0; usize::try_from(channels.count).expect("at most eight")];
        port.clocks = vec![Clock::default(); port.channel_slots.len()];
        port.channel_arbiter = channels.arbiter;
        let weight = |w: &u64| u32::try_from(*w).expect("checked to be small");
        port.channel_weights = channels.weights.iter().map(weight).collect();
        self.index.insert(name, narrow(self.names.len()));
        self.names.push(name);
        self.ports.push(port);
        self.inputs.push(BTreeMap::new());
    }

    /// Adds both paths of a stream and their slots.
    fn add_stream(&mut self, number: usize) {
        let stream = &self.topology.streams[number];
        let start = initiator(stream);
        let end = if start == stream.from { stream.to } else { stream.from };
        self.add_way(stream, Input::Stream(narrow(number)), start, end);
        self.add_way(stream, Input::Answers, end, start);
    }

    fn add_way(&mut self, stream: &PcieStream, first: Input, start: usize, end: usize) {
        let channel = u8::try_from(stream.channel).expect("at most eight channels");
        let mut input = first;
        let mut way = Vec::new();
        for port in self
            .topology
            .ports(start, end)
            .into_iter()
            .map(|n| self.index[&n])
            .collect::<Vec<_>>()
        {
            let weight = match input {
                Input::Stream(_) => stream.weight,
                Input::Port(from) => self.weight_of(from),
                Input::Answers => self.topology.nodes[start].weight,
            };
            let ingress = match input {
                Input::Port(from) => Some(self.ingress(from, channel)),
                _ => None,
            };
            let source = match input {
                Input::Stream(number) => Some(number),
                _ => None,
            };
            // An unused path gets no input, since a port would wait for it.
            if first != Input::Answers || has_answers(stream) {
                self.inputs[port as usize]
                    .entry((input, channel))
                    .or_insert_with(|| Slot::new(ingress, source, channel, weight));
            }
            way.push((port, input));
            input = Input::Port(port);
        }
        self.ways.push(way);
    }

    /// The weight of the input from a port: that of the device below it.
    fn weight_of(&self, port: u32) -> u32 {
        match self.names[port as usize] {
            PortName::Up(node) => self.topology.nodes[node].weight,
            PortName::Down(_) | PortName::Peer(_) | PortName::Memory(_) => 1,
        }
    }

    fn ingress(&self, port: u32, channel: u8) -> Ingress {
        let from = &self.ports[port as usize];
        Ingress {
            port,
            pool: from.pool + u32::from(channel) * narrow(CLASSES),
            latency: from.wire.credit_latency,
        }
    }

    fn finish(mut self) -> Engine {
        let mut slots = Vec::new();
        let mut places = vec![BTreeMap::new(); self.ports.len()];
        for (p, inputs) in std::mem::take(&mut self.inputs).into_iter().enumerate() {
            let first = narrow(slots.len());
            for (key, slot) in inputs {
                let place = narrow(slots.len());
                let bit = 1 << (place - first);
                self.ports[p].channel_slots[usize::from(key.1)] |= bit;
                self.ports[p].all_slots |= bit;
                if slot.source.is_some() {
                    self.ports[p].occupied |= bit;
                }
                places[p].insert(key, place);
                slots.push(slot);
            }
            self.ports[p].set_slots(first..narrow(slots.len()));
        }
        let mut hops = Vec::new();
        let mut flows = Vec::new();
        for (number, way) in self.ways.iter().enumerate() {
            let stream = &self.topology.streams[number / 2];
            let channel = u8::try_from(stream.channel).expect("at most eight channels");
            let (mover, other) = match stream.mode {
                Mode::Write => (stream.from, stream.to),
                Mode::Read => (stream.to, stream.from),
            };
            let end = if number % 2 == 0 { other } else { mover };
            flows.push(Flow {
                first: narrow(hops.len()),
                end: narrow(end),
                commit: ps(self.topology.nodes[end].commit_s),
                mps_bytes: u16::try_from(stream.mps_bytes).expect("at most 4 KiB"),
                completion_bytes: u16::try_from(self.topology.nodes[end].completion_bytes.min(stream.mps_bytes))
                    .expect("at most 4 KiB"),
                whole_bytes: u16::try_from(stream.mrrs_bytes).expect("at most 4 KiB"),
                last_ready: 0,
            });
            if number % 2 == 0 || has_answers(stream) {
                self.add_hops(&mut hops, way, &places, channel);
            }
        }
        let sources = (0..self.topology.streams.len())
            .map(|n| self.source(n, flows[2 * n].first))
            .collect();
        self.set_windows(&slots);
        let devices = (0..self.topology.nodes.len()).map(|n| self.device(n)).collect();
        Engine {
            wakes: Wakes::new(self.ports.len()),
            ports: self.ports,
            names: self.names,
            slots,
            pools: self.pools,
            hops,
            flows,
            sources,
            devices,
            sent: Vec::new(),
            relaxed: self.scenario.pcie.relaxed_ordering,
            starving: false,
            credits_unknown: false,
            events: 0,
            tlps: 0,
        }
    }

    /// Adds the hops of a path.
    fn add_hops(&self, hops: &mut Vec<Hop>, way: &[(u32, Input)], places: &[BTreeMap<(Input, u8), u32>], channel: u8) {
        let mut counted = false;
        for (port, input) in way {
            hops.push(Hop {
                port: *port,
                passes: self.ports[*port as usize].passes,
                slot: places[*port as usize][&(*input, channel)],
                counted,
            });
            counted = self.counts_credits(*port, channel);
        }
        hops.push(Hop {
            port: ARRIVED,
            slot: 0,
            passes: false,
            counted,
        });
    }

    /// Whether TLPs of a channel need credits of any class at a port.
    fn counts_credits(&self, port: u32, channel: u8) -> bool {
        let first = self.ports[port as usize].pool as usize + usize::from(channel) * CLASSES;
        let mut pools = self.pools[first..first + CLASSES].iter();
        pools.any(|pool| pool.limit().is_some())
    }

    /// Sets each port's window: the time in which no other port can send it a TLP.
    fn set_windows(&mut self, slots: &[Slot]) {
        let shortest = ps(shortest_link_s(&self.topology.nodes));
        for p in 0..self.ports.len() {
            let range = self.ports[p].slots.clone();
            let windows = range.map(|slot| match &slots[slot as usize] {
                Slot {
                    ingress: Some(from), ..
                } => self.ports[from.port as usize].wire.latency,
                // The notice of a delivery, or the data of a read, must return first.
                Slot {
                    source: Some(stream), ..
                } => {
                    let stream = *stream as usize;
                    if has_answers(&self.topology.streams[stream]) {
                        shortest
                    } else {
                        self.back(stream)
                    }
                }
                // A request must arrive before its answer.
                Slot { .. } => shortest,
            });
            self.ports[p].window = windows.min().unwrap_or(shortest);
        }
    }

    /// The latency of the notice of a delivery to the device that moves a stream.
    fn back(&self, stream: usize) -> Ps {
        let way = self.ways[2 * stream + 1].iter();
        way.map(|(port, _)| self.ports[*port as usize].wire.latency).sum()
    }

    fn source(&self, number: usize, first_hop: u32) -> Source {
        let stream = &self.topology.streams[number];
        Source::new(&Job {
            mode: stream.mode,
            device: narrow(initiator(stream)),
            back: self.back(number),
            flow: u16::try_from(2 * number).expect("at most a thousand streams"),
            hop: first_hop + 1,
            piece_bytes: u64::from(match stream.mode {
                Mode::Write => stream.mps_bytes,
                Mode::Read => stream.mrrs_bytes,
            }),
            io_bytes: stream.io_bytes,
            depth: stream.depth,
            fence_bytes: stream.fence_bytes,
            size_bytes: stream.size_bytes,
            start: ps(stream.start_s),
        })
    }

    fn device(&mut self, number: usize) -> Device {
        let node = &self.topology.nodes[number];
        let tags = CreditLimit {
            headers: node.tags,
            data: 0,
        };
        self.pools.push(Pool::new(Some(tags)));
        Device {
            // A root moves no data itself, so its port is never used.
            port: self.index.get(&PortName::Up(number)).copied().unwrap_or(0),
            tags: narrow(self.pools.len() - 1),
            chunk_bytes: node.dma_chunk_bytes,
            writes: Pace::new(node.dma_writes_per_s, 1.0),
            reads: Pace::new(node.dma_reads_per_s, 1.0),
            partial_word: ps(node.dma_partial_word_s),
            copy_cost: ps(node.dma_copy_s_per_byte * f64::from(1u32 << 20)),
            media_out: Pace::new(node.media_read_bytes_per_s, MEDIA_BUFFER_BYTES),
            media_in: Pace::new(node.media_write_bytes_per_s, MEDIA_BUFFER_BYTES),
            media_latency: ps(node.media_s),
            read_latency: ps(node.read_s),
            jitter: node.jitter_s * 1e12,
            rng: self.scenario.seed.part(number as u64).rng(),
        }
    }
}

/// Whether a stream has requests that are answered: reads or fences.
pub(super) fn has_answers(stream: &PcieStream) -> bool {
    stream.mode == Mode::Read || stream.fence_bytes.is_some()
}

/// The credits that a receiver advertises for each class. Endpoints and root complexes must accept every completion,
/// since they requested it.
fn credit_limits(credits: &Credits, receiver: NodeKind) -> [Option<CreditLimit>; CLASSES] {
    let limit = |headers: u64, data: u64| {
        let units = data / u64::from(UNIT_BYTES);
        Some(CreditLimit {
            headers: u32::try_from(headers).expect("checked to be small"),
            data: u32::try_from(units).expect("checked to be small"),
        })
    };
    [
        limit(credits.posted_headers, credits.posted_data.0),
        limit(credits.nonposted_headers, 0),
        limit(credits.completion_headers, credits.completion_data.0).filter(|_| receiver.forwards()),
    ]
}

fn shortest_link_s(nodes: &[PcieNode]) -> f64 {
    let links = nodes.iter().filter(|n| n.parent.is_some());
    links.map(|n| n.link_latency_s).fold(1.0, f64::min)
}

/// Seconds as picoseconds.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked times")]
fn ps(seconds: f64) -> Ps {
    (seconds * 1e12).round() as Ps
}

pub(super) fn narrow(n: usize) -> u32 {
    u32::try_from(n).expect("bounded by the number of nodes and streams")
}
