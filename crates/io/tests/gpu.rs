//! Whole transfers between files and a GPU, over the stand-in: late and reordered copies, ragged
//! extents, every call failing in turn.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests"
)]

use std::{fs, path::Path, sync::Arc};

use straightway_core::{Choice, Extent, Kind, Leg, Move, Reason, Receipt, Result, Route};
use straightway_io::{Draft, Executor, File, GdsUse, Job, Region, Settings, settings::DriveEngine};
use straightway_standin::Standin;
use straightway_sys::cuda::{Context, Driver};

/// A folder on the file system of the checkout: the one for temporary files may lack O_DIRECT.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

fn bytes_of(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 4096) as u8).collect()
}

fn write_file(path: &Path, len: usize) -> Arc<File> {
    fs::write(path, bytes_of(len)).unwrap();
    let file = File::open(path).unwrap();
    file.sync().unwrap();
    Arc::new(file)
}

/// Small chunks and rings, so that small files go round every ring many times.
fn small() -> Settings {
    Settings {
        chunk_bytes: 16 << 10,
        depth: 4,
        staging_bytes: 128 << 10,
        gpu_lanes: 3,
        gpu_chunk_bytes: 32 << 10,
        pinned_bytes: 256 << 10,
        gds: GdsUse::Off.into(),
        ..Settings::default()
    }
}

fn context() -> Result<Context> {
    Driver::load()?.device(0)?.context()
}

fn whole(file: &File) -> Vec<Move> {
    vec![Move {
        object: 0,
        extent: Extent::new(0, file.bytes()),
        at: 0,
    }]
}

fn read(
    executor: &Executor,
    file: &Arc<File>,
    moves: Vec<Move>,
    bytes: u64,
    choice: Choice,
) -> Result<(Vec<u8>, Receipt)> {
    let mut region = Arc::new(Region::device(&context()?, bytes)?);
    let files = vec![Arc::clone(file)];
    let job = Job::read(files, moves, &region, choice, executor.settings())?;
    let receipt = executor.run(job)?;
    let mut seen = vec![0; bytes as usize];
    let region = Arc::get_mut(&mut region).expect("the transfer is over");
    region.read_at(0, &mut seen)?;
    Ok((seen, receipt))
}

fn write(executor: &Executor, path: &Path, bytes: &[u8], choice: Choice) -> Result<Receipt> {
    let mut region = Region::device(&context()?, bytes.len() as u64)?;
    region.write_at(0, bytes)?;
    let draft = Draft::new(path, bytes.len() as u64)?;
    let files = vec![Arc::clone(draft.file())];
    let moves = whole(draft.file());
    let job = Job::write(&Arc::new(region), files, moves, choice, executor.settings())?;
    let receipt = executor.run(job)?;
    draft.commit()?;
    Ok(receipt)
}

fn choices(file: &File) -> Vec<Choice> {
    if file.alignment().is_none() {
        eprintln!("skipped: no O_DIRECT here");
        return vec![Choice::Auto];
    }
    vec![
        Choice::Auto,
        Choice::Only(Route::Buffered),
        Choice::Only(Route::Staged),
    ]
}

const SIZES: [usize; 8] = [0, 1, 4095, 4096, 4097, 65_536, 300_001, 1 << 20];

#[test]
fn every_size_arrives_whole_by_every_route_however_late_copies_are() {
    for seed in 0..6 {
        Standin::run(&format!("seed={seed} delay_us_max=300"), |standin| {
            let folder = folder();
            let executor = Executor::new(small()).unwrap();
            for len in SIZES {
                let file = write_file(&folder.path().join(format!("f{len}")), len);
                for choice in choices(&file) {
                    let moves = whole(&file);
                    let (seen, receipt) =
                        read(&executor, &file, moves, len as u64, choice).unwrap();
                    assert!(seen == bytes_of(len), "{len} by {choice:?}");
                    let routed: u64 = receipt.routes.iter().map(|r| r.bytes).sum();
                    assert_eq!((receipt.bytes, routed), (len as u64, len as u64));
                    assert_eq!(receipt.bytes_by(Leg::Read, Route::Direct), 0);
                }
            }
            drop(executor);
            standin.assert_clean();
        });
    }
}

