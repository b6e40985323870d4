//! Measures the drive behind a path by each route, over block sizes and queue depths.
//!
//! Every point is a real transfer through the same executor that `copy` uses, and keeps its receipt. A point is run
//! several times, and the run with the median rate counts: on a shared machine the best run is an outlier, and the
//! mean includes the load of others.

mod limits;
mod outcome;
mod pinned_copy;
mod rounds;
mod stage;
mod work;

use std::{path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};
use straightway_core::{Alignment, Bytes, Place, Receipt, Result, Route};
use straightway_io::{File, FileDraft, Progress, draft};
use straightway_sys::root::Root;

use self::{limits::Limits, outcome::knees, rounds::Rounds, work::Bench};
use crate::backing::Backing;

pub use limits::BenchLimit;
pub use outcome::{BenchOutcome, Knee};
pub use rounds::StageRates;
pub use stage::{Stage, StageLoad};

/// The operation that is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    /// A sequential read of the file into one region.
    Read,
    /// A write of a region to a new file, synced at the end.
    Write,
    /// A read of random blocks of the file into one region.
    Gather,
}

/// The state of the page cache when a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// It holds no part of the file.
    Cold,
    /// It holds all bytes that are read.
    Warm,
}

/// One series of measurements: an operation, a route and a page cache state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BenchSeries {
    /// The operation.
    pub work: Workload,
    /// The route that transfers must take.
    pub route: Route,
    /// The state of the page cache.
    pub cache: CacheState,
}

impl BenchSeries {
    /// The name for display.
    pub fn name(self) -> String {
        let work = match self.work {
            Workload::Read => "read",
            Workload::Write => "write",
            Workload::Gather => "gather",
        };
        match (self.route, self.cache, self.work) {
            (Route::Buffered, CacheState::Warm, _) => format!("{work} buffered, warm"),
            (Route::Buffered, CacheState::Cold, Workload::Read | Workload::Gather) => {
                format!("{work} buffered, cold")
            }
            (route, _, _) => format!("{work} {route}"),
        }
    }
}

/// The parameters of a bench.
#[derive(Clone, Debug)]
pub struct Spec {
    /// A file to read, or a folder in which a file is created.
    pub path: PathBuf,
    /// The memory that reads fill and writes come from.
    pub memory: Place,
    /// The length of a created file.
    pub bytes: u64,
    /// The series to measure.
    pub series: Vec<BenchSeries>,
    /// Block sizes to try.
    pub blocks: Vec<u64>,
    /// Queue depths to try.
    pub depths: Vec<u32>,
    /// The number of runs of each point.
    pub runs: u32,
    /// The number of drive lanes; `None` for the default.
    pub drive_lanes: Option<u32>,
    /// Whether every point moves the whole file instead of a part of it.
    pub whole: bool,
    /// The number of blocks of a gather.
    pub gather_extents: u64,
    /// The seed of the gather offsets and of a created file's content.
    pub seed: u64,
}

/// A measured point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// The series of the point.
    #[serde(flatten)]
    pub series: BenchSeries,
    /// The block size.
    pub block_bytes: u64,
    /// I/Os in flight; for buffered routes, the number of lanes.
    pub depth: u32,
    /// The rates of all runs, in the order in which they were run.
    pub rates_bytes_per_s: Vec<f64>,
    /// The receipt of the run with the median rate.
    pub receipt: Receipt,
}

/// Returns the series of `spec` that its file system supports. Reads and writes differ: btrfs takes O_DIRECT reads of
/// files to which it takes no O_DIRECT writes.
pub fn possible(spec: &Spec) -> Result<Vec<BenchSeries>> {
    let is_folder = spec.path.is_dir();
    let folder = if is_folder {
        &spec.path
    } else {
        draft::folder_of(&spec.path)
    };
    let probe = FileDraft::new(&folder.join("straightway-bench-probe"), Alignment::PAGE_BYTES)?;
    let read = File::open(&if is_folder { probe.path() } else { spec.path.clone() })?;
    let is_possible = |series: &&BenchSeries| match (series.route, series.work) {
        (Route::Buffered, _) => true,
        (_, Workload::Write) => probe.file().alignment().is_some(),
        (_, Workload::Read | Workload::Gather) => read.alignment().is_some(),
    };
    Ok(spec.series.iter().filter(is_possible).copied().collect())
}

/// Measures all points of `spec`. Calls `begins` before each with its index, the total and its name. An error, or the
/// cancellation of `progress`, discards all results.
pub fn run(spec: &Spec, progress: &Arc<Progress>, begins: &mut dyn FnMut(usize, usize, &str)) -> Result<BenchOutcome> {
    let bench = Bench::new(spec, progress)?;
    let points = bench.points();
    let mut samples = Vec::new();
    // An odd number, so that the median is one of the rounds.
    let rounds = spec.runs.max(1) * 2 + 1;
    let all = points.len() + rounds as usize;
    for (number, &(series, block, depth)) in points.iter().enumerate() {
        let name = format!("{} {} × {depth}", series.name(), Bytes(block));
        begins(number, all, &name);
        samples.push(bench.point(series, block, depth)?);
    }
    let stages = Rounds::new(&bench, &knees(&spec.series, &samples))?.run(rounds, &mut |round, name| {
        begins(points.len() + round as usize, all, name);
    })?;
    let limits = Limits::measure(spec, &bench.file)?;
    let backing = Backing::of(&Root::machine(), &bench.path)?;
    let outcome = BenchOutcome::new(spec, &backing, bench.file.bytes(), samples, &limits);
    Ok(BenchOutcome { stages, ..outcome })
}
