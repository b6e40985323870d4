//! A machine as it was measured, beside what the models say of it.
//!
//! `bench` measures simple things (a drive, a copy, a core) and composite ones (a load through a
//! pinned ring). The models are about how the second follow from the first, so the comparison is
//! made twice: with the constants a scenario assumes, and with the simple measurements put in their
//! place. Where the calibrated prediction misses, the model is wrong; where only the assumed one
//! does, the constants are.
//!
//! A route is predicted from its stages ([`Stages`]), each measured alone with the route's I/O size, depth and lanes
//! and in turn with it. No measurement of a route goes into its own prediction.

mod figure;
mod stages;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use figure::{cpu, direct, direct_latency, standard, synced};
pub use stages::Stages;

use crate::path::{self, Node};
use straightway_scenario::{
    check::{BYTES_ANY, Checked, Checker, RATE_ANY, TIME_SOME},
    provenance::{Basis, Confidence, Formula, Source},
};

/// What was measured; whatever was not is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Measured {
    /// The machine, in a line.
    pub machine: Option<String>,
    /// The size of an I/O, where a route does not say its own.
    pub io: Option<Bytes>,
    /// I/Os in flight, where a route does not say its own.
    pub depth: Option<u64>,
    /// Cores that took part.
    pub cores: Option<u64>,
    /// One core copying memory.
    pub copy_rate: Option<Rate>,
    /// Pinned host memory to the GPU.
    pub to_gpu: Option<Rate>,
    /// The GPU to pinned host memory.
    pub from_gpu: Option<Rate>,
    /// The drive alone: `O_DIRECT` into host memory.
    pub drive: Route,
    /// Through the page cache, which holds nothing of it yet.
    pub buffered: Route,
    /// Out of the page cache, which holds all of it.
    pub cached: Route,
    /// Through a ring: by the CPU into host memory, or by DMA into the GPU where `to_gpu` is there.
    pub staged: Route,
    /// By DMA into the GPU.
    pub direct: Route,
    /// The stages of the routes, each alone.
    pub stages: Stages,
}

/// One route as measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Route {
    /// Reading.
    pub read: Option<Rate>,
    /// What that was measured with.
    pub read_at: Option<At>,
    /// How far the middle half of the measurements is spread, as a share of their median.
    pub read_spread: Option<f64>,
    /// Writing.
    pub write: Option<Rate>,
    /// What that was measured with.
    pub write_at: Option<At>,
    /// The spread of that.
    pub write_spread: Option<f64>,
    /// One read on an idle machine.
    pub read_latency: Option<Seconds>,
    /// CPU seconds for a GB read.
    pub cpu_s_per_gb: Option<f64>,
}

/// What a rate was measured with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct At {
    /// The size of an I/O.
    pub io: Bytes,
    /// I/Os in flight; through the page cache, threads.
    pub depth: u64,
    /// Lanes that took part, each with a thread of its own; absent for one.
    #[serde(default)]
    pub lanes: Option<u64>,
}

/// Prediction beside measurement.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The machine, in a line.
    pub machine: String,
    /// Each thing that was measured and can be predicted.
    pub rows: Vec<Row>,
    /// What is missing for more rows.
    pub missing: Vec<&'static str>,
    /// What all this rests on.
    pub basis: Basis,
}

/// One figure, predicted twice and measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What it is.
    pub what: &'static str,
    /// What it counts.
    pub unit: Unit,
    /// With the scenario's constants.
    pub assumed: f64,
    /// With the machine's own simple measurements.
    pub calibrated: f64,
    /// As measured.
    pub measured: f64,
    /// The calibrated prediction over the measurement.
    pub ratio: f64,
    /// How far the measurements themselves are spread, as a share of their median.
    pub spread: Option<f64>,
    /// Which measurements the calibrated prediction is made of.
    pub calibrated_from: &'static str,
    /// Why the prediction may miss, where the model knows what it leaves out.
    pub why: Option<&'static str>,
}

impl Row {
    /// Whether the measurements differ among themselves by more than a prediction may be off.
    pub fn is_noisy(&self) -> bool {
        self.spread.is_some_and(|spread| spread > MISS)
    }

    /// Whether the prediction is off by more than is allowed.
    pub fn misses(&self) -> bool {
        (self.ratio - 1.0).abs() > MISS
    }
}

impl Comparison {
    /// Whether every row is met, but for one in ten that says why not.
    pub fn holds(&self) -> bool {
        let missed = self.rows.iter().filter(|row| row.misses());
        let (explained, silent): (Vec<&Row>, Vec<&Row>) = missed.partition(|row| row.why.is_some());
        silent.is_empty() && explained.len() * 10 <= self.rows.len()
    }
}