#[test]
fn every_size_is_written_whole_by_every_route_however_late_copies_are() {
    for seed in 0..6 {
        Standin::run(&format!("seed={seed} delay_us_max=300"), |standin| {
            let folder = folder();
            let executor = Executor::new(small()).unwrap();
            let path = folder.path().join("target");
            for len in SIZES {
                let probe = write_file(&folder.path().join("probe"), 1);
                for choice in choices(&probe) {
                    let receipt = write(&executor, &path, &bytes_of(len), choice).unwrap();
                    assert!(
                        fs::read(&path).unwrap() == bytes_of(len),
                        "{len} by {choice:?}"
                    );
                    assert_eq!(receipt.bytes, len as u64);
                }
            }
            drop(executor);
            standin.assert_clean();
        });
    }
}

/// Extents that are drawn from a seed: anywhere in the file, overlapping there, some of them
/// following on each other in the region and some not.
fn ragged(seed: u64, file_bytes: u64) -> (Vec<Move>, u64) {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut draw = |bound: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 33) % bound
    };
    let mut at = draw(5000);
    let moves = (0..60).map(|_| {
        let offset = draw(file_bytes - 1);
        let longest = if draw(4) == 0 { 60_000 } else { 900 };
        let bytes = (1 + draw(longest)).min(file_bytes - offset);
        let m = Move {
            object: 0,
            extent: Extent::new(offset, bytes),
            at,
        };
        at += bytes + if draw(3) == 0 { draw(3000) } else { 0 };
        m
    });
    let moves = moves.collect();
    (moves, at)
}

#[test]
fn ragged_extents_land_where_they_belong() {
    for seed in 0..12 {
        Standin::run(&format!("seed={seed} delay_us_max=300"), |standin| {
            let folder = folder();
            let file = write_file(&folder.path().join("f"), 260_000);
            let engine = if seed % 2 == 0 {
                DriveEngine::Auto
            } else {
                DriveEngine::Pool
            };
            let executor = Executor::new(Settings { engine, ..small() }).unwrap();
            let (moves, region_bytes) = ragged(seed, 260_000);
            let source = bytes_of(260_000);
            // What no move names keeps what fresh memory of the stand-in holds.
            let mut expected = vec![0xA5; region_bytes as usize];
            for m in &moves {
                let from = m.extent.offset as usize..m.extent.end() as usize;
                expected[m.at as usize..][..from.len()].copy_from_slice(&source[from]);
            }
            for choice in choices(&file) {
                let (seen, receipt) =
                    read(&executor, &file, moves.clone(), region_bytes, choice).unwrap();
                assert!(seen == expected, "by {choice:?}");
                let routed: u64 = receipt.routes.iter().map(|r| r.bytes).sum();
                assert_eq!(receipt.bytes, routed);
            }
            drop(executor);
            standin.assert_clean();
        });
    }
}

#[test]
fn parts_of_a_region_are_written_with_zeroes_between() {
    for seed in 0..6 {
        Standin::run(&format!("seed={seed} delay_us_max=300"), |standin| {
            let folder = folder();
            let executor = Executor::new(small()).unwrap();
            let source = bytes_of(100_000);
            let extents = [
                (17, 1000, 5),
                (5000, 70_000, 2000),
                (400_001, 19_999, 80_001),
            ];
            let mut expected = vec![0; 500_000];
            for (offset, bytes, at) in extents {
                expected[offset..offset + bytes].copy_from_slice(&source[at..at + bytes]);
            }
            let probe = write_file(&folder.path().join("probe"), 1);
            for choice in choices(&probe) {
                let mut region = Region::device(&context().unwrap(), 100_000).unwrap();
                region.write_at(0, &source).unwrap();
                let path = folder.path().join("f");
                let draft = Draft::new(&path, 500_000).unwrap();
                let files = vec![Arc::clone(draft.file())];
                let moves = extents.map(|(offset, bytes, at)| Move {
                    object: 0,
                    extent: Extent::new(offset as u64, bytes as u64),
                    at: at as u64,
                });
                let region = Arc::new(region);
                let job = Job::write(&region, files, moves.to_vec(), choice, executor.settings());
                executor.run(job.unwrap()).unwrap();
                draft.commit().unwrap();
                assert!(fs::read(&path).unwrap() == expected, "by {choice:?}");
            }
            drop(executor);
            standin.assert_clean();
        });
    }
}

