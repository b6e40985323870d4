//! Whole transfers between files and a GPU by cuFile, over the stand-in: what is proven, and what the receipt says.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests"
)]

#[path = "fixture/files.rs"]
mod files;
#[path = "fixture/gpu.rs"]
mod gpu;

use std::{fs, path::Path, sync::Arc};

use files::{bytes_of, folder, write_file};
use gpu::{context, read, small, whole, write};
use straightway_core::{Choice, ErrorKind, Extent, Leg, Move, Reason, Receipt, Result, Route};
use straightway_io::{Executor, File, FileDraft, GdsUse, Region, Settings};
use straightway_standin::Standin;

/// The demand for the direct route.
const DIRECT: Choice = Choice::Only(Route::Direct);

fn by_cufile(when: GdsUse) -> Result<Executor> {
    Executor::new(Settings { gds: when, ..small() })
}

/// Bytes by route and reason.
fn routes(receipt: &Receipt) -> Vec<(Route, Reason, u64)> {
    let row = |r: &straightway_core::receipt::RouteBytes| (r.route, r.reason, r.bytes);
    receipt.routes.iter().map(row).collect()
}

/// Runs a test with the stand-in in a folder with O_DIRECT, which cuFile needs, and checks that nothing is left.
fn with_cufile(plan: &str, test: impl FnOnce(&Standin, &Path)) {
    Standin::run(plan, |standin| {
        let folder = folder();
        if write_file(&folder.path().join("probe"), 1).alignment().is_none() {
            eprintln!("skipped: no O_DIRECT here");
            return;
        }
        test(standin, folder.path());
        // A call that hangs keeps its thread and its library for ever.
        if !plan.contains("hanging") {
            standin.assert_clean_but_for_cufile();
        }
    });
}

fn read_whole(executor: &Executor, file: &Arc<File>, choice: Choice) -> Result<(Vec<u8>, Receipt)> {
    read(executor, file, whole(file), file.bytes(), choice)
}

#[test]
fn direct_bytes_name_their_mechanism_and_unaligned_edges_take_the_ring() {
    for (mode, reason) in [("p2p", Reason::ProvenP2pdma), ("nvfs", Reason::ProvenNvidiaFs)] {
        with_cufile(&format!("cufile={mode}"), |_, folder| {
            let file = write_file(&folder.join("f"), 300_001);
            let executor = by_cufile(GdsUse::Auto).unwrap();
            // Offset by three bytes from a page in the file and in the region: the first page is a ragged edge.
            let m = Move {
                object: 0,
                extent: Extent::new(4093, 290_000),
                at: 4093,
            };
            let (seen, receipt) = read(&executor, &file, vec![m], 300_001, DIRECT).unwrap();
            assert!(seen[4093..294_093] == bytes_of(300_001)[4093..294_093]);
            let interior = Extent::new(4093, 290_000).interior(4096).bytes;
            assert_eq!(
                routes(&receipt),
                [
                    (Route::Direct, reason, interior),
                    (Route::Staged, Reason::RaggedEdge, 290_000 - interior),
                ]
            );
            let registration = receipt.registration.unwrap();
            assert_eq!(registration.count, 1);
            assert!(registration.efficiency > 0.0 && registration.efficiency < 1.0);
            let path = folder.join("target");
            let receipt = write(&executor, &path, &bytes_of(300_001), DIRECT).unwrap();
            assert!(fs::read(&path).unwrap() == bytes_of(300_001));
            assert_eq!(receipt.bytes_by(Leg::Write, Route::Direct), 299_008);
            assert_eq!(routes(&receipt)[0].1, reason);
        });
    }
}

#[test]
fn the_test_of_a_write_leaves_the_bytes_of_other_writes_alone() {
    const HALF_BYTES: u64 = 64 << 10;
    for mode in ["p2p", "compat"] {
        with_cufile(&format!("cufile={mode}"), |standin, folder| {
            let bytes = bytes_of(2 * HALF_BYTES as usize);
            let mut region = Region::device(&context().unwrap(), bytes.len() as u64).unwrap();
            region.write_at(0, &bytes).unwrap();
            let region = Arc::new(region);
            let path = folder.join("target");
            let draft = FileDraft::new(&path, bytes.len() as u64).unwrap();
            for offset in [0, HALF_BYTES] {
                // Each half has its own session of cuFile, which tests the file again.
                let executor = by_cufile(GdsUse::Auto).unwrap();
                let half = Move {
                    object: 0,
                    extent: Extent::new(offset, HALF_BYTES),
                    at: offset,
                };
                let write = |choice| {
                    let files = vec![Arc::clone(draft.file())];
                    executor.write(&region, files, vec![half], choice)
                };
                let ticket = if mode == "compat" {
                    // It is refused after the test.
                    write(DIRECT).unwrap_err();
                    write(Choice::Auto)
                } else {
                    write(DIRECT)
                };
                ticket.unwrap().wait().unwrap();
                assert!(standin.calls()["cuFileWrite"] > 0);
            }
            draft.commit().unwrap();
            assert!(fs::read(&path).unwrap() == bytes);
        });
    }
}

