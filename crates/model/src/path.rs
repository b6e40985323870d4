//! The path between storage and GPU memory, and what it carries.
//!
//! Nobody's "GDS is 2.5 to 4 times faster" is a constant. A transfer crosses media, a network hop,
//! host memory, CPU cores and PCIe; taking the copies away helps exactly as much as the copies cost
//! on *this* host. So the gain is derived: both paths are built from the same parts, the direct one
//! with fewer, and each carries what its slowest part, or its depth over its latency, allows.
//!
//! Throughput is `min(slowest stage, depth · io / latency)`; latency is the sum over stages of
//! `fixed + io / rate`. Stages of one transfer overlap between transfers, not within one. What it
//! leaves out is contention inside PCIe and the fabric: the simulators have that.

mod basis;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use crate::capacity::HOST_MEMORY;
use straightway_pcie::{Machine, narrowest::Between};
use straightway_scenario::{
    check::{BYTES_ANY, Checked, Checker, RATE_ANY, TIME_ANY},
    provenance::{Formula, Source},
};

/// What one node and its way to storage are made of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Node {
    /// The media as one node sees it: its share of the drives.
    pub media: Media,
    /// The network hop between; absent for drives in the node.
    pub hop: Option<Hop>,
    /// What the host can copy.
    pub host: Host,
    /// The node's PCIe tree, the same that `sim pcie` and `plan rail` use; absent for no limit by PCIe.
    pub machine: Option<Machine>,
    /// The size of one I/O.
    pub io: Bytes,
    /// I/Os in flight by the standard path: its writer or reader threads.
    pub standard_depth: u64,
    /// I/Os in flight by the direct path.
    pub direct_depth: u64,
}

/// Drives, as one node sees them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Media {
    /// Until the first byte comes.
    pub latency: Seconds,
    /// What the drives sustain together for this node.
    pub rate: Rate,
}

/// A network between the node and its storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hop {
    /// There and back.
    pub latency: Seconds,
    /// What the node's storage ports carry together; absent for all ports of the machine.
    pub rate: Option<Rate>,
    /// Host CPU seconds the protocol takes for a GB: zero for RDMA.
    pub cpu_s_per_gb: f64,
}

/// The host between network and GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Host {
    /// What one core copies in memory.
    pub copy_rate: Rate,
    /// How often the standard path copies a byte by CPU: page cache, bounce buffer, serialiser.
    pub copies: u64,
    /// Cores that may copy or run the protocol.
    pub cores: u64,
    /// Memory bandwidth of the host.
    pub dram_rate: Rate,
    /// What the DMA between host memory and one GPU carries: each has a link of its own.
    pub gpu_copy_rate: Rate,
    /// What PCIe carries between the storage ports or drives and the GPUs, peer to peer; absent for the
    /// minimum cut of the machine.
    pub peer_rate: Option<Rate>,
    /// Memory of the host.
    pub memory: Bytes,
    /// The kernel's fixed work for an I/O: system call, interrupt, wake-up.
    pub io_cost: Seconds,
}

/// How bytes go between storage and the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Through host memory, copied by the CPU.
    Standard,
    /// By DMA from the drive or the network port into the GPU.
    Direct,
}

/// What a path carries.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Carried {
    /// Which way.
    pub way: Way,
    /// Sustained bytes per second for one node.
    pub rate_bytes_per_s: f64,
    /// What bound it.
    pub bound_by: String,
    /// The latency of one I/O on an idle path.
    pub latency_s: f64,
    /// Where that latency is spent.
    pub stages: Vec<StageTime>,
    /// CPU seconds for each GB moved.
    pub cpu_s_per_gb: f64,
    /// Cores kept busy at the sustained rate.
    pub cores_busy: f64,
}

/// One stage's part in the latency and its limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageTime {
    /// The stage.
    pub stage: &'static str,
    /// Its part of one I/O's latency.
    pub latency_s: f64,
    /// The rate it sustains when kept busy.
    pub rate_bytes_per_s: f64,
}

/// How often a byte crosses the memory bus with `copies` CPU copies: in by DMA, out by DMA, and a
/// read and a write for each copy.
const fn crossings(copies: u64) -> f64 {
    2.0 + 2.0 * copies as f64
}

