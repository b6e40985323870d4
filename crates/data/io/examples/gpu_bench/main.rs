//! Measures every path between storage and a GPU, and the machine's own limits, in one run.
//!
//! Limits come first (pinned copies in both directions, raw O_DIRECT into host memory, parallel writes to tmpfs), then
//! each benchmark as a share of its limit. The disk's speed drifts by a quarter within minutes, so a disk limit and its
//! benchmark are measured in alternation.
//!
//! ```text
//! gpu_bench --disk /data --tmpfs /dev/shm --json results.json
//! gpu_bench --disk /data --tmpfs /dev/shm --sweep
//! ```

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the table goes to stdout, progress to stderr"
)]

mod disk;
mod limits;
mod pattern;
mod row;
mod start;
mod sweep;
mod works;

use std::{path::PathBuf, sync::Arc};

use clap::Parser;
use straightway_core::{Bytes, Result};
use straightway_io::{Executor, GdsUse, Region, Settings};
use straightway_sys::cuda::{Context, Driver};

/// Measures every path between storage and a GPU.
#[derive(Clone, Debug, Parser)]
pub(crate) struct Args {
    /// A folder on the disk to measure.
    #[arg(long)]
    disk: PathBuf,
    /// A folder in memory.
    #[arg(long, default_value = "/dev/shm")]
    tmpfs: PathBuf,
    /// The bytes to move each time.
    #[arg(long, default_value = "8GiB")]
    size: Bytes,
    /// The number of rounds of each measurement.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// The GPU's number.
    #[arg(long, default_value_t = 0)]
    gpu: u32,
    /// Page-cache lanes, instead of the default.
    #[arg(long)]
    lanes: Option<u32>,
    /// The chunk of page-cache lanes, instead of the default.
    #[arg(long)]
    chunk: Option<Bytes>,
    /// Pinned memory of all rings, instead of the default.
    #[arg(long)]
    ring: Option<Bytes>,
    /// The chunk of drive lanes, instead of the default.
    #[arg(long)]
    drive_chunk: Option<Bytes>,
    /// I/Os in flight on a drive lane, instead of the default.
    #[arg(long)]
    depth: Option<u32>,
    /// Drive lanes, instead of the default.
    #[arg(long)]
    drive_lanes: Option<u32>,
    /// Where to write the results.
    #[arg(long)]
    json: Option<PathBuf>,
    /// Only try page cache → GPU with many sizes.
    #[arg(long)]
    sweep: bool,
    /// Run only benchmarks whose name contains one of these words.
    #[arg(long)]
    only: Vec<String>,
    /// Write a udev record of the disk, without which cuFile accepts no file.
    #[arg(long)]
    make_udev: bool,
    /// Used by the program itself: the task of a child process.
    #[arg(long, hide = true)]
    child: Option<start::Child>,
}

impl Args {
    /// The default settings with the overrides.
    pub(crate) fn settings(&self) -> Settings {
        let plain = Settings::default();
        let or = |given: Option<Bytes>, default: u64| given.map_or(default, |b| b.0);
        Settings {
            gpu_lanes: self.lanes.unwrap_or(plain.gpu_lanes),
            gpu_chunk_bytes: or(self.chunk, plain.gpu_chunk_bytes),
            pinned_bytes: or(self.ring, plain.pinned_bytes),
            chunk_bytes: or(self.drive_chunk, plain.chunk_bytes),
            depth: self.depth.unwrap_or(plain.depth),
            drive_lanes: self.drive_lanes.unwrap_or(plain.drive_lanes),
            gds: GdsUse::Off.into(),
            ..plain
        }
    }

    /// Whether a benchmark is requested.
    pub(crate) fn wants(&self, work: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|word| work.contains(word.as_str()))
    }
}

/// The state shared by all measurements.
pub(crate) struct Bench {
    pub(crate) args: Args,
    pub(crate) context: Context,
    pub(crate) executor: Executor,
    /// A region of `--size` bytes on the GPU.
    pub(crate) region: Arc<Region>,
    /// A region of the same size in host memory.
    pub(crate) host: Arc<Region>,
}

fn main() -> std::process::ExitCode {
    let args = Args::parse();
    let outcome = match args.child {
        Some(child) => start::run_child(child, &args),
        None => run(args),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(hint) = error.hint() {
                eprintln!("hint: {hint}");
            }
            std::process::ExitCode::from(2)
        }
    }
}

fn run(args: Args) -> Result<()> {
    let device = Driver::load()?.device(args.gpu)?;
    let context = device.context()?;
    eprintln!(
        "{device}: {}, CUDA {}, {} of memory, {} cores",
        device.name()?,
        Driver::load()?.version(),
        device.memory_total()?,
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
    );
    let settings = args.settings();
    eprintln!(
        "page cache by {} × {}, drive by {} × {} × {} deep, {} pinned",
        settings.gpu_lanes,
        Bytes(settings.gpu_chunk_bytes),
        settings.drive_lanes,
        Bytes(settings.chunk_bytes),
        settings.depth,
        Bytes(settings.pinned_bytes)
    );
    if args.sweep {
        return sweep::run(&args, &context);
    }
    let region = Arc::new(Region::device(&context, args.size.0)?);
    let mut host = Region::host(args.size.0)?;
    pattern::fill(host.as_mut_slice(), 0);
    let executor = Executor::new(settings)?;
    executor.prepare(&region)?;
    let mut bench = Bench {
        args,
        context,
        executor,
        region,
        host: Arc::new(host),
    };
    let rows = works::all(&mut bench)?;
    println!("{}", row::table(&rows));
    match &bench.args.json {
        Some(path) => row::save(path, &bench, &rows),
        None => Ok(()),
    }
}
