//! `straightway bench`: measures the drive behind a path by each route, or the server behind a URI.

mod remote;

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use straightway_core::{Bytes, Place, Route, Scheme, Uri, text::shown};
use straightway_io::{
    Progress,
    settings::LANES_MAX,
    store::{Location, with_meant},
};
use straightway_probe::{
    bench::{self, BenchSeries, CacheState, Spec, Workload},
    profile::Profile,
};
use straightway_sys::uring::DEPTH_MAX;

use super::{
    bar::points_bar,
    interrupt::{end_soon_after_interrupt, on_interrupt},
    output::{Output, say},
    stores::StoreArgs,
    words::{Word, one_of, whole},
};

/// What to measure.
const WORKS: [Word<Workload>; 3] = [
    ("read", Workload::Read, "The file from front to back"),
    ("write", Workload::Write, "A new file, synced at the end"),
    ("gather", Workload::Gather, "Random blocks into one region"),
];

/// A route, and the state of the page cache at its begin.
type BenchRoute = (Route, CacheState);

const DIRECT: BenchRoute = (Route::Direct, CacheState::Cold);
const STAGED: BenchRoute = (Route::Staged, CacheState::Cold);
const BUFFERED: BenchRoute = (Route::Buffered, CacheState::Cold);
const WARM: BenchRoute = (Route::Buffered, CacheState::Warm);

/// The routes that can be measured.
const ROUTES: [Word<BenchRoute>; 4] = [
    ("direct", DIRECT, "O_DIRECT into the region"),
    ("staged", STAGED, "O_DIRECT through the ring"),
    ("buffered", BUFFERED, "Through the page cache, initially cold"),
    ("warm", WARM, "Through the page cache, fully warm"),
];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file to read, a folder for a temporary file, or an object by URI.
    #[arg(default_value = ".")]
    path: PathBuf,

    /// The size of the temporary file.
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    size: Bytes,

    /// What to measure.
    #[arg(long, value_parser = one_of(&WORKS), value_delimiter = ',', default_values = ["read", "write"])]
    work: Vec<Workload>,

    /// The routes to measure [default: all, and for a GPU all but direct].
    #[arg(long, value_parser = one_of(&ROUTES), value_delimiter = ',')]
    route: Vec<BenchRoute>,

    /// The memory: `host:` or `cuda:0`. With a GPU its limits are measured too.
    #[arg(long, value_name = "MEMORY", default_value = "host:")]
    device: Place,

    /// Block sizes [default: 4KiB, 16KiB, 64KiB, 256KiB, 1MiB, 4MiB; over a network 1MiB, 8MiB, 32MiB].
    #[arg(long, value_name = "SIZE", value_delimiter = ',')]
    block: Vec<Bytes>,

    /// Queue depths [default: 1, 4, 16, 32].
    #[arg(long, value_name = "N", value_delimiter = ',', value_parser = whole(1..=DEPTH_MAX))]
    depth: Vec<u32>,

    /// Lanes to the drive [default: 1, or 2 if they also copy between the ring and memory].
    #[arg(long, value_name = "N", value_parser = whole(1..=LANES_MAX))]
    lanes: Option<u32>,

    /// The number of runs per point; the median is reported.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = whole(1..=1000_u32))]
    runs: u32,

    /// Move the whole file at every point, instead of a sample of it.
    #[arg(long)]
    whole: bool,

    /// The number of blocks of a gather.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = whole(1..=u64::MAX))]
    extents: u64,

    /// The random seed of the offsets of a gather.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = whole(0..=u64::MAX))]
    seed: u64,

    /// Do not store the result as this machine's profile.
    #[arg(long)]
    no_profile: bool,

    #[command(flatten)]
    output: Output,

    #[command(flatten)]
    store: StoreArgs,
}

/// The default block sizes and queue depths for drives.
const BLOCKS: [u64; 6] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20];
const DEPTHS: [u32; 4] = [1, 4, 16, 32];

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    args.output.check(&args.path)?;
    let uri = Uri::parse(&args.path)?;
    if uri.scheme() != Scheme::Path {
        return remote::run(args, &uri);
    }
    let meant = |error| with_meant(error, &Location::from(&args.path));
    let mut spec = args.spec();
    if args.route.is_empty() {
        spec.series = bench::possible(&spec).map_err(meant)?;
    }
    // Read first, so that an unreadable profile fails before the work and not after it.
    let mut kept = match Profile::place() {
        Some(path) if !args.no_profile => Some((Profile::read(&path)?, path)),
        _ => None,
    };
    let bar = points_bar(0);
    let progress = Arc::new(Progress::default());
    let stopped = Arc::clone(&progress);
    on_interrupt(move || stopped.cancel());
    end_soon_after_interrupt();
    let outcome = bench::run(&spec, &progress, &mut |number, points, name| {
        bar.set_length(points as u64);
        bar.set_position(number as u64);
        bar.set_message(shown(name).into_owned());
    })
    .map_err(meant)?;
    bar.finish_and_clear();
    let json = serde_json::to_value(&outcome)?;
    let points = outcome.sample_table();
    args.output.write_with(&outcome.page(), Some(&points), &json)?;
    match &mut kept {
        Some((profile, path)) => {
            profile.add(&outcome);
            match profile.write(path) {
                Ok(()) => say(&format!("stored as this machine's profile in {}", path.display())),
                // A container may have no home that can be written to. The result is above.
                Err(error) => warn_not_kept(&error.to_string()),
            }
        }
        None if args.no_profile => {}
        None => warn_not_kept("neither HOME nor XDG_STATE_HOME is set"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Warns that later transfers do not know the result.
fn warn_not_kept(why: &str) {
    say(&format!("warning: the profile was not stored: {why}"));
    say("hint: set XDG_STATE_HOME to a folder that can be written to, or give --no-profile");
}

impl Args {
    /// The requested routes. Direct to a GPU is an error unless it is proven, so it is measured only on request.
    fn routes(&self) -> &[BenchRoute] {
        match (self.route.as_slice(), self.device) {
            ([], Place::Host) => &[DIRECT, STAGED, BUFFERED, WARM],
            ([], Place::Gpu(_) | Place::P2p(_)) => &[STAGED, BUFFERED, WARM],
            (asked, _) => asked,
        }
    }

    fn spec(&self) -> Spec {
        let mut series = Vec::new();
        for &work in &self.work {
            for &(route, cache) in self.routes() {
                // A write does not depend on the state of the cache.
                if !(work == Workload::Write && cache == CacheState::Warm) {
                    series.push(BenchSeries { work, route, cache });
                }
            }
        }
        Spec {
            path: self.path.clone(),
            memory: self.device,
            bytes: self.size.0,
            series,
            blocks: match self.block.as_slice() {
                [] => BLOCKS.to_vec(),
                asked => asked.iter().map(|block| block.0).collect(),
            },
            depths: match self.depth.as_slice() {
                [] => DEPTHS.to_vec(),
                asked => asked.to_vec(),
            },
            runs: self.runs,
            drive_lanes: self.lanes,
            whole: self.whole,
            gather_extents: self.extents,
            seed: self.seed,
        }
    }
}
