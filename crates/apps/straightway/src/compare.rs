//! What `straightway bench` measured on a machine, as the cluster planner compares it with its predictions.

use straightway_core::{Bytes, Rate, Route, Seconds};
use straightway_planner::measured::{At, MeasuredMachine, MeasuredRoute};
use straightway_probe::{
    bench::{CacheState, Stage, StageRates, Workload},
    profile::{DriveProfile, Profile},
};

/// The measurements of each drive in a profile. There are none if nothing was measured yet.
pub fn measured_machines(profile: &Profile) -> Vec<MeasuredMachine> {
    let cores = profile.machine.cores;
    let machine = |name: &str| format!("{}, {name}", profile.machine);
    let drives = profile.drives.iter();
    drives
        .map(|(name, drive)| measured(machine(name), cores, drive))
        .collect()
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
    for rates in drive.stages.iter().chain(&drive.copied) {
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
        Stage::DriveCopy => {
            measured.copied = rate;
            measured.copied_spread = Some(rates.spread());
        }
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
