//! Measurements of a machine, compared with the models' predictions.
//!
//! `bench` measures simple things (a drive, a copy, a core) and composite ones (a load through a pinned ring). The
//! models derive the composite from the simple, so the comparison is made twice: with the constants that a scenario
//! assumes, and with the simple measurements in their place. If the calibrated prediction misses, the model is wrong.
//! If only the assumed prediction misses, the constants are wrong.
//!
//! A route is predicted from its stages ([`Stages`]). Each stage is measured alone, with the route's I/O size, depth
//! and lanes, in alternation with the route. The measurement of a route is never an input of its own prediction.

mod figure;
mod stages;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use figure::{cpu, direct, direct_latency, standard, synced};
pub use stages::Stages;

use crate::path::{self, ComputeNode, DataPath, Flow};
use straightway_scenario::{
    check::{BYTES_ANY, Checkable, Checker, RATE_ANY, TIME_POSITIVE},
    provenance::{Basis, Citation, Confidence, Formula},
};

/// The measurements of a machine. What was not measured is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeasuredMachine {
    /// The machine's description, one line.
    pub machine: Option<String>,
    /// The I/O size of routes that do not give their own.
    pub io: Option<Bytes>,
    /// The queue depth of routes that do not give their own.
    pub depth: Option<u64>,
    /// The number of cores used.
    pub cores: Option<u64>,
    /// The memory copy rate of one core.
    pub copy_rate: Option<Rate>,
    /// The copy rate from pinned host memory to the GPU.
    pub to_gpu: Option<Rate>,
    /// The copy rate from the GPU to pinned host memory.
    pub from_gpu: Option<Rate>,
    /// The drive alone: `O_DIRECT` into host memory.
    pub drive: MeasuredRoute,
    /// Through a cold page cache.
    pub buffered: MeasuredRoute,
    /// Out of a warm page cache.
    pub cached: MeasuredRoute,
    /// Through a ring: by the CPU into host memory, or by DMA into the GPU if `to_gpu` is present.
    pub staged: MeasuredRoute,
    /// By DMA into the GPU.
    pub direct: MeasuredRoute,
    /// A file copied on the drive: read and written at once, synced.
    pub copied: Option<Rate>,
    /// The interquartile range of the copies, as a share of their median.
    pub copied_spread: Option<f64>,
    /// The stages of the routes, each measured alone.
    pub stages: Stages,
}

/// The measurements of one route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MeasuredRoute {
    /// The read rate.
    pub read: Option<Rate>,
    /// The parameters of the read measurement.
    pub read_at: Option<At>,
    /// The interquartile range of the read measurements, as a share of their median.
    pub read_spread: Option<f64>,
    /// The write rate.
    pub write: Option<Rate>,
    /// The parameters of the write measurement.
    pub write_at: Option<At>,
    /// The interquartile range of the write measurements, as a share of their median.
    pub write_spread: Option<f64>,
    /// The latency of one read on an idle machine.
    pub read_latency: Option<Seconds>,
    /// CPU seconds per GB read.
    pub cpu_s_per_gb: Option<f64>,
}

/// The parameters of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct At {
    /// The I/O size.
    pub io: Bytes,
    /// The queue depth; through the page cache, the number of threads.
    pub depth: u64,
    /// The number of lanes, each with its own thread; absent for one lane.
    #[serde(default)]
    pub lanes: Option<u64>,
}

/// Predictions compared with measurements.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The machine's description, one line.
    pub machine: String,
    /// The figures that were measured and can be predicted.
    pub rows: Vec<ComparisonRow>,
    /// The measurements that are missing for more rows.
    pub missing: Vec<&'static str>,
    /// The formulas and constants behind the answer.
    pub basis: Basis,
}

/// One figure, predicted twice and measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparisonRow {
    /// The name of the figure.
    pub what: &'static str,
    /// The unit of the figure.
    pub unit: ComparisonUnit,
    /// The prediction with the scenario's constants.
    pub assumed: f64,
    /// The prediction with the machine's simple measurements.
    pub calibrated: f64,
    /// The measurement.
    pub measured: f64,
    /// The calibrated prediction divided by the measurement.
    pub ratio: f64,
    /// The interquartile range of the measurements, as a share of their median.
    pub spread: Option<f64>,
    /// The measurements that the calibrated prediction uses.
    pub calibrated_from: &'static str,
    /// The known reason why the prediction may miss.
    pub why: Option<&'static str>,
}

impl ComparisonRow {
    /// Whether the measurements vary by more than the tolerance of a prediction.
    pub fn is_noisy(&self) -> bool {
        self.spread.is_some_and(|spread| spread > MISS)
    }

