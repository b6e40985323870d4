//! `straightway plan compare`: compares predictions with measurements.

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context, bail};
use straightway_core::{Bytes, Rate, Route, Seconds};
use straightway_planner::{
    measured::{At, Comparison, MeasuredMachine, MeasuredRoute},
    path::ComputeNode,
};
use straightway_probe::{
    bench::{CacheState, Stage, StageRates, Workload},
    profile::{DriveProfile, Profile},
};
use straightway_scenario::check;
use straightway_view::compare;

use crate::command::{output::Output, source};

/// Compare the models' predictions with the measurements of a machine
///
/// Each prediction is made twice: with the constants that the cluster planner assumes, and with the machine's own
/// measurements of the stages (drive, copies) instead. It never uses the measurement that it is compared with. The
/// measurements are this machine's profile, written by `straightway bench`, or a file. Exits with 1 if a calibrated
/// prediction misses the measurement by more than 15 %, except for at most one row in ten with a stated reason.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The measurements, as TOML [default: this machine's profile]
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,

    /// Show every formula and constant with its source
    #[arg(long)]
    basis: bool,

    #[command(flatten)]
    output: Output,
}

/// Compares predictions with measurements.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let machines = match &args.measured {
        Some(path) => {
            let text = source::bounded(path)?;
            let name = path.display();
            vec![check::read(&text).with_context(|| format!("measurements {name}"))?]
        }
        None => from_profile()?,
    };
    let node = ComputeNode::default();
    let comparisons: Vec<Comparison> = machines.iter().map(|m| m.compare(&node)).collect();
    let page = compare::page(&comparisons, args.basis || args.output.is_html());
    args.output.write(&page, &serde_json::to_value(&comparisons)?)?;
    Ok(if comparisons.iter().all(Comparison::holds) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// The measurements of each drive from the profile of `bench`.
fn from_profile() -> anyhow::Result<Vec<MeasuredMachine>> {
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

/// Converts a drive's profile to the model's measurements.
fn measured(machine: String, cores: u32, drive: &DriveProfile) -> MeasuredMachine {
    let mut measured = MeasuredMachine {
        machine: Some(machine),
        cores: Some(u64::from(cores)),
        io: drive.tuning.map(|tuning| Bytes(tuning.chunk_bytes)),
        depth: drive.tuning.map(|tuning| u64::from(tuning.depth)),
        ..MeasuredMachine::default()
    };
    measured.drive.read_latency = drive.read_latency_s.map(Seconds);
    for knee in &drive.knees {
        let route = match (knee.series.route, knee.series.cache) {
            (Route::Direct, _) => &mut measured.drive,
            (Route::Staged, _) => &mut measured.staged,
            (Route::Buffered, CacheState::Cold) => &mut measured.buffered,
            (Route::Buffered, CacheState::Warm) => &mut measured.cached,
            // A drive has no sockets and no service, and mapped bytes are not moved.
            (Route::Socket | Route::Mapped | Route::Service, _) => continue,
        };
        // A drive counts with its best rate, a path with its rate at this block size and depth.
        let rate = Some(Rate(match knee.series.route {
            Route::Direct => knee.rate_bytes_per_s_max,
            _ => knee.rate_bytes_per_s,
        }));
        let at = Some(At {
            io: Bytes(knee.block_bytes),
            depth: u64::from(knee.depth),
            lanes: knee.lanes.map(u64::from),
        });
        if (knee.series.work, knee.series.cache) == (Workload::Read, CacheState::Warm) {
            route.cpu_s_per_gb = knee.cpu_s_per_gb;
        }
        match knee.series.work {
            Workload::Read => (route.read, route.read_at) = (rate, at),
            Workload::Write => (route.write, route.write_at) = (rate, at),
            // Random blocks say nothing about the rate of a path.
            Workload::Gather => {}
        }
    }
    measured.stages.writeback_start = drive.writeback_start_bytes.map(Bytes);
    for rates in &drive.stages {
        put(&mut measured, rates);
    }
    measured
}

/// Adds a stage, or a whole route instead of its knee: the best of many points is not reproducible.
fn put(measured: &mut MeasuredMachine, rates: &StageRates) {
    let rate = Some(Rate(rates.median()));
    let stages = &mut measured.stages;
    let read = |route: &mut MeasuredRoute| {
        (route.read, route.read_at) = (rate, Some(at(rates)));
        route.read_spread = Some(rates.spread());
    };
    let write = |route: &mut MeasuredRoute| {
        (route.write, route.write_at) = (rate, Some(at(rates)));
        route.write_spread = Some(rates.spread());
    };
    match rates.stage {
        Stage::RingRead => read(&mut measured.staged),
        Stage::CacheRead => read(&mut measured.buffered),
        Stage::RingWrite => write(&mut measured.staged),
        Stage::CacheWrite => {
            write(&mut measured.buffered);
            stages.cache_written = Some(Bytes(rates.load.bytes));
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

/// The settings of the measurement of a stage.
fn at(rates: &StageRates) -> At {
    At {
        io: Bytes(rates.load.block_bytes),
        depth: u64::from(rates.load.depth),
        lanes: Some(u64::from(rates.load.lanes)),
    }
}