#[test]
fn rings_and_streams_are_made_once_and_serve_every_transfer() {
    Standin::run("", |standin| {
        let folder = folder();
        let file = write_file(&folder.path().join("f"), 300_001);
        let executor = Executor::new(small()).unwrap();
        executor
            .prepare(&Region::device(&context().unwrap(), 1).unwrap())
            .unwrap();
        let made = |standin: &Standin| {
            let calls = standin.calls();
            ["cuMemHostRegister_v2", "cuStreamCreate", "cuEventCreate"].map(|name| calls[name])
        };
        let before = made(standin);
        for choice in choices(&file) {
            for _ in 0..3 {
                let (_, receipt) = read(&executor, &file, whole(&file), 300_001, choice).unwrap();
                assert!(receipt.pinned_bytes_peak > 0);
                assert!(receipt.pinned_bytes_peak <= 256 << 10, "{receipt}");
            }
        }
        assert_eq!(made(standin), before);
        // The rings of all lanes together stay within what was asked for.
        assert_eq!(standin.count("pinned"), 4);
        drop(executor);
        standin.assert_clean();
    });
}

#[test]
fn storage_and_copies_are_under_way_at_the_same_time() {
    // Copies this late are all still under way when storage has filled the ring.
    Standin::run("delay_us_max=20000", |standin| {
        let folder = folder();
        let file = write_file(&folder.path().join("f"), 600_000);
        let settings = Settings {
            gpu_lanes: 1,
            ..small()
        };
        let executor = Executor::new(settings).unwrap();
        // A quarter of 256 KiB is the drive lane's, the rest the page-cache lane's.
        let rings = [
            (Choice::Only(Route::Buffered), 192 << 10),
            (Choice::Only(Route::Staged), 64 << 10),
        ];
        for (choice, ring_bytes) in rings {
            if file.alignment().is_none() {
                continue;
            }
            let (_, receipt) = read(&executor, &file, whole(&file), 600_000, choice).unwrap();
            assert_eq!(receipt.staging_bytes_peak, ring_bytes, "in by {choice:?}");
            let path = folder.path().join("target");
            let receipt = write(&executor, &path, &bytes_of(600_000), choice).unwrap();
            assert_eq!(receipt.staging_bytes_peak, ring_bytes, "out by {choice:?}");
        }
        drop(executor);
        standin.assert_clean();
    });
}

#[test]
fn pinned_memory_that_is_short_makes_smaller_rings_and_none_is_an_error() {
    // One lane's ring in full is 64 KiB; there is room for one slot of 32 KiB.
    Standin::run("pinned_bytes_max=32768", |standin| {
        let folder = folder();
        let file = write_file(&folder.path().join("f"), 300_001);
        let settings = Settings {
            gpu_lanes: 1,
            ..small()
        };
        let executor = Executor::new(settings).unwrap();
        let buffered = Choice::Only(Route::Buffered);
        let (seen, receipt) = read(&executor, &file, whole(&file), 300_001, buffered).unwrap();
        assert!(seen == bytes_of(300_001));
        assert_eq!(receipt.pinned_bytes_peak, 32 << 10);
        drop(executor);
        standin.plan("pinned_bytes_max=4096");
        let executor = Executor::new(small()).unwrap();
        let error = read(&executor, &file, whole(&file), 300_001, buffered).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("32 KiB wanted") && text.contains("RLIMIT_MEMLOCK"),
            "{text}"
        );
        assert!(error.hint().unwrap().contains("ulimit -l"));
        drop(executor);
        standin.assert_clean();
    });
}

#[test]
fn a_region_that_does_not_fit_the_device_is_an_error_and_the_process_goes_on() {
    Standin::run("memory_bytes=1048576", |standin| {
        let folder = folder();
        let file = write_file(&folder.path().join("f"), 4096);
        let executor = Executor::new(small()).unwrap();
        let error = Region::device(&context().unwrap(), 2 << 20).unwrap_err();
        assert_eq!(error.kind(), Kind::Transient);
        assert!(error.to_string().contains("2 MiB wanted"), "{error}");
        read(&executor, &file, whole(&file), 4096, Choice::Auto).unwrap();
        drop(executor);
        standin.assert_clean();
    });
}

