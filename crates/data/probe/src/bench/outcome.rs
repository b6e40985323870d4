//! The result of a bench: the samples, the knee of each curve, and the page that shows them.

use crate::backing::Backing;
use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Route, Seconds};
use straightway_report::{Axis, Cell, Chart, Column, Page, Series, Table, Tone, Unit};

use super::{BenchLimit, BenchSeries, Sample, Spec, StageRates, Workload, limits::Limits};
use crate::{drive_tuning::DriveTuning, machine::Machine};

/// A point with at least this share of the best rate of its curve counts as good as the best.
const KNEE_SHARE: f64 = 0.95;

/// The ring replaces DMA into host memory only if it is faster by this factor.
const RING_GAIN_MIN: f64 = 1.1;

/// The result of a bench.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BenchOutcome {
    /// The path that was measured.
    pub path: String,
    /// Its file system.
    pub file_system: String,
    /// The drives behind it.
    pub drives: Vec<String>,
    /// The machine.
    pub machine: Machine,
    /// The length of the file.
    pub file_bytes: u64,
    /// The memory that reads filled and writes came from.
    #[serde(default)]
    pub memory: String,
    /// The number of runs of each point.
    pub runs: u32,
    /// The limits of the machine; empty for host memory.
    #[serde(default)]
    pub limits: Vec<BenchLimit>,
    /// The knee of each curve.
    pub knees: Vec<Knee>,
    /// The routes and their stages, measured alternately at the knees.
    #[serde(default)]
    pub stages: Vec<StageRates>,
    /// All points.
    pub samples: Vec<Sample>,
}

/// The cheapest point of a series that is as good as its best.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Knee {
    /// The series.
    #[serde(flatten)]
    pub series: BenchSeries,
    /// The block size.
    pub block_bytes: u64,
    /// The depth.
    pub depth: u32,
    /// The number of lanes; absent in profiles of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lanes: Option<u32>,
    /// CPU seconds per GB; absent in profiles of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_s_per_gb: Option<f64>,
    /// The rate at the knee.
    pub rate_bytes_per_s: f64,
    /// The best rate of the series.
    pub rate_bytes_per_s_max: f64,
    /// The rate at the knee as a share of the limit of such transfers, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_of_limit: Option<f64>,
}

impl BenchOutcome {
    pub(super) fn new(spec: &Spec, backing: &Backing, file_bytes: u64, samples: Vec<Sample>, limits: &Limits) -> Self {
        let with_share = |knee: Knee| {
            let limit = limits.of(knee.series);
            let share_of_limit = limit.map(|l| knee.rate_bytes_per_s / l.rate_bytes_per_s);
            Knee { share_of_limit, ..knee }
        };
        let knees = knees(&spec.series, &samples).into_iter();
        let knees = knees.map(with_share).collect();
        Self {
            path: spec.path.display().to_string(),
            file_system: backing.mount.file_system.clone(),
            drives: backing.drives.iter().map(|d| d.name.clone()).collect(),
            machine: Machine::here(),
            file_bytes,
            memory: spec.memory.to_string(),
            runs: spec.runs,
            limits: limits.clone().list(),
            knees,
            stages: Vec::new(),
            samples,
        }
    }

