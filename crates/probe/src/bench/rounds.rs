//! Rounds: the whole routes and their stages, measured in turn.
//!
//! A drive that others use as well, or a virtual one, is faster in one minute than in the next. What is to be compared
//! is therefore measured side by side: each round has every route and every stage once, each round in another order,
//! and the median over the rounds counts.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use straightway_core::{Error, Extent, Kind, Place, Result, Route, extent::down};
use straightway_io::{Executor, FileDraft, Region, track::Track::Drive};
use straightway_sys::Op;

use super::{
    Cache, Knee, Track, Work,
    stage::{self, Shape, Stage},
    work::{Bench, REGION_BYTES_MAX},
};

/// How long a stage is to take, seconds: long enough to tell, short enough for many rounds.
const STAGE_S: f64 = 0.4;

/// A stage moves at least this much.
const STAGE_BYTES_MIN: u64 = 64 << 20;

/// The kernel writes the page cache back in I/Os about this large, about so many at a time.
const WRITEBACK: (u64, u32) = (4 << 20, 16);

/// A stage or a whole route as measured in the rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageRates {
    /// Which.
    pub stage: Stage,
    /// With what.
    #[serde(flatten)]
    pub shape: Shape,
    /// The rate of each round.
    pub rates_bytes_per_s: Vec<f64>,
}

impl StageRates {
    /// The median of the rounds.
    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// How far the middle half of the rounds is spread, as a share of the median.
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

/// A stage with all that it is measured with.
struct Planned {
    rates: StageRates,
    track: Track,
    /// What runs it, where that is a transfer.
    executor: Option<Executor>,
}

/// The rounds of a bench.
pub(super) struct Rounds<'a> {
    bench: &'a Bench<'a>,
    planned: Vec<Planned>,
    /// Memory that stages copy to and from; its pages are there.
    memory: Arc<Region>,
}

impl<'a> Rounds<'a> {
    /// What is measured for these knees: nothing where the memory is a GPU's or the file has no O_DIRECT.
    pub(super) fn new(bench: &'a Bench<'a>, knees: &[Knee]) -> Result<Self> {
        let mut planned = Vec::new();
        let (spec, file) = (bench.spec, &bench.file);
        if spec.memory == Place::Host && file.alignment().is_some() {
            // Where the file system takes no direct I/O for a kind of work, the drive's own stage cannot be had.
            let goes_direct = |work: Work| {
                let tracks = knees.iter().map(|knee| knee.track);
                tracks
                    .into_iter()
                    .any(|t| t.work == work && t.route != Route::Buffered)
            };
            for knee in knees.iter().filter(|knee| goes_direct(knee.track.work)) {
                for &stage in stages(knee.track) {
                    planned.extend(plan(bench, knee, stage)?);
                }
            }
        }
        let bytes = planned.iter().map(|p| p.rates.shape.bytes).max();
        let memory = Arc::new(Region::host(bytes.unwrap_or(0).max(1))?);
        memory.populate();
        Ok(Self {
            bench,
            planned,
            memory,
        })
    }

    /// Measures everything in each of `rounds` rounds, telling `begins` which begins.
    pub(super) fn run(
        mut self,
        rounds: u32,
        begins: &mut dyn FnMut(u32, &str),
    ) -> Result<Vec<StageRates>> {
        let stages = self.planned.len();
        for round in 0..rounds {
            for number in 0..stages {
                // Nobody comes always after the same one: each round begins elsewhere, and every other goes backwards.
                let at = (number + round as usize * 5) % stages;
                let at = if round % 2 == 0 { at } else { stages - 1 - at };
                let progress = self.bench.progress;
                if progress.is_cancelled() {
                    let path = self.bench.path.display();
                    return Err(Error::new(Kind::Cancelled, "measure", path, "stopped"));
                }
                let name = self.planned[at].rates.stage.name();
                begins(round, &format!("round {} of {rounds}: {name}", round + 1));
                let rate = self.once(at)?;
                self.planned[at].rates.rates_bytes_per_s.push(rate);
            }
        }
        Ok(self.planned.into_iter().map(|p| p.rates).collect())
    }

