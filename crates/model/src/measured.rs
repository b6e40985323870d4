//! A machine as it was measured, beside what the models say of it.
//!
//! `bench` measures simple things (a drive, a copy, a core) and composite ones (a load through a
//! pinned ring). The models are about how the second follow from the first, so the comparison is
//! made twice: with the constants a scenario assumes, and with the simple measurements put in their
//! place. Where the calibrated prediction misses, the model is wrong; where only the assumed one
//! does, the constants are.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use crate::{
    check::{BYTES_ANY, Checked, Checker, RATE_ANY, TIME_SOME},
    path::{self, Node, Way},
    provenance::{Basis, Confidence, Source},
};

/// What was measured; whatever was not is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Measured {
    /// The machine, in a line.
    pub machine: Option<String>,
    /// The size of an I/O in all that follows.
    pub io: Option<Bytes>,
    /// I/Os in flight in all that follows.
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
}

/// One route as measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Route {
    /// Reading.
    pub read: Option<Rate>,
    /// Writing.
    pub write: Option<Rate>,
    /// One read on an idle machine.
    pub read_latency: Option<Seconds>,
    /// CPU seconds for a GB read.
    pub cpu_s_per_gb: Option<f64>,
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

/// What a row is about: reading or writing, with how many copies by the CPU, and which figure.
type Case = (Work, u64, Figure);

/// What is taken of a path's prediction.
type Figure = fn(&Node) -> f64;

/// Reading or writing.
#[derive(Clone, Copy, Debug)]
enum Work {
    Read,
    Write,
}

/// Faster than any GPU's link: no limit.
const NO_GPU: Rate = Rate(1e15);

/// The most a prediction may be off before it is called a miss.
pub const MISS: f64 = 0.25;

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
        if let Some(cpu) = self.cpu_s_per_gb {
            c.range("cpu_s_per_gb", cpu, 0.0..=1000.0, "s/GB");
        }
    }
}

impl Measured {
    /// Sets the predictions of `assumed` beside what was measured.
    pub fn compare(&self, assumed: &Node) -> Comparison {
        let row = |(what, unit, (work, copies, figure), measured): (_, _, Case, Option<f64>)| {
            let measured = measured?;
            let calibrated = figure(&self.calibrate(assumed, work, copies));
            Some(Row {
                what,
                unit,
                assumed: figure(&with_copies(assumed, copies)),
                calibrated,
                measured,
                ratio: calibrated / measured,
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

    /// What can be compared: its name and unit, how it is predicted, and what was measured.
    fn cases(&self) -> [(&'static str, Unit, Case, Option<f64>); 8] {
        let rate = |rate: Option<Rate>| rate.map(|rate| rate.0);
        // A ring is emptied by the GPU's own copy engine, or by a core where there is no GPU.
        let ring = u64::from(self.to_gpu.is_none());
        let (per_s, per_gb) = (Unit::BytesPerSecond, Unit::SecondsPerGb);
        let (buffered, staged) = (&self.buffered, &self.staged);
        let read = |copies, figure| (Work::Read, copies, figure);
        let write = |copies, figure| (Work::Write, copies, figure);
        let latency = self.direct.read_latency.map(|seconds| seconds.0);
        [
            (
                "read, page cache cold",
                per_s,
                read(1, standard as Figure),
                rate(buffered.read),
            ),
            (
                "read, through a ring",
                per_s,
                read(ring, standard),
                rate(staged.read),
            ),
            (
                "read, straight into the GPU",
                per_s,
                read(0, direct),
                rate(self.direct.read),
            ),
            (
                "write, page cache, synced",
                per_s,
                write(1, standard as Figure),
                rate(buffered.write),
            ),
            (
                "write, through a ring",
                per_s,
                write(ring, standard),
                rate(staged.write),
            ),
            (
                "CPU, page cache cold",
                per_gb,
                read(1, cpu),
                buffered.cpu_s_per_gb,
            ),
            (
                "CPU, through a ring",
                per_gb,
                read(ring, cpu),
                staged.cpu_s_per_gb,
            ),
            (
                "one read into the GPU",
                Unit::Seconds,
                read(0, direct_latency),
                latency,
            ),
        ]
    }

    fn basis(&self, assumed: &Node) -> Basis {
        let mut basis = Basis::of(&path::FORMULAS);
        assumed.assume(&mut basis);
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
        basis
    }

    /// The scenario's node with the machine's simple measurements in place of its constants.
    fn calibrate(&self, assumed: &Node, work: Work, copies: u64) -> Node {
        let mut node = with_copies(
            &Node {
                hop: None,
                ..assumed.clone()
            },
            copies,
        );
        node.io = self.io.unwrap_or(node.io);
        if let Some(depth) = self.depth {
            (node.standard_depth, node.direct_depth) = (depth, depth);
        }
        let host = &mut node.host;
        host.cores = self.cores.unwrap_or(host.cores);
        // What all cores copy out of the page cache, for each of them.
        let shared = self
            .cached
            .read
            .map(|rate| Rate(rate.0 / host.cores as f64));
        host.copy_rate = self.copy_rate.or(shared).unwrap_or(host.copy_rate);
        // Without a GPU the bytes stay in host memory, and no copy engine is in their way.
        host.gpu_copy_rate = self.to_gpu.unwrap_or(NO_GPU);
        let media = match work {
            Work::Read => self.drive.read,
            Work::Write => self.drive.write,
        };
        node.media.rate = media.unwrap_or(node.media.rate);
        node.media.latency = self.drive.read_latency.unwrap_or(node.media.latency);
        node
    }

    fn missing(&self) -> Vec<&'static str> {
        let wanted = [
            ("drive.read", self.drive.read.is_none()),
            ("drive.read_latency", self.drive.read_latency.is_none()),
            (
                "copy_rate",
                self.copy_rate.is_none() && self.cached.read.is_none(),
            ),
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

/// The standard path's rate.
fn standard(node: &Node) -> f64 {
    node.carry(Way::Standard).rate_bytes_per_s
}

/// The direct path's rate.
fn direct(node: &Node) -> f64 {
    node.carry(Way::Direct).rate_bytes_per_s
}

/// The direct path's latency.
fn direct_latency(node: &Node) -> f64 {
    node.carry(Way::Direct).latency_s
}

/// The standard path's CPU time.
fn cpu(node: &Node) -> f64 {
    node.carry(Way::Standard).cpu_s_per_gb
}

fn with_copies(node: &Node, copies: u64) -> Node {
    let mut node = node.clone();
    node.host.copies = copies;
    node
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::near::near;

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
        near(rows[1].calibrated, 2.4e9, 1e-9);
    }

    #[test]
    fn what_was_not_measured_is_named() {
        let comparison = Measured::default().compare(&Node::default());
        assert!(comparison.rows.is_empty());
        assert!(comparison.missing.contains(&"drive.read"));
    }

    #[test]
    fn a_profile_is_checked_like_any_input() {
        let refused = crate::check::read::<Measured>("[drive]\nread = 0").unwrap_err();
        assert_eq!(
            refused.to_string(),
            "line 2: drive.read = 0 B/s: allowed is from 1 kB/s to 1000000 TB/s"
        );
    }
}
