//! Whole transfers on real files: every route, ragged extents, failures in mid-flight.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "fixture/files.rs"]
mod files;

use std::{fs, os::unix::fs::FileExt, path::Path, sync::Arc};

use files::{bytes_of, folder, write_file};
use proptest::prelude::*;
use straightway_core::{Choice, ErrorKind, Extent, Leg, Move, Reason, Receipt, Route};
use straightway_io::{
    Ask, Executor, ExecutorParts, File, FileDraft, Region, Settings,
    settings::DriveEngine,
    wrapper::{faulty::Faults, traced::Trace},
};

fn small() -> Settings {
    Settings {
        chunk_bytes: 16 << 10,
        depth: 4,
        write_depth: 4,
        staging_bytes: 128 << 10,
        ..Settings::default()
    }
}

fn read_whole(executor: &Executor, file: &Arc<File>, choice: Choice) -> straightway_core::Result<(Vec<u8>, Receipt)> {
    let mut region = Arc::new(Region::host(file.bytes())?);
    let moves = vec![Extent::new(0, file.bytes()).into()];
    let job = executor.read(vec![Arc::clone(file)], moves, &region, choice)?;
    let receipt = job.wait()?;
    let bytes = Arc::get_mut(&mut region)
        .expect("the transfer is over")
        .as_slice()
        .to_vec();
    Ok((bytes, receipt))
}

#[test]
fn every_size_and_every_route_arrives_whole() {
    let folder = folder();
    let executor = Executor::new(small()).unwrap();
    for len in [0, 1, 4095, 4096, 4097, 65_536, 300_001] {
        let file = write_file(&folder.path().join(format!("f{len}")), len);
        for choice in [
            Choice::Auto,
            Choice::Only(Route::Buffered),
            Choice::Only(Route::Direct),
            Choice::Only(Route::Staged),
        ] {
            if file.alignment().is_none() && choice != Choice::Auto {
                eprintln!("left out: {choice:?}: no O_DIRECT here");
                continue;
            }
            let (bytes, receipt) = read_whole(&executor, &file, choice).unwrap();
            assert!(bytes == bytes_of(len), "{len} by {choice:?}");
            let routed: u64 = receipt.routes.iter().map(|r| r.bytes).sum();
            assert_eq!((receipt.bytes, routed), (len as u64, len as u64));
        }
    }
}

#[test]
fn the_receipt_says_resident_for_what_was_just_written() {
    let folder = folder();
    let file = write_file(&folder.path().join("f"), 1 << 20);
    let executor = Executor::new(small()).unwrap();
    let (_, receipt) = read_whole(&executor, &file, Choice::Auto).unwrap();
    if file.alignment().is_some() {
        assert_eq!(receipt.routes[0].reason, Reason::Resident, "{receipt}");
    } else {
        assert_eq!(receipt.routes[0].reason, Reason::NoDirectIo, "{receipt}");
    }
}

#[test]
fn staging_memory_stays_within_its_bound() {
    let folder = folder();
    let file = write_file(&folder.path().join("f"), 8 << 20);
    if file.alignment().is_none() {
        eprintln!("skipped: no O_DIRECT here");
        return;
    }
    let executor = Executor::new(small()).unwrap();
    let (_, receipt) = read_whole(&executor, &file, Choice::Only(Route::Staged)).unwrap();
    assert!(receipt.staging_bytes_peak > 0);
    assert!(
        receipt.staging_bytes_peak <= 128 << 10,
        "{}",
        receipt.staging_bytes_peak
    );
    assert_eq!(receipt.bytes_by(Leg::Read, Route::Staged), 8 << 20);
}

/// Copies `source` to `target` through the ring.
fn copy(executor: &Executor, source: &Arc<File>, target: &Path, choice: Choice) -> straightway_core::Result<Receipt> {
    let draft = FileDraft::new(target, source.bytes())?;
    let extents = vec![(0, Extent::new(0, source.bytes()))];
    let (files, twins) = (vec![Arc::clone(source)], vec![Arc::clone(draft.file())]);
    let job = executor.relay(files, twins, extents, choice)?;
    let receipt = job.wait()?;
    draft.commit()?;
    Ok(receipt)
}

