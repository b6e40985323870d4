//! Bad luck in mid-copy: signals, files that change, writers that race. Under the final name there
//! is always either nothing or a whole file.

use std::{fs, thread::sleep, time::Duration};

use rustix::process::Signal;

use crate::yard::{Running, Yard, noise};

/// A copy of 4 MiB, slow enough to get hold of.
const SLOWLY: [&str; 7] = [
    "--limit", "2MB/s", "--chunk", "64KiB", "--depth", "2", "--route",
];

/// Starts copying `source` to `target` and waits until it is in the midst of it.
fn midway(yard: &Yard, route: &str) -> Running {
    let args = ["copy", "source", "target"].into_iter().chain(SLOWLY);
    let mut running = yard.start(args.chain([route]));
    assert!(running.wait_until(|| yard.has_part()), "it never began");
    sleep(Duration::from_millis(150));
    running
}

#[test]
fn an_interrupted_copy_exits_with_130_and_leaves_the_old_file() {
    for signal in [Signal::INT, Signal::TERM] {
        for old in [None, Some(noise(777, 7))] {
            let yard = Yard::new();
            yard.file("source", 4 << 20, 1);
            if let Some(old) = &old {
                fs::write(yard.path("target"), old).unwrap();
            }
            let before = yard.names();
            let mut running = midway(&yard, "auto");
            running.signal(signal);
            let ran = running.wait();
            assert_eq!(ran.code, Some(130), "{ran:?}");
            assert!(ran.err.contains("interrupted"), "{}", ran.err);
            assert_eq!(yard.names(), before);
            assert_eq!(fs::read(yard.path("target")).ok(), old);
        }
    }
}

#[test]
fn a_copy_that_was_started_ignoring_a_signal_goes_on() {
    for signal in [Signal::INT, Signal::HUP] {
        let yard = Yard::new();
        yard.file("source", 4 << 20, 1);
        let slowly = SLOWLY.join(" ");
        let deaf = format!("trap '' INT HUP; exec \"$0\" copy source target {slowly} auto");
        let mut running =
            yard.start_program("bash", &["-c", &deaf, env!("CARGO_BIN_EXE_straightway")]);
        assert!(running.wait_until(|| yard.has_part()), "it never began");
        sleep(Duration::from_millis(150));
        running.signal(signal);
        let ran = running.wait();
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert!(fs::read(yard.path("target")).unwrap() == noise(4 << 20, 1));
    }
}

#[test]
fn a_source_that_changes_its_length_is_named_with_both() {
    for route in ["direct", "buffered"] {
        for (len, words) in [
            (1 << 20, "shrank from 4194304 to 1048576 bytes"),
            (5 << 20, "grew from 4194304 to 5242880 bytes"),
            (0, "shrank from 4194304 to 0 bytes"),
        ] {
            let yard = Yard::new();
            let source = yard.file("source", 4 << 20, 1);
            let running = midway(&yard, route);
            let file = fs::OpenOptions::new().write(true).open(&source).unwrap();
            file.set_len(len).unwrap();
            let ran = running.wait();
            assert_eq!(ran.code, Some(2), "{ran:?}");
            assert!(
                ran.err.contains("source: it ") && ran.err.contains(words),
                "{}",
                ran.err
            );
            assert_eq!(yard.names(), ["source"]);
        }
    }
}

