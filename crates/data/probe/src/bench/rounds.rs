//! Rounds: whole routes and their stages, measured alternately.
//!
//! The rate of a shared or virtual drive changes from minute to minute. Rates to be compared are therefore measured
//! close together: each round measures every route and every stage once, each round in another order, and the median
//! over the rounds counts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use straightway_core::{Error, ErrorKind, Extent, Place, Result, Route, extent::down};
use straightway_io::{Executor, FileDraft, Region, track::Track::Drive};
use straightway_sys::Op;

use super::{
    BenchSeries, CacheState, Knee, Workload,
    stage::{self, Stage, StageLoad},
    work::{Bench, REGION_BYTES_MAX},
};

/// The target duration of a stage in seconds: long enough to measure, short enough for many rounds.
const STAGE_S: f64 = 0.4;

/// A stage moves at least this much.
const STAGE_BYTES_MIN: u64 = 64 << 20;

/// The approximate I/O size and queue depth of the kernel's writeback.
const WRITEBACK: (u64, u32) = (4 << 20, 16);

/// A stage or a whole route as measured in the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageRates {
    /// The stage or route.
    pub stage: Stage,
    /// The load it was measured with.
    #[serde(flatten)]
    pub load: StageLoad,
    /// The rate of each round.
    pub rates_bytes_per_s: Vec<f64>,
}

impl StageRates {
    /// The median of the rounds.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// The interquartile range of the rounds, as a share of the median.
    pub fn spread(&self) -> f64 {
        (self.quantile(0.75) - self.quantile(0.25)) / self.median()
    }

    fn quantile(&self, share: f64) -> f64 {
        let mut rates = self.rates_bytes_per_s.clone();
        rates.sort_by(f64::total_cmp);
        let Some(last) = rates.len().checked_sub(1) else {
            return f64::NAN;
        };
        let at = share * last as f64;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it lies between zero and the number of rounds"
        )]
        let (low, high) = (at.floor() as usize, at.ceil() as usize);
        rates[low] + (rates[high] - rates[low]) * at.fract()
    }
}

/// A stage to measure.
struct Planned {
    rates: StageRates,
    series: BenchSeries,
    /// The executor, if the stage is a transfer.
    executor: Option<Executor>,
}

/// The rounds of a bench.
pub(super) struct Rounds<'a> {
    bench: &'a Bench<'a>,
    planned: Vec<Planned>,
    /// Memory that stages copy to and from, already populated.
    memory: Arc<Region>,
}

impl<'a> Rounds<'a> {
    /// Plans the stages of these knees; none if the memory is a GPU's or the file has no O_DIRECT.
    pub(super) fn new(bench: &'a Bench<'a>, knees: &[Knee]) -> Result<Self> {
        let mut planned = Vec::new();
        let (spec, file) = (bench.spec, &bench.file);
        if spec.memory == Place::Host && file.alignment().is_some() {
            // Without direct I/O for an operation, the drive's own stage cannot be measured.
            let goes_direct = |work: Workload| {
                let series = knees.iter().map(|knee| knee.series);
                series.into_iter().any(|t| t.work == work && t.route != Route::Buffered)
            };
            for knee in knees.iter().filter(|knee| goes_direct(knee.series.work)) {
                for &stage in stages(knee.series) {
                    planned.extend(plan(bench, knee, stage)?);
                }
            }
        }
        let bytes = planned.iter().map(|p| p.rates.load.bytes).max();
        let memory = Arc::new(Region::host(bytes.unwrap_or(0).max(1))?);
        memory.populate();
        Ok(Self { bench, planned, memory })
    }

    /// Measures all stages in each of `rounds` rounds. Calls `begins` before each measurement.
    pub(super) fn run(mut self, rounds: u32, begins: &mut dyn FnMut(u32, &str)) -> Result<Vec<StageRates>> {
        let stages = self.planned.len();
        for round in 0..rounds {
            for number in 0..stages {
                // No stage always follows the same one: each round starts elsewhere, every other one runs backwards.
                let at = (number + round as usize * 5) % stages;
                let at = if round % 2 == 0 { at } else { stages - 1 - at };
                let progress = self.bench.progress;
                if progress.is_cancelled() {
                    let path = self.bench.path.display();
                    return Err(Error::new(ErrorKind::Cancelled, "measure", path, "stopped"));
                }
                let name = self.planned[at].rates.stage.name();
                begins(round, &format!("round {} of {rounds}: {name}", round + 1));
                let rate = self.once(at)?;
                self.planned[at].rates.rates_bytes_per_s.push(rate);
            }
        }
        Ok(self.planned.into_iter().map(|p| p.rates).collect())
    }

