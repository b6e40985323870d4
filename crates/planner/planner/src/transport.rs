//! Transports between a node and flash: their rate, latency and CPU cost.
//!
//! A transport has three numbers: the latency it adds, the share of the wire that is payload, and its CPU cost. The
//! answer is the performance of a drive behind each transport at the given I/O size and depth. Memory tiers (CXL) are
//! included for comparison. They are loads and stores: a core's rate is its misses in flight divided by the latency,
//! not a queue of I/Os.

mod cxl;
mod flit;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

pub use self::{
    cxl::{Cxl, Tiers},
    flit::{Flit, FlitRates},
};
use straightway_scenario::check::Refusals;
use straightway_scenario::{
    check::{BYTES_ANY, Checkable, Checker, RATE_ANY, TIME_ANY, TIME_POSITIVE},
    provenance::{Basis, Citation, Formula},
};

use straightway_pcie::machine::LINK_EFFICIENCY;

use crate::{question::Question, servers::assume_efficiency};

/// The input of the topic `transport`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportQuestion {
    /// The I/O size.
    pub io: Bytes,
    /// The queue depth.
    pub depth: u64,
    /// The line rate of the network port.
    pub link: Rate,
    /// The share of the line rate that carries data. A fabric whose headers take more carries less.
    pub link_efficiency: f64,
    /// Cores available to the transport.
    pub cores: u64,
    /// The drives behind the transport.
    pub media: TransportMedia,
    /// The transports compared.
    pub fabrics: Vec<Fabric>,
    /// Memory tiers, for comparison.
    pub cxl: Cxl,
    /// The PCIe link in FLIT mode (Gen6).
    pub flit: Flit,
}

/// The drives behind the transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TransportMedia {
    /// The read latency of a drive.
    pub latency: Seconds,
    /// The sustained rate of the drives.
    pub rate: Rate,
    /// The sustained I/Os per second of the drives.
    pub iops: f64,
}

/// One transport.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fabric {
    /// Its name.
    pub name: String,
    /// The latency it adds.
    pub latency: Seconds,
    /// Further latency it adds, as a share of the drive's latency.
    #[serde(default)]
    pub latency_share: f64,
    /// The share of the wire that is payload.
    #[serde(default = "one")]
    pub efficiency: f64,
    /// Whether it crosses the network port; `false` for drives in the node.
    #[serde(default = "yes")]
    pub remote: bool,
    /// Gb/s moved by one core; absent if hardware moves the bytes.
    #[serde(default)]
    pub gbit_per_core: Option<f64>,
    /// I/Os per second that one core submits and completes.
    #[serde(default = "iops_per_core")]
    pub iops_per_core: f64,
}

/// The answer of the topic `transport`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransportAnswer {
    /// One row for each transport.
    pub fabrics: Vec<TransportRow>,
    /// The IOPS of the best NVMe transport divided by SRP's, if both are compared.
    pub nvme_over_srp: Option<f64>,
    /// Memory tiers.
    pub cxl: Tiers,
    /// The rates of the FLIT link.
    pub flit: FlitRates,
    /// The formulas and constants behind the answer.
    pub basis: Basis,
}

/// The performance of one transport.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TransportRow {
    /// Its name.
    pub name: String,
    /// The latency of one I/O on an idle path.
    pub latency_s: f64,
    /// I/Os per second at the given depth.
    pub iops: f64,
    /// Bytes per second.
    pub rate_bytes_per_s: f64,
    /// Cores busy at that rate.
    pub cores: f64,
    /// Gb/s per core.
    pub gbit_per_core: f64,
    /// Cores needed at the full rate of the port.
    pub cores_at_line_rate: f64,
    /// The bottleneck.
    pub bound_by: &'static str,
}

const NVME_OF: Citation = Citation::quoted("NVMe over Fabrics practice", "latency added to the drive's own");
/// The article's own claim as an input: reproducing it confirms nothing.
const SRP: Citation = Citation::fitted("Storage Infrastructure for AI", "from SRP to NVMe-oF 15 % more IOPS");
const CORE_IOPS: Citation = Citation::quoted("SPDK 24.05 report", "1.37 M reads of 4 KiB a core over RDMA");
const TCP: Citation = Citation::read("SIGCOMM'21, host network stacks", "10 to 42 Gb/s per core");
const ASPLOS: Citation = Citation::read("ASPLOS'25, CXL devices", "140 to 410 ns across real devices");
const PCIE6: Citation = Citation::quoted("PCI Express 6.0", "FLIT of 256 bytes: 236 TLP, 6 DLP, 8 CRC, 6 FEC");

