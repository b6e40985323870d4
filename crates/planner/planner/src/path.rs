//! The path between storage and GPU memory, and its rate.
//!
//! "GDS is 2.5 to 4 times faster" is not a constant. A transfer crosses media, a network hop, host memory, CPU cores
//! and PCIe. Removing the copies gains exactly what the copies cost on *this* host. The gain is therefore derived: both
//! paths are built from the same stages, the direct one with fewer. The rate of each is limited by its slowest stage or
//! by its queue depth over its latency.
//!
//! Throughput is `min(slowest stage, depth · io / latency)`; latency is the sum over stages of
//! `fixed + io / rate`, at the rate of one drive, one port and one GPU's link: an I/O uses one of each. Stages overlap
//! between transfers, not within one. The model leaves out contention inside PCIe and the fabric, which the simulators
//! cover.

mod basis;
mod hop;
mod media;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

pub use self::{hop::Hop, media::NodeMedia};
use crate::capacity::HOST_MEMORY;
use straightway_pcie::{MachineSpec, narrowest::Between};
use straightway_scenario::{
    check::{BYTES_ANY, Checkable, Checker, RATE_ANY, TIME_ANY},
    provenance::{Citation, Formula},
};

/// One node and its path to storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComputeNode {
    /// The node's share of the drives.
    pub media: NodeMedia,
    /// The network hop to storage; `"none"` for drives in the node.
    #[serde(with = "hop")]
    pub hop: Option<Hop>,
    /// The host's memory and copy rates.
    pub host: NodeHost,
    /// The node's PCIe tree, as used by `sim pcie` and `plan rail`; absent for no PCIe limit.
    pub machine: Option<MachineSpec>,
    /// The size of one I/O.
    pub io: Bytes,
    /// Queue depth of the standard path: its writer or reader threads.
    pub standard_depth: u64,
    /// Queue depth of the direct path.
    pub direct_depth: u64,
}

/// The host between network and GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct NodeHost {
    /// The memory copy rate of one core.
    pub copy_rate: Rate,
    /// The number of CPU copies on the standard path: page cache, bounce buffer, serialiser.
    pub copies: u64,
    /// Cores available for copies and the protocol.
    pub cores: u64,
    /// Memory bandwidth of the host.
    pub dram_rate: Rate,
    /// The DMA rate between host memory and one GPU. Each GPU has its own link.
    pub gpu_copy_rate: Rate,
    /// The peer-to-peer rate of PCIe between the storage ports or drives and the GPUs; absent for the minimum cut of
    /// the machine.
    pub peer_rate: Option<Rate>,
    /// The memory size of the host.
    pub memory: Bytes,
    /// The kernel's fixed cost per I/O: system call, interrupt, wake-up.
    pub io_cost: Seconds,
}

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// From storage.
    Read,
    /// To storage.
    Write,
}

/// The kind of path between storage and the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DataPath {
    /// Through host memory, copied by the CPU.
    Standard,
    /// By DMA between the drive or the network port and the GPU.
    Direct,
}

/// The estimated performance of a path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathEstimate {
    /// The kind of path.
    pub way: DataPath,
    /// Sustained bytes per second for one node.
    pub rate_bytes_per_s: f64,
    /// The bottleneck.
    pub bound_by: String,
    /// The latency of one I/O on an idle path.
    pub latency_s: f64,
    /// The latency and rate of each stage.
    pub stages: Vec<StageTime>,
    /// CPU seconds per GB moved.
    pub cpu_s_per_gb: f64,
    /// Cores busy at the sustained rate.
    pub cores_busy: f64,
}

/// One stage's share of the latency, and its rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageTime {
    /// The name of the stage.
    pub stage: &'static str,
    /// Its share of one I/O's latency.
    pub latency_s: f64,
    /// Its sustained rate.
    pub rate_bytes_per_s: f64,
}

/// The number of times a byte crosses the memory bus with `copies` CPU copies: in by DMA, out by DMA, and a read and a
/// write for each copy.
const fn crossings(copies: u64) -> f64 {
    2.0 + 2.0 * copies as f64
}

