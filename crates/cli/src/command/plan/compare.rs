//! `straightway plan compare`: prediction beside measurement.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use straightway_core::{Bytes, Rate, Route, Seconds};
use straightway_model::{
    measured::{self, At, Comparison, Measured},
    path::Node,
};
use straightway_probe::{
    bench::{Cache, Stage, StageRates, Work},
    profile::{DriveProfile, Profile},
};
use straightway_scenario::check;
use straightway_view::compare;

use crate::command::{output::Output, source};

/// Set the models' predictions beside what was measured on a machine
///
/// The prediction is made twice: with the constants the planner assumes, and with the machine's own
/// measurements of the stages (drive, copies) in their place, never with the measurement beside it. What was measured is
/// this machine's profile, kept by `straightway bench`, or a file. Exits with 1 where a calibrated
/// prediction misses the measurement by more than 15 %, unless it is one row in ten that says why.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What was measured, as TOML [default: this machine's profile]
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    output: Output,
}

/// Compares.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machines = match &args.measured {
        Some(path) => {
            let text = source::bounded(path)?;
            let name = path.display();
            vec![check::read(&text).with_context(|| format!("measurements {name}"))?]
        }
        None => from_profile()?,
    };
    let node = Node::default();
    let comparisons: Vec<Comparison> = machines.iter().map(|m| m.compare(&node)).collect();
    let page = compare::page(&comparisons, args.basis || args.output.is_html());
    args.output
        .write(&page, &serde_json::to_value(&comparisons)?)?;
    Ok(if comparisons.iter().all(Comparison::holds) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// What `bench` kept of this machine, drive by drive.
fn from_profile() -> anyhow::Result<Vec<Measured>> {
    const HOW: &str = "run `straightway bench` first, or give --measured FILE";
    let path = Profile::place().with_context(|| format!("no place to keep a profile; {HOW}"))?;
    let profile = Profile::read(&path)?;
    if profile.drives.is_empty() {
        bail!("this machine was not measured yet; {HOW}");
    }
    let drives = profile.drives.iter();
    let machine = |name: &str| format!("{}, {name}", profile.machine);
    Ok(drives
        .map(|(name, drive)| measured(machine(name), profile.machine.cores, drive))
        .collect())
}

/// A drive's knees as the model knows them.
fn measured(machine: String, cores: u32, drive: &DriveProfile) -> Measured {
    let mut measured = Measured {
        machine: Some(machine),
        cores: Some(u64::from(cores)),
        io: drive.tuning.map(|tuning| Bytes(tuning.chunk_bytes)),
        depth: drive.tuning.map(|tuning| u64::from(tuning.depth)),
        ..Measured::default()
    };
    measured.drive.read_latency = drive.read_latency_s.map(Seconds);
    for knee in &drive.knees {
        let route = match (knee.track.route, knee.track.cache) {
            (Route::Direct, _) => &mut measured.drive,
            (Route::Staged, _) => &mut measured.staged,
            (Route::Buffered, Cache::Cold) => &mut measured.buffered,
            (Route::Buffered, Cache::Warm) => &mut measured.cached,
            // A drive has no sockets and no service, and what is mapped does not move.
            (Route::Socket | Route::Mapped | Route::Service, _) => continue,
        };
        // What a drive can do is its best; what a path does is what it did with that block and depth.
        let rate = Some(Rate(match knee.track.route {
            Route::Direct => knee.rate_bytes_per_s_max,
            _ => knee.rate_bytes_per_s,
        }));
        let at = Some(At {
            io: Bytes(knee.block_bytes),
            depth: u64::from(knee.depth),
            lanes: knee.lanes.map(u64::from),
        });
        if (knee.track.work, knee.track.cache) == (Work::Read, Cache::Warm) {
            route.cpu_s_per_gb = knee.cpu_s_per_gb;
        }
        match knee.track.work {
            Work::Read => (route.read, route.read_at) = (rate, at),
            Work::Write => (route.write, route.write_at) = (rate, at),
            // Random blocks are another question than a path's rate.
            Work::Gather => {}
        }
    }
    measured.stages.writeback_start = drive.writeback_start_bytes.map(Bytes);
    for rates in &drive.stages {
        put(&mut measured, rates);
    }
    measured
}

/// A stage, or a whole route in place of its knee: the best of many points is not what a route does again.
fn put(measured: &mut Measured, rates: &StageRates) {
    let rate = Some(Rate(rates.median()));
    let stages = &mut measured.stages;
    let read = |route: &mut measured::Route| {
        (route.read, route.read_at) = (rate, Some(at(rates)));
        route.read_spread = Some(rates.spread());
    };
    let write = |route: &mut measured::Route| {
        (route.write, route.write_at) = (rate, Some(at(rates)));
        route.write_spread = Some(rates.spread());
    };
    match rates.stage {
        Stage::RingRead => read(&mut measured.staged),
        Stage::CacheRead => read(&mut measured.buffered),
        Stage::RingWrite => write(&mut measured.staged),
        Stage::CacheWrite => {
            write(&mut measured.buffered);
            stages.cache_written = Some(Bytes(rates.shape.bytes));
        }
        Stage::DriveToRing => stages.drive_to_ring = rate,
        Stage::RingToMemory => stages.ring_to_memory = rate,
        Stage::DriveToCache => stages.drive_to_cache = rate,
        Stage::CacheToMemory => stages.cache_to_memory = rate,
        Stage::MemoryToRing => stages.memory_to_ring = rate,
        Stage::RingToDrive => stages.ring_to_drive = rate,
        Stage::MemoryToCache => stages.memory_to_cache = rate,
        Stage::MemoryToDrive => stages.memory_to_drive = rate,
    }
}

/// What a stage was measured with.
fn at(rates: &StageRates) -> At {
    At {
        io: Bytes(rates.shape.block_bytes),
        depth: u64::from(rates.shape.depth),
        lanes: Some(u64::from(rates.shape.lanes)),
    }
}
