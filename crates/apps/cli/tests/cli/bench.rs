//! `bench`: its measurements, output, profile and leftovers.

use std::{
    fs,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;

use crate::test_dir::{Ran, TestDir};

/// A sweep small enough for a test.
const TINY: [&str; 7] = ["--size", "4MiB", "--runs", "1", "--depth", "1,2", "--block"];

fn sweep(dir: &TestDir, block: &str, more: &[&str]) -> Ran {
    dir.folder("place");
    let args = ["bench", "place"].into_iter().chain(TINY);
    dir.run(args.chain([block]).chain(more.iter().copied()))
}

#[test]
fn a_sweep_has_its_points_and_knees_and_leaves_nothing_behind() {
    let dir = TestDir::new();
    let flags = [
        "--json",
        "--work",
        "read,write,gather",
        "--extents",
        "16",
        "--html",
        "page.html",
    ];
    let ran = sweep(&dir, "64KiB,1MiB", &flags);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let outcome: Value = serde_json::from_str(&ran.out).unwrap();
    let samples = outcome["samples"].as_array().unwrap();
    // Read and gather have four series, write three; series that use the drive have two depths.
    assert_eq!(samples.len(), 2 * (4 + 1 + 1) + 2 * (4 + 1 + 1) + 2 * (4 + 1));
    for sample in samples {
        let receipt = &sample["receipt"];
        assert!(receipt["bytes"].as_u64().unwrap() > 0, "{sample}");
        assert!(sample["rates_bytes_per_s"][0].as_f64().unwrap() > 0.0);
    }
    let knees = outcome["knees"].as_array().unwrap();
    assert_eq!(knees.len(), 11);
    for knee in knees {
        let share = knee["rate_bytes_per_s"].as_f64().unwrap() / knee["rate_bytes_per_s_max"].as_f64().unwrap();
        assert!((0.95..=1.0).contains(&share), "{knee}");
    }
    let page = fs::read_to_string(dir.path("page.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("</html>"));
    for foreign in ["src=\"http", "href=\"http", "url(http", "@import"] {
        assert!(!page.contains(foreign), "the page needs {foreign}");
    }
    assert_eq!(dir.names(), ["page.html", "place"]);
}

#[test]
fn a_gather_stays_within_its_memory_limit() {
    let dir = TestDir::new();
    let all = u64::MAX.to_string();
    let flags = ["--json", "--work", "gather", "--route", "warm", "--extents", &all];
    let ran = sweep(&dir, "64MiB", &flags);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let outcome: Value = serde_json::from_str(&ran.out).unwrap();
    // 16 blocks of 64 MiB fill the bound; each is only as long as the file.
    assert_eq!(outcome["samples"][0]["receipt"]["bytes"], 16 * (4_u64 << 20));
}

#[test]
fn copy_takes_its_defaults_from_the_profile_of_bench() {
    let dir = TestDir::new();
    dir.file("source", 1 << 20, 1);
    let chunks = |args: &[&str]| -> Vec<u64> {
        dir.receipt(&[&["source", "host:", "--route", "direct", "--trace", "trace"], args].concat());
        let trace = fs::read_to_string(dir.path("trace")).unwrap();
        let events = trace.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.map(|event| event["bytes"].as_u64().unwrap()).collect()
    };
    assert_eq!(chunks(&[]), [1 << 20], "without a profile");
    let ran = sweep(&dir, "64KiB", &["--work", "read", "--no-profile"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(!dir.profile().exists());
    let ran = sweep(&dir, "64KiB", &["--work", "read"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.err.contains("profile"), "{}", ran.err);
    assert!(ran.out.contains("64 KiB"), "{}", ran.out);
    assert_eq!(chunks(&[]), [64 << 10; 16], "with one");
    assert_eq!(chunks(&["--chunk", "256KiB"]), [256 << 10; 4], "a flag goes first");
    assert_eq!(chunks(&["--staging", "20000"]), vec![16 << 10; 64], "so does memory");
}

#[test]
fn a_damaged_profile_is_an_error_with_a_hint() {
    let dir = TestDir::new();
    dir.file("source", 100, 1);
    fs::create_dir_all(dir.profile().parent().unwrap()).unwrap();
    for damage in [
        "schema = 7",
        "\u{0}",
        "schema = \"straightway.profile/99\"\n[machine]\n",
    ] {
        fs::write(dir.profile(), damage).unwrap();
        for args in [&["copy", "source", "target"][..], &["bench", "source", "--runs", "1"]] {
            let ran = dir.run(args);
            assert_eq!(ran.code, Some(2), "{damage:?} {ran:?}");
            assert!(ran.err.contains("profile.toml: "), "{}", ran.err);
            assert!(ran.err.contains("hint: remove it"), "{}", ran.err);
        }
    }
    assert_eq!(dir.names(), ["source"]);
}

#[test]
fn an_invalid_profile_is_named_and_an_inaccessible_one_is_ignored() {
    let dir = TestDir::new();
    dir.file("source", 100, 1);
    let ran = dir.run_with(&[("XDG_STATE_HOME", "/dev/null")], ["copy", "source", "host:"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    fs::create_dir_all(dir.profile().parent().unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/zero", dir.profile()).unwrap();
    let ran = dir.run(["copy", "source", "host:"]);
    assert!(ran.err.contains("it is not a regular file"), "{ran:?}");
    fs::remove_file(dir.profile()).unwrap();
    let ran = sweep(&dir, "64KiB", &["--work", "read"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let text = fs::read_to_string(dir.profile()).unwrap();
    for (right, wrong) in [("chunk_bytes = 65536", "chunk_bytes = 0"), ("depth = ", "depth = 9999")] {
        assert!(text.contains(right), "{text}");
        fs::write(dir.profile(), text.replacen(right, wrong, 1)).unwrap();
        let ran = dir.run(["copy", "source", "host:"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains("profile.toml: cannot run with"), "{}", ran.err);
    }
}

#[test]
fn a_bench_that_needs_too_much_memory_is_refused_first() {
    let dir = TestDir::new();
    dir.folder("place");
    let huge = dir.path("huge");
    fs::File::create(&huge).unwrap().set_len(1 << 43).unwrap();
    for args in [
        "bench place --size 4MiB --runs 1 --no-profile --block 1GiB --depth 4096",
        "copy huge host:",
        "checkpoint bench place --size 100TB --rounds 1",
    ] {
        let ran = dir.run(args.split(' '));
        assert_eq!(ran.code, Some(2), "{args}: {ran:?}");
        assert!(ran.err.contains("available"), "{args}: {}", ran.err);
    }
    assert_eq!(dir.names(), ["huge", "place"]);
}

#[test]
fn leftovers_of_a_killed_bench_are_removed_by_the_next() {
    let dir = TestDir::new();
    dir.folder("place");
    let args = "bench place --size 64MiB --runs 100 --no-profile --block 4KiB --depth 1 --whole";
    let mut running = dir.start(args.split(' '));
    assert!(running.wait_until(|| dir.names().len() > 1));
    running.signal(Signal::KILL);
    running.wait();
    assert_eq!(dir.names().len(), 2, "{:?}", dir.names());
    let ran = sweep(&dir, "64KiB", &["--work", "read", "--no-profile"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(dir.names(), ["place"]);
}

#[test]
fn an_interrupted_bench_exits_with_130_and_leaves_nothing() {
    let dir = TestDir::new();
    dir.folder("place");
    // A single point that would run for minutes.
    let point = "bench place --size 64MiB --block 4KiB --depth 1 --work read --route direct --whole";
    let args = point.split(' ').chain(["--runs", "1000"]);
    let mut running = dir.start(args);
    assert!(running.wait_until(|| dir.names().len() > 1));
    // Usually the point runs by then. An interruption of its preparation has the same result.
    sleep(Duration::from_millis(300));
    running.signal(Signal::INT);
    let asked = Instant::now();
    let ran = running.wait();
    assert!(asked.elapsed() < Duration::from_secs(5), "it took its time");
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert_eq!(dir.names(), ["place"]);
    assert!(!dir.profile().exists());
}

#[test]
fn a_sweep_that_makes_no_sense_is_refused() {
    let dir = TestDir::new();
    dir.folder("place");
    dir.file("empty", 0, 1);
    let mut said = String::new();
    for args in [
        "missing",
        "empty",
        "/dev/null",
        "place --block 5",
        "place --block 0",
        "place --depth 0",
        "place --lanes 0",
        "place --lanes 100000",
        "place --work gather --extents 0",
        "place --html no-such-folder/page.html --block 64KiB --depth 1 --work read",
        "place --json --csv",
    ] {
        let size = ["--size", "1MiB", "--runs", "1", "--no-profile"];
        let ran = dir.run(["bench"].into_iter().chain(args.split(' ')).chain(size));
        assert_eq!(ran.code, Some(2), "{args}: {ran:?}");
        assert!(!ran.err.contains("panicked"), "{args}: {}", ran.err);
        assert_eq!(dir.names(), ["empty", "place"], "{args}");
        said.extend(["$ bench ", args, "\n", &dir.redact(&ran.err)]);
    }
    insta::assert_snapshot!(said);
}
