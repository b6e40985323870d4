//! The constants of a path, with their sources and bands.

use straightway_pcie::machine::{DGX_H100, MachineSpec};
use straightway_scenario::provenance::{Basis, Citation};

use super::{ComputeNode, NO_LIMIT};

const H200_HOST: Citation = Citation::read(
    "peers measured on an H200 host",
    "limits of that machine: one memcpy thread 9 GB/s, pinned copies 55.1 GB/s",
);

const GDS_GUIDE: Citation = Citation::read("GDS guide, DGX-2", "4 KB NVMe reads took 135 to 163 µs");

const ROCE_LATENCY: Citation = Citation::read("seed article on storage networking", "RoCE below 10 µs; TCP tens");

const COPY_BAND: Citation = Citation::quoted("STREAM copies of one core", "server cores of 2018 to 2024");

const DRAM_BAND: Citation = Citation::quoted(
    "memory channels of one and two sockets",
    "DDR4-3200 × 8 to DDR5-4800 × 16",
);

impl ComputeNode {
    /// Adds the constants of the path to `basis`, with paths below `node`.
    pub fn assume(&self, basis: &mut Basis, gpus: u64) {
        self.assume_storage(basis);
        let host = &self.host;
        basis
            .parameter(
                "node.host.copy_rate",
                "memory copy by one core",
                host.copy_rate.0,
                "B/s",
                H200_HOST,
            )
            .between(4e9, 15e9, COPY_BAND);
        let copies = host.copies as f64;
        basis.parameter(
            "node.host.copies",
            "CPU copies of a byte",
            copies,
            "",
            Citation::ASSUMED,
        );
        let cores = host.cores as f64;
        basis.parameter(
            "node.host.cores",
            "cores for copies and protocol",
            cores,
            "",
            Citation::ASSUMED,
        );
        let what = "host to GPU copy, one GPU's link";
        basis.parameter("node.host.gpu_copy_rate", what, host.gpu_copy_rate.0, "B/s", H200_HOST);
        basis
            .parameter(
                "node.host.dram_rate",
                "memory bandwidth of a host",
                host.dram_rate.0,
                "B/s",
                Citation::ASSUMED,
            )
            .between(200e9, 600e9, DRAM_BAND);
        for (path, what, depth) in [
            (
                "node.standard_depth",
                "I/Os in flight, standard path",
                self.standard_depth,
            ),
            ("node.direct_depth", "I/Os in flight, direct path", self.direct_depth),
        ] {
            let source = Citation::computed("the software's choice", "the same for both paths unless given");
            basis.parameter(path, what, depth as f64, "", source);
        }
        self.assume_pcie(basis, gpus);
    }

    fn assume_pcie(&self, basis: &mut Basis, gpus: u64) {
        let limits = self.limits(gpus);
        let cut = Citation::computed("minimum cut of node.machine", "pcie-bench link model");
        for (what, rate) in [
            ("PCIe between host memory and the GPUs", limits.to_gpus),
            ("PCIe between storage and host memory", limits.to_host),
        ] {
            if rate < NO_LIMIT {
                basis.assume(what, rate, "B/s", cut);
            }
        }
        let what = "PCIe between storage and the GPUs, peer to peer";
        match (self.host.peer_rate, &self.machine) {
            (Some(rate), _) => {
                basis.parameter("node.host.peer_rate", what, rate.0, "B/s", Citation::SCENARIO);
            }
            (None, Some(_)) => {
                basis.parameter("node.machine", what, limits.peer, "B/s", DGX_H100);
            }
            (None, None) => {}
        }
    }

    fn assume_storage(&self, basis: &mut Basis) {
        let media = &self.media;
        basis
            .parameter("node.media.latency", "media latency", media.latency.0, "s", GDS_GUIDE)
            .between(70e-6, 163e-6, GDS_GUIDE);
        basis.parameter(
            "node.media.rate",
            "media rate of a node",
            media.rate.0,
            "B/s",
            Citation::ASSUMED,
        );
        let Some(hop) = &self.hop else { return };
        let what = "network rate of a node";
        if let Some(rate) = hop.rate {
            basis.parameter("node.hop.rate", what, rate.0, "B/s", Citation::SCENARIO);
        } else {
            let ports = self.machine.as_ref().map_or(0.0, MachineSpec::ports_bytes_per_s);
            basis.parameter("node.machine.ports", what, ports, "B/s", DGX_H100);
        }
        basis
            .parameter("node.hop.latency", "network latency", hop.latency.0, "s", ROCE_LATENCY)
            .between(2e-6, 50e-6, ROCE_LATENCY);
    }
}