#[test]
fn a_copy_is_the_same_bytes_by_every_route() {
    let folder = folder();
    let executor = Executor::new(small()).unwrap();
    for len in [0, 1, 4095, 4096, 4097, 300_001] {
        let source = write_file(&folder.path().join("source"), len);
        for choice in [Choice::Auto, Choice::Only(Route::Buffered), Choice::Only(Route::Direct)] {
            if source.alignment().is_none() && choice != Choice::Auto {
                eprintln!("left out: {choice:?}: no O_DIRECT here");
                continue;
            }
            let target = folder.path().join("target");
            let receipt = copy(&executor, &source, &target, choice).unwrap();
            assert!(fs::read(&target).unwrap() == bytes_of(len), "{len} by {choice:?}");
            for leg in [Leg::Read, Leg::Write] {
                let routed: u64 = receipt.routes.iter().filter(|r| r.leg == leg).map(|r| r.bytes).sum();
                assert_eq!(routed, len as u64, "{receipt}");
            }
        }
    }
}

#[test]
fn an_io_error_in_mid_copy_leaves_nothing_behind_and_the_executor_usable() {
    let folder = folder();
    let source = write_file(&folder.path().join("source"), 4 << 20);
    let target = folder.path().join("target");
    for seed in 0..20 {
        let faults = Faults {
            seed,
            error_per_mille: 30,
            error_code: 5,
            ..Faults::default()
        };
        let executor = Executor::with_parts(small(), faults.into()).unwrap();
        let mut failures = 0;
        for _ in 0..5 {
            match copy(&executor, &source, &target, Choice::Auto) {
                Ok(_) => assert!(fs::read(&target).unwrap() == bytes_of(4 << 20)),
                Err(error) => {
                    failures += 1;
                    assert_eq!(error.os_code(), Some(5), "{error}");
                    let names = ["source", "target"];
                    assert!(names.iter().any(|n| error.to_string().contains(n)), "{error}");
                }
            }
            let names: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
            assert!(names.len() <= 2, "{names:?}");
        }
        assert!(failures > 0, "512 I/Os at 3 % have failures in them");
    }
}

#[test]
fn an_io_error_of_a_read_names_the_bytes() {
    let folder = folder();
    let file = write_file(&folder.path().join("f"), 4 << 20);
    let faults = Faults {
        error_per_mille: 1000,
        error_code: 5,
        ..Faults::default()
    };
    let executor = Executor::with_parts(small(), faults.into()).unwrap();
    for choice in [Choice::Only(Route::Buffered), Choice::Only(Route::Direct)] {
        if file.alignment().is_none() && choice == Choice::Only(Route::Direct) {
            eprintln!("left out: {choice:?}: no O_DIRECT here");
            continue;
        }
        let error = read_whole(&executor, &file, choice).unwrap_err();
        assert_eq!(error.os_code(), Some(5));
        let text = error.to_string();
        let (_, bytes) = text.split_once(", in bytes ").expect(&text);
        let (first, last) = bytes.split_once(" to ").expect(&text);
        let (first, last): (u64, u64) = (first.parse().unwrap(), last.parse().unwrap());
        assert!(first.is_multiple_of(4096) && first < last && last < 4 << 20, "{text}");
    }
}

#[test]
fn a_disk_that_fills_up_is_an_error_with_a_hint_on_every_engine_and_route() {
    let folder = folder();
    let source = write_file(&folder.path().join("source"), 2 << 20);
    let target = folder.path().join("target");
    for engine in [DriveEngine::Auto, DriveEngine::Pool] {
        for choice in [Choice::Auto, Choice::Only(Route::Buffered)] {
            let faults = Faults {
                seed: 11,
                error_per_mille: 50,
                error_code: 28,
                short_per_mille: 200,
                late_per_mille: 200,
            };
            let settings = Settings { engine, ..small() };
            let executor = Executor::with_parts(settings, faults.into()).unwrap();
            let failed = (0..5).filter_map(|_| copy(&executor, &source, &target, choice).err());
            let failed: Vec<_> = failed.collect();
            assert!(!failed.is_empty(), "256 I/Os at 5 % have failures in them");
            for error in failed {
                assert_eq!(error.os_code(), Some(28), "{error}");
                assert!(error.hint().is_some_and(|h| h.contains("free space")));
            }
            let names: Vec<_> = fs::read_dir(folder.path()).unwrap().flatten().collect();
            assert!(names.len() <= 2, "{names:?}");
        }
    }
}

