//! Learning the faster method, and both methods of writing to files in memory: byte for byte, with faults.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests"
)]

#[path = "fixture/files.rs"]
mod files;

use std::{
    fs,
    os::unix::fs::FileExt,
    path::Path,
    sync::{Arc, MutexGuard},
    time::Instant,
};

use files::{bytes_of, folder, write_file};
use straightway_core::{
    Choice, Class, ErrorKind, Extent, Leg, Lock, Move, Rate, Reason, Receipt, Result, Route, Share,
};
use straightway_io::{
    Executor, ExecutorParts, File, FileDraft, Learning, Region, Settings,
    learning::{Lessons, Method, WorkKind},
    wrapper::faulty::Faults,
};

/// Transfers from this size on learn.
const LEARNS_BYTES: u64 = 16 << 20;

/// A transfer learns only if no other of the process runs, so these tests run one at a time.
static TURN: Lock<()> = Lock::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock()
}

type Kept = Arc<Lock<Vec<(WorkKind, Method)>>>;

/// A `Learning` with known lessons, and the list of those it learns.
fn learning(known: &[(WorkKind, Method)]) -> (Learning, Kept) {
    let kept = Kept::default();
    let sink = Arc::clone(&kept);
    let lessons: Lessons = known.iter().copied().collect();
    let keep = move |work, method| sink.lock().push((work, method));
    let learning = Learning::new(move || lessons.clone(), keep);
    (learning.from_bytes(LEARNS_BYTES), kept)
}

fn executor(learning: Learning, faults: Option<Faults>) -> Executor {
    let parts = faults.map_or_else(ExecutorParts::default, ExecutorParts::from);
    let executor = Executor::with_parts(Settings::default(), parts).unwrap();
    executor.learning(Some(learning))
}

fn whole(bytes: u64) -> Vec<Move> {
    let extent = Extent::new(0, bytes);
    vec![Move::from(extent)]
}

/// The rows of a receipt, added up by leg, route and reason.
fn bytes_by(receipt: &Receipt, leg: Leg, route: Route, reason: Reason) -> u64 {
    let rows = receipt.routes.iter();
    rows.filter(|r| (r.leg, r.route, r.reason) == (leg, route, reason))
        .map(|r| r.bytes)
        .sum()
}

#[test]
fn the_first_large_read_tries_both_methods_and_the_next_one_uses_the_faster() {
    let _turn = turn();
    let folder = folder();
    let path = folder.path().join("f");
    let bytes = 20_000_001;
    let file = write_file(&path, bytes);
    if file.alignment().is_none() {
        eprintln!("skipped: the checkout's file system has no O_DIRECT");
        return;
    }
    let (learning, kept) = learning(&[]);
    let executor = executor(learning, None);
    for turn in 0..2 {
        file.evict().unwrap();
        let mut region = Arc::new(Region::host(bytes as u64).unwrap());
        let from = vec![Arc::clone(&file)];
        let start = Instant::now();
        let job = executor.read(from, whole(bytes as u64), &region, Choice::Auto);
        let receipt = job.unwrap().wait().unwrap();
        let seconds = start.elapsed().as_secs_f64();
        assert_eq!(receipt.bytes, bytes as u64);
        // The time of the trial is part of it, and so is that of the rest.
        assert!(receipt.seconds > seconds / 2.0, "{} of {seconds} s", receipt.seconds);
        let seen = Arc::get_mut(&mut region).unwrap().as_slice();
        assert!(seen == bytes_of(bytes), "turn {turn}");
        let direct = bytes_by(&receipt, Leg::Read, Route::Direct, Reason::Aligned);
        let ring = bytes_by(&receipt, Leg::Read, Route::Staged, Reason::RingFaster);
        let learnt = kept.lock().clone();
        assert_eq!(learnt.len(), 1, "once");
        if turn == 0 {
            assert!(direct > 0 && ring > 0, "both methods were tried: {receipt}");
        } else {
            let is_ring = learnt[0] == (WorkKind::Read, Method::Ring);
            assert_eq!((ring > 0, direct > 0), (is_ring, !is_ring), "{receipt}");
        }
    }
}

