//! Any settings are refused with a reason, or work.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::sync::Arc;

use proptest::prelude::*;
use straightway_core::{Choice, Extent, Move, Place, Rate, Route};
use straightway_io::{Executor, File, Region, Settings, settings::DriveEngine, track::Track};

/// Limits on memory and threads of a run, so that the machine is not the test's limit.
const RING_BYTES_MAX: u64 = 64 << 20;
const IOS_MAX: u32 = 2048;

/// Numbers of any size, more often near the limits of what is allowed.
fn figure() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0_u64..600).prop_map(|pages| pages * 4096),
        (0_u32..64).prop_map(|bits| 1 << bits),
        0_u64..10,
    ]
}

fn count() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), 0_u32..10, 60_u32..300, 4090_u32..4100]
}

fn settings() -> impl Strategy<Value = Settings> {
    let lanes = (count(), count(), count());
    let engine = prop_oneof![Just(DriveEngine::Auto), Just(DriveEngine::Pool)];
    let rate = prop_oneof![Just(None), any::<f64>().prop_map(|rate| Some(Rate(rate)))];
    (lanes, figure(), figure(), engine, rate).prop_map(|(lanes, chunk, staging, engine, rate)| Settings {
        drive_lanes: lanes.0,
        ring_lanes: lanes.0,
        cached_lanes: lanes.1,
        depth: lanes.2,
        write_depth: lanes.2,
        chunk_bytes: chunk,
        staging_bytes: staging,
        engine,
        rate_max: rate,
        ..Settings::default()
    })
}

/// The same settings, limited to what runs quickly.
fn bounded(settings: Settings) -> Settings {
    Settings {
        drive_lanes: settings.drive_lanes.min(IOS_MAX / settings.depth).max(1),
        ring_lanes: settings.ring_lanes.min(IOS_MAX / settings.depth).max(1),
        staging_bytes: settings.staging_bytes.min(RING_BYTES_MAX),
        rate_max: settings.rate_max.filter(|rate| rate.0 > 1e9),
        ..settings
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn settings_are_refused_with_a_reason_or_work(settings in settings()) {
        if let Err(error) = settings.check() {
            prop_assert!(error.to_string().starts_with("cannot run with "), "{error}");
            return Ok(());
        }
        let ring = settings.ring(Track::Drive, Place::Host);
        let bytes = (ring.slots * ring.slot_bytes) as u64 * u64::from(settings.drive_lanes);
        prop_assert!(bytes <= settings.staging_bytes);
        let settings = bounded(settings);
        if settings.check().is_ok() {
            read_with(settings);
        }
    }
}

/// Allowed extreme values, which the property above seldom generates.
#[test]
fn allowed_extreme_values_work() {
    for (lanes, depth, chunk_bytes) in [
        (1, 1, 4096),
        (256, 1, 4096),
        (1, 4096, 4096),
        (16, 128, 64 << 10),
        (1, 2, 32 << 20),
    ] {
        for engine in [DriveEngine::Auto, DriveEngine::Pool] {
            read_with(Settings {
                drive_lanes: lanes,
                ring_lanes: lanes,
                cached_lanes: lanes,
                depth,
                chunk_bytes,
                staging_bytes: chunk_bytes * u64::from(lanes),
                engine,
                ..Settings::default()
            });
        }
    }
}

/// Reads a small file by two routes.
fn read_with(settings: Settings) {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = folder.path().join("file");
    let bytes: Vec<_> = (0..50_001_u32).flat_map(u32::to_le_bytes).collect();
    std::fs::write(&path, &bytes).unwrap();
    let file = Arc::new(File::open(&path).unwrap());
    let executor = Executor::new(settings).unwrap();
    let extent = Extent::new(0, file.bytes());
    let routes = [Choice::Only(Route::Staged), Choice::Only(Route::Buffered)];
    for choice in routes {
        if file.alignment().is_none() && choice == routes[0] {
            eprintln!("left out: the staged route: no O_DIRECT here");
            continue;
        }
        let mut region = Arc::new(Region::host(file.bytes()).unwrap());
        let moves = vec![Move::from(extent)];
        let files = vec![Arc::clone(&file)];
        let job = executor.read(files, moves, &region, choice).unwrap();
        job.wait().unwrap();
        assert!(Arc::get_mut(&mut region).unwrap().as_slice() == bytes);
    }
}

#[test]
fn each_executor_plans_with_its_own_settings() {
    let folder = tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap();
    let path = folder.path().join("f");
    std::fs::write(&path, vec![7; 1 << 20]).unwrap();
    let file = Arc::new(File::open(&path).unwrap());
    if file.alignment().is_none() {
        return eprintln!("skipped: no O_DIRECT here");
    }
    for chunk_bytes in [16 << 10, 64 << 10, 8 << 10] {
        let executor = Executor::new(Settings {
            chunk_bytes,
            ..Settings::default()
        });
        let mut region = Arc::new(Region::host(1 << 20).unwrap());
        let (files, whole) = (vec![Arc::clone(&file)], vec![Extent::new(0, 1 << 20).into()]);
        let choice = Choice::Only(Route::Staged);
        let ticket = executor.unwrap().read(files, whole, &region, choice);
        let receipt = ticket.unwrap().wait().unwrap();
        assert_eq!(receipt.ios, (1 << 20) / chunk_bytes);
        let bytes = Arc::get_mut(&mut region).unwrap().as_slice();
        assert!(bytes.iter().all(|b| *b == 7));
    }
}
