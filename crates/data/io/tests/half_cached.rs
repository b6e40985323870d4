//! Files of which a part is in the page cache: the receipt reports as resident only what was there.

#![expect(
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests"
)]

#[path = "fixture/files.rs"]
mod files;

use std::{fs, os::unix::fs::FileExt, path::Path, sync::Arc};

use files::{bytes_of, folder, write_file};
use rustix::fs::{Advice, fadvise};
use straightway_core::{Choice, Extent, Leg, Reason, Receipt};
use straightway_io::{Executor, File, FileDraft, Region, Settings, settings::DriveEngine};
use straightway_sys::{IoPath, residency::resident_bytes};

const KIB: usize = 1 << 10;
const WINDOW: usize = KIB << 10;
const BYTES: usize = 8 * WINDOW;

/// The bytes of each window that are cached, from its start.
const CACHED: usize = 640 * KIB;

/// Evicts a file and caches a part of each window. Returns how much is cached. Prints the reason and returns `None` if
/// that is not possible.
fn cache_in_part(file: &File, path: &Path) -> Option<u64> {
    file.evict().unwrap();
    let own = fs::File::open(path).unwrap();
    // No readahead, here and in the transfer, which would cache more.
    fadvise(&own, 0, None, Advice::Random).unwrap();
    fadvise(file.descriptor(IoPath::PageCache), 0, None, Advice::Random).unwrap();
    for start in (0..BYTES).step_by(WINDOW) {
        own.read_exact_at(&mut vec![0; CACHED], start as u64).unwrap();
    }
    let is_so = |bytes: &u64| *bytes == (BYTES / WINDOW * CACHED) as u64;
    let cached = resident_bytes(file)
        .filter(is_so)
        .filter(|_| file.alignment().is_some());
    if cached.is_none() {
        eprintln!("skipped: no O_DIRECT here, or files are not evicted, or the kernel does not tell what is cached");
    }
    cached
}

fn because(receipt: &Receipt, reason: Reason) -> u64 {
    let rows = receipt.routes.iter().filter(|row| row.leg == Leg::Read);
    rows.filter(|row| row.reason == reason).map(|row| row.bytes).sum()
}

fn executors() -> impl Iterator<Item = Executor> {
    [DriveEngine::Auto, DriveEngine::Pool].into_iter().map(|engine| {
        let settings = Settings {
            engine,
            ..Settings::default()
        };
        Executor::new(settings).unwrap()
    })
}

#[test]
fn a_copy_of_a_half_cached_file_reports_what_was_cached() {
    let folder = folder();
    let path = folder.path().join("source");
    let file = write_file(&path, BYTES);
    for executor in executors() {
        let Some(cached) = cache_in_part(&file, &path) else {
            return;
        };
        let target = folder.path().join("target");
        let draft = FileDraft::new(&target, BYTES as u64).unwrap();
        let (files, twins) = (vec![Arc::clone(&file)], vec![Arc::clone(draft.file())]);
        let extents = vec![(0, Extent::new(0, BYTES as u64))];
        let job = executor.relay(files, twins, extents, Choice::Auto).unwrap();
        let receipt = job.wait().unwrap();
        draft.commit().unwrap();
        assert!(fs::read(&target).unwrap() == bytes_of(BYTES));
        assert_eq!(because(&receipt, Reason::Resident), cached, "{receipt}");
        assert_eq!(because(&receipt, Reason::Evicted), BYTES as u64 - cached, "{receipt}");
    }
}

#[test]
fn a_read_of_a_half_cached_file_reports_nothing_as_cached_that_was_not() {
    let folder = folder();
    let path = folder.path().join("source");
    let file = write_file(&path, BYTES);
    for executor in executors() {
        let Some(cached) = cache_in_part(&file, &path) else {
            return;
        };
        let mut region = Arc::new(Region::host(BYTES as u64).unwrap());
        let whole = vec![Extent::new(0, BYTES as u64).into()];
        let job = executor.read(vec![Arc::clone(&file)], whole, &region, Choice::Auto);
        let receipt = job.unwrap().wait().unwrap();
        let seen = Arc::get_mut(&mut region).expect("the transfer is over").as_slice();
        assert!(seen == bytes_of(BYTES));
        let (resident, evicted) = (because(&receipt, Reason::Resident), because(&receipt, Reason::Evicted));
        assert!((1..=cached).contains(&resident), "{receipt}");
        assert_eq!(resident + evicted, BYTES as u64, "{receipt}");
    }
}