const FORMULAS: [Formula; 3] = [
    Formula {
        gives: "I/Os a second",
        text: "min(depth / latency, wire / io, drives, cores / CPU of an I/O)",
        source: Citation::computed("Little's law", ""),
    },
    Formula {
        gives: "a core's memory bandwidth",
        text: "lines in flight · 64 B / latency",
        source: Citation::computed("Little's law", ""),
    },
    Formula {
        gives: "FLIT payload",
        text: "lanes · GT/s / 8 · 236/256 · MPS/(MPS + header)",
        source: PCIE6,
    },
];

const fn one() -> f64 {
    1.0
}

const fn yes() -> bool {
    true
}

/// A million: one core with `io_uring` or SPDK, within a factor of two of all reports.
const fn iops_per_core() -> f64 {
    1e6
}

impl Default for TransportQuestion {
    fn default() -> Self {
        Self {
            io: Bytes::kib(128),
            depth: 64,
            link: Rate::gbit(400.0),
            link_efficiency: LINK_EFFICIENCY[1],
            cores: 16,
            media: TransportMedia::default(),
            fabrics: fabrics(),
            cxl: Cxl::default(),
            flit: Flit::default(),
        }
    }
}

impl Default for TransportMedia {
    fn default() -> Self {
        Self {
            latency: Seconds(80e-6),
            rate: Rate(56e9),
            iops: 12e6,
        }
    }
}

/// The default transports.
fn fabrics() -> Vec<Fabric> {
    let fabric = |name: &str, latency_us: f64, efficiency| Fabric {
        name: name.to_owned(),
        latency: Seconds(latency_us * 1e-6),
        latency_share: 0.0,
        efficiency,
        remote: true,
        gbit_per_core: None,
        iops_per_core: iops_per_core(),
    };
    // Payload shares: 4096 of 4096 + 82 (RoCE v2 with preamble and gap), + 26 (IB), and TCP's 8960
    // of 9078 with jumbo frames.
    let roce = fabric("nvme/roce", 10.0, 4096.0 / 4178.0);
    let infiniband = fabric("nvme/ib", 8.0, 4096.0 / 4122.0);
    let tcp = |name: &str, gbit_per_core| Fabric {
        gbit_per_core: Some(gbit_per_core),
        iops_per_core: 2e5,
        ..fabric(name, 30.0, 8960.0 / 9078.0)
    };
    let srp = Fabric {
        // The article's own figure: moving from SRP to NVMe-oF brought 15 % more IOPS. So SRP takes 15 % more of
        // each cost than NVMe on the same wire, whatever the drive.
        iops_per_core: iops_per_core() / 1.15,
        latency_share: 0.15,
        ..fabric("srp/ib", 8.0 * 1.15, 4096.0 / 4122.0)
    };
    let local = Fabric {
        remote: false,
        ..fabric("local nvme", 0.0, 1.0)
    };
    vec![
        local,
        roce,
        infiniband,
        tcp("nvme/tcp at 10", 10.0),
        tcp("nvme/tcp at 42", 42.0),
        srp,
    ]
}

impl Checkable for TransportQuestion {
    fn check(&self, c: &mut Checker) {
        c.bytes("io", self.io, BYTES_ANY);
        c.count("depth", self.depth, 1..=65_535 * 64_000);
        c.rate("link", self.link, RATE_ANY);
        c.range("link_efficiency", self.link_efficiency, 0.01..=1.0, "");
        c.count("cores", self.cores, 1..=4096);
        c.within("media", |c| {
            c.seconds("latency", self.media.latency, TIME_POSITIVE);
            c.rate("rate", self.media.rate, RATE_ANY);
            c.range("iops", self.media.iops, 1.0..=1e12, "per s");
        });
        c.each("fabrics", &self.fabrics, 1..=64);
        c.nested("cxl", &self.cxl);
        c.nested("flit", &self.flit);
    }
}