    /// Whether the prediction is off by more than the tolerance.
    pub fn misses(&self) -> bool {
        (self.ratio - 1.0).abs() > MISS
    }
}

impl Comparison {
    /// Whether every prediction is within the tolerance, except for at most one row in ten with a known reason.
    pub fn holds(&self) -> bool {
        let missed = self.rows.iter().filter(|row| row.misses());
        let (explained, silent): (Vec<&ComparisonRow>, Vec<&ComparisonRow>) = missed.partition(|row| row.why.is_some());
        silent.is_empty() && explained.len() * 10 <= self.rows.len()
    }
}

/// The unit of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ComparisonUnit {
    /// Bytes per second.
    BytesPerSecond,
    /// CPU seconds per GB.
    SecondsPerGb,
    /// Seconds.
    Seconds,
}

/// A figure that can be measured and predicted.
struct Case {
    what: &'static str,
    unit: ComparisonUnit,
    work: Operation,
    through: Through,
    /// Computes the figure from a node.
    figure: fn(&ComputeNode) -> f64,
    measured: Option<f64>,
    spread: Option<f64>,
    at: Option<At>,
    /// The known reason why the prediction may miss.
    why: Option<&'static str>,
}

/// Reading or writing.
#[derive(Clone, Copy, Debug)]
enum Operation {
    Read,
    Write,
}

/// The intermediate buffer between the drive and the destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Through {
    /// The page cache: threads copy, one for each I/O in flight.
    PageCache,
    /// A ring emptied by the GPU's copy engine.
    GpuRing,
    /// A ring in host memory, emptied by the thread of each lane.
    HostRing,
    /// None: peer to peer.
    Peer,
}

/// A copy rate that limits nothing, for machines without a GPU.
const NO_GPU: Rate = Rate(1e15);

/// The tolerance of a prediction: beyond it, the prediction misses.
pub const MISS: f64 = 0.15;

impl Checkable for MeasuredMachine {
    fn check(&self, c: &mut Checker) {
        if let Some(io) = self.io {
            c.bytes("io", io, BYTES_ANY);
        }
        if let Some(depth) = self.depth {
            c.count("depth", depth, 1..=1_000_000);
        }
        if let Some(cores) = self.cores {
            c.count("cores", cores, 1..=4096);
        }
        for (field, rate) in [
            ("copy_rate", self.copy_rate),
            ("to_gpu", self.to_gpu),
            ("from_gpu", self.from_gpu),
            ("copied", self.copied),
        ] {
            if let Some(rate) = rate {
                c.rate(field, rate, RATE_ANY);
            }
        }
        for (field, route) in [
            ("drive", &self.drive),
            ("buffered", &self.buffered),
            ("cached", &self.cached),
            ("staged", &self.staged),
            ("direct", &self.direct),
        ] {
            c.nested(field, route);
        }
        if let Some(spread) = self.copied_spread {
            c.range("copied_spread", spread, 0.0..=1000.0, "of the median");
        }
        c.nested("stages", &self.stages);
    }
}

impl Checkable for MeasuredRoute {
    fn check(&self, c: &mut Checker) {
        for (field, rate) in [("read", self.read), ("write", self.write)] {
            if let Some(rate) = rate {
                c.rate(field, rate, RATE_ANY);
            }
        }
        if let Some(latency) = self.read_latency {
            c.seconds("read_latency", latency, TIME_POSITIVE);
        }
        for (field, at) in [("read_at", self.read_at), ("write_at", self.write_at)] {
            let Some(at) = at else { continue };
            c.within(field, |c| {
                c.bytes("io", at.io, BYTES_ANY);
                c.count("depth", at.depth, 1..=1_000_000);
                if let Some(lanes) = at.lanes {
                    c.count("lanes", lanes, 1..=4096);
                }
            });
        }
        for (field, spread) in [("read_spread", self.read_spread), ("write_spread", self.write_spread)] {
            if let Some(spread) = spread {
                c.range(field, spread, 0.0..=1000.0, "of the median");
            }
        }
        if let Some(cpu) = self.cpu_s_per_gb {
            c.range("cpu_s_per_gb", cpu, 0.0..=1000.0, "s/GB");
        }
    }
}

