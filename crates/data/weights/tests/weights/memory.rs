//! The memory that a load takes in addition to its weights.

use std::{
    env, fs,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use straightway_core::{Choice, Place, Route};
use straightway_io::{Executor, Settings};
use straightway_weights::{Loader, Model, Selection};

use crate::fixture::{folder, weights, write};

/// The environment variable with the model, set in the measured process.
const MODEL: &str = "STRAIGHTWAY_MEASURED_MODEL";

/// The allowed memory of lanes, plans and headers, in addition to the ring.
const SLACK_BYTES: u64 = 16 << 20;

const RING_BYTES: u64 = 8 << 20;

/// The beginning of a line that says what was not measured.
const LEFT_OUT: &str = "left out: ";

/// The anonymous memory of this process.
fn taken_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// The peak of anonymous memory while `work` ran.
fn peak_during(work: impl FnOnce()) -> u64 {
    let peak = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                peak.fetch_max(taken_bytes(), Ordering::Relaxed);
            }
        });
        work();
        is_over.store(true, Ordering::Relaxed);
    });
    peak.into_inner()
}

/// Measures loads of a model many times as large as the ring.
fn measure(path: &Path) {
    let settings = Settings {
        staging_bytes: RING_BYTES,
        chunk_bytes: 1 << 20,
        ..Settings::default()
    };
    for choice in [Choice::Only(Route::Staged), Choice::Only(Route::Buffered)] {
        let before = taken_bytes();
        let executor = Arc::new(Executor::new(settings).unwrap());
        let loader = Loader {
            choice,
            ..Loader::new(executor)
        };
        let model = Arc::new(Model::open(path).unwrap());
        if choice == Choice::Only(Route::Staged) && model.shards[0].file().unwrap().alignment().is_none() {
            eprintln!("{LEFT_OUT}the staged route: no O_DIRECT here");
            continue;
        }
        let all = Selection::all(&model);
        let peak = peak_during(|| {
            let there = loader.load(&model, &all, Place::Host).unwrap();
            assert_eq!(there.receipt.bytes, model.bytes());
        });
        let above = (peak - before).saturating_sub(model.bytes());
        assert!(above <= RING_BYTES + SLACK_BYTES, "{above} bytes above the region");

        // Two batches at a time, never the whole model.
        let batch = 4 << 20;
        let peak = peak_during(|| {
            let stream = loader.stream(&model, &all, Place::Host, batch).unwrap();
            let bytes: u64 = stream.map(|there| there.unwrap().receipt.bytes).sum();
            assert_eq!(bytes, model.bytes());
        });
        let above = peak.saturating_sub(before);
        assert!(
            above <= 3 * batch + RING_BYTES + SLACK_BYTES,
            "{above} bytes for a stream"
        );
    }
}

#[test]
fn a_load_takes_the_ring_and_the_headers_above_its_region_and_a_stream_two_batches() {
    if let Ok(path) = env::var(MODEL) {
        measure(Path::new(&path));
        return;
    }
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let names: Vec<_> = (0..64).map(|n| format!("t{n:02}")).collect();
    let shapes: Vec<_> = names.iter().map(|n| (n.as_str(), &[1000, 1050][..])).collect();
    write(&path, &weights(&shapes));
    assert!(fs::metadata(&path).unwrap().len() > 16 * RING_BYTES);
    let test = std::thread::current().name().unwrap().to_owned();
    let output = Command::new(env::current_exe().unwrap())
        .args([&test, "--exact", "--nocapture", "--test-threads=1"])
        .env(MODEL, &path)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{told}");
    for line in told.lines().filter(|line| line.starts_with(LEFT_OUT)) {
        eprintln!("{line}");
    }
}