    /// Measures one stage once.
    fn once(&mut self, at: usize) -> Result<f64> {
        let Planned {
            rates,
            series,
            executor,
        } = &self.planned[at];
        let (load, bench) = (&rates.load, self.bench);
        let file = &bench.file;
        if let (Some(executor), Stage::DriveCopy) = (executor, rates.stage) {
            return Ok(bench.copy_once(executor, *series, load.bytes)?.rate_bytes_per_s);
        }
        if let Some(executor) = executor {
            let moves = vec![Extent::new(0, load.bytes).into()];
            return Ok(bench.once(executor, *series, moves)?.rate_bytes_per_s);
        }
        let draft = || FileDraft::new(&bench.path.with_extension("straightway-bench"), load.bytes);
        let unshared = "no window of it is left";
        // As many slots as a lane of the route has.
        let settings = bench.settings(*series, load.block_bytes, load.depth);
        let slots = settings.ring(Drive, Place::Host).slots;
        match rates.stage {
            Stage::DriveToRing => {
                file.evict()?;
                stage::drive(file, Op::Read, slots, load)
            }
            Stage::RingToDrive => stage::drive(draft()?.file(), Op::Write, slots, load),
            Stage::RingToMemory => stage::copy_ring(&self.memory, Op::Read, load),
            Stage::MemoryToRing => stage::copy_ring(&self.memory, Op::Write, load),
            Stage::DriveToCache => {
                file.evict()?;
                stage::fill_cache(file, load)
            }
            // The pages are freshly filled by the drive and untouched by any core: in a virtual machine the first
            // touch of such a page costs several times as much as a copy.
            Stage::CacheToMemory => {
                file.evict()?;
                stage::fill_cache(file, load)?;
                let memory = Arc::get_mut(&mut self.memory).expect(unshared);
                stage::copy_out(file, memory.as_mut_slice(), load)
            }
            Stage::MemoryToCache => {
                let memory = Arc::get_mut(&mut self.memory).expect(unshared);
                stage::copy_in(draft()?.file(), memory.as_slice(), load)
            }
            Stage::RingRead
            | Stage::CacheRead
            | Stage::RingWrite
            | Stage::CacheWrite
            | Stage::MemoryToDrive
            | Stage::DriveCopy => unreachable!("an executor runs it"),
        }
    }
}

/// The route of a series and its stages; empty for a route without stages.
fn stages(series: BenchSeries) -> &'static [Stage] {
    match (series.work, series.route, series.cache) {
        (Workload::Read, Route::Staged, _) => &[Stage::RingRead, Stage::DriveToRing, Stage::RingToMemory],
        (Workload::Read, Route::Buffered, CacheState::Cold) => {
            &[Stage::CacheRead, Stage::DriveToCache, Stage::CacheToMemory]
        }
        (Workload::Write, Route::Staged, _) => &[
            Stage::RingWrite,
            Stage::RingToDrive,
            Stage::MemoryToRing,
            Stage::DriveCopy,
        ],
        (Workload::Write, Route::Buffered, _) => &[Stage::CacheWrite, Stage::MemoryToDrive, Stage::MemoryToCache],
        _ => &[],
    }
}

/// Plans a stage with the sizes of its route's knee; `None` if the file is shorter than a block.
fn plan(bench: &Bench<'_>, knee: &Knee, stage: Stage) -> Result<Option<Planned>> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "rates are far below what a float counts exactly, and not negative"
    )]
    let enough = ((knee.rate_bytes_per_s * STAGE_S) as u64).max(STAGE_BYTES_MIN);
    let most = bench.file.bytes().min(REGION_BYTES_MAX);
    let bytes = down(enough.min(most), knee.block_bytes);
    if bytes == 0 {
        return Ok(None);
    }
    let mut load = StageLoad {
        block_bytes: knee.block_bytes,
        depth: knee.depth,
        lanes: knee.lanes.unwrap_or(1).max(1),
        bytes,
    };
    let mut series = knee.series;
    if stage == Stage::MemoryToDrive {
        series.route = Route::Direct;
        (load.block_bytes, load.depth) = WRITEBACK;
        load.lanes = 1;
    }
    let transfer = matches!(
        stage,
        Stage::RingRead
            | Stage::CacheRead
            | Stage::RingWrite
            | Stage::CacheWrite
            | Stage::MemoryToDrive
            | Stage::DriveCopy
    );
    let settings = || bench.settings(series, load.block_bytes, load.depth);
    Ok(Some(Planned {
        executor: transfer.then(|| Executor::new(settings())).transpose()?,
        rates: StageRates {
            stage,
            load,
            rates_bytes_per_s: Vec::new(),
        },
        series,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(rates: &[f64]) -> StageRates {
        StageRates {
            stage: Stage::DriveToRing,
            load: StageLoad {
                block_bytes: 1 << 20,
                depth: 4,
                lanes: 2,
                bytes: 64 << 20,
            },
            rates_bytes_per_s: rates.to_vec(),
        }
    }

    #[test]
    fn the_spread_is_that_of_the_middle_half_of_the_rounds() {
        let rates = rates(&[9.0, 1.0, 2.0, 3.0, 2.5]);
        assert!((rates.median() - 2.5).abs() < 1e-12);
        assert!((rates.spread() - 1.0 / 2.5).abs() < 1e-12);
    }
}