/// Writes the start of a new region to an extent of a draft.
fn write_extent(executor: &Executor, draft: &FileDraft, extent: Extent, choice: Choice) -> Result<Receipt> {
    let mut region = Region::device(&context()?, extent.bytes)?;
    region.write_at(0, &bytes_of(extent.bytes as usize))?;
    let m = Move::from(extent);
    let files = vec![Arc::clone(draft.file())];
    let ticket = executor.write(&Arc::new(region), files, vec![m], choice)?;
    ticket.wait()
}

#[test]
fn a_write_without_a_whole_page_is_staged_without_a_test_even_if_direct_is_demanded() {
    with_cufile("cufile=p2p", |standin, folder| {
        let file = write_file(&folder.join("f"), 300_001);
        let executor = by_cufile(GdsUse::Auto).unwrap();
        // This opens cuFile.
        read_whole(&executor, &file, DIRECT).unwrap();
        let extent = Extent::new(6000, 4096);
        for (choice, reason) in [(Choice::Auto, Reason::NotProven), (DIRECT, Reason::Small)] {
            let path = folder.join("target");
            let draft = FileDraft::new(&path, 16_384).unwrap();
            let receipt = write_extent(&executor, &draft, extent, choice).unwrap();
            assert_eq!(routes(&receipt), [(Route::Staged, reason, 4096)]);
            // cuFile moved no bytes, and the receipt does not name it.
            assert_eq!(receipt.registration, None);
            assert!(!receipt.engine.contains("cuFile"), "{receipt}");
            assert!(!standin.calls().contains_key("cuFileWrite"));
            draft.commit().unwrap();
            assert!(fs::read(&path).unwrap()[6000..10_096] == bytes_of(4096));
        }
    });
}

#[test]
fn small_extents_are_staged_if_direct_is_demanded_and_need_no_proof() {
    with_cufile("cufile=p2p", |_, folder| {
        let executor = by_cufile(GdsUse::Auto).unwrap();
        // One whole page between two edges: too little for a separate I/O.
        let extent = Extent::new(6000, 10_000);
        let path = folder.join("target");
        let draft = FileDraft::new(&path, 20_480).unwrap();
        let receipt = write_extent(&executor, &draft, extent, DIRECT).unwrap();
        assert_eq!(routes(&receipt), [(Route::Staged, Reason::Small, 10_000)]);
        assert_eq!(receipt.registration, None);
        draft.commit().unwrap();
        assert!(fs::read(&path).unwrap()[6000..16_000] == bytes_of(10_000));
        // The second file is shorter than a page, so it cannot be tested.
        for bytes in [5000, 1000] {
            let file = write_file(&folder.join("short"), bytes);
            let (seen, receipt) = read_whole(&executor, &file, DIRECT).unwrap();
            assert!(seen == bytes_of(bytes));
            let staged = [(Route::Staged, Reason::Small, bytes as u64)];
            assert_eq!(routes(&receipt), staged);
            assert_eq!(receipt.registration, None);
        }
    });
}

#[test]
fn small_extents_of_a_long_file_need_no_aligned_region_if_direct_is_demanded() {
    with_cufile("cufile=p2p", |_, folder| {
        let file = write_file(&folder.join("f"), 300_001);
        let executor = by_cufile(GdsUse::Auto).unwrap();
        let context = context().unwrap();
        let owner = Arc::new(Region::device(&context, 40_000).unwrap());
        let memory = owner.device_memory().unwrap();
        // The first has no whole page. The second has one, which is too little for a separate I/O.
        for extent in [Extent::new(6000, 3000), Extent::new(6000, 10_000)] {
            let mut lent = Arc::new(Region::part_of(memory, 512, extent.bytes).unwrap());
            let m = Move::from(extent);
            let files = vec![Arc::clone(&file)];
            let job = executor.read(files, vec![m], &lent, DIRECT).unwrap();
            let receipt = job.wait().unwrap();
            let staged = [(Route::Staged, Reason::Small, extent.bytes)];
            assert_eq!(routes(&receipt), staged);
            assert_eq!(receipt.registration, None);
            let mut seen = vec![0; extent.bytes as usize];
            let region = Arc::get_mut(&mut lent).unwrap();
            region.read_at(0, &mut seen).unwrap();
            assert!(seen[..] == bytes_of(300_001)[6000..][..seen.len()]);
        }
    });
}