impl Checkable for Fabric {
    fn check(&self, c: &mut Checker) {
        if self.name.is_empty() || self.name.len() > 60 {
            c.refuse("name", format!("`{}`", self.name), "a name of 1 to 60 bytes");
        }
        c.seconds("latency", self.latency, TIME_ANY);
        c.range("latency_share", self.latency_share, 0.0..=1000.0, "");
        c.range("efficiency", self.efficiency, 0.01..=1.0, "");
        if let Some(gbit) = self.gbit_per_core {
            c.range("gbit_per_core", gbit, 0.01..=10_000.0, "Gb/s");
        }
        c.range("iops_per_core", self.iops_per_core, 1.0..=1e9, "per s");
    }
}

impl TransportQuestion {
    /// Computes the answer.
    fn compute(&self) -> TransportAnswer {
        let fabrics: Vec<TransportRow> = self.fabrics.iter().map(|fabric| self.row(fabric)).collect();
        let iops = |prefix: &str| {
            let of = fabrics
                .iter()
                .filter(|row| row.name.starts_with(prefix))
                .map(|row| row.iops);
            of.reduce(f64::max)
        };
        let nvme_over_srp = iops("nvme/").zip(iops("srp")).map(|(nvme, srp)| nvme / srp);
        TransportAnswer {
            nvme_over_srp,
            fabrics,
            cxl: self.cxl.tiers(),
            flit: self.flit.rates(),
            basis: self.basis(),
        }
    }

    fn row(&self, fabric: &Fabric) -> TransportRow {
        let io = self.io.0 as f64;
        let wire = if fabric.remote {
            self.link.0 * fabric.efficiency.min(self.link_efficiency)
        } else {
            self.media.rate.0
        };
        let line = if fabric.remote {
            self.link.0 * fabric.efficiency
        } else {
            wire
        };
        let cpu_s_per_io = fabric.cpu_s_per_io(io);
        let drive_s = self.media.latency.0 * (1.0 + fabric.latency_share);
        let latency_s = drive_s + fabric.latency.0 + io / wire.min(self.media.rate.0);
        // Drives in the node have no wire.
        let wire_iops = if fabric.remote { wire / io } else { f64::MAX };
        let limits = [
            (self.depth as f64 / latency_s, "depth over latency"),
            (wire_iops, "wire"),
            (self.media.rate.0 / io, "drives' bandwidth"),
            (self.media.iops, "drives' IOPS"),
            (self.cores as f64 / cpu_s_per_io, "cpu"),
        ];
        let (iops, bound_by) = limits
            .into_iter()
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .expect("there are five limits");
        TransportRow {
            name: fabric.name.clone(),
            latency_s,
            iops,
            rate_bytes_per_s: iops * io,
            cores: iops * cpu_s_per_io,
            gbit_per_core: Rate(io / cpu_s_per_io).as_gbit(),
            cores_at_line_rate: line / io * cpu_s_per_io,
            bound_by,
        }
    }

    fn basis(&self) -> Basis {
        let mut basis = Basis::of(&FORMULAS);
        let what = "share of the port's line rate that carries data";
        assume_efficiency(&mut basis, "link_efficiency", what, self.link_efficiency);
        let defaults = fabrics();
        for (i, fabric) in self.fabrics.iter().enumerate() {
            let known = defaults.iter().any(|default| default == fabric);
            let source = |of: Citation| if known { of } else { Citation::SCENARIO };
            let path = |field: &str| format!("fabrics[{i}].{field}");
            let is_srp = fabric.latency_share > 0.0;
            let of = if is_srp { SRP } else { NVME_OF };
            let what = format!("{}: latency added", fabric.name);
            let latency = basis.parameter(path("latency"), what, fabric.latency.0, "s", source(of));
            if known && fabric.remote && !is_srp {
                latency.between(fabric.latency.0 / 2.0, fabric.latency.0 * 2.0, NVME_OF);
            }
            if is_srp {
                let what = format!("{}: share of the drive's latency added", fabric.name);
                basis.parameter(path("latency_share"), what, fabric.latency_share, "", source(SRP));
                let what = format!("{}: I/Os a core does", fabric.name);
                basis.parameter(path("iops_per_core"), what, fabric.iops_per_core, "per s", source(SRP));
            }
            if let Some(gbit) = fabric.gbit_per_core {
                let what = format!("{}: a core moves", fabric.name);
                basis.parameter(path("gbit_per_core"), what, gbit, "Gb/s", source(TCP));
            } else if known && !is_srp {
                let what = format!("{}: I/Os a core does", fabric.name);
                basis
                    .parameter(path("iops_per_core"), what, fabric.iops_per_core, "per s", CORE_IOPS)
                    .between(0.5e6, 2e6, CORE_IOPS);
            }
        }
        for (path, what, latency) in [
            ("cxl.latency_min", "CXL latency, fastest device", self.cxl.latency_min),
            ("cxl.latency_max", "CXL latency, slowest device", self.cxl.latency_max),
        ] {
            basis.parameter(path, what, latency.0, "s", ASPLOS);
        }
        basis
    }
}