#[test]
fn an_io_error_in_the_page_cache_stops_all_lanes_and_names_the_file() {
    let folder = folder();
    let file = write_file(&folder.path().join("f"), 4 << 20);
    // Every I/O fails, so each of the four lanes has one that does.
    let faults = Faults {
        error_per_mille: 1000,
        error_code: 5,
        ..Faults::default()
    };
    let trace = Trace::default();
    let settings = Settings {
        cached_lanes: 4,
        cached_chunk_bytes: 16 << 10,
        ..small()
    };
    let parts = ExecutorParts {
        trace: Some(trace.clone()),
        ..faults.into()
    };
    let executor = Executor::with_parts(settings, parts).unwrap();
    for _ in 0..10 {
        let choice = Choice::Only(Route::Buffered);
        let error = read_whole(&executor, &file, choice).unwrap_err();
        assert_eq!(error.os_code(), Some(5));
        assert!(error.to_string().contains("/f: "), "{error}");
        // At most the queue of each lane, out of 256 chunks.
        let ios = trace.take().len();
        assert!((1..=16).contains(&ios), "{ios} I/Os");
    }
}

#[test]
fn short_late_and_reordered_ios_still_arrive_whole() {
    let folder = folder();
    let file = write_file(&folder.path().join("f"), 1_000_003);
    for seed in 0..10 {
        let faults = Faults {
            seed,
            short_per_mille: 300,
            late_per_mille: 300,
            ..Faults::default()
        };
        let engine = [DriveEngine::Auto, DriveEngine::Pool][seed as usize % 2];
        let executor = Executor::with_parts(Settings { engine, ..small() }, faults.into()).unwrap();
        for choice in [Choice::Auto, Choice::Only(Route::Buffered), Choice::Only(Route::Direct)] {
            if file.alignment().is_none() && choice == Choice::Only(Route::Direct) {
                eprintln!("left out: {choice:?}: no O_DIRECT here");
                continue;
            }
            let (bytes, _) = read_whole(&executor, &file, choice).unwrap();
            assert!(bytes == bytes_of(1_000_003), "seed {seed}, {choice:?}");
            let target = folder.path().join("target");
            copy(&executor, &file, &target, choice).unwrap();
            assert!(
                fs::read(&target).unwrap() == bytes_of(1_000_003),
                "seed {seed}, {choice:?}"
            );
        }
    }
}

#[test]
fn a_file_that_shrank_or_grew_is_an_error_that_says_so() {
    let folder = folder();
    let executor = Executor::new(small()).unwrap();
    for (len, word) in [
        (100_000, "shrank from 200000 to 100000"),
        (300_000, "grew from 200000 to 300000"),
    ] {
        for choice in [Choice::Auto, Choice::Only(Route::Direct)] {
            let path = folder.path().join("f");
            let file = write_file(&path, 200_000);
            if file.alignment().is_none() && choice != Choice::Auto {
                eprintln!("left out: {choice:?}: no O_DIRECT here");
                continue;
            }
            fs::OpenOptions::new()
                .write(true)
                .open(&path)
                .unwrap()
                .set_len(len)
                .unwrap();
            let error = read_whole(&executor, &file, choice).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Precondition);
            assert!(error.to_string().contains(word), "{error}");
        }
    }
}

#[test]
fn a_file_that_was_written_to_since_it_was_opened_is_an_error() {
    let folder = folder();
    let executor = Executor::new(small()).unwrap();
    let path = folder.path().join("f");
    let target = folder.path().join("target");
    for choice in [Choice::Auto, Choice::Only(Route::Buffered)] {
        let file = write_file(&path, 200_000);
        let writer = fs::File::options().write(true).open(&path).unwrap();
        writer.write_all_at(b"new", 100_000).unwrap();
        let read = read_whole(&executor, &file, choice).unwrap_err();
        let copied = copy(&executor, &file, &target, choice).unwrap_err();
        for error in [read, copied] {
            assert_eq!(error.kind(), ErrorKind::Precondition);
            assert!(error.to_string().contains("it was written to"), "{error}");
        }
        assert!(!target.exists());
    }
}

#[test]
fn a_cancelled_job_ends_early_and_says_so() {
    let folder = folder();
    let file = write_file(&folder.path().join("f"), 4 << 20);
    let executor = Executor::new(small()).unwrap();
    let region = Arc::new(Region::host(file.bytes()).unwrap());
    let moves = vec![Extent::new(0, file.bytes()).into()];
    let ask = Ask::from(Choice::Auto);
    ask.progress.cancel();
    let ticket = executor.read(vec![file], moves, &region, ask).unwrap();
    assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Cancelled);
}

