//! More files in flight than a ring can register: each has its own bytes.

#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "tests")]

use std::{fs, path::Path, sync::Arc};

use straightway_core::{Choice, Extent, Leg, Move, Route};
use straightway_io::{Executor, File, Region, Settings, settings::DriveEngine};

const FILES: u32 = 600;
const PAGE: u64 = 4096;

/// An executor for one page of each file, with all of them in flight at once.
fn executor(engine: DriveEngine) -> Executor {
    let settings = Settings {
        depth: 1024,
        write_depth: 1024,
        chunk_bytes: PAGE,
        engine,
        ..Settings::default()
    };
    Executor::new(settings).unwrap()
}

/// A folder on the file system of the checkout: the system's temporary folder may lack O_DIRECT.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_MANIFEST_DIR")).unwrap()
}

/// The content of the file with this number.
fn page_of(number: u32) -> Vec<u8> {
    number.to_le_bytes().repeat(1024)
}

fn path_of(folder: &Path, number: u32) -> std::path::PathBuf {
    folder.join(number.to_string())
}

/// The page of each file, one after the other in a region.
fn moves() -> Vec<Move> {
    let page = |object: u32| Move {
        object,
        extent: Extent::new(0, PAGE),
        at: u64::from(object) * PAGE,
    };
    (0..FILES).map(page).collect()
}

/// The route of the bytes: direct, or any if there is no O_DIRECT.
fn choice(file: &File) -> Choice {
    if file.alignment().is_some() {
        return Choice::Only(Route::Direct);
    }
    eprintln!("left out: the direct route: no O_DIRECT here");
    Choice::Auto
}

#[test]
fn six_hundred_files_in_flight_are_read_without_mixing_them_up() {
    let folder = folder();
    let open = |number| {
        let path = path_of(folder.path(), number);
        fs::write(&path, page_of(number)).unwrap();
        Arc::new(File::open(&path).unwrap())
    };
    let files: Vec<_> = (0..FILES).map(open).collect();
    File::sync_all(&files).unwrap();
    for engine in [DriveEngine::Auto, DriveEngine::Pool] {
        let executor = executor(engine);
        for _ in 0..2 {
            let mut region = Arc::new(Region::host(u64::from(FILES) * PAGE).unwrap());
            let choice = choice(&files[0]);
            let job = executor.read(files.clone(), moves(), &region, choice).unwrap();
            let receipt = job.wait().unwrap();
            assert_eq!(receipt.bytes, u64::from(FILES) * PAGE);
            let seen = Arc::get_mut(&mut region).unwrap().as_slice();
            let wrong = (0..).zip(seen.chunks(4096)).filter(|(n, page)| **page != page_of(*n));
            assert_eq!(wrong.count(), 0, "files with another file's bytes");
        }
    }
}

#[test]
fn six_hundred_files_in_flight_are_written_without_mixing_them_up() {
    for engine in [DriveEngine::Auto, DriveEngine::Pool] {
        let folder = folder();
        let executor = executor(engine);
        let create = |number| Arc::new(File::create(&path_of(folder.path(), number), PAGE).unwrap());
        let files: Vec<_> = (0..FILES).map(create).collect();
        let mut region = Region::host(u64::from(FILES) * PAGE).unwrap();
        let pages = region.as_mut_slice().chunks_mut(4096);
        (0..).zip(pages).for_each(|(n, page)| page.copy_from_slice(&page_of(n)));
        let choice = choice(&files[0]);
        let job = executor.write(&Arc::new(region), files, moves(), choice);
        job.unwrap().wait().unwrap();
        let is_wrong = |n: &u32| fs::read(path_of(folder.path(), *n)).unwrap() != page_of(*n);
        assert_eq!(
            (0..FILES).filter(is_wrong).count(),
            0,
            "files with another file's bytes"
        );
    }
}

#[test]
fn six_hundred_files_in_flight_are_copied_without_mixing_them_up() {
    for engine in [DriveEngine::Auto, DriveEngine::Pool] {
        let (from, to) = (folder(), folder());
        let executor = executor(engine);
        let pair = |number| {
            let path = path_of(from.path(), number);
            fs::write(&path, page_of(number)).unwrap();
            let twin = File::create(&path_of(to.path(), number), PAGE).unwrap();
            (Arc::new(File::open(&path).unwrap()), Arc::new(twin))
        };
        let (files, twins): (Vec<_>, Vec<_>) = (0..FILES).map(pair).unzip();
        File::sync_all(&files).unwrap();
        let extents = (0..FILES).map(|n| (n, Extent::new(0, PAGE))).collect();
        let choice = choice(&files[0]);
        let job = executor.relay(files, twins, extents, choice).unwrap();
        let receipt = job.wait().unwrap();
        let written: u64 = receipt
            .routes
            .iter()
            .filter(|r| r.leg == Leg::Write)
            .map(|r| r.bytes)
            .sum();
        assert_eq!(written, u64::from(FILES) * PAGE);
        let is_wrong = |n: &u32| fs::read(path_of(to.path(), *n)).unwrap() != page_of(*n);
        assert_eq!(
            (0..FILES).filter(is_wrong).count(),
            0,
            "files with another file's bytes"
        );
    }
}
