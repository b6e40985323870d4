//! The constants of a path, with their sources and bands.

use straightway_pcie::machine::{DGX_H100, LINK_EFFICIENCY, LINK_EFFICIENCY_SOURCE};
use straightway_scenario::provenance::{Basis, Citation};

use super::{ComputeNode, Flow, NO_LIMIT};

const H200_HOST: Citation = Citation::read(
    "peers measured on an H200 host",
    "limits of that machine: one memcpy thread 9 GB/s, pinned copies 55.1 GB/s",
);

const GDS_GUIDE: Citation = Citation::read("GDS guide, DGX-2", "4 KB NVMe reads took 135 to 163 µs");

const ROCE_LATENCY: Citation = Citation::read("Storage Infrastructure for AI", "RoCE below 10 µs; TCP tens");

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
        let media = self.media(Flow::Read);
        let local = !self.local_drives().is_empty();
        let drives = Citation::computed("node.machine.drives", "no network hop: the drives are in the node");
        let (latency_source, rate_source) = if local {
            (drives, drives)
        } else {
            (GDS_GUIDE, Citation::ASSUMED)
        };
        basis
            .parameter(
                "node.media.latency",
                "media latency",
                media.latency_s,
                "s",
                latency_source,
            )
            .between(
                70e-6_f64.min(media.latency_s),
                163e-6_f64.max(media.latency_s),
                GDS_GUIDE,
            );
        let what = "media rate of a node";
        basis.parameter("node.media.rate", what, media.all, "B/s", rate_source);
        let what = "rate of one drive, which one I/O waits for";
        basis.parameter("node.media.drive_rate", what, media.one, "B/s", rate_source);
        let Some(hop) = &self.hop else { return };
        let what = "network rate of a node, data";
        if let Some(rate) = hop.rate {
            basis.parameter(
                "node.hop.rate",
                what,
                rate.0 * hop.efficiency,
                "B/s",
                Citation::SCENARIO,
            );
            let [low, _, high] = LINK_EFFICIENCY;
            let what = "share of the line rate that carries data";
            basis
                .parameter("node.hop.efficiency", what, hop.efficiency, "", LINK_EFFICIENCY_SOURCE)
                .between(low, high, LINK_EFFICIENCY_SOURCE);
        } else if let Some(machine) = &self.machine {
            let ports = machine.ports_bytes_per_s();
            basis.parameter("node.machine.ports", what, ports, "B/s", DGX_H100);
            machine.assume_efficiency(basis, "node.machine");
        }
        basis
            .parameter("node.hop.latency", "network latency", hop.latency.0, "s", ROCE_LATENCY)
            .between(2e-6, 50e-6, ROCE_LATENCY);
    }
}
