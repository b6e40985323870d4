//! Measures what the drive behind a path can do, by each route, over block sizes and depths.
//!
//! Every point is a real transfer through the same executor that `copy` uses, and keeps its
//! receipt. A point is run several times and the run with the median rate counts: on a shared
//! machine the best run is luck and the mean is somebody else's load.

mod limits;
mod outcome;
mod rounds;
mod stage;
mod work;

use std::{path::PathBuf, sync::Arc};

use serde::{Deserialize, Serialize};
use straightway_core::{Alignment, Place, Receipt, Result, Route};
use straightway_io::{File, FileDraft, Progress, draft};

pub use limits::Limit;
pub use outcome::{Knee, Outcome};
pub use rounds::StageRates;
pub use stage::{Shape, Stage};

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    /// The file from front to back into one region.
    Read,
    /// The same region to a new file, synced at the end.
    Write,
    /// Random blocks of the file into one region.
    Gather,
}

/// What the page cache holds of the file when a run begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cache {
    /// Nothing.
    Cold,
    /// All of it.
    Warm,
}

/// One series of measurements: what, by which route, from where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Track {
    /// What is measured.
    pub work: Work,
    /// Which route is demanded.
    pub route: Route,
    /// What the page cache holds.
    pub cache: Cache,
}

impl Track {
    /// Its name, for people.
    pub fn name(self) -> String {
        let work = match self.work {
            Work::Read => "read",
            Work::Write => "write",
            Work::Gather => "gather",
        };
        match (self.route, self.cache, self.work) {
            (Route::Buffered, Cache::Warm, _) => format!("{work} buffered, warm"),
            (Route::Buffered, Cache::Cold, Work::Read | Work::Gather) => {
                format!("{work} buffered, cold")
            }
            (route, _, _) => format!("{work} {route}"),
        }
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Spec {
    /// A file to read, or a folder to make one in.
    pub path: PathBuf,
    /// Whose memory the bytes go to and come from.
    pub memory: Place,
    /// How long the file is to be, where one is made.
    pub bytes: u64,
    /// Which series.
    pub tracks: Vec<Track>,
    /// Block sizes to try.
    pub blocks: Vec<u64>,
    /// Queue depths to try.
    pub depths: Vec<u32>,
    /// How often each point is run.
    pub runs: u32,
    /// Lanes to the drive, where that is not left to us.
    pub drive_lanes: Option<u32>,
    /// Move the whole file at every point, rather than enough of it to tell.
    pub whole: bool,
    /// How many blocks a gather takes.
    pub gather_extents: u64,
    /// What the gathered offsets follow from.
    pub seed: u64,
}

/// A measured point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Which series it belongs to.
    #[serde(flatten)]
    pub track: Track,
    /// The block size.
    pub block_bytes: u64,
    /// I/Os in flight; of the page cache, lanes side by side.
    pub depth: u32,
    /// The rates of all runs, in the order in which they were run.
    pub rates_bytes_per_s: Vec<f64>,
    /// The receipt of the run with the median rate.
    pub receipt: Receipt,
}

/// The tracks of `spec` that its file system has. Reads and writes differ: btrfs reads by O_DIRECT what it does not write by it.
pub fn possible(spec: &Spec) -> Result<Vec<Track>> {
    let is_folder = spec.path.is_dir();
    let folder = if is_folder {
        &spec.path
    } else {
        draft::folder_of(&spec.path)
    };
    let probe = FileDraft::new(
        &folder.join("straightway-bench-probe"),
        Alignment::PAGE_BYTES,
    )?;
    let read = File::open(&if is_folder {
        probe.path()
    } else {
        spec.path.clone()
    })?;
    let is_possible = |track: &&Track| match (track.route, track.work) {
        (Route::Buffered, _) => true,
        (_, Work::Write) => probe.file().alignment().is_some(),
        (_, Work::Read | Work::Gather) => read.alignment().is_some(),
    };
    Ok(spec.tracks.iter().filter(is_possible).copied().collect())
}

/// Measures everything in `spec`, telling `begins` before each point which one it is, of how many.
/// What was measured before an error, or before `progress` was cancelled, is lost.
pub fn run(
    spec: &Spec,
    progress: &Arc<Progress>,
    begins: &mut dyn FnMut(usize, usize, &str),
) -> Result<Outcome> {
    work::Bench::new(spec, progress)?.run(begins)
}