/// The formulas of this file.
pub const FORMULAS: [Formula; 4] = [
    Formula {
        gives: "rate of a path",
        text: "B = min(slowest stage, depth · io / latency)",
        source: Citation::computed("Little's law and the slowest stage of a pipeline", ""),
    },
    Formula {
        gives: "latency of an I/O",
        text: "T = T_media + T_hop + T_copies + Σ io / rate of each stage",
        source: Citation::read(
            "GPUDirect Storage: Engineering the Peer-to-Peer Data Path",
            "latency and throughput modelling",
        ),
    },
    Formula {
        gives: "copies between host memory and the GPUs of a node",
        text: "min(GPUs · copy engine, cut host–GPUs, host memory / crossings); crossings: 1 to leave the GPU, 2 + 2·copies from storage to GPU",
        source: Citation::computed("each GPU has a link of its own, all share the memory", ""),
    },
    Formula {
        gives: "direct rate of a node",
        text: "minimum cut between ports (or drives) and GPUs in the tree of node.machine, each GPU with an equal share",
        source: Citation::computed("max-flow min-cut on the tree that sim pcie plays", ""),
    },
];

/// The default queue depth of both paths: eight for each of eight GPUs. The depth is a choice of the software, so it is
/// the same for both and does not favour the direct path.
const DEPTH: u64 = 64;

impl Default for ComputeNode {
    fn default() -> Self {
        Self {
            media: NodeMedia::default(),
            hop: Some(Hop::default()),
            host: NodeHost::default(),
            machine: Some(MachineSpec::default()),
            io: Bytes::mib(4),
            standard_depth: DEPTH,
            direct_depth: DEPTH,
        }
    }
}