#[test]
fn a_region_is_registered_once_for_its_life() {
    with_cufile("cufile=nvfs", |standin, folder| {
        let file = write_file(&folder.join("f"), 1 << 20);
        let executor = by_cufile(GdsUse::Auto).unwrap();
        let region = Arc::new(Region::device(&context().unwrap(), 1 << 20).unwrap());
        let counts = [1, 0, 0].map(|expected| {
            let files = vec![Arc::clone(&file)];
            let job = executor.read(files, whole(&file), &region, DIRECT);
            let receipt = job.unwrap().wait().unwrap();
            (receipt.registration.unwrap().count, expected)
        });
        assert!(counts.iter().all(|(count, expected)| count == expected));
        // The region and the memory for proofs.
        assert_eq!(standin.count("buffers"), 2);
        drop(region);
        assert_eq!(standin.count("buffers"), 1);
        // A lane closes its files when it rests, shortly after its job has ended.
        let start = std::time::Instant::now();
        while standin.count("files") > 0 {
            assert!(start.elapsed().as_secs() < 5, "no file is kept open");
            std::thread::yield_now();
        }
    });
}

#[test]
fn unused_regions_are_evicted_when_no_more_can_be_registered() {
    // Room for one region of 1 MiB and the memory for proofs, not for two regions.
    with_cufile("cufile=nvfs device_pinned_kib=1536", |standin, folder| {
        let file = write_file(&folder.join("f"), 1 << 20);
        let executor = by_cufile(GdsUse::Auto).unwrap();
        let context = context().unwrap();
        let region = |bytes| Arc::new(Region::device(&context, bytes).unwrap());
        let job = |region: &Arc<Region>| {
            let files = vec![Arc::clone(&file)];
            executor.read(files, whole(&file), region, DIRECT)
        };
        let (first, second) = (region(1 << 20), region(1 << 20));
        for region in [&first, &second, &first] {
            let receipt = job(region).unwrap().wait().unwrap();
            assert_eq!(receipt.registration.unwrap().count, 1);
            assert_eq!(standin.count("buffers"), 2);
        }
        // A region in use is not evicted, and one that can never fit is refused with the numbers.
        let waiting = job(&first).unwrap();
        let error = job(&second).unwrap_err();
        assert!(error.to_string().contains("1.5 MiB"), "{error}");
        drop(waiting);
        let error = job(&region(4 << 20)).unwrap_err();
        assert!(error.to_string().contains("4 MiB"), "{error}");
    });
}

#[test]
fn every_failed_cufile_call_leaks_nothing_and_never_delivers_wrong_bytes() {
    // Failures of calls that release resources are not reported. Without counters the path is unknown, so a demand for
    // direct is refused. Without the driver's properties its limits are unknown until they are reached.
    const SILENT: [&str; 4] = [
        "cuFileHandleDeregister",
        "cuFileBufDeregister",
        "cuFileDriverGetProperties",
        "cuFileGetStatsL3",
    ];
    let everything = |folder: &Path| -> Result<()> {
        let file = Arc::new(File::open(&folder.join("source"))?);
        let executor = by_cufile(GdsUse::Auto)?;
        let (seen, receipt) = read_whole(&executor, &file, DIRECT)?;
        assert!(seen == bytes_of(seen.len()), "wrong bytes without an error");
        assert!(receipt.bytes_by(Leg::Read, Route::Direct) > 0);
        write(&executor, &folder.join("target"), &seen, DIRECT)?;
        assert!(fs::read(folder.join("target")).unwrap() == seen);
        Ok(())
    };
    with_cufile("cufile=p2p", |standin, folder| {
        write_file(&folder.join("source"), 150_000);
        everything(folder).unwrap();
        standin.assert_clean_but_for_cufile();
        // One-time initialisation of the process was done by the first run.
        standin.plan("cufile=p2p");
        everything(folder).unwrap();
        let calls = standin.calls();
        assert!(calls["cuFileRead"] > 3, "{calls:?}");
        for (name, &count) in calls.iter().filter(|(name, _)| name.starts_with("cuFile")) {
            for nth in [1, 2, count.div_ceil(2)] {
                standin.plan(&format!("cufile=p2p fail={name}:{nth}:5030"));
                let outcome = everything(folder);
                let silent = SILENT.contains(&name.as_str()) || nth > count;
                assert!(silent || outcome.is_err(), "call {nth} of {name} failed unnoticed");
                standin.assert_clean_but_for_cufile();
            }
        }
    });
}