/// The formulas of this file.
pub const FORMULAS: [Formula; 4] = [
    Formula {
        gives: "rate of a path",
        text: "B = min(slowest stage, depth · io / latency)",
        source: Source::computed("Little's law and the slowest stage of a pipeline", ""),
    },
    Formula {
        gives: "latency of an I/O",
        text: "T = T_media + T_hop + T_copies + Σ io / rate of each stage",
        source: Source::read(
            "seed article on GPUDirect Storage",
            "latency and throughput modelling",
        ),
    },
    Formula {
        gives: "copies between host memory and the GPUs of a node",
        text: "min(GPUs · copy engine, cut host–GPUs, host memory / crossings); crossings: 1 to leave the GPU, 2 + 2·copies from storage to GPU",
        source: Source::computed("each GPU has a link of its own, all share the memory", ""),
    },
    Formula {
        gives: "direct rate of a node",
        text: "minimum cut between ports (or drives) and GPUs in the tree of node.machine, each GPU with an equal share",
        source: Source::computed("max-flow min-cut on the tree that sim pcie plays", ""),
    },
];

/// I/Os in flight, by both paths: a queue is software's choice and belongs to neither path, so it
/// must not be what the direct one gains by. Eight for each of eight GPUs.
const DEPTH: u64 = 64;

impl Default for Node {
    fn default() -> Self {
        Self {
            media: Media::default(),
            hop: Some(Hop::default()),
            host: Host::default(),
            machine: Some(Machine::default()),
            io: Bytes::mib(4),
            standard_depth: DEPTH,
            direct_depth: DEPTH,
        }
    }
}

impl Default for Media {
    fn default() -> Self {
        // 100 µs: a flash read under load; DGX-2 saw 135 to 163 µs for 4 KB through the stack.
        Self {
            latency: Seconds(100e-6),
            rate: Rate(50e9),
        }
    }
}

impl Default for Hop {
    fn default() -> Self {
        Self {
            latency: Seconds(10e-6),
            rate: None,
            cpu_s_per_gb: 0.0,
        }
    }
}

impl Default for Host {
    fn default() -> Self {
        Self {
            copy_rate: Rate(9e9),
            copies: 1,
            cores: 16,
            dram_rate: Rate(300e9),
            gpu_copy_rate: Rate(55.1e9),
            peer_rate: None,
            memory: HOST_MEMORY,
            io_cost: Seconds(5e-6),
        }
    }
}

impl Checked for Node {
    fn check(&self, c: &mut Checker) {
        c.within("media", |c| {
            c.seconds("latency", self.media.latency, TIME_ANY);
            c.rate("rate", self.media.rate, RATE_ANY);
        });
        if let Some(hop) = &self.hop {
            c.within("hop", |c| {
                c.seconds("latency", hop.latency, TIME_ANY);
                match (hop.rate, &self.machine) {
                    (Some(rate), _) => c.rate("rate", rate, RATE_ANY),
                    (None, Some(machine)) if !machine.ports.is_empty() => {}
                    _ => c.refuse("rate", "absent", "a rate, or a machine with ports"),
                }
                c.range("cpu_s_per_gb", hop.cpu_s_per_gb, 0.0..=1000.0, "s/GB");
            });
        }
        c.within("host", |c| {
            let host = &self.host;
            c.rate("copy_rate", host.copy_rate, RATE_ANY);
            c.count("copies", host.copies, 0..=16);
            c.count("cores", host.cores, 1..=4096);
            c.rate("dram_rate", host.dram_rate, RATE_ANY);
            c.rate("gpu_copy_rate", host.gpu_copy_rate, RATE_ANY);
            if let Some(rate) = host.peer_rate {
                c.rate("peer_rate", rate, RATE_ANY);
            }
            c.bytes("memory", host.memory, BYTES_ANY);
            c.seconds("io_cost", host.io_cost, TIME_ANY);
        });
        if let Some(machine) = &self.machine {
            c.nested("machine", machine);
        }
        c.bytes("io", self.io, BYTES_ANY);
        c.count("standard_depth", self.standard_depth, 1..=1_000_000);
        c.count("direct_depth", self.direct_depth, 1..=1_000_000);
    }
}

/// What the parts of a node carry together, bytes a second.
struct Limits {
    network: Option<f64>,
    /// From the ports or drives into host memory.
    to_host: f64,
    /// From host memory into the GPUs.
    to_gpus: f64,
    /// The same into one GPU.
    to_one_gpu: f64,
    /// From the ports or drives into the GPUs, peer to peer.
    peer: f64,
    /// The same into one GPU.
    peer_to_one: f64,
}

/// A rate that is no limit.
const NO_LIMIT: f64 = 1e18;

impl Node {
    /// What this node carries by both ways for its `gpus` GPUs. Where peer to peer would be slower, the direct
    /// way is not taken: it then carries what the standard one does.
    pub fn carry_both(&self, gpus: u64) -> (Carried, Carried) {
        let standard = self.carry(Way::Standard, gpus);
        let direct = self.carry(Way::Direct, gpus);
        if direct.rate_bytes_per_s >= standard.rate_bytes_per_s {
            return (standard, direct);
        }
        let fallback = Carried {
            way: Way::Direct,
            bound_by: format!(
                "{} (not taken: the standard path is faster)",
                direct.bound_by
            ),
            ..standard.clone()
        };
        (standard, fallback)
    }