    /// The best settings for the drive: the knee of the faster of direct and staged reads.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rates are far below what a float counts exactly, and not negative"
    )]
    pub fn tuning(&self) -> Option<DriveTuning> {
        let reads = |route| {
            let is = |k: &&Knee| k.series.work == Workload::Read && k.series.route == route;
            self.knees.iter().find(is)
        };
        let (direct, staged) = (reads(Route::Direct)?, reads(Route::Staged));
        // The ring costs a copy, so it has to win by more than a run's noise.
        let wins = |s: &&Knee| s.rate_bytes_per_s_max > RING_GAIN_MIN * direct.rate_bytes_per_s_max;
        let ring = staged.filter(wins);
        let knee = ring.unwrap_or(direct);
        Some(DriveTuning {
            chunk_bytes: knee.block_bytes,
            depth: knee.depth,
            ring_first: ring.is_some(),
            rate_bytes_per_s: Some(knee.rate_bytes_per_s as u64),
        })
    }

    /// The latency of the drive until the first byte of a read.
    pub fn read_latency_s(&self) -> Option<f64> {
        first_byte_s(&self.knees, &self.samples)
    }

    /// The result as a page.
    pub fn page(&self) -> Page {
        let drives = self.drives.join(", ");
        let place = format!("{} on {} {}", self.path, self.file_system, drives);
        let subject = match self.drives.as_slice() {
            [] => self.file_system.clone(),
            drives => drives.join(", "),
        };
        let mut page = Page::new(format!("What {subject} can do"));
        page = match self.best(Workload::Read) {
            Some(best) => page.verdict(
                Tone::Good,
                format!(
                    "Reads reach {} by the {} route with {} blocks, {} in flight.",
                    Rate(best.rate_bytes_per_s),
                    best.series.route,
                    Bytes(best.block_bytes),
                    best.depth
                ),
            ),
            None => page,
        };
        for knee in &self.knees {
            let note = format!("{} × {}", Bytes(knee.block_bytes), knee.depth);
            page = page.figure(knee.series.name(), Rate(knee.rate_bytes_per_s), note);
        }
        for limit in &self.limits {
            page = page.figure(limit.name.clone(), Rate(limit.rate_bytes_per_s), "the limit");
        }
        page = page.section("The knees", [self.knee_table().into()]);
        for work in [Workload::Read, Workload::Write, Workload::Gather] {
            if self.knees.iter().any(|k| k.series.work == work) {
                page = page.section(
                    match work {
                        Workload::Read => "Reading",
                        Workload::Write => "Writing, synced at the end",
                        Workload::Gather => "Gathering random blocks",
                    },
                    [
                        self.chart(work, "throughput", Unit::Rate, |s| s.receipt.rate_bytes_per_s)
                            .into(),
                        self.chart(work, "storage latency p99", Unit::Seconds, |s| {
                            s.receipt.latency.storage.p99_us * 1e-6
                        })
                        .into(),
                        self.chart(work, "CPU per GB", Unit::Seconds, |s| s.receipt.cpu_s_per_gb)
                            .into(),
                    ],
                );
            }
        }
        if !self.stages.is_empty() {
            let title = "Routes and their stages, measured in turn";
            page = page.section(title, [self.stage_table().into()]);
        }
        page.section("All points", [self.sample_table().into()])
            .fact("measured", place)
            .fact("memory", self.memory.clone())
            .fact("file", Bytes(self.file_bytes).to_string())
            .fact("runs of each point", format!("{}, the median is shown", self.runs))
            .fact("machine", self.machine.to_string())
    }

    fn best(&self, work: Workload) -> Option<&Knee> {
        self.knees
            .iter()
            .filter(|k| k.series.work == work && k.series.route != Route::Buffered)
            .max_by(|a, b| a.rate_bytes_per_s.total_cmp(&b.rate_bytes_per_s))
    }

    /// One curve for each series and depth, with the knee of the series marked.
    fn chart(&self, work: Workload, label: &str, unit: Unit, value: fn(&Sample) -> f64) -> Chart {
        let title = format!("{label} by block size");
        let y = match unit {
            Unit::Rate => Axis::linear(label, unit),
            _ => Axis::log10(label, unit),
        };
        let mut chart = Chart::new(title, Axis::log2("block size", Unit::Bytes), y);
        for knee in self.knees.iter().filter(|k| k.series.work == work) {
            let mut depths: Vec<_> = self
                .samples
                .iter()
                .filter(|s| s.series == knee.series)
                .map(|s| s.depth)
                .collect();
            depths.dedup();
            let single = depths.len() == 1;
            for depth in depths {
                let on_it = |s: &&Sample| s.series == knee.series && s.depth == depth;
                let points = self.samples.iter().filter(on_it);
                let points = points.map(|s| (s.block_bytes as f64, value(s)));
                let name = if single {
                    knee.series.name()
                } else {
                    format!("{} × {depth}", knee.series.name())
                };
                let mut series = Series::new(name, points);
                let at_knee = |s: &&Sample| on_it(s) && (s.block_bytes, s.depth) == (knee.block_bytes, knee.depth);
                if let Some(sample) = self.samples.iter().find(at_knee) {
                    series = series.mark(knee.block_bytes as f64, value(sample), "knee");
                }
                chart = chart.with(series);
            }
        }
        chart
    }

    fn knee_table(&self) -> Table {
        let mut table = Table::new(
            "",
            [
                Column::text("route"),
                Column::new("block", Unit::Bytes),
                Column::new("depth", Unit::Count),
                Column::new("rate", Unit::Rate),
                Column::new("of its best", Unit::Share),
                Column::new("of the limit", Unit::Share),
            ],
        );
        for k in &self.knees {
            table.push([
                k.series.name().into(),
                Bytes(k.block_bytes).into(),
                k.depth.into(),
                Rate(k.rate_bytes_per_s).into(),
                Cell::share(k.rate_bytes_per_s / k.rate_bytes_per_s_max),
                k.share_of_limit.map_or(Cell::Missing, Cell::share),
            ]);
        }
        table
    }

    /// The routes, each with its stages below it.
    fn stage_table(&self) -> Table {
        let columns = [
            Column::text("route or stage"),
            Column::new("block", Unit::Bytes),
            Column::new("depth", Unit::Count),
            Column::new("lanes", Unit::Count),
            Column::new("rate", Unit::Rate),
            Column::new("spread", Unit::Share),
        ];
        let mut table = Table::new("", columns);
        for s in &self.stages {
            table.push([
                s.stage.name().into(),
                Bytes(s.load.block_bytes).into(),
                s.load.depth.into(),
                s.load.lanes.into(),
                Rate(s.median()).into(),
                Cell::share(s.spread()),
            ]);
        }
        table
    }

    /// All points as a table.
    pub fn sample_table(&self) -> Table {
        let mut table = Table::new(
            "",
            [
                Column::text("route"),
                Column::new("block", Unit::Bytes),
                Column::new("depth", Unit::Count),
                Column::new("rate", Unit::Rate),
                Column::new("p50", Unit::Seconds),
                Column::new("p99", Unit::Seconds),
                Column::new("p99.9", Unit::Seconds),
                Column::new("CPU per GB", Unit::Seconds),
                Column::text("bound by"),
            ],
        );
        for s in &self.samples {
            let us = |v: f64| Cell::from(Seconds(v * 1e-6));
            let storage = &s.receipt.latency.storage;
            table.push([
                s.series.name().into(),
                Bytes(s.block_bytes).into(),
                s.depth.into(),
                Rate(s.receipt.rate_bytes_per_s).into(),
                us(storage.p50_us),
                us(storage.p99_us),
                us(storage.p99_9_us),
                Seconds(s.receipt.cpu_s_per_gb).into(),
                s.receipt.bound_by.to_string().into(),
            ]);
        }
        table
    }
}