#[test]
fn a_short_read_a_read_with_a_route_and_a_concurrent_read_learn_nothing() {
    let _turn = turn();
    let folder = folder();
    let path = folder.path().join("f");
    let file = write_file(&path, 17 << 20);
    let (learning, kept) = learning(&[]);
    let executor = executor(learning, None);
    let read = |bytes: u64, choice| {
        file.evict().unwrap();
        let region = Arc::new(Region::host(bytes).unwrap());
        executor.read(vec![Arc::clone(&file)], whole(bytes), &region, choice)
    };
    read(1 << 20, Choice::Auto).unwrap().wait().unwrap();
    if file.alignment().is_some() {
        let direct = Choice::Only(Route::Direct);
        read(17 << 20, direct).unwrap().wait().unwrap();
    } else {
        eprintln!("left out: a read with a route: the checkout's file system has no O_DIRECT");
    }
    let share = Share {
        limit: Some(Rate(1e5)),
        ..Share::default()
    };
    let slow = executor.sharing(share, Class::Soon).unwrap();
    let region = Arc::new(Region::host(17 << 20).unwrap());
    let concurrent = slow.read(vec![Arc::clone(&file)], whole(17 << 20), &region, Choice::Auto);
    read(17 << 20, Choice::Auto).unwrap().wait().unwrap();
    assert!(!concurrent.unwrap().is_done(), "it ran beside the other");
    assert!(kept.lock().is_empty());
}

#[test]
fn a_failed_trial_is_an_error_and_learns_nothing() {
    let _turn = turn();
    let folder = folder();
    let path = folder.path().join("f");
    let file = write_file(&path, 17 << 20);
    if file.alignment().is_none() {
        eprintln!("skipped: the checkout's file system has no O_DIRECT");
        return;
    }
    file.evict().unwrap();
    let faults = Faults {
        seed: 3,
        error_per_mille: 1000,
        error_code: 5,
        ..Faults::default()
    };
    let (learning, kept) = learning(&[]);
    let executor = executor(learning, Some(faults));
    let region = Arc::new(Region::host(17 << 20).unwrap());
    let job = executor.read(vec![file], whole(17 << 20), &region, Choice::Auto);
    let error = job.and_then(straightway_io::Ticket::wait).unwrap_err();
    assert!(error.to_string().contains("read"), "{error}");
    assert!(kept.lock().is_empty());
}

/// A folder in memory. Prints the reason and returns `None` if there is none.
fn memory() -> Option<tempfile::TempDir> {
    let folder = tempfile::tempdir_in("/dev/shm")
        .inspect_err(|error| eprintln!("skipped: /dev/shm: {error}"))
        .ok()?;
    let probe = folder.path().join("probe");
    fs::write(&probe, "x").unwrap();
    let is_memory = File::open(&probe).unwrap().is_in_memory();
    if !is_memory {
        eprintln!("skipped: /dev/shm is not a tmpfs here");
    }
    is_memory.then_some(folder)
}

/// A sparse file of `bytes` with data in two places.
fn sparse(path: &Path, bytes: u64) -> Vec<Extent> {
    let file = fs::File::create(path).unwrap();
    file.set_len(bytes).unwrap();
    let parts = [
        Extent::new(4096, bytes / 4),
        Extent::between(bytes / 2 / 4096 * 4096, bytes),
    ];
    for part in parts {
        file.write_all_at(&bytes_of(part.bytes as usize), part.offset).unwrap();
    }
    parts.to_vec()
}

