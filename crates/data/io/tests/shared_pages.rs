//! Copies of extents that share pages, as in a sparse file with blocks smaller than a page: none of them clears
//! another's bytes.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "fixture/files.rs"]
mod files;

use std::{fs, sync::Arc};

use files::{bytes_of, folder, write_file};
use straightway_core::{Choice, Extent, Leg, Route};
use straightway_io::{Executor, File, Settings, settings::DriveEngine};

const BYTES: usize = 300_001;

/// Every second KiB, and some runs with odd ends.
fn extents() -> Vec<Extent> {
    let blocks = (0..100).map(|n| Extent::new(n * 2048 + 1024, 1024));
    let odd = (0..20).map(|n| Extent::new(210_001 + n * 4500, 4100));
    blocks.chain(odd).collect()
}

/// The file that a copy of just those extents makes.
fn expected() -> Vec<u8> {
    let source = bytes_of(BYTES);
    let mut expected = vec![0; BYTES];
    for extent in extents() {
        let range = extent.offset as usize..extent.end() as usize;
        expected[range.clone()].copy_from_slice(&source[range]);
    }
    expected
}

#[test]
fn extents_that_share_pages_are_copied_whole_by_every_route_and_engine() {
    let folder = folder();
    let source = write_file(&folder.path().join("source"), BYTES);
    let all: u64 = extents().iter().map(|e| e.bytes).sum();
    let choices = [
        Choice::Auto,
        Choice::Only(Route::Direct),
        Choice::Only(Route::Staged),
        Choice::Only(Route::Buffered),
    ];
    for engine in [DriveEngine::Auto, DriveEngine::Pool] {
        for (chunk_bytes, ring_lanes) in [(4096, 1), (12_288, 2), (1 << 20, 2)] {
            let settings = Settings {
                chunk_bytes,
                ring_lanes,
                engine,
                ..Settings::default()
            };
            let executor = Executor::new(settings).unwrap();
            for (choice, resident) in choices.iter().flat_map(|c| [(*c, true), (*c, false)]) {
                if source.alignment().is_none() && matches!(choice, Choice::Only(_)) {
                    eprintln!("left out: {choice:?}: no O_DIRECT here");
                    continue;
                }
                if !resident {
                    source.evict().unwrap();
                }
                let path = folder.path().join("target");
                let twin = Arc::new(File::create(&path, BYTES as u64).unwrap());
                let list = extents().into_iter().map(|extent| (0, extent)).collect();
                let (files, twins) = (vec![Arc::clone(&source)], vec![twin]);
                let job = executor.relay(files, twins, list, choice).unwrap();
                let receipt = job.wait().unwrap();
                for leg in [Leg::Read, Leg::Write] {
                    let rows = receipt.routes.iter().filter(|r| r.leg == leg);
                    assert_eq!(rows.map(|r| r.bytes).sum::<u64>(), all, "{receipt}");
                }
                let seen = fs::read(&path).unwrap();
                let wrong = seen.iter().zip(expected()).filter(|(a, b)| **a != *b).count();
                assert!(
                    wrong == 0 && seen.len() == BYTES,
                    "{wrong} bytes are wrong: {engine:?}, {choice:?}, chunks of {chunk_bytes}"
                );
                fs::remove_file(&path).unwrap();
            }
        }
    }
}