#[test]
fn lent_memory_is_filled_in_place_wherever_it_starts() {
    Standin::run("piece_bytes=65536", |standin| {
        let folder = folder();
        let file = write_file(&folder.path().join("f"), 200_000);
        let executor = Executor::new(small()).unwrap();
        let context = context().unwrap();
        let owner = Arc::new(Region::device(&context, 300_000).unwrap());
        // Tensors start on 512 bytes, not on pages.
        let address = owner.address() + 512;
        for choice in choices(&file) {
            let lent = Region::lent(&context, address, 200_000, owner.clone()).unwrap();
            let mut lent = Arc::new(lent);
            let files = vec![Arc::clone(&file)];
            let job = Job::read(files, whole(&file), &lent, choice, executor.settings());
            executor.run(job.unwrap()).unwrap();
            let mut seen = vec![0; 200_000];
            let lent = Arc::get_mut(&mut lent).unwrap();
            lent.read_at(0, &mut seen).unwrap();
            assert!(seen == bytes_of(200_000), "by {choice:?}");
        }
        drop((owner, context, executor));
        standin.assert_clean();
    });
}

/// One transfer each way by each route, from nothing to nothing.
fn use_everything(folder: &Path) -> Result<()> {
    let file = Arc::new(File::open(&folder.join("source"))?);
    let settings = Settings {
        gpu_lanes: 2,
        pinned_bytes: 256 << 10,
        ..small()
    };
    let executor = Executor::new(settings)?;
    for choice in choices(&file) {
        let (seen, _) = read(&executor, &file, whole(&file), file.bytes(), choice)?;
        assert!(seen == bytes_of(seen.len()), "wrong bytes without an error");
        write(&executor, &folder.join("target"), &seen, choice)?;
        let written = fs::read(folder.join("target")).unwrap();
        assert!(written == seen, "wrong bytes without an error");
    }
    Ok(())
}

#[test]
fn every_driver_call_that_fails_is_an_error_leaks_nothing_and_ends_only_that_transfer() {
    // What only gives back or asks where to sit has nobody to tell.
    const SILENT: [&str; 7] = [
        "cuMemFree_v2",
        "cuMemHostUnregister",
        "cuStreamDestroy_v2",
        "cuEventDestroy_v2",
        "cuDevicePrimaryCtxRelease_v2",
        "cuCtxPopCurrent_v2",
        "cuDeviceGetPCIBusId",
    ];
    Standin::run("delay_us_max=20", |standin| {
        let folder = folder();
        write_file(&folder.path().join("source"), 150_000);
        use_everything(folder.path()).unwrap();
        standin.assert_clean();
        let calls = standin.calls();
        for (name, &count) in &calls {
            // The first few of each, and one from the middle and the end.
            for nth in [1, 2, 3, count / 2, count].into_iter().filter(|n| *n > 0) {
                // A copy that fails when it runs takes the context with it (launch failure).
                let code = if name == "copy" { 719 } else { 999 };
                standin.plan(&format!("delay_us_max=20 fail={name}:{nth}:{code}"));
                let outcome = use_everything(folder.path());
                // A ring that cannot be pinned is made smaller; threads race for who is the nth,
                // and the last calls of the run above may not be reached by this one.
                let may_pass = SILENT.contains(&name.as_str())
                    || name == "cuMemHostRegister_v2"
                    || name == "cuEventQuery"
                    || nth > count / 2
                    || (name == "cuCtxPushCurrent_v2" && outcome.is_ok());
                assert!(
                    may_pass || outcome.is_err(),
                    "call {nth} of {name} failed unnoticed"
                );
                standin.assert_clean();
            }
        }
        standin.plan("");
        use_everything(folder.path()).unwrap();
        standin.assert_clean();
    });
}