impl MeasuredMachine {
    /// Compares the predictions for `assumed` with the measurements.
    pub fn compare(&self, assumed: &ComputeNode) -> Comparison {
        let row = |case: Case| {
            let measured = case.measured?;
            let by_stages = match case.unit {
                ComparisonUnit::BytesPerSecond => self.stages.predict(case.work, case.through),
                ComparisonUnit::SecondsPerGb | ComparisonUnit::Seconds => None,
            };
            let (calibrated, calibrated_from) = match by_stages {
                Some(predicted) => (predicted.rate_bytes_per_s, predicted.from),
                None => (
                    (case.figure)(&self.calibrate(assumed, &case)),
                    "the drive's best rate by O_DIRECT and what a core copies out of the page cache",
                ),
            };
            Some(ComparisonRow {
                what: case.what,
                unit: case.unit,
                assumed: (case.figure)(&with_copies(assumed, case.through.copies())),
                calibrated,
                measured,
                ratio: calibrated / measured,
                spread: case.spread,
                calibrated_from,
                why: case.why.filter(|_| by_stages.is_none()),
            })
        };
        Comparison {
            machine: self
                .machine
                .clone()
                .unwrap_or_else(|| "a machine without a name".to_owned()),
            rows: self
                .cases()
                .into_iter()
                .filter_map(row)
                .chain(self.copy_row(assumed))
                .collect(),
            missing: self.missing(),
            basis: self.basis(assumed),
        }
    }

    /// A copy on one drive, which reads and writes at once: each byte takes the time of both.
    fn copy_row(&self, assumed: &ComputeNode) -> Option<ComparisonRow> {
        let (measured, read, write) = (self.copied?.0, self.drive.read?.0, self.drive.write?.0);
        let at_once = |read: f64, write: f64| 1.0 / (1.0 / read + 1.0 / write);
        let media = |flow| assumed.estimate(DataPath::Direct, flow, 1).stages[0].rate_bytes_per_s;
        let calibrated = at_once(read, write);
        Some(ComparisonRow {
            what: "copy on one drive",
            unit: ComparisonUnit::BytesPerSecond,
            assumed: at_once(media(Flow::Read), media(Flow::Write)),
            calibrated,
            measured,
            ratio: calibrated / measured,
            spread: self.copied_spread,
            calibrated_from: "the drive's reads and writes by O_DIRECT, each alone: 1 / (1/r + 1/w)",
            why: None,
        })
    }

    /// The figures that can be compared.
    fn cases(&self) -> [Case; 8] {
        let (buffered, staged, direct) = (&self.buffered, &self.staged, &self.direct);
        let ring = match self.to_gpu {
            Some(_) => Through::GpuRing,
            None => Through::HostRing,
        };
        let read = |what, through, figure, route: &MeasuredRoute| Case {
            what,
            unit: ComparisonUnit::BytesPerSecond,
            work: Operation::Read,
            through,
            figure,
            measured: route.read.map(|rate| rate.0),
            spread: route.read_spread,
            at: route.read_at,
            why: None,
        };
        let write = |what, through, figure, route: &MeasuredRoute| Case {
            work: Operation::Write,
            measured: route.write.map(|rate| rate.0),
            spread: route.write_spread,
            at: route.write_at,
            ..read(what, through, figure, route)
        };
        let cpu = |what, through, route: &MeasuredRoute| Case {
            unit: ComparisonUnit::SecondsPerGb,
            measured: route.cpu_s_per_gb,
            spread: None,
            ..read(what, through, cpu as fn(&ComputeNode) -> f64, route)
        };
        let (cache, peer) = (Through::PageCache, Through::Peer);
        [
            read("read, page cache cold", cache, standard, buffered),
            read("read, through a ring", ring, standard, staged),
            read("read, straight into the GPU", peer, self::direct, direct),
            Case {
                why: Some(
                    "this profile does not have the stages of a write through the page cache; \
                     run `straightway bench` again",
                ),
                ..write("write, page cache, synced", cache, synced, buffered)
            },
            write("write, through a ring", ring, standard, staged),
            cpu("CPU, page cache cold", cache, buffered),
            cpu("CPU, through a ring", ring, staged),
            Case {
                unit: ComparisonUnit::Seconds,
                measured: direct.read_latency.map(|seconds| seconds.0),
                spread: None,
                ..read("one read into the GPU", peer, direct_latency, direct)
            },
        ]
    }