/// What a row counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes a second.
    BytesPerSecond,
    /// CPU seconds for a GB.
    SecondsPerGb,
    /// Seconds.
    Seconds,
}

/// Something that can be measured and predicted.
struct Case {
    what: &'static str,
    unit: Unit,
    work: Work,
    through: Through,
    /// What is taken of the path's prediction.
    figure: fn(&Node) -> f64,
    measured: Option<f64>,
    spread: Option<f64>,
    at: Option<At>,
    /// What the model leaves out.
    why: Option<&'static str>,
}

/// Reading or writing.
#[derive(Clone, Copy, Debug)]
enum Work {
    Read,
    Write,
}

/// What lies between the drive and where the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Through {
    /// The page cache: threads copy, one for each I/O in flight.
    PageCache,
    /// A ring that the GPU's copy engine empties.
    GpuRing,
    /// A ring in host memory that the thread of each lane empties.
    HostRing,
    /// Nothing.
    Peer,
}

/// Faster than any GPU's link: no limit.
const NO_GPU: Rate = Rate(1e15);

/// The most a prediction may be off before it is called a miss.
pub const MISS: f64 = 0.15;

impl Checked for Measured {
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
        c.nested("stages", &self.stages);
    }
}

impl Checked for Route {
    fn check(&self, c: &mut Checker) {
        for (field, rate) in [("read", self.read), ("write", self.write)] {
            if let Some(rate) = rate {
                c.rate(field, rate, RATE_ANY);
            }
        }
        if let Some(latency) = self.read_latency {
            c.seconds("read_latency", latency, TIME_SOME);
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
        for (field, spread) in [
            ("read_spread", self.read_spread),
            ("write_spread", self.write_spread),
        ] {
            if let Some(spread) = spread {
                c.range(field, spread, 0.0..=1000.0, "of the median");
            }
        }
        if let Some(cpu) = self.cpu_s_per_gb {
            c.range("cpu_s_per_gb", cpu, 0.0..=1000.0, "s/GB");
        }
    }
}

impl Measured {
    /// Sets the predictions of `assumed` beside what was measured.
    pub fn compare(&self, assumed: &Node) -> Comparison {
        let row = |case: Case| {
            let measured = case.measured?;
            let by_stages = match case.unit {
                Unit::BytesPerSecond => self.stages.predict(case.work, case.through),
                Unit::SecondsPerGb | Unit::Seconds => None,
            };
            let (calibrated, calibrated_from) = match by_stages {
                Some(predicted) => (predicted.rate_bytes_per_s, predicted.from),
                None => (
                    (case.figure)(&self.calibrate(assumed, &case)),
                    "the drive's best rate by O_DIRECT and what a core copies out of the page cache",
                ),
            };
            Some(Row {
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
            rows: self.cases().into_iter().filter_map(row).collect(),
            missing: self.missing(),
            basis: self.basis(assumed),
        }
    }

    /// What can be compared.
    fn cases(&self) -> [Case; 8] {
        let (buffered, staged, direct) = (&self.buffered, &self.staged, &self.direct);
        let ring = match self.to_gpu {
            Some(_) => Through::GpuRing,
            None => Through::HostRing,
        };
        let read = |what, through, figure, route: &Route| Case {
            what,
            unit: Unit::BytesPerSecond,
            work: Work::Read,
            through,
            figure,
            measured: route.read.map(|rate| rate.0),
            spread: route.read_spread,
            at: route.read_at,
            why: None,
        };
        let write = |what, through, figure, route: &Route| Case {
            work: Work::Write,
            measured: route.write.map(|rate| rate.0),
            spread: route.write_spread,
            at: route.write_at,
            ..read(what, through, figure, route)
        };
        let cpu = |what, through, route: &Route| Case {
            unit: Unit::SecondsPerGb,
            measured: route.cpu_s_per_gb,
            spread: None,
            ..read(what, through, cpu as fn(&Node) -> f64, route)
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
                unit: Unit::Seconds,
                measured: direct.read_latency.map(|seconds| seconds.0),
                spread: None,
                ..read("one read into the GPU", peer, direct_latency, direct)
            },
        ]
    }

    fn basis(&self, assumed: &Node) -> Basis {
        let formulas: Vec<Formula> = path::FORMULAS.into_iter().chain(stages::FORMULAS).collect();
        let mut basis = Basis::of(&formulas);
        assumed.assume(&mut basis, 1);
        let here = Source {
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
                basis.assume(
                    format!("measured: {}", what.replace('_', " ")),
                    rate.0,
                    "B/s",
                    here,
                );
            }
        }
        if let Some(latency) = self.drive.read_latency {
            basis.assume("measured: drive, first byte", latency.0, "s", here);
        }
        basis
    }