#[test]
fn an_unaligned_region_takes_the_ring_and_is_refused_if_direct_is_demanded() {
    with_cufile("cufile=nvfs", |_, folder| {
        let file = write_file(&folder.join("f"), 300_001);
        let executor = by_cufile(GdsUse::Auto).unwrap();
        read_whole(&executor, &file, DIRECT).unwrap();
        let context = context().unwrap();
        let owner = Arc::new(Region::device(&context, 400_000).unwrap());
        let memory = owner.device_memory().unwrap();
        let mut lent = Arc::new(Region::part_of(memory, 512, 300_001).unwrap());
        let job = |choice| {
            let files = vec![Arc::clone(&file)];
            executor.read(files, whole(&file), &lent, choice)
        };
        let error = job(DIRECT).unwrap_err();
        assert!(error.to_string().contains("not a multiple of 4096"), "{error}");
        let receipt = job(Choice::Auto).unwrap().wait().unwrap();
        assert_eq!(receipt.bytes_by(Leg::Read, Route::Direct), 0);
        let mut seen = vec![0; 300_001];
        Arc::get_mut(&mut lent).unwrap().read_at(0, &mut seen).unwrap();
        assert!(seen == bytes_of(300_001));
    });
}

#[test]
fn compat_mode_is_never_called_direct() {
    with_cufile("cufile=compat", |_, folder| {
        let file = write_file(&folder.join("f"), 300_001);
        // A demand is refused before a byte moves.
        let executor = by_cufile(GdsUse::Auto).unwrap();
        let error = read_whole(&executor, &file, DIRECT).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("not proven"), "{error}");
        // Without a demand it is not used: the ring is faster.
        let (_, receipt) = read_whole(&executor, &file, Choice::Auto).unwrap();
        assert_eq!(receipt.registration, None);
        // Forced, it counts as compat mode, and a demand for direct still fails.
        drop(executor);
        let executor = by_cufile(GdsUse::Force).unwrap();
        let (seen, receipt) = read_whole(&executor, &file, Choice::Auto).unwrap();
        assert!(seen == bytes_of(300_001));
        assert!(routes(&receipt).contains(&(Route::Staged, Reason::CompatMode, 299_008)));
        assert_eq!(receipt.bytes_by(Leg::Read, Route::Direct), 0);
        let error = read_whole(&executor, &file, DIRECT).unwrap_err();
        assert!(error.to_string().contains("compatibility mode"), "{error}");
    });
}

#[test]
fn without_counters_the_receipt_says_unknown() {
    with_cufile("cufile=p2p cufile_version=1200", |_, folder| {
        let file = write_file(&folder.join("f"), 8192);
        let executor = by_cufile(GdsUse::Force).unwrap();
        let (_, receipt) = read_whole(&executor, &file, Choice::Auto).unwrap();
        assert_eq!(routes(&receipt), [(Route::Staged, Reason::Unknown, 8192)]);
    });
}

#[test]
fn a_cufile_that_cannot_be_used_is_an_error_only_if_demanded() {
    for (plan, word) in [
        ("cufile=unregistrable", "5027"),
        ("cufile=closed", "5033"),
        ("cufile=hanging", "did not return"),
        ("cufile=nvfs fail=cuFileBufRegister:2:5016", "5016"),
    ] {
        with_cufile(plan, |standin, folder| {
            let file = write_file(&folder.join("f"), 300_001);
            for when in [GdsUse::Auto, GdsUse::Force] {
                let executor = by_cufile(when).unwrap();
                let choice = match when {
                    GdsUse::Force => Choice::Auto,
                    _ => Choice::Only(Route::Direct),
                };
                let error = read_whole(&executor, &file, choice).unwrap_err();
                let is_second = plan.contains("hanging") && when == GdsUse::Force;
                let word = if is_second { "has not returned" } else { word };
                assert!(error.to_string().contains(word), "{error}");
                let executor = by_cufile(GdsUse::Auto).unwrap();
                let (seen, _) = read_whole(&executor, &file, Choice::Auto).unwrap();
                assert!(seen == bytes_of(300_001));
                drop(executor);
                standin.plan(plan);
            }
        });
    }
}

#[test]
fn a_failed_cufile_read_names_the_file_and_later_reads_work() {
    // The first read is that of the proof.
    with_cufile("cufile=nvfs fail=cuFileRead:3:5", |_, folder| {
        let file = write_file(&folder.join("weights"), 300_001);
        let executor = by_cufile(GdsUse::Auto).unwrap();
        let error = read_whole(&executor, &file, DIRECT).unwrap_err();
        assert!(error.to_string().contains("weights"), "{error}");
        assert_eq!(error.os_code(), Some(5));
        let (seen, _) = read_whole(&executor, &file, DIRECT).unwrap();
        assert!(seen == bytes_of(300_001));
    });
}