#[test]
fn killed_at_any_moment_a_copy_is_whole_or_was_never_there() {
    let yard = Yard::new();
    let contents = [noise(3_000_000, 1), noise(2_000_001, 2)];
    fs::write(yard.path("a"), &contents[0]).unwrap();
    fs::write(yard.path("b"), &contents[1]).unwrap();
    let started = std::time::Instant::now();
    yard.receipt(&["a", "target"]);
    // Kills are spread over half again as long as a whole copy takes.
    let span_us = started.elapsed().as_micros() as u64 * 3 / 2;
    fs::remove_file(yard.path("target")).unwrap();
    let moments = noise(50 * 8, 4711);
    let (mut absent, mut whole, mut abandoned) = (0, 0, 0);
    for (i, moment) in moments.chunks_exact(8).enumerate() {
        let moment = u64::from_le_bytes(moment.try_into().unwrap()) % span_us;
        let mut running = yard.start(["copy", ["a", "b"][i % 2], "target", "--chunk", "64KiB"]);
        sleep(Duration::from_micros(moment));
        running.signal(Signal::KILL);
        drop(running);
        abandoned += usize::from(yard.has_part());
        match fs::read(yard.path("target")) {
            Err(_) => absent += 1,
            Ok(bytes) => {
                assert!(contents.contains(&bytes), "kill {i} after {moment} µs");
                whole += 1;
                if i % 5 == 0 {
                    fs::remove_file(yard.path("target")).unwrap();
                }
            }
        }
    }
    eprintln!("{absent} absent, {whole} whole, {abandoned} with a part left");
    assert!(absent > 0 && whole > 0, "the moments miss the copy");
    yard.receipt(&["a", "target"]);
    assert_eq!(
        yard.names(),
        ["a", "b", "target"],
        "the next copy cleans up"
    );
}

#[test]
fn what_a_killed_copy_left_is_removed_even_where_nobody_may_write_to_it() {
    let yard = Yard::new();
    let source = yard.file("source", 4 << 20, 1);
    let mut bits = fs::metadata(&source).unwrap().permissions();
    bits.set_readonly(true);
    fs::set_permissions(&source, bits).unwrap();
    let mut running = midway(&yard, "auto");
    running.signal(Signal::KILL);
    drop(running);
    assert!(yard.has_part());
    yard.file("other", 10, 1);
    yard.receipt(&["other", "target"]);
    assert_eq!(yard.names(), ["other", "source", "target"]);
}

#[test]
fn many_writers_of_one_target_all_end_and_one_of_them_wins_whole() {
    let yard = Yard::new();
    let contents: Vec<_> = (0..6).map(|i| noise(200_000 + i, i as u64)).collect();
    for (i, bytes) in contents.iter().enumerate() {
        fs::write(yard.path(format!("source-{i}")), bytes).unwrap();
    }
    for _ in 0..4 {
        let writers: Vec<_> = (0..6)
            .map(|i| yard.start(["copy", &format!("source-{i}"), "target"]))
            .collect();
        for writer in writers {
            let ran = writer.wait();
            assert_eq!(ran.code, Some(0), "{}", ran.err);
        }
        assert!(contents.contains(&fs::read(yard.path("target")).unwrap()));
    }
    assert!(!yard.has_part());
}

#[test]
fn a_copy_that_fails_half_way_through_a_folder_leaves_only_whole_files() {
    let yard = Yard::new();
    yard.folder("tree");
    for i in 0..100 {
        yard.file(&format!("tree/{i:03}"), 10_000, i);
    }
    // A folder stands where the 71st file is to go.
    yard.folder("copy/tree/070");
    let ran = yard.run(["copy", "tree", "copy"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("copy/tree/070"), "{}", ran.err);
    assert!(!yard.has_part());
    for i in 0..100 {
        if let Ok(bytes) = fs::read(yard.path(format!("copy/tree/{i:03}"))) {
            assert!(bytes == noise(10_000, i), "{i}");
        }
    }
}

#[test]
fn a_file_that_may_not_grow_so_long_is_an_error_and_leaves_nothing() {
    let yard = Yard::new();
    yard.file("source", 4 << 20, 1);
    let limited = "ulimit -f 1000; exec \"$0\" copy source target";
    let ran = yard.run_program("bash", &["-c", limited, env!("CARGO_BIN_EXE_straightway")]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("File too large"), "{}", ran.err);
    assert_eq!(yard.names(), ["source"]);
}

#[test]
fn what_a_killed_copy_left_can_itself_be_copied() {
    let yard = Yard::new();
    yard.file(".x.1-2.straightway-part", 5000, 1);
    let ran = yard.run(["copy", ".x.1-2.straightway-part", "rescued"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(fs::read(yard.path("rescued")).unwrap() == noise(5000, 1));
}