    /// What this node carries by `way` for its `gpus` GPUs.
    pub fn carry(&self, way: Way, gpus: u64) -> Carried {
        let stages = self.stages(way, gpus);
        let depth = match way {
            Way::Standard => self.standard_depth,
            Way::Direct => self.direct_depth,
        };
        let latency_s: f64 = stages.iter().map(|s| s.latency_s).sum();
        let slowest = stages
            .iter()
            .min_by(|a, b| a.rate_bytes_per_s.total_cmp(&b.rate_bytes_per_s))
            .expect("every path has media");
        let by_depth = depth as f64 * self.io.0 as f64 / latency_s;
        let (rate, bound_by) = if by_depth < slowest.rate_bytes_per_s {
            (by_depth, format!("depth {depth} over the latency"))
        } else {
            (slowest.rate_bytes_per_s, slowest.stage.to_owned())
        };
        let cpu_s_per_gb = self.cpu_s_per_byte(way) * 1e9;
        Carried {
            way,
            rate_bytes_per_s: rate,
            bound_by,
            latency_s,
            cpu_s_per_gb,
            cores_busy: cpu_s_per_gb * rate / 1e9,
            stages,
        }
    }

    /// What leaves `gpus` GPUs for host memory, which a byte then crosses once.
    pub fn from_gpus_bytes_per_s(&self, gpus: u64) -> f64 {
        self.limits(gpus).to_gpus.min(self.host.dram_rate.0)
    }

    /// What PCIe carries between the ports (or, without a network, the drives) and `gpus` GPUs, peer to peer.
    pub fn peer_bytes_per_s(&self, gpus: u64) -> f64 {
        self.limits(gpus).peer
    }

    /// What the parts of the node carry together, by the minimum cuts of its machine.
    fn limits(&self, gpus: u64) -> Limits {
        let (to_peer, to_memory) = match self.hop {
            Some(_) => (Between::PortsAndGpus, Between::PortsAndHost),
            None => (Between::DrivesAndGpus, Between::DrivesAndHost),
        };
        let cut = |between, gpus| {
            let cut = self
                .machine
                .as_ref()
                .and_then(|m| m.cut(between, gpus, false));
            cut.map_or(NO_LIMIT, |cut| cut.bytes_per_s)
        };
        let copies = |gpus: u64| {
            let engines = gpus as f64 * self.host.gpu_copy_rate.0;
            engines.min(cut(Between::HostAndGpus, gpus))
        };
        let peer = |gpus: u64| {
            self.host
                .peer_rate
                .map_or_else(|| cut(to_peer, gpus), |r| r.0)
        };
        let ports = || {
            self.machine
                .as_ref()
                .map_or(NO_LIMIT, Machine::ports_bytes_per_s)
        };
        Limits {
            network: self
                .hop
                .as_ref()
                .map(|hop| hop.rate.map_or_else(ports, |r| r.0)),
            to_host: cut(to_memory, gpus),
            to_gpus: copies(gpus),
            to_one_gpu: copies(1),
            peer: peer(gpus),
            peer_to_one: peer(1),
        }
    }

    /// The stages a byte passes, each with its part of the latency and its sustained rate. One I/O takes one
    /// GPU's link, many take all: its latency is by the one, the rate by all.
    fn stages(&self, way: Way, gpus: u64) -> Vec<StageTime> {
        let io = self.io.0 as f64;
        let stage = |stage, fixed_s: f64, one: f64, all: f64| StageTime {
            stage,
            latency_s: fixed_s + io / one,
            rate_bytes_per_s: all,
        };
        let (host, limits) = (&self.host, self.limits(gpus));
        let media = self.media.rate.0;
        let mut stages = vec![stage("media", self.media.latency.0, media, media)];
        if let (Some(hop), Some(rate)) = (&self.hop, limits.network) {
            stages.push(stage("network", hop.latency.0, rate, rate));
        }
        match way {
            Way::Direct => {
                stages.push(stage(
                    "pcie peer to peer",
                    0.0,
                    limits.peer_to_one,
                    limits.peer,
                ));
            }
            Way::Standard => {
                // What comes into memory is counted by the stage before it, which feeds it.
                stages.push(stage("pcie to host memory", 0.0, NO_LIMIT, limits.to_host));
                stages.push(stage(
                    "host to gpu copy",
                    0.0,
                    limits.to_one_gpu,
                    limits.to_gpus,
                ));
                let dram = host.dram_rate.0 / crossings(host.copies);
                stages.push(stage("host memory", 0.0, NO_LIMIT, dram));
            }
        }
        // One I/O is worked on by one core; many I/Os keep all cores busy.
        let cpu_s = self.cpu_s_per_byte(way);
        let cores = host.cores as f64 / cpu_s.max(1e-18);
        stages.push(stage("cpu", 0.0, 1.0 / cpu_s.max(1e-18), cores));
        stages
    }