#[test]
fn a_copy_that_fails_half_way_fails_the_transfer_and_the_next_one_works() {
    Standin::run("fail=copy:5:719", |standin| {
        let folder = folder();
        let file = write_file(&folder.path().join("f"), 1 << 20);
        let executor = Executor::new(small()).unwrap();
        let error = read(&executor, &file, whole(&file), 1 << 20, Choice::Auto).unwrap_err();
        assert!(error.to_string().contains("719"), "{error}");
        // A driver whose context died would need a new process; the stand-in forgives.
        standin.plan("");
        let (seen, _) = read(&executor, &file, whole(&file), 1 << 20, Choice::Auto).unwrap();
        assert!(seen == bytes_of(1 << 20));
        drop(executor);
        standin.assert_clean();
    });
}

#[test]
fn what_is_resident_goes_through_the_page_cache_and_the_rest_through_the_ring() {
    Standin::run("", |_| {
        let folder = folder();
        let file = write_file(&folder.path().join("f"), 1 << 20);
        let executor = Executor::new(small()).unwrap();
        let (_, receipt) = read(&executor, &file, whole(&file), 1 << 20, Choice::Auto).unwrap();
        let reason = if file.alignment().is_some() {
            Reason::Resident
        } else {
            Reason::NoDirectIo
        };
        assert_eq!(receipt.routes[0].reason, reason, "{receipt}");
        assert_eq!(receipt.bytes_by(Leg::Read, Route::Buffered), 1 << 20);
    });
}

fn by_cufile(when: GdsUse) -> Settings {
    Settings {
        gds: when.into(),
        ..small()
    }
}

/// Bytes by route and reason.
fn routes(receipt: &Receipt) -> Vec<(Route, Reason, u64)> {
    let row = |r: &straightway_core::receipt::RouteBytes| (r.route, r.reason, r.bytes);
    receipt.routes.iter().map(row).collect()
}

/// Whether the folder's file system has O_DIRECT, without which nothing goes by cuFile.
fn has_direct(folder: &Path) -> bool {
    let has = write_file(&folder.join("probe"), 1).alignment().is_some();
    if !has {
        eprintln!("skipped: no O_DIRECT here");
    }
    has
}

#[test]
fn what_goes_direct_says_by_which_mechanism_and_its_edges_take_the_ring() {
    for (mode, reason) in [
        ("p2p", Reason::ProvenP2pdma),
        ("nvfs", Reason::ProvenNvidiaFs),
    ] {
        Standin::run(&format!("cufile={mode}"), |standin| {
            let folder = folder();
            if !has_direct(folder.path()) {
                return;
            }
            let file = write_file(&folder.path().join("f"), 300_001);
            let direct = Choice::Only(Route::Direct);
            let executor = Executor::new(by_cufile(GdsUse::Auto)).unwrap();
            // Three bytes late in the file and in the region: the first page is a ragged edge.
            let m = Move {
                object: 0,
                extent: Extent::new(4093, 290_000),
                at: 4093,
            };
            let (seen, receipt) = read(&executor, &file, vec![m], 300_001, direct).unwrap();
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
            let path = folder.path().join("target");
            let receipt = write(&executor, &path, &bytes_of(300_001), direct).unwrap();
            assert!(fs::read(&path).unwrap() == bytes_of(300_001));
            assert_eq!(receipt.bytes_by(Leg::Write, Route::Direct), 299_008);
            assert_eq!(routes(&receipt)[0].1, reason);
            drop(executor);
            standin.assert_clean();
        });
    }
}

#[test]
fn a_region_is_registered_once_for_its_life() {
    Standin::run("cufile=nvfs", |standin| {
        let folder = folder();
        if !has_direct(folder.path()) {
            return;
        }
        let file = write_file(&folder.path().join("f"), 1 << 20);
        let executor = Executor::new(by_cufile(GdsUse::Auto)).unwrap();
        let region = Arc::new(Region::device(&context().unwrap(), 1 << 20).unwrap());
        let counts = [1, 0, 0].map(|expected| {
            let files = vec![Arc::clone(&file)];
            let direct = Choice::Only(Route::Direct);
            let job = Job::read(files, whole(&file), &region, direct, executor.settings());
            let receipt = executor.run(job.unwrap()).unwrap();
            (receipt.registration.unwrap().count, expected)
        });
        assert!(counts.iter().all(|(count, expected)| count == expected));
        // The region and the page that files are proven with.
        assert_eq!(standin.count("buffers"), 2);
        drop(region);
        assert_eq!(standin.count("buffers"), 1);
        assert_eq!(standin.count("files"), 0, "no file is kept open");
        drop(executor);
        standin.assert_clean();
    });
}

