//! The limits that routes to a GPU are compared with, measured in the same run: pinned copies over the bus, and
//! O_DIRECT between the drive and host memory.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use straightway_core::{Choice, Extent, Place, Result, Route};
use straightway_io::{Executor, File, FileDraft, Region, Settings};
use straightway_sys::cuda::CopyDirection;

use super::{BenchSeries, CacheState, Spec, Workload, pinned_copy::pinned_copy};

/// The length of a copy over the bus. At 64 MiB the cost of the launch is negligible.
const COPY_BYTES: usize = 64 << 20;

/// A limit of the machine: the best rate of one kind of transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchLimit {
    /// The name of the limit.
    pub name: String,
    /// The median of the runs.
    pub rate_bytes_per_s: f64,
}

/// The limits of transfers with a GPU region; all `None` for host memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Limits {
    to_gpu: Option<BenchLimit>,
    from_gpu: Option<BenchLimit>,
    drive_read: Option<BenchLimit>,
    drive_write: Option<BenchLimit>,
}

impl Limits {
    pub(super) fn measure(spec: &Spec, file: &Arc<File>) -> Result<Self> {
        if spec.memory == Place::Host {
            return Ok(Self::default());
        }
        let runs = spec.runs.max(1) as usize;
        let region = Region::at(spec.memory, COPY_BYTES as u64)?;
        let bus = |name: &str, direction| -> Result<Option<BenchLimit>> {
            let rates = pinned_copy(&region, direction, COPY_BYTES, runs)?;
            Ok(Some(BenchLimit {
                name: name.to_owned(),
                rate_bytes_per_s: median(rates),
            }))
        };
        Ok(Self {
            to_gpu: bus("pinned host→GPU copy", CopyDirection::ToDevice)?,
            from_gpu: bus("pinned GPU→host copy", CopyDirection::ToHost)?,
            drive_read: drive(file, runs, false)?,
            drive_write: drive(file, runs, true)?,
        })
    }

    /// Returns the limit that a series is compared with.
    pub(super) fn of(&self, series: BenchSeries) -> Option<&BenchLimit> {
        match (series.work, series.cache) {
            (Workload::Read | Workload::Gather, CacheState::Warm) => self.to_gpu.as_ref(),
            (Workload::Read | Workload::Gather, CacheState::Cold) => self.drive_read.as_ref(),
            (Workload::Write, _) => self.drive_write.as_ref().or(self.from_gpu.as_ref()),
        }
    }

    pub(super) fn list(self) -> Vec<BenchLimit> {
        [self.to_gpu, self.from_gpu, self.drive_read, self.drive_write]
            .into_iter()
            .flatten()
            .collect()
    }
}

/// Returns the best rate, over several chunk sizes and depths, of an O_DIRECT read of the file into host memory, or
/// of a write of a new file of the same length; `None` without O_DIRECT.
fn drive(file: &Arc<File>, runs: usize, is_write: bool) -> Result<Option<BenchLimit>> {
    if file.alignment().is_none() {
        return Ok(None);
    }
    let region = Arc::new(Region::host(file.bytes())?);
    let mut best = 0.0_f64;
    for (chunk_bytes, depth) in [(1 << 20, 16), (1 << 20, 64), (4 << 20, 16)] {
        let settings = Settings {
            chunk_bytes,
            depth,
            staging_bytes: 256 << 20,
            ..Settings::default()
        };
        let executor = Executor::new(settings)?;
        let rates = (0..runs).map(|_| once(&executor, file, &region, is_write));
        best = best.max(median(rates.collect::<Result<_>>()?));
    }
    if best == 0.0 {
        return Ok(None);
    }
    let word = if is_write { "write, synced" } else { "read" };
    Ok(Some(BenchLimit {
        name: format!("raw O_DIRECT {word}"),
        rate_bytes_per_s: best,
    }))
}

/// The rate of one whole transfer between host memory and the drive.
fn once(executor: &Executor, file: &Arc<File>, region: &Arc<Region>, is_write: bool) -> Result<f64> {
    let choice = Choice::Only(Route::Direct);
    let moves = vec![Extent::new(0, file.bytes()).into()];
    if !is_write {
        let ticket = executor.read(vec![Arc::clone(file)], moves, region, choice)?;
        return Ok(ticket.wait()?.rate_bytes_per_s);
    }
    // The draft is never committed, so it is removed on drop.
    let draft = FileDraft::new(&file.path().with_extension("straightway-limit"), file.bytes())?;
    if draft.file().alignment().is_none() {
        return Ok(0.0);
    }
    let files = vec![Arc::clone(draft.file())];
    let ticket = executor.write(region, files, moves, choice)?;
    Ok(ticket.wait()?.rate_bytes_per_s)
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len() / 2).copied().unwrap_or(0.0)
}
