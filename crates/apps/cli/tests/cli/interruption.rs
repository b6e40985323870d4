//! Interruptions during a copy: signals, files that change, concurrent writers. Under the final name there is always
//! either nothing or a complete file.

use std::{
    fs,
    sync::atomic::Ordering,
    thread::sleep,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use straightway_lab::FuseServer;

use crate::{
    machine::Loop,
    test_dir::{Ran, Running, TestDir, noise},
};

/// A copy of 4 MiB that is slow enough to be interrupted.
const SLOWLY: [&str; 7] = ["--limit", "2MB/s", "--chunk", "64KiB", "--depth", "2", "--route"];

/// Starts a copy of `source` to `target` and waits until it has written some bytes.
fn midway(dir: &TestDir, route: &str) -> Running {
    let args = ["copy", "source", "target"].into_iter().chain(SLOWLY);
    let mut running = dir.start(args.chain([route]));
    assert!(running.wait_until(|| dir.has_written_part()), "it never began");
    running
}

#[test]
fn an_interrupted_copy_exits_with_130_and_leaves_the_old_file() {
    for signal in [Signal::INT, Signal::TERM] {
        for old in [None, Some(noise(777, 7))] {
            let dir = TestDir::new();
            dir.file("source", 4 << 20, 1);
            if let Some(old) = &old {
                fs::write(dir.path("target"), old).unwrap();
            }
            let before = dir.names();
            let mut running = midway(&dir, "auto");
            running.signal(signal);
            let ran = running.wait();
            assert_eq!(ran.code, Some(130), "{ran:?}");
            assert!(ran.err.contains("interrupted"), "{}", ran.err);
            assert_eq!(dir.names(), before);
            assert_eq!(fs::read(dir.path("target")).ok(), old);
        }
    }
}

#[test]
fn a_copy_that_was_started_with_an_ignored_signal_continues() {
    for signal in [Signal::INT, Signal::HUP] {
        let dir = TestDir::new();
        dir.file("source", 4 << 20, 1);
        let slowly = SLOWLY.join(" ");
        let deaf = format!("trap '' INT HUP; exec \"$0\" copy source target {slowly} auto");
        let mut running = dir.start_program("bash", &["-c", &deaf, env!("CARGO_BIN_EXE_straightway")]);
        assert!(running.wait_until(|| dir.has_written_part()), "it never began");
        running.signal(signal);
        let ran = running.wait();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(fs::read(dir.path("target")).unwrap() == noise(4 << 20, 1));
    }
}

#[test]
fn a_source_that_changes_its_length_is_named_with_both_lengths() {
    for route in ["direct", "buffered"] {
        for (len, words) in [
            (1 << 20, "shrank from 4194304 to 1048576 bytes"),
            (5 << 20, "grew from 4194304 to 5242880 bytes"),
            (0, "shrank from 4194304 to 0 bytes"),
        ] {
            let dir = TestDir::new();
            let source = dir.file("source", 4 << 20, 1);
            let running = midway(&dir, route);
            let file = fs::OpenOptions::new().write(true).open(&source).unwrap();
            file.set_len(len).unwrap();
            let ran = running.wait();
            assert_eq!(ran.code, Some(2), "{ran:?}");
            assert!(
                ran.err.contains("source: it ") && ran.err.contains(words),
                "{}",
                ran.err
            );
            assert_eq!(dir.names(), ["source"]);
        }
    }
}

#[test]
fn a_copy_killed_at_any_moment_is_complete_or_absent() {
    let dir = TestDir::new();
    let contents = [noise(3_000_000, 1), noise(2_000_001, 2)];
    fs::write(dir.path("a"), &contents[0]).unwrap();
    fs::write(dir.path("b"), &contents[1]).unwrap();
    let started = std::time::Instant::now();
    dir.receipt(&["a", "target"]);
    // Kills are spread over 1.5 times the duration of a copy.
    let span_us = started.elapsed().as_micros() as u64 * 3 / 2;
    fs::remove_file(dir.path("target")).unwrap();
    let moments = noise(50 * 8, 4711);
    let (mut absent, mut whole, mut abandoned) = (0, 0, 0);
    for (i, moment) in moments.chunks_exact(8).enumerate() {
        let moment = u64::from_le_bytes(moment.try_into().unwrap()) % span_us;
        let mut running = dir.start(["copy", ["a", "b"][i % 2], "target", "--chunk", "64KiB"]);
        sleep(Duration::from_micros(moment));
        running.signal(Signal::KILL);
        drop(running);
        abandoned += usize::from(dir.has_part());
        match fs::read(dir.path("target")) {
            Err(_) => absent += 1,
            Ok(bytes) => {
                assert!(contents.contains(&bytes), "kill {i} after {moment} µs");
                whole += 1;
                if i % 5 == 0 {
                    fs::remove_file(dir.path("target")).unwrap();
                }
            }
        }
    }
    eprintln!("{absent} absent, {whole} whole, {abandoned} with a part left");
    assert!(absent > 0 && whole > 0, "the moments miss the copy");
    dir.receipt(&["a", "target"]);
    assert_eq!(dir.names(), ["a", "b", "target"], "the next copy cleans up");
}

#[test]
fn leftovers_of_a_killed_copy_are_removed_even_if_read_only() {
    let dir = TestDir::new();
    let source = dir.file("source", 4 << 20, 1);
    let mut bits = fs::metadata(&source).unwrap().permissions();
    bits.set_readonly(true);
    fs::set_permissions(&source, bits).unwrap();
    let mut running = midway(&dir, "auto");
    running.signal(Signal::KILL);
    drop(running);
    assert!(dir.has_part());
    dir.file("other", 10, 1);
    dir.receipt(&["other", "target"]);
    assert_eq!(dir.names(), ["other", "source", "target"]);
}

#[test]
fn concurrent_writers_of_one_target_all_end_and_one_file_is_complete() {
    let dir = TestDir::new();
    let contents: Vec<_> = (0..6).map(|i| noise(200_000 + i, i as u64)).collect();
    for (i, bytes) in contents.iter().enumerate() {
        fs::write(dir.path(format!("source-{i}")), bytes).unwrap();
    }
    for _ in 0..4 {
        let writers: Vec<_> = (0..6)
            .map(|i| dir.start(["copy", &format!("source-{i}"), "target"]))
            .collect();
        for writer in writers {
            let ran = writer.wait();
            assert_eq!(ran.code, Some(0), "{}", ran.err);
        }
        assert!(contents.contains(&fs::read(dir.path("target")).unwrap()));
    }
    assert!(!dir.has_part());
}

#[test]
fn a_copy_that_fails_half_way_through_a_folder_leaves_only_whole_files() {
    let dir = TestDir::new();
    dir.folder("tree");
    for i in 0..100 {
        dir.file(&format!("tree/{i:03}"), 10_000, i);
    }
    // A folder has the name of the 71st file.
    dir.folder("copy/tree/070");
    let ran = dir.run(["copy", "tree", "copy"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("copy/tree/070"), "{}", ran.err);
    assert!(!dir.has_part());
    for i in 0..100 {
        if let Ok(bytes) = fs::read(dir.path(format!("copy/tree/{i:03}"))) {
            assert!(bytes == noise(10_000, i), "{i}");
        }
    }
}

#[test]
fn a_file_above_the_size_limit_is_an_error_and_leaves_nothing() {
    let dir = TestDir::new();
    dir.file("source", 4 << 20, 1);
    let limited = "ulimit -f 1000; exec \"$0\" copy source target";
    let ran = dir.run_program("bash", &["-c", limited, env!("CARGO_BIN_EXE_straightway")]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("File too large"), "{}", ran.err);
    assert_eq!(dir.names(), ["source"]);
}

#[test]
fn a_file_of_exactly_the_size_limit_is_copied() {
    let dir = TestDir::new();
    // Bash counts in blocks of 1024 bytes, and the last page of the file is not full.
    dir.file("source", 9 << 10, 1);
    dir.file("longer", (9 << 10) + 1, 1);
    for route in ["auto", "buffered"] {
        let limited = format!("ulimit -f 9; exec \"$0\" copy source target --route {route}");
        let ran = dir.run_program("bash", &["-c", &limited, env!("CARGO_BIN_EXE_straightway")]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(fs::read(dir.path("target")).unwrap() == noise(9 << 10, 1));
    }
    let limited = "ulimit -f 9; exec \"$0\" copy longer target";
    let ran = dir.run_program("bash", &["-c", limited, env!("CARGO_BIN_EXE_straightway")]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.err.contains("File too large") && ran.err.contains("hint: raise the limit"),
        "{}",
        ran.err
    );
    assert_eq!(dir.names(), ["longer", "source", "target"]);
}

/// Interrupts a copy whose I/O hangs, and returns the result. It has to end within 2 s.
fn interrupt_hanging(dir: &TestDir, source: &str) -> Ran {
    let mut running = dir.start(["copy", source, "target"]);
    assert!(running.wait_until(|| dir.has_part()), "it never began");
    // The read is under way soon after the draft is there.
    sleep(Duration::from_millis(300));
    let start = Instant::now();
    running.signal(Signal::INT);
    let ran = running.wait();
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.err.contains("interrupted"), "{}", ran.err);
    assert!(!dir.path("target").exists());
    ran
}

#[test]
fn a_copy_ends_within_two_seconds_of_a_signal_although_the_drive_hangs() {
    let dir = TestDir::new();
    let fuse = dir.folder("fuse");
    let server = match FuseServer::mount(&fuse) {
        Ok(server) => server,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    // The kernel reads the device's content from a file whose file system does not answer.
    fs::write(fuse.join("image"), noise(1 << 20, 1)).unwrap();
    let Some(device) = Loop::over(&fuse.join("image")) else {
        return;
    };
    server.faults.hang_reads.store(true, Ordering::Relaxed);
    interrupt_hanging(&dir, &device.0);
    assert!(!dir.has_part(), "the draft is removed, because its drive answers");
    // The reads fail once the file system is gone. Only then can the device be detached.
    drop(server);
}

#[test]
fn a_copy_ends_within_two_seconds_of_a_signal_although_a_call_hangs() {
    let dir = TestDir::new();
    let fuse = dir.folder("fuse");
    let server = match FuseServer::mount(&fuse) {
        Ok(server) => server,
        Err(why) => return eprintln!("skipped: {why}"),
    };
    fs::write(fuse.join("source"), noise(1 << 20, 1)).unwrap();
    server.faults.hang_reads.store(true, Ordering::Relaxed);
    interrupt_hanging(&dir, "fuse/source");
    // A thread hung in the read, so that the draft could not be removed. The next copy does it.
    server.faults.hang_reads.store(false, Ordering::Relaxed);
    dir.receipt(&["fuse/source", "target"]);
    assert!(!dir.has_part());
    assert!(fs::read(dir.path("target")).unwrap() == noise(1 << 20, 1));
}

#[test]
fn leftovers_of_a_killed_copy_can_be_copied() {
    let dir = TestDir::new();
    dir.file(".x.1-2.straightway-part", 5000, 1);
    let ran = dir.run(["copy", ".x.1-2.straightway-part", "rescued"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(fs::read(dir.path("rescued")).unwrap() == noise(5000, 1));
}