#[test]
fn regions_that_nobody_uses_give_way_when_no_more_can_be_registered() {
    // Room for one region of 1 MiB and the page that files are proven with, not for two.
    Standin::run("cufile=nvfs device_pinned_kib=1536", |standin| {
        let folder = folder();
        if !has_direct(folder.path()) {
            return;
        }
        let file = write_file(&folder.path().join("f"), 1 << 20);
        let executor = Executor::new(by_cufile(GdsUse::Auto)).unwrap();
        let context = context().unwrap();
        let region = |bytes| Arc::new(Region::device(&context, bytes).unwrap());
        let job = |region: &Arc<Region>| {
            let direct = Choice::Only(Route::Direct);
            let files = vec![Arc::clone(&file)];
            Job::read(files, whole(&file), region, direct, executor.settings())
        };
        let (first, second) = (region(1 << 20), region(1 << 20));
        for region in [&first, &second, &first] {
            let receipt = executor.run(job(region).unwrap()).unwrap();
            assert_eq!(receipt.registration.unwrap().count, 1);
            assert_eq!(standin.count("buffers"), 2);
        }
        // One that is in use does not, and one that can never fit is refused with the figures.
        let waiting = job(&first).unwrap();
        let error = job(&second).unwrap_err();
        assert!(error.to_string().contains("1.5 MiB"), "{error}");
        drop(waiting);
        let error = job(&region(4 << 20)).unwrap_err();
        assert!(error.to_string().contains("4 MiB"), "{error}");
        drop((first, second, executor, context));
        standin.assert_clean();
    });
}

#[test]
fn every_cufile_call_that_fails_leaks_nothing_and_never_delivers_wrong_bytes() {
    let everything = |folder: &Path| -> Result<()> {
        let file = Arc::new(File::open(&folder.join("source"))?);
        let executor = Executor::new(by_cufile(GdsUse::Auto))?;
        let direct = Choice::Only(Route::Direct);
        let (seen, receipt) = read(&executor, &file, whole(&file), file.bytes(), direct)?;
        assert!(seen == bytes_of(seen.len()), "wrong bytes without an error");
        assert!(receipt.bytes_by(Leg::Read, Route::Direct) > 0);
        write(&executor, &folder.join("target"), &seen, direct)?;
        assert!(fs::read(folder.join("target")).unwrap() == seen);
        Ok(())
    };
    // What only gives back has nobody to tell. Counters that cannot be read leave the way unknown,
    // so that the demand for direct is refused; the limits of a driver that does not tell them are
    // found when they are met.
    const SILENT: [&str; 4] = [
        "cuFileHandleDeregister",
        "cuFileBufDeregister",
        "cuFileDriverGetProperties",
        "cuFileGetStatsL3",
    ];
    Standin::run("cufile=p2p", |standin| {
        let folder = folder();
        if !has_direct(folder.path()) {
            return;
        }
        write_file(&folder.path().join("source"), 150_000);
        everything(folder.path()).unwrap();
        standin.assert_clean();
        // What is done once for a process was done by the first run.
        standin.plan("cufile=p2p");
        everything(folder.path()).unwrap();
        let calls = standin.calls();
        assert!(calls["cuFileRead"] > 3, "{calls:?}");
        for (name, &count) in calls.iter().filter(|(name, _)| name.starts_with("cuFile")) {
            for nth in [1, 2, count.div_ceil(2)] {
                standin.plan(&format!("cufile=p2p fail={name}:{nth}:5030"));
                let outcome = everything(folder.path());
                let silent = SILENT.contains(&name.as_str()) || nth > count;
                assert!(
                    silent || outcome.is_err(),
                    "call {nth} of {name} failed unnoticed"
                );
                standin.assert_clean();
            }
        }
    });
}