    fn basis(&self, assumed: &ComputeNode) -> Basis {
        let formulas: Vec<Formula> = path::FORMULAS.into_iter().chain(stages::FORMULAS).collect();
        let mut basis = Basis::of(&formulas);
        assumed.assume(&mut basis, 1);
        let here = Citation {
            name: "this machine",
            place: "bench",
            confidence: Confidence::Measured,
        };
        for (what, rate) in [
            ("drive, read", self.drive.read),
            ("drive, write", self.drive.write),
            ("out of the page cache", self.cached.read),
            ("memory copy by one core", self.copy_rate),
            ("host to gpu copy", self.to_gpu),
        ] {
            if let Some(rate) = rate {
                basis.assume(format!("measured: {what}"), rate.0, "B/s", here);
            }
        }
        for (what, rate) in self.stages.list() {
            if let Some(rate) = rate {
                basis.assume(format!("measured: {}", what.replace('_', " ")), rate.0, "B/s", here);
            }
        }
        if let Some(latency) = self.drive.read_latency {
            basis.assume("measured: drive, first byte", latency.0, "s", here);
        }
        basis
    }

    /// The scenario's node with the machine's simple measurements in place of its constants.
    fn calibrate(&self, assumed: &ComputeNode, case: &Case) -> ComputeNode {
        let mut node = with_copies(assumed, case.through.copies());
        node.hop = None;
        // The PCIe tree was not measured, so it is not a limit here.
        (node.machine, node.host.peer_rate) = (None, None);
        let at = case.at;
        node.io = at.map(|at| at.io).or(self.io).unwrap_or(node.io);
        if let Some(depth) = at.map(|at| at.depth).or(self.depth) {
            (node.standard_depth, node.direct_depth) = (depth, depth);
        }
        let cores = self.cores.unwrap_or(node.host.cores);
        let host = &mut node.host;
        host.cores = match case.through {
            Through::HostRing => at.and_then(|at| at.lanes).unwrap_or(1).min(cores),
            // Each I/O through the page cache has its own thread.
            Through::PageCache => cores.min(node.standard_depth),
            Through::GpuRing | Through::Peer => cores,
        };
        host.copy_rate = self.copy_by_one(cores).unwrap_or(host.copy_rate);
        // Without a GPU the bytes stay in host memory, and no copy engine limits them.
        host.gpu_copy_rate = self.to_gpu.unwrap_or(NO_GPU);
        let media = match case.work {
            Operation::Read => self.drive.read,
            Operation::Write => self.drive.write,
        };
        // The measured drive is one drive.
        (node.media.rate, node.media.drive_rate) = (media.or(node.media.rate), media.or(node.media.drive_rate));
        node.media.latency = self.drive.read_latency.or(node.media.latency);
        node
    }

    /// The copy rate of one core: as measured; or derived from the CPU time of reads out of the page cache, which other
    /// processes do not lengthen; or one thread's share of the rate out of the page cache.
    fn copy_by_one(&self, cores: u64) -> Option<Rate> {
        let threads = self.cached.read_at.map_or(cores, |at| at.depth.min(cores));
        let shared = self.cached.read.map(|rate| Rate(rate.0 / threads as f64));
        let by_time = self.cached.cpu_s_per_gb.filter(|cpu| *cpu > 0.0);
        let by_time = by_time.map(|cpu| Rate(1e9 / cpu));
        self.copy_rate.or(by_time).or(shared)
    }

    fn missing(&self) -> Vec<&'static str> {
        let wanted = [
            ("drive.read", self.drive.read.is_none()),
            ("drive.read_latency", self.drive.read_latency.is_none()),
            ("copy_rate", self.copy_by_one(1).is_none()),
            ("to_gpu", self.to_gpu.is_none()),
            ("buffered.read", self.buffered.read.is_none()),
            ("staged.read", self.staged.read.is_none()),
            ("direct.read", self.direct.read.is_none()),
            ("copied", self.copied.is_none()),
        ];
        wanted
            .into_iter()
            .filter_map(|(field, absent)| absent.then_some(field))
            .collect()
    }
}

fn with_copies(node: &ComputeNode, copies: u64) -> ComputeNode {
    let mut node = node.clone();
    node.host.copies = copies;
    node
}