    /// The scenario's node with the machine's simple measurements in place of its constants.
    fn calibrate(&self, assumed: &Node, case: &Case) -> Node {
        let mut node = with_copies(assumed, case.through.copies());
        node.hop = None;
        // One drive and one GPU of a machine whose tree was not measured.
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
            // Each I/O through the page cache is a thread's.
            Through::PageCache => cores.min(node.standard_depth),
            Through::GpuRing | Through::Peer => cores,
        };
        host.copy_rate = self.copy_by_one(cores).unwrap_or(host.copy_rate);
        // Without a GPU the bytes stay in host memory, and no copy engine is in their way.
        host.gpu_copy_rate = self.to_gpu.unwrap_or(NO_GPU);
        let media = match case.work {
            Work::Read => self.drive.read,
            Work::Write => self.drive.write,
        };
        node.media.rate = media.unwrap_or(node.media.rate);
        node.media.latency = self.drive.read_latency.unwrap_or(node.media.latency);
        node
    }

    /// What one core copies: as measured; or by the CPU time of reads out of the page cache, which others on the same
    /// cores do not lengthen; or its share of what all who took part copied out of it.
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
        ];
        wanted
            .into_iter()
            .filter_map(|(field, absent)| absent.then_some(field))
            .collect()
    }
}

fn with_copies(node: &Node, copies: u64) -> Node {
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
    fn h200() -> Measured {
        Measured {
            machine: Some("H200 host, virtio disk".to_owned()),
            io: Some(Bytes::mib(4)),
            depth: Some(48),
            cores: Some(12),
            copy_rate: Some(Rate(9e9)),
            to_gpu: Some(Rate(55.1e9)),
            drive: Route {
                read: Some(Rate(3.4e9)),
                ..Route::default()
            },
            staged: Route {
                read: Some(Rate(3.3e9)),
                ..Route::default()
            },
            ..Measured::default()
        }
    }

    #[test]
    fn measured_parts_predict_the_measured_whole() {
        let comparison = h200().compare(&Node::default());
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
        let measured = Measured {
            depth: Some(16),
            cores: Some(2),
            drive: Route {
                read: Some(Rate(3.0e9)),
                write: Some(Rate(2.4e9)),
                ..Route::default()
            },
            cached: Route {
                read: Some(Rate(8e9)),
                ..Route::default()
            },
            buffered: Route {
                read: Some(Rate(2.8e9)),
                write: Some(Rate(1.9e9)),
                ..Route::default()
            },
            ..Measured::default()
        };
        let rows = measured.compare(&Node::default()).rows;
        near(rows[0].calibrated, 3.0e9, 1e-9);
        // The drive writes once the copies are made: 1 / (1/2.4 + 1/8), but for what an I/O costs.
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
        let measured = Measured {
            cores: Some(64),
            drive: Route {
                read: rate(20.0),
                ..Route::default()
            },
            // Two threads copied 12 GB/s together, so one copies 6: not a 64th of it.
            cached: Route {
                read: rate(12.0),
                read_at: at(2),
                ..Route::default()
            },
            staged: Route {
                read: rate(5.5),
                read_at: at(16),
                ..Route::default()
            },
            buffered: Route {
                read: rate(10.0),
                read_at: at(8),
                ..Route::default()
            },
            ..Measured::default()
        };
        let rows = measured.compare(&Node::default()).rows;
        near(rows[0].calibrated, 20e9, 1e-9);
        near(rows[1].calibrated, 6e9, 0.01);
        let mut two = measured;
        two.staged.read_at = at(16).map(|at| At {
            lanes: Some(2),
            ..at
        });
        near(two.compare(&Node::default()).rows[1].calibrated, 12e9, 0.01);
        // CPU time tells what a core copies even where others took most of the cores.
        two.cached.read = rate(3.0);
        two.cached.cpu_s_per_gb = Some(1.0 / 6.0);
        near(two.compare(&Node::default()).rows[1].calibrated, 12e9, 0.01);
    }

    #[test]
    fn what_was_not_measured_is_named() {
        let comparison = Measured::default().compare(&Node::default());
        assert!(comparison.rows.is_empty());
        assert!(comparison.missing.contains(&"drive.read"));
    }

    #[test]
    fn a_profile_is_checked_like_any_input() {
        let refused =
            straightway_scenario::check::read::<Measured>("[drive]\nread = 0").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "line 2: drive.read = 0 B/s: allowed is from 1 kB/s to 1000000 TB/s"
        );
    }
}