    /// Measures one once.
    fn once(&mut self, at: usize) -> Result<f64> {
        let Planned {
            rates,
            track,
            executor,
        } = &self.planned[at];
        let (shape, bench) = (&rates.shape, self.bench);
        let file = &bench.file;
        if let Some(executor) = executor {
            let moves = vec![Extent::new(0, shape.bytes).into()];
            return Ok(bench.once(executor, *track, moves)?.rate_bytes_per_s);
        }
        let draft = || FileDraft::new(&bench.path.with_extension("straightway-bench"), shape.bytes);
        let own = "no window of it is left";
        // As many as a lane of the route has.
        let settings = bench.settings(*track, shape.block_bytes, shape.depth);
        let slots = settings.ring(Drive, Place::Host).slots;
        match rates.stage {
            Stage::DriveToRing => {
                file.evict()?;
                stage::drive(file, Op::Read, slots, shape)
            }
            Stage::RingToDrive => stage::drive(draft()?.file(), Op::Write, slots, shape),
            Stage::RingToMemory => stage::copy_ring(&self.memory, Op::Read, shape),
            Stage::MemoryToRing => stage::copy_ring(&self.memory, Op::Write, shape),
            Stage::DriveToCache => {
                file.evict()?;
                stage::fill_cache(file, shape)
            }
            // Out of pages that the drive has just filled and no core has touched: in a virtual machine the first
            // touch of such a page costs several times what a copy does.
            Stage::CacheToMemory => {
                file.evict()?;
                stage::fill_cache(file, shape)?;
                let memory = Arc::get_mut(&mut self.memory).expect(own);
                stage::copy_out(file, memory.as_mut_slice(), shape)
            }
            Stage::MemoryToCache => {
                let memory = Arc::get_mut(&mut self.memory).expect(own);
                stage::copy_in(draft()?.file(), memory.as_slice(), shape)
            }
            Stage::RingRead
            | Stage::CacheRead
            | Stage::RingWrite
            | Stage::CacheWrite
            | Stage::MemoryToDrive => unreachable!("an executor runs it"),
        }
    }
}

/// A route and its stages, if it is one that is made of stages.
fn stages(track: Track) -> &'static [Stage] {
    match (track.work, track.route, track.cache) {
        (Work::Read, Route::Staged, _) => {
            &[Stage::RingRead, Stage::DriveToRing, Stage::RingToMemory]
        }
        (Work::Read, Route::Buffered, Cache::Cold) => {
            &[Stage::CacheRead, Stage::DriveToCache, Stage::CacheToMemory]
        }
        (Work::Write, Route::Staged, _) => {
            &[Stage::RingWrite, Stage::RingToDrive, Stage::MemoryToRing]
        }
        (Work::Write, Route::Buffered, _) => &[
            Stage::CacheWrite,
            Stage::MemoryToDrive,
            Stage::MemoryToCache,
        ],
        _ => &[],
    }
}

/// A stage with the sizes of its route's knee; none where the file is shorter than a block.
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
    let mut shape = Shape {
        block_bytes: knee.block_bytes,
        depth: knee.depth,
        lanes: knee.lanes.unwrap_or(1).max(1),
        bytes,
    };
    let mut track = knee.track;
    if stage == Stage::MemoryToDrive {
        track.route = Route::Direct;
        (shape.block_bytes, shape.depth) = WRITEBACK;
        shape.lanes = 1;
    }
    let transfer = matches!(
        stage,
        Stage::RingRead
            | Stage::CacheRead
            | Stage::RingWrite
            | Stage::CacheWrite
            | Stage::MemoryToDrive
    );
    let settings = || bench.settings(track, shape.block_bytes, shape.depth);
    Ok(Some(Planned {
        executor: transfer.then(|| Executor::new(settings())).transpose()?,
        rates: StageRates {
            stage,
            shape,
            rates_bytes_per_s: Vec::new(),
        },
        track,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(rates: &[f64]) -> StageRates {
        StageRates {
            stage: Stage::DriveToRing,
            shape: Shape {
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