/// The knee of each series that has points.
pub(super) fn knees(series: &[BenchSeries], samples: &[Sample]) -> Vec<Knee> {
    let knees = series.iter().filter_map(|series| knee(*series, samples));
    knees.collect()
}

/// The point of a series with the fewest bytes in flight that is as good as its best.
fn knee(series: BenchSeries, samples: &[Sample]) -> Option<Knee> {
    let of_series = || samples.iter().filter(|s| s.series == series);
    let best = of_series().map(|s| s.receipt.rate_bytes_per_s).max_by(f64::total_cmp)?;
    let in_flight = |s: &&Sample| s.block_bytes * u64::from(s.depth);
    let good = |s: &&Sample| s.receipt.rate_bytes_per_s >= KNEE_SHARE * best;
    let s = of_series().filter(good).min_by_key(in_flight)?;
    Some(Knee {
        series,
        block_bytes: s.block_bytes,
        depth: s.depth,
        lanes: Some(s.receipt.lanes),
        cpu_s_per_gb: Some(s.receipt.cpu_s_per_gb).filter(|cpu| *cpu > 0.0),
        rate_bytes_per_s: s.receipt.rate_bytes_per_s,
        rate_bytes_per_s_max: best,
        share_of_limit: None,
    })
}

/// The median latency of the smallest blocks read directly at depth 1, less the time that their bytes take at the
/// drive's best rate.
fn first_byte_s(knees: &[Knee], samples: &[Sample]) -> Option<f64> {
    let is_direct = |series: BenchSeries| series.work == Workload::Read && series.route == Route::Direct;
    let best = knees.iter().find(|knee| is_direct(knee.series))?;
    let at_depth_one = |s: &&Sample| is_direct(s.series) && s.depth == 1;
    let smallest = samples.iter().filter(at_depth_one);
    let smallest = smallest.min_by_key(|s| s.block_bytes)?;
    let moving_s = smallest.block_bytes as f64 / best.rate_bytes_per_s_max;
    let latency_s = smallest.receipt.latency.storage.p50_us * 1e-6 - moving_s;
    (latency_s > 0.0).then_some(latency_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::CacheState;

    fn sample(block_bytes: u64, depth: u32, rate: f64) -> Sample {
        let series = BenchSeries {
            work: Workload::Read,
            route: Route::Direct,
            cache: CacheState::Cold,
        };
        let receipt = serde_json::json!({
            "schema": "", "bytes": 1, "seconds": 1.0, "rate_bytes_per_s": rate, "routes": [],
            "latency": {
                "queueing": {"count": 0, "p50_us": 0.0, "p99_us": 0.0, "p99_9_us": 0.0, "max_us": 0.0},
                "storage": {"count": 1, "p50_us": 80.0, "p99_us": 0.0, "p99_9_us": 0.0, "max_us": 0.0},
                "copy": {"count": 0, "p50_us": 0.0, "p99_us": 0.0, "p99_9_us": 0.0, "max_us": 0.0}
            },
            "cpu_user_s": 0.0, "cpu_system_s": 0.0, "cpu_s_per_gb": 0.0, "staging_bytes_peak": 0,
            "pinned_bytes_peak": 0, "ios": 1, "storage_bytes": 1, "sync_s": 0.0, "engine": "",
            "lanes": 1, "bound_by": "storage"
        });
        let receipt = serde_json::from_value(receipt).unwrap();
        Sample {
            series,
            block_bytes,
            depth,
            rates_bytes_per_s: vec![rate],
            receipt,
        }
    }

    #[test]
    fn the_knee_is_the_cheapest_point_as_good_as_the_best() {
        let samples = [
            sample(65_536, 4, 1.0e9),
            sample(1 << 20, 4, 2.9e9),
            sample(1 << 20, 32, 3.0e9),
            sample(4 << 20, 32, 2.95e9),
        ];
        let knee = knee(samples[0].series, &samples).unwrap();
        assert_eq!((knee.block_bytes, knee.depth), (1 << 20, 4));
    }

    #[test]
    fn the_first_byte_latency_excludes_the_transfer_time_of_the_block() {
        let samples = [
            sample(4000, 8, 2.0e9),
            sample(4000, 1, 1.0e8),
            sample(1 << 20, 1, 4.0e9),
        ];
        let knees = [knee(samples[0].series, &samples).unwrap()];
        // 80 µs, less 4,000 bytes at 4 GB/s.
        let latency_s = first_byte_s(&knees, &samples).unwrap();
        assert!((latency_s - 79e-6).abs() < 1e-12, "{latency_s}");
        assert_eq!(first_byte_s(&knees, &samples[..1]), None);
    }

    #[test]
    fn a_series_without_points_has_no_knee() {
        let series = BenchSeries {
            work: Workload::Write,
            route: Route::Direct,
            cache: CacheState::Cold,
        };
        assert_eq!(knee(series, &[sample(1, 1, 1.0)]), None);
    }
}