    /// CPU time a byte costs: its copies, the protocol, and its part of the I/O's fixed work.
    fn cpu_s_per_byte(&self, way: Way) -> f64 {
        let host = &self.host;
        let fixed = host.io_cost.0 / self.io.0 as f64;
        let protocol = self.hop.as_ref().map_or(0.0, |hop| hop.cpu_s_per_gb / 1e9);
        let copies = match way {
            Way::Standard => host.copies as f64 / host.copy_rate.0,
            Way::Direct => 0.0,
        };
        fixed + protocol + copies
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn without_copies_to_save_direct_gains_nothing() {
        let mut node = Node::default();
        node.host.copies = 0;
        let link = node.peer_bytes_per_s(1);
        node.host.gpu_copy_rate = Rate(link);
        node.host.dram_rate = Rate(1e15);
        (node.standard_depth, node.direct_depth) = (64, 64);
        let (standard, direct) = (node.carry(Way::Standard, 1), node.carry(Way::Direct, 1));
        assert!((direct.rate_bytes_per_s / standard.rate_bytes_per_s - 1.0).abs() < 1e-9);
    }

    #[test]
    fn few_copying_cores_bound_the_standard_path_and_not_the_direct_one() {
        let mut node = Node::default();
        node.host.cores = 2;
        let (standard, direct) = (node.carry(Way::Standard, 1), node.carry(Way::Direct, 1));
        assert_eq!(standard.bound_by, "cpu");
        // Two cores at 9 GB/s less the fixed cost of each I/O.
        assert!((standard.rate_bytes_per_s / 17.8e9 - 1.0).abs() < 0.01);
        assert_eq!(direct.bound_by, "media");
        assert!((direct.rate_bytes_per_s - 50e9).abs() < 1.0);
    }

    #[test]
    fn one_io_in_flight_is_bound_by_its_latency() {
        let node = Node {
            standard_depth: 1,
            ..Node::default()
        };
        let carried = node.carry(Way::Standard, 1);
        let by_hand = node.io.0 as f64 / carried.stages.iter().map(|s| s.latency_s).sum::<f64>();
        assert!((carried.rate_bytes_per_s - by_hand).abs() < 1.0);
        assert!(carried.bound_by.starts_with("depth 1"));
    }

    #[test]
    fn each_gpu_has_its_link_and_all_share_the_memory() {
        let mut node = Node::default();
        (node.media.rate, node.hop, node.machine) = (Rate(1e12), None, None);
        let rate = |node: &Node, gpus| node.carry(Way::Standard, gpus);
        assert_eq!(rate(&node, 1).bound_by, "host to gpu copy");
        assert!((rate(&node, 1).rate_bytes_per_s - 55.1e9).abs() < 1.0);
        assert_eq!(rate(&node, 8).bound_by, "host memory");
        // An idle path's latency is that of one link, however many there are.
        assert!((rate(&node, 1).latency_s - rate(&node, 8).latency_s).abs() < 1e-15);
    }

    #[test]
    fn memory_is_crossed_twice_by_dma_and_twice_by_each_copy() {
        let mut node = Node::default();
        node.host.dram_rate = Rate(40e9);
        let carried = node.carry(Way::Standard, 1);
        assert_eq!(carried.bound_by, "host memory");
        assert!((carried.rate_bytes_per_s - 10e9).abs() < 1.0);
    }

    proptest! {
        #[test]
        fn more_of_anything_never_carries_less(
            cores in 1u64..64, copies in 0u64..4, depth in 1u64..64, io in 4096u64..64 << 20,
        ) {
            let mut node = Node { standard_depth: depth, io: Bytes(io), ..Node::default() };
            node.host.cores = cores;
            node.host.copies = copies;
            let before = node.carry(Way::Standard, 1).rate_bytes_per_s;
            node.host.cores += 1;
            node.standard_depth += 1;
            node.media.rate.0 *= 1.5;
            prop_assert!(node.carry(Way::Standard, 1).rate_bytes_per_s >= before * (1.0 - 1e-12));
            node.host.copies += 1;
            prop_assert!(node.carry(Way::Standard, 1).latency_s > 0.0);
        }
    }
}