impl Fabric {
    /// CPU time of one I/O: submission and completion, and moving its bytes if no hardware does.
    fn cpu_s_per_io(&self, io: f64) -> f64 {
        let bytes = self.gbit_per_core.map_or(0.0, |gbit| io / Rate::gbit(gbit).0);
        1.0 / self.iops_per_core + bytes
    }
}

impl Question for TransportQuestion {
    const NAME: &'static str = "transport";
    type Answer = TransportAnswer;

    fn answer(&self) -> Result<TransportAnswer, Refusals> {
        Ok(self.compute())
    }

    fn verdict(answer: &TransportAnswer) -> String {
        let rows = answer.fabrics.iter();
        let most = rows.clone().map(|row| row.rate_bytes_per_s).fold(0.0, f64::max);
        let level = rows.filter(|row| row.rate_bytes_per_s >= most * (1.0 - 1e-6));
        let names: Vec<&str> = level.map(|row| row.name.as_str()).collect();
        format!("most carried by {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    fn row(answer: &TransportAnswer, name: &str) -> TransportRow {
        answer.fabrics.iter().find(|row| row.name == name).unwrap().clone()
    }

    #[test]
    fn a_gen6_x16_link_has_118_gb_of_packets_and_111_of_payload() {
        // models.md (e).
        let flit = Flit::default().rates();
        near(flit.packet_bytes_per_s, 118.0e9, 1e-9);
        near(flit.payload_bytes_per_s, 111.1e9, 0.001);
    }

    #[test]
    fn tcp_at_400_gbit_takes_40_cores_at_the_articles_figure_and_10_at_the_best() {
        let answer = TransportQuestion::default().compute();
        // 394.8 Gb/s of payload over 10 and 42 Gb/s a core, and 0.2 M IOPS a core on top.
        near(row(&answer, "nvme/tcp at 10").cores_at_line_rate, 41.36, 0.001);
        near(row(&answer, "nvme/tcp at 42").cores_at_line_rate, 11.28, 0.001);
        assert_eq!(row(&answer, "nvme/tcp at 10").bound_by, "cpu");
    }

    #[test]
    fn nvme_gives_15_percent_more_iops_than_srp_at_depth() {
        // The article's figure is an input, which the model must reproduce.
        let asked = TransportQuestion {
            io: Bytes::kib(4),
            depth: 128,
            ..TransportQuestion::default()
        };
        let answer = asked.compute();
        near(answer.nvme_over_srp.unwrap(), 1.15, 0.01);
    }

    #[test]
    fn srp_stays_15_percent_behind_whatever_the_drive() {
        for latency in [10e-6, 80e-6, 500e-6] {
            let mut asked = TransportQuestion {
                io: Bytes::kib(4),
                ..TransportQuestion::default()
            };
            asked.media.latency = Seconds(latency);
            near(asked.compute().nvme_over_srp.unwrap(), 1.15, 0.01);
        }
    }

    #[test]
    fn drives_in_the_node_are_not_limited_by_a_wire() {
        let asked = TransportQuestion {
            depth: 4096,
            ..TransportQuestion::default()
        };
        assert_eq!(row(&asked.compute(), "local nvme").bound_by, "drives' bandwidth");
    }

    #[test]
    fn from_1500_to_100_ns_is_fifteen_times_and_faster_than_memory() {
        let tiers = Cxl::default().tiers();
        near(tiers.claimed_gain, 15.0, 1e-9);
        assert!(tiers.claimed_over_dram < 1.0);
        assert!(tiers.gain_max < 11.0 && tiers.gain_min > 3.6);
    }

    #[test]
    fn defaults_are_within_their_ranges() {
        straightway_scenario::check::checked(&TransportQuestion::default()).unwrap();
    }
}