/// Copies extents of a file to a new one. Returns the receipt.
fn relay(executor: &Executor, from: &Path, to: &Path, extents: Vec<Extent>) -> Result<Receipt> {
    let source = Arc::new(File::open(from)?);
    let draft = FileDraft::new(to, source.bytes())?;
    let extents = extents.into_iter().map(|extent| (0, extent)).collect();
    let twins = vec![Arc::clone(draft.file())];
    let receipt = executor.relay(vec![source], twins, extents, Choice::Auto)?.wait()?;
    draft.commit()?;
    Ok(receipt)
}

#[test]
fn copies_in_memory_are_whole_by_either_method_and_the_receipt_names_it() {
    let _turn = turn();
    let Some(folder) = memory() else { return };
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    for method in [Method::Calls, Method::Mapping] {
        for short_per_mille in [0, 400] {
            let faults = Faults {
                seed: 7,
                short_per_mille,
                late_per_mille: short_per_mille,
                ..Faults::default()
            };
            let (learning, kept) = learning(&[(WorkKind::Copy, method)]);
            let executor = executor(learning.from_bytes(1), Some(faults));
            for bytes in [1, 4095, 4096, 4097, 1_000_003, 20_000_001] {
                fs::write(&from, bytes_of(bytes)).unwrap();
                let all = vec![Extent::new(0, bytes as u64)];
                let receipt = relay(&executor, &from, &to, all).unwrap();
                assert!(fs::read(&to).unwrap() == bytes_of(bytes), "{method} {bytes}");
                let reason = match method {
                    Method::Calls => Reason::KernelCopy,
                    _ => Reason::NoDirectIo,
                };
                for leg in [Leg::Read, Leg::Write] {
                    let moved = bytes_by(&receipt, leg, Route::Buffered, reason);
                    assert_eq!(moved, bytes as u64, "{method} {receipt}");
                }
                assert_eq!(receipt.staging_bytes_peak, 0, "no slot is used");
            }
            let parts = sparse(&from, 5_000_001);
            relay(&executor, &from, &to, parts).unwrap();
            assert!(fs::read(&to).unwrap() == fs::read(&from).unwrap(), "{method}");
            assert!(kept.lock().is_empty(), "it was known");
        }
    }
}

#[test]
fn the_first_large_copy_in_memory_tries_both_methods() {
    let _turn = turn();
    let Some(folder) = memory() else { return };
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let bytes = 20_000_001;
    fs::write(&from, bytes_of(bytes)).unwrap();
    let (learning, kept) = learning(&[]);
    let executor = executor(learning, None);
    for _ in 0..2 {
        let all = vec![Extent::new(0, bytes as u64)];
        let receipt = relay(&executor, &from, &to, all).unwrap();
        assert_eq!(receipt.bytes, bytes as u64);
        assert!(fs::read(&to).unwrap() == bytes_of(bytes));
    }
    assert_eq!(kept.lock().len(), 1);
}

#[test]
fn a_failed_copy_in_memory_leaves_nothing_and_names_the_cause() {
    let _turn = turn();
    let Some(folder) = memory() else { return };
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    fs::write(&from, bytes_of(9 << 20)).unwrap();
    for method in [Method::Calls, Method::Mapping] {
        for (error_code, words) in [(5, "Input/output error"), (28, "No space left")] {
            let faults = Faults {
                seed: 5,
                error_per_mille: 900,
                error_code,
                ..Faults::default()
            };
            let (learning, _) = learning(&[(WorkKind::Copy, method)]);
            let executor = executor(learning.from_bytes(1), Some(faults));
            let all = vec![Extent::new(0, 9 << 20)];
            let error = relay(&executor, &from, &to, all).unwrap_err();
            assert!(error.to_string().contains(words), "{method}: {error}");
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "{method}");
        }
    }
}