impl Through {
    /// Copies of each byte by the CPU.
    fn copies(self) -> u64 {
        match self {
            Self::PageCache | Self::HostRing => 1,
            Self::GpuRing | Self::Peer => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    /// An H200 host with a virtio disk: limits and what loaders reached.
    fn h200() -> MeasuredMachine {
        MeasuredMachine {
            machine: Some("H200 host, virtio disk".to_owned()),
            io: Some(Bytes::mib(4)),
            depth: Some(48),
            cores: Some(12),
            copy_rate: Some(Rate(9e9)),
            to_gpu: Some(Rate(55.1e9)),
            drive: MeasuredRoute {
                read: Some(Rate(3.4e9)),
                ..MeasuredRoute::default()
            },
            staged: MeasuredRoute {
                read: Some(Rate(3.3e9)),
                ..MeasuredRoute::default()
            },
            ..MeasuredMachine::default()
        }
    }

    #[test]
    fn measured_parts_predict_the_measured_whole() {
        let comparison = h200().compare(&ComputeNode::default());
        let row = &comparison.rows[0];
        assert_eq!(row.what, "read, through a ring");
        // The drive is the limit, and the ring reached it: within 5 %.
        near(row.ratio, 1.0, 0.05);
        assert!(
            row.assumed > 10.0 * row.measured,
            "the defaults describe a larger machine"
        );
    }

    #[test]
    fn without_a_gpu_a_cold_read_is_bound_by_drive_or_copy() {
        let measured = MeasuredMachine {
            depth: Some(16),
            cores: Some(2),
            drive: MeasuredRoute {
                read: Some(Rate(3.0e9)),
                write: Some(Rate(2.4e9)),
                ..MeasuredRoute::default()
            },
            cached: MeasuredRoute {
                read: Some(Rate(8e9)),
                ..MeasuredRoute::default()
            },
            buffered: MeasuredRoute {
                read: Some(Rate(2.8e9)),
                write: Some(Rate(1.9e9)),
                ..MeasuredRoute::default()
            },
            ..MeasuredMachine::default()
        };
        let rows = measured.compare(&ComputeNode::default()).rows;
        near(rows[0].calibrated, 3.0e9, 1e-9);
        // The drive writes after the copies: 1 / (1/2.4 + 1/8), less the fixed cost of an I/O.
        near(rows[1].calibrated, 1.846e9, 0.01);
    }

    #[test]
    fn a_ring_is_emptied_by_its_lanes_and_the_page_cache_by_as_many_threads_as_were_measured() {
        let at = |depth| {
            Some(At {
                io: Bytes::mib(4),
                depth,
                lanes: None,
            })
        };
        let rate = |gb: f64| Some(Rate(gb * 1e9));
        let measured = MeasuredMachine {
            cores: Some(64),
            drive: MeasuredRoute {
                read: rate(20.0),
                ..MeasuredRoute::default()
            },
            // Two threads copied 12 GB/s together, so one copies 6 GB/s, not a 64th of 12.
            cached: MeasuredRoute {
                read: rate(12.0),
                read_at: at(2),
                ..MeasuredRoute::default()
            },
            staged: MeasuredRoute {
                read: rate(5.5),
                read_at: at(16),
                ..MeasuredRoute::default()
            },
            buffered: MeasuredRoute {
                read: rate(10.0),
                read_at: at(8),
                ..MeasuredRoute::default()
            },
            ..MeasuredMachine::default()
        };
        let rows = measured.compare(&ComputeNode::default()).rows;
        near(rows[0].calibrated, 20e9, 1e-9);
        near(rows[1].calibrated, 6e9, 0.01);
        let mut two = measured;
        two.staged.read_at = at(16).map(|at| At { lanes: Some(2), ..at });
        near(two.compare(&ComputeNode::default()).rows[1].calibrated, 12e9, 0.01);
        // CPU time gives the copy rate of a core even if other processes used most of the cores.
        two.cached.read = rate(3.0);
        two.cached.cpu_s_per_gb = Some(1.0 / 6.0);
        near(two.compare(&ComputeNode::default()).rows[1].calibrated, 12e9, 0.01);
    }

    #[test]
    fn a_copy_on_one_drive_takes_the_time_of_its_read_and_of_its_write() {
        let measured = MeasuredMachine {
            drive: MeasuredRoute {
                read: Some(Rate(3.0e9)),
                write: Some(Rate(1.5e9)),
                ..MeasuredRoute::default()
            },
            copied: Some(Rate(0.9e9)),
            ..MeasuredMachine::default()
        };
        let compared = measured.compare(&ComputeNode::default());
        let copy = compared.rows.last().unwrap();
        assert_eq!(copy.what, "copy on one drive");
        near(copy.calibrated, 1.0e9, 1e-9);
        assert!(!copy.misses());
    }

    #[test]
    fn missing_measurements_are_named() {
        let comparison = MeasuredMachine::default().compare(&ComputeNode::default());
        assert!(comparison.rows.is_empty());
        assert!(comparison.missing.contains(&"drive.read"));
    }

    #[test]
    fn a_profile_is_checked_like_any_input() {
        let refused = straightway_scenario::check::read::<MeasuredMachine>("[drive]\nread = 0").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "line 2: drive.read = 0 B/s: allowed is from 1 kB/s to 1000000 TB/s"
        );
    }
}