#[test]
fn a_file_written_by_two_jobs_has_its_length_after_the_one_that_syncs() {
    let folder = folder();
    let executor = Executor::new(small()).unwrap();
    let bytes = bytes_of(100_001);
    let path = folder.path().join("f");
    let file = Arc::new(File::create(&path, 100_001).unwrap());
    let half = |range: std::ops::Range<usize>, syncs: bool| {
        let mut region = Region::host(range.len() as u64).unwrap();
        region.as_mut_slice().copy_from_slice(&bytes[range.clone()]);
        let part = Move {
            object: 0,
            extent: Extent::between(range.start as u64, range.end as u64),
            at: 0,
        };
        let files = vec![Arc::clone(&file)];
        let ask = Ask {
            syncs,
            ..Choice::Auto.into()
        };
        let ticket = executor.write(&Arc::new(region), files, vec![part], ask);
        ticket.unwrap().wait().unwrap();
    };
    half(0..65_536, false);
    // Until then its length is that of its last page.
    assert_eq!(fs::metadata(&path).unwrap().len(), 102_400);
    half(65_536..100_001, true);
    assert!(fs::read(&path).unwrap() == bytes);
}

#[test]
fn ring_first_applies_to_reads_and_not_to_writes() {
    let folder = folder();
    let executor = Executor::new(Settings {
        ring_first: true,
        ..small()
    })
    .unwrap();
    let path = folder.path().join("f");
    let draft = FileDraft::new(&path, 1 << 20).unwrap();
    if draft.file().alignment().is_none() {
        eprintln!("skipped: no O_DIRECT here");
        return;
    }
    let region = Arc::new(Region::host(1 << 20).unwrap());
    let whole = vec![Move::from(Extent::new(0, 1 << 20))];
    let files = vec![Arc::clone(draft.file())];
    let job = executor.write(&region, files, whole, Choice::Auto).unwrap();
    let written = job.wait().unwrap();
    assert_eq!(written.routes[0].route, Route::Direct);
    draft.commit().unwrap();
    let file = Arc::new(File::open(&path).unwrap());
    let (_, read) = read_whole(&executor, &file, Choice::Auto).unwrap();
    assert_eq!(read.routes[0].route, Route::Staged);
    assert_eq!(read.routes[0].reason, Reason::RingFaster);
}

#[test]
fn a_sparse_region_is_written_with_zeroes_between() {
    let folder = folder();
    let executor = Executor::new(small()).unwrap();
    let mut region = Region::host(100_000).unwrap();
    region.as_mut_slice().copy_from_slice(&bytes_of(100_000));
    let region = Arc::new(region);
    let path = folder.path().join("f");
    let draft = FileDraft::new(&path, 500_000).unwrap();
    let extents = [(17, 1000, 5), (5000, 70_000, 2000), (400_001, 99_999 - 80_000, 80_001)];
    let moves = extents.map(|(offset, bytes, at)| Move {
        object: 0,
        extent: Extent::new(offset, bytes),
        at,
    });
    let files = vec![Arc::clone(draft.file())];
    let job = executor.write(&region, files, moves.to_vec(), Choice::Auto);
    job.unwrap().wait().unwrap();
    draft.commit().unwrap();
    let mut expected = vec![0; 500_000];
    for (offset, bytes, at) in extents {
        let (offset, bytes, at) = (offset as usize, bytes as usize, at as usize);
        expected[offset..offset + bytes].copy_from_slice(&bytes_of(100_000)[at..at + bytes]);
    }
    assert!(fs::read(&path).unwrap() == expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn ragged_extents_land_where_they_belong(
        list in proptest::collection::vec((0_u64..200_000, 1_u64..60_000), 1..40),
        choice in prop_oneof![
            Just(Choice::Auto), Just(Choice::Only(Route::Staged)), Just(Choice::Only(Route::Buffered))
        ],
        pool in any::<bool>(),
    ) {
        let folder = folder();
        let file = write_file(&folder.path().join("f"), 260_000);
        prop_assume!(file.alignment().is_some());
        let engine = if pool {
            DriveEngine::Pool
        } else {
            DriveEngine::Auto
        };
        let executor = Executor::new(Settings { engine, ..small() }).unwrap();
        let mut at = 3;
        let moves: Vec<_> = list.iter().map(|(offset, bytes)| {
            let m = Move { object: 0, extent: Extent::new(*offset, *bytes), at };
            at += bytes + 5;
            m
        }).collect();
        let mut region = Arc::new(Region::host(at).unwrap());
        let job =
            executor.read(vec![file], moves.clone(), &region, choice).unwrap();
        job.wait().unwrap();
        let whole = bytes_of(260_000);
        let mut expected = vec![0; at as usize];
        for m in moves {
            let (from, to) = (m.extent.offset as usize, m.at as usize);
            let bytes = m.extent.bytes as usize;
            expected[to..to + bytes].copy_from_slice(&whole[from..from + bytes]);
        }
        prop_assert!(Arc::get_mut(&mut region).unwrap().as_slice() == expected);
    }
}