#[test]
fn a_source_in_memory_that_is_truncated_during_the_copy_is_an_error() {
    let _turn = turn();
    let Some(folder) = memory() else { return };
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    for method in [Method::Calls, Method::Mapping] {
        fs::write(&from, bytes_of(9 << 20)).unwrap();
        let (learning, _) = learning(&[(WorkKind::Copy, method)]);
        let executor = executor(learning.from_bytes(1), None);
        let source = Arc::new(File::open(&from).unwrap());
        let draft = FileDraft::new(&to, source.bytes()).unwrap();
        let writer = fs::OpenOptions::new().write(true).open(&from).unwrap();
        writer.set_len(1 << 20).unwrap();
        let extents = vec![(0, Extent::new(0, 9 << 20))];
        let twins = vec![Arc::clone(draft.file())];
        let job = executor.relay(vec![source], twins, extents, Choice::Auto);
        let error = job.and_then(straightway_io::Ticket::wait).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Precondition, "{method}: {error}");
    }
}

#[test]
fn a_target_in_memory_that_is_truncated_does_not_crash_the_process() {
    let _turn = turn();
    let Some(folder) = memory() else { return };
    let to = folder.path().join("to");
    let bytes = 9 << 20;
    let mut region = Region::host(bytes).unwrap();
    region.write_at(0, &bytes_of(bytes as usize)).unwrap();
    let region = Arc::new(region);
    let (learning, _) = learning(&[(WorkKind::Write, Method::Mapping)]);
    let executor = executor(learning.from_bytes(1), None);
    let draft = FileDraft::new(&to, bytes).unwrap();
    // The draft is in the folder, and any process with write access can truncate it.
    let hidden = fs::read_dir(folder.path()).unwrap();
    let hidden = hidden
        .map(|e| e.unwrap().path())
        .find(|p| *p != to && !p.ends_with("probe"));
    let writer = fs::OpenOptions::new().write(true).open(hidden.unwrap());
    writer.unwrap().set_len(4096).unwrap();
    let job = executor.write(&region, vec![Arc::clone(draft.file())], whole(bytes), Choice::Auto);
    // A write by a system call extends the file again: all bytes are there.
    job.unwrap().wait().unwrap();
    draft.commit().unwrap();
    assert!(fs::read(&to).unwrap() == bytes_of(bytes as usize));
}

#[test]
fn writes_to_memory_are_whole_by_either_method() {
    let _turn = turn();
    let Some(folder) = memory() else { return };
    let to = folder.path().join("to");
    for method in [Method::Calls, Method::Mapping] {
        for short_per_mille in [0, 400] {
            let faults = Faults {
                seed: 11,
                short_per_mille,
                late_per_mille: short_per_mille,
                ..Faults::default()
            };
            let (learning, _) = learning(&[(WorkKind::Write, method)]);
            let executor = executor(learning.from_bytes(1), Some(faults));
            let source = bytes_of(6_000_000);
            let mut region = Region::host(6_000_000).unwrap();
            region.write_at(0, &source).unwrap();
            let region = Arc::new(region);
            let parts = [(17, 1000, 5), (5000, 5_000_000, 2001), (7_000_001, 99, 5_999_000)];
            let mut expected = vec![0; 7_500_003];
            let moves = parts.map(|(offset, bytes, at)| {
                expected[offset..offset + bytes].copy_from_slice(&source[at..at + bytes]);
                Move {
                    object: 0,
                    extent: Extent::new(offset as u64, bytes as u64),
                    at: at as u64,
                }
            });
            let draft = FileDraft::new(&to, expected.len() as u64).unwrap();
            let files = vec![Arc::clone(draft.file())];
            let job = executor.write(&region, files, moves.to_vec(), Choice::Auto);
            let receipt = job.unwrap().wait().unwrap();
            draft.commit().unwrap();
            assert!(fs::read(&to).unwrap() == expected, "{method} {short_per_mille}");
            let buffered = bytes_by(&receipt, Leg::Write, Route::Buffered, Reason::NoDirectIo);
            assert_eq!(buffered, 5_001_099);
        }
    }
}