#[test]
fn compat_mode_is_never_called_direct() {
    Standin::run("cufile=compat", |standin| {
        let folder = folder();
        if !has_direct(folder.path()) {
            return;
        }
        let file = write_file(&folder.path().join("f"), 300_001);
        // Demanded, it is refused before a byte moves.
        let executor = Executor::new(by_cufile(GdsUse::Auto)).unwrap();
        let direct = Choice::Only(Route::Direct);
        let error = read(&executor, &file, whole(&file), 300_001, direct).unwrap_err();
        assert_eq!(error.kind(), Kind::Unsupported);
        assert!(error.to_string().contains("not proven"), "{error}");
        // By itself, it is not used: the ring is faster.
        let (_, receipt) = read(&executor, &file, whole(&file), 300_001, Choice::Auto).unwrap();
        assert_eq!(receipt.registration, None);
        // Forced, it counts as what it is, and a demand for direct still fails.
        drop(executor);
        let executor = Executor::new(by_cufile(GdsUse::Force)).unwrap();
        let (seen, receipt) = read(&executor, &file, whole(&file), 300_001, Choice::Auto).unwrap();
        assert!(seen == bytes_of(300_001));
        assert!(routes(&receipt).contains(&(Route::Staged, Reason::CompatMode, 299_008)));
        assert_eq!(receipt.bytes_by(Leg::Read, Route::Direct), 0);
        let error = read(&executor, &file, whole(&file), 300_001, direct).unwrap_err();
        assert!(error.to_string().contains("compatibility mode"), "{error}");
        drop(executor);
        standin.assert_clean();
    });
}

#[test]
fn without_counters_the_receipt_says_unknown() {
    Standin::run("cufile=p2p cufile_version=1200", |standin| {
        let folder = folder();
        if !has_direct(folder.path()) {
            return;
        }
        let file = write_file(&folder.path().join("f"), 8192);
        let executor = Executor::new(by_cufile(GdsUse::Force)).unwrap();
        let (_, receipt) = read(&executor, &file, whole(&file), 8192, Choice::Auto).unwrap();
        assert_eq!(routes(&receipt), [(Route::Staged, Reason::Unknown, 8192)]);
        drop(executor);
        standin.assert_clean();
    });
}

#[test]
fn a_cufile_that_will_not_is_an_error_only_for_those_who_insist() {
    for (plan, word) in [
        ("cufile=unregistrable", "5027"),
        ("cufile=closed", "5033"),
        ("cufile=hanging", "did not return"),
        ("cufile=nvfs fail=cuFileBufRegister:2:5016", "5016"),
    ] {
        Standin::run(plan, |standin| {
            let folder = folder();
            if !has_direct(folder.path()) {
                return;
            }
            let file = write_file(&folder.path().join("f"), 300_001);
            for when in [GdsUse::Auto, GdsUse::Force] {
                let executor = Executor::new(by_cufile(when)).unwrap();
                let choice = match when {
                    GdsUse::Force => Choice::Auto,
                    _ => Choice::Only(Route::Direct),
                };
                let error = read(&executor, &file, whole(&file), 300_001, choice).unwrap_err();
                let is_second = plan.contains("hanging") && when == GdsUse::Force;
                let word = if is_second { "has not returned" } else { word };
                assert!(error.to_string().contains(word), "{error}");
                let executor = Executor::new(by_cufile(GdsUse::Auto)).unwrap();
                let (seen, _) =
                    read(&executor, &file, whole(&file), 300_001, Choice::Auto).unwrap();
                assert!(seen == bytes_of(300_001));
                drop(executor);
                standin.plan(plan);
            }
            if !plan.contains("hanging") {
                standin.assert_clean();
            }
        });
    }
}

#[test]
fn a_read_that_cufile_fails_names_the_file_and_the_process_goes_on() {
    // The first read is the one that proves the file.
    Standin::run("cufile=nvfs fail=cuFileRead:3:5", |standin| {
        let folder = folder();
        if !has_direct(folder.path()) {
            return;
        }
        let file = write_file(&folder.path().join("weights"), 300_001);
        let executor = Executor::new(by_cufile(GdsUse::Auto)).unwrap();
        let direct = Choice::Only(Route::Direct);
        let error = read(&executor, &file, whole(&file), 300_001, direct).unwrap_err();
        assert!(error.to_string().contains("weights"), "{error}");
        assert_eq!(error.os_code(), Some(5));
        let (seen, _) = read(&executor, &file, whole(&file), 300_001, direct).unwrap();
        assert!(seen == bytes_of(300_001));
        drop(executor);
        standin.assert_clean();
    });
}