impl Default for NodeHost {
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

impl Checkable for ComputeNode {
    fn check(&self, c: &mut Checker) {
        c.within("media", |c| {
            let media = &self.media;
            if let Some(latency) = media.latency {
                c.seconds("latency", latency, TIME_ANY);
            }
            for (field, rate) in [("rate", media.rate), ("drive_rate", media.drive_rate)] {
                if let Some(rate) = rate {
                    c.rate(field, rate, RATE_ANY);
                }
            }
            if self.hop.is_none() && media.rate.is_none() && self.local_drives().is_empty() {
                c.refuse("rate", "absent", "a rate, or a machine with drives");
            }
        });
        if let Some(hop) = &self.hop {
            c.within("hop", |c| {
                c.seconds("latency", hop.latency, TIME_ANY);
                match (hop.rate, &self.machine) {
                    (Some(rate), _) => c.rate("rate", rate, RATE_ANY),
                    (None, Some(machine)) if !machine.ports.is_empty() => {}
                    _ => c.refuse("rate", "absent", "a rate, or a machine with ports"),
                }
                c.range("efficiency", hop.efficiency, 0.01..=1.0, "");
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

/// The rates of a node's parts, in bytes per second.
struct Limits {
    /// The network ports together.
    network: Option<f64>,
    /// The fastest port.
    one_port: f64,
    /// From the ports or drives into host memory.
    to_host: f64,
    /// From host memory into the GPUs.
    to_gpus: f64,
    /// From host memory into one GPU.
    to_one_gpu: f64,
    /// From the ports or drives into the GPUs, peer to peer.
    peer: f64,
    /// From the ports or drives into one GPU, peer to peer.
    peer_to_one: f64,
}

/// A rate so high that it limits nothing.
const NO_LIMIT: f64 = 1e18;

impl ComputeNode {
    /// Estimates both paths for `gpus` GPUs. If peer to peer would be slower, the direct path is not taken and has the
    /// performance of the standard one.
    pub fn estimate_both(&self, flow: Flow, gpus: u64) -> (PathEstimate, PathEstimate) {
        let standard = self.estimate(DataPath::Standard, flow, gpus);
        let direct = self.estimate(DataPath::Direct, flow, gpus);
        if direct.rate_bytes_per_s >= standard.rate_bytes_per_s {
            return (standard, direct);
        }
        let fallback = PathEstimate {
            way: DataPath::Direct,
            bound_by: format!("{} (not taken: the standard path is faster)", direct.bound_by),
            ..standard.clone()
        };
        (standard, fallback)
    }

    /// Estimates one path for `gpus` GPUs.
    pub fn estimate(&self, way: DataPath, flow: Flow, gpus: u64) -> PathEstimate {
        let stages = self.stages(way, flow, gpus);
        let depth = match way {
            DataPath::Standard => self.standard_depth,
            DataPath::Direct => self.direct_depth,
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
        PathEstimate {
            way,
            rate_bytes_per_s: rate,
            bound_by,
            latency_s,
            cpu_s_per_gb,
            cores_busy: cpu_s_per_gb * rate / 1e9,
            stages,
        }
    }

    /// The rate from `gpus` GPUs into host memory. Each byte crosses the memory bus once.
    pub fn from_gpus_bytes_per_s(&self, gpus: u64) -> f64 {
        self.limits(gpus).to_gpus.min(self.host.dram_rate.0)
    }

    /// The peer-to-peer rate of PCIe between the ports (without a network, the drives) and `gpus` GPUs.
    pub fn peer_bytes_per_s(&self, gpus: u64) -> f64 {
        self.limits(gpus).peer
    }

    /// The rates of the node's parts, from the minimum cuts of its machine.
    fn limits(&self, gpus: u64) -> Limits {
        let (to_peer, to_memory) = match self.hop {
            Some(_) => (Between::PortsAndGpus, Between::PortsAndHost),
            None => (Between::DrivesAndGpus, Between::DrivesAndHost),
        };
        let cut = |between, gpus| {
            let cut = self.machine.as_ref().and_then(|m| m.cut(between, gpus, false));
            cut.map_or(NO_LIMIT, |cut| cut.bytes_per_s)
        };
        let copies = |gpus: u64| {
            let engines = gpus as f64 * self.host.gpu_copy_rate.0;
            engines.min(cut(Between::HostAndGpus, gpus))
        };
        let peer = |gpus: u64| self.host.peer_rate.map_or_else(|| cut(to_peer, gpus), |r| r.0);
        let ports = || self.machine.as_ref().map_or(NO_LIMIT, MachineSpec::ports_bytes_per_s);
        let data = |hop: &Hop| hop.rate.map_or_else(ports, |line| line.0 * hop.efficiency);
        let machine_ports = self.machine.iter().flat_map(|machine| &machine.ports);
        let fastest = machine_ports.map(|ports| ports.data_rate().0).fold(0.0, f64::max);
        Limits {
            network: self.hop.as_ref().map(data),
            one_port: if fastest > 0.0 { fastest } else { NO_LIMIT },
            to_host: cut(to_memory, gpus),
            to_gpus: copies(gpus),
            to_one_gpu: copies(1),
            peer: peer(gpus),
            peer_to_one: peer(1),
        }
    }

    /// The stages of a path, each with its share of the latency and its sustained rate. One I/O uses one drive, one port
    /// and one GPU's link, many I/Os use all: the latency is computed from one, the rate from all.
    fn stages(&self, way: DataPath, flow: Flow, gpus: u64) -> Vec<StageTime> {
        let io = self.io.0 as f64;
        let stage = |stage, fixed_s: f64, one: f64, all: f64| StageTime {
            stage,
            latency_s: fixed_s + io / one,
            rate_bytes_per_s: all,
        };
        let (host, limits) = (&self.host, self.limits(gpus));
        let media = self.media(flow);
        let mut stages = vec![stage("media", media.latency_s, media.one, media.all)];
        if let (Some(hop), Some(rate)) = (&self.hop, limits.network) {
            stages.push(stage("network", hop.latency.0, limits.one_port.min(rate), rate));
        }
        match way {
            DataPath::Direct => {
                stages.push(stage("pcie peer to peer", 0.0, limits.peer_to_one, limits.peer));
            }
            DataPath::Standard => {
                // This stage adds no latency: the stage before it writes into memory, and its time is counted there.
                stages.push(stage("pcie to host memory", 0.0, NO_LIMIT, limits.to_host));
                stages.push(stage("host to gpu copy", 0.0, limits.to_one_gpu, limits.to_gpus));
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

    /// CPU time per byte: its copies, the protocol, and its share of the I/O's fixed cost.
    fn cpu_s_per_byte(&self, way: DataPath) -> f64 {
        let host = &self.host;
        let fixed = host.io_cost.0 / self.io.0 as f64;
        let protocol = self.hop.as_ref().map_or(0.0, |hop| hop.cpu_s_per_gb / 1e9);
        let copies = match way {
            DataPath::Standard => host.copies as f64 / host.copy_rate.0,
            DataPath::Direct => 0.0,
        };
        fixed + protocol + copies
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use straightway_pcie::machine::Attachment;

    use super::*;

    #[test]
    fn without_copies_to_save_direct_gains_nothing() {
        let mut node = ComputeNode::default();
        node.host.copies = 0;
        let link = node.peer_bytes_per_s(1);
        node.host.gpu_copy_rate = Rate(link);
        node.host.dram_rate = Rate(1e15);
        (node.standard_depth, node.direct_depth) = (64, 64);
        let (standard, direct) = (
            node.estimate(DataPath::Standard, Flow::Read, 1),
            node.estimate(DataPath::Direct, Flow::Read, 1),
        );
        assert!((direct.rate_bytes_per_s / standard.rate_bytes_per_s - 1.0).abs() < 1e-9);
    }

    #[test]
    fn few_copying_cores_bound_the_standard_path_and_not_the_direct_one() {
        let mut node = ComputeNode::default();
        node.host.cores = 2;
        let (standard, direct) = (
            node.estimate(DataPath::Standard, Flow::Read, 1),
            node.estimate(DataPath::Direct, Flow::Read, 1),
        );
        assert_eq!(standard.bound_by, "cpu");
        // Two cores at 9 GB/s less the fixed cost of each I/O.
        assert!((standard.rate_bytes_per_s / 17.8e9 - 1.0).abs() < 0.01);
        assert_eq!(direct.bound_by, "media");
        assert!((direct.rate_bytes_per_s - 50e9).abs() < 1.0);
    }

    #[test]
    fn one_io_in_flight_is_bound_by_its_latency() {
        let node = ComputeNode {
            standard_depth: 1,
            ..ComputeNode::default()
        };
        let carried = node.estimate(DataPath::Standard, Flow::Read, 1);
        let by_hand = node.io.0 as f64 / carried.stages.iter().map(|s| s.latency_s).sum::<f64>();
        assert!((carried.rate_bytes_per_s - by_hand).abs() < 1.0);
        assert!(carried.bound_by.starts_with("depth 1"));
    }

    #[test]
    fn each_gpu_has_its_link_and_all_share_the_memory() {
        let mut node = ComputeNode::default();
        (node.media.rate, node.hop, node.machine) = (Some(Rate(1e12)), None, None);
        let rate = |node: &ComputeNode, gpus| node.estimate(DataPath::Standard, Flow::Read, gpus);
        assert_eq!(rate(&node, 1).bound_by, "host to gpu copy");
        assert!((rate(&node, 1).rate_bytes_per_s - 55.1e9).abs() < 1.0);
        assert_eq!(rate(&node, 8).bound_by, "host memory");
        // An idle path's latency is that of one link, however many there are.
        assert!((rate(&node, 1).latency_s - rate(&node, 8).latency_s).abs() < 1e-15);
    }

    #[test]
    fn memory_is_crossed_twice_by_dma_and_twice_by_each_copy() {
        let mut node = ComputeNode::default();
        node.host.dram_rate = Rate(40e9);
        let carried = node.estimate(DataPath::Standard, Flow::Read, 1);
        assert_eq!(carried.bound_by, "host memory");
        assert!((carried.rate_bytes_per_s - 10e9).abs() < 1.0);
    }

    /// A node whose eight drives read 5 GB/s each, less than their links carry.
    fn local() -> ComputeNode {
        let mut node = ComputeNode {
            hop: None,
            ..ComputeNode::default()
        };
        node.machine.as_mut().unwrap().drives[0].rate = Rate(5e9);
        node
    }

    /// That node with one parameter of its drives changed.
    fn with_drives(change: impl FnOnce(&mut straightway_pcie::machine::Drives)) -> ComputeNode {
        let mut node = local();
        change(&mut node.machine.as_mut().unwrap().drives[0]);
        node
    }

    #[test]
    fn every_input_of_local_drives_acts() {
        let carried = |node: &ComputeNode, flow| node.estimate(DataPath::Direct, flow, 8);
        let base = carried(&local(), Flow::Read);
        assert_eq!(base.bound_by, "media");
        assert!((base.rate_bytes_per_s - 8.0 * 5e9).abs() < 1.0);
        let two = with_drives(|d| d.count = 2);
        assert!((carried(&two, Flow::Read).rate_bytes_per_s - 2.0 * 5e9).abs() < 1.0);
        let slow = with_drives(|d| d.rate = Rate(3e9));
        assert!((carried(&slow, Flow::Read).rate_bytes_per_s - 24e9).abs() < 1.0);
        let late = with_drives(|d| d.latency = Seconds(1e-3));
        assert!(carried(&late, Flow::Read).latency_s > base.latency_s + 0.9e-3);
        let narrow = with_drives(|d| d.link.lanes = 1);
        assert_eq!(carried(&narrow, Flow::Read).bound_by, "pcie peer to peer");
        // On root ports the drives reach the GPUs through the uplinks of the switches.
        let far = |on| {
            let mut node = with_drives(|d| (d.count, d.rate, d.on) = (64, Rate(6.8e9), on));
            node.machine.as_mut().unwrap().switches = 2;
            carried(&node, Flow::Read).rate_bytes_per_s
        };
        assert!(far(Attachment::Host) < far(Attachment::Switch));
        let writes = with_drives(|d| d.write_rate = Some(Rate(4e9)));
        assert!((carried(&writes, Flow::Write).rate_bytes_per_s - 32e9).abs() < 1.0);
        assert!((carried(&writes, Flow::Read).rate_bytes_per_s - base.rate_bytes_per_s).abs() < 1.0);
    }

    #[test]
    fn one_io_in_flight_waits_for_one_drive_and_not_for_all() {
        // Mooncake PR 2806: one thread, 1 MB, four Gen5 drives: 4.2 GB/s at depth 1, not 30.
        let mut node = with_drives(|d| (d.count, d.rate) = (4, Rate(14e9)));
        (node.io, node.direct_depth) = (Bytes(1_000_000), 1);
        let carried = node.estimate(DataPath::Direct, Flow::Read, 1);
        assert!(carried.bound_by.starts_with("depth 1"));
        let media = &carried.stages[0];
        assert!((media.latency_s - (80e-6 + 1e6 / 14e9)).abs() < 1e-12);
        assert!((3.5e9..7e9).contains(&carried.rate_bytes_per_s), "{carried:?}");
    }

    #[test]
    fn a_port_carries_nine_tenths_of_its_line_rate() {
        let mut node = ComputeNode::default();
        (node.media.rate, node.media.drive_rate) = (Some(Rate(1e12)), Some(Rate(1e12)));
        let carried = node.estimate(DataPath::Direct, Flow::Read, 8);
        assert_eq!(carried.bound_by, "network");
        assert!((carried.rate_bytes_per_s - 0.9 * 400e9).abs() < 1.0);
        node.hop.as_mut().unwrap().rate = Some(Rate::gbit(400.0));
        let carried = node.estimate(DataPath::Direct, Flow::Read, 8);
        assert!((carried.rate_bytes_per_s - 0.9 * 50e9).abs() < 1.0);
    }

    proptest! {
        #[test]
        fn more_of_anything_never_carries_less(
            cores in 1u64..64, copies in 0u64..4, depth in 1u64..64, io in 4096u64..64 << 20,
        ) {
            let mut node = ComputeNode { standard_depth: depth, io: Bytes(io), ..ComputeNode::default() };
            node.host.cores = cores;
            node.host.copies = copies;
            let before = node.estimate(DataPath::Standard, Flow::Read, 1).rate_bytes_per_s;
            node.host.cores += 1;
            node.standard_depth += 1;
            node.media.rate = Some(Rate(75e9));
            prop_assert!(node.estimate(DataPath::Standard, Flow::Read, 1).rate_bytes_per_s >= before * (1.0 - 1e-12));
            node.host.copies += 1;
            prop_assert!(node.estimate(DataPath::Standard, Flow::Read, 1).latency_s > 0.0);
        }
    }
}
