//! Transfers with parts of a file: small reads from the page cache, and writes that keep the bytes around them.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

#[path = "fixture/files.rs"]
mod files;

use std::{ffi::OsStr, fs, sync::Arc};

use files::{bytes_of, folder, write_file};
use straightway_core::{Choice, ErrorKind, Extent, Move, Rate, Reason, Route, Share};
use straightway_io::{
    Ask, Executor, Handle, Objects, Region, Settings, Store, StoreExt,
    resident::SmallRead,
    store::{CommitMode, Draft, Files, Like},
};

fn small_read(offset: u64, bytes: u64) -> SmallRead {
    SmallRead {
        extent: Extent::new(offset, bytes),
        to: Arc::new(Region::host(bytes + 10).unwrap()),
        at: 10,
    }
}

fn content(read: SmallRead) -> Vec<u8> {
    let mut region = Arc::into_inner(read.to).unwrap();
    region.as_slice()[10..].to_vec()
}

#[test]
fn small_reads_from_the_page_cache_are_made_here_with_one_receipt() {
    let folder = folder();
    let file: Arc<dyn Handle> = write_file(&folder.path().join("f"), 300_001);
    let executor = Executor::new(Settings::default()).unwrap();
    let reads: Vec<_> = [(0, 4096), (77, 1), (300_000, 1), (150_001, 100_000), (9, 0)]
        .map(|(offset, bytes)| small_read(offset, bytes))
        .into();
    let extents = || reads.iter().map(|read| read.extent);
    assert!(executor.suits_resident(&*file, Choice::Auto, extents()));
    let Some(receipt) = executor.read_resident(&file, Choice::Auto, &reads) else {
        eprintln!("left out: this file system does not say which bytes are cached");
        return;
    };
    let receipt = receipt.unwrap();
    assert_eq!((receipt.bytes, receipt.lanes, receipt.routes.len()), (104_098, 0, 1));
    assert_eq!(
        (receipt.routes[0].route, receipt.routes[0].reason),
        (Route::Buffered, Reason::Resident)
    );
    assert!(receipt.ios >= 4 && receipt.latency.storage.count == 4);
    let all = bytes_of(300_001);
    for read in reads {
        let (start, end) = (read.extent.offset as usize, read.extent.end() as usize);
        assert_eq!(content(read), all[start..end]);
    }
}

#[test]
fn reads_that_must_use_lanes_are_not_made_here() {
    let folder = folder();
    let file: Arc<dyn Handle> = write_file(&folder.path().join("f"), 300_001);
    let executor = Executor::new(Settings::default()).unwrap();
    let suits = |executor: &Executor, choice, extent| executor.suits_resident(&*file, choice, [extent].into_iter());
    let page = Extent::new(0, 4096);
    assert!(suits(&executor, Choice::Auto, page));
    assert!(!suits(&executor, Choice::Only(Route::Direct), page));
    assert!(!suits(&executor, Choice::Auto, Extent::new(300_000, 2)));
    assert!(!suits(&executor, Choice::Auto, Extent::new(0, 300_000)));
    let share = Share {
        limit: Some(Rate(1e6)),
        ..Share::default()
    };
    let limited = executor.sharing(share, straightway_core::Class::default()).unwrap();
    assert!(!suits(&limited, Choice::Auto, page));
}

#[test]
fn small_reads_of_a_file_that_changed_are_an_error_and_of_evicted_bytes_are_not_made() {
    let folder = folder();
    let path = folder.path().join("f");
    let file = write_file(&path, 100_000);
    let handle: Arc<dyn Handle> = Arc::clone(&file) as _;
    let executor = Executor::new(Settings::default()).unwrap();
    file.evict().unwrap();
    let reads = [small_read(0, 4096)];
    if !file.is_in_memory() {
        // The eviction may be refused; then the bytes are right.
        if let Some(receipt) = executor.read_resident(&handle, Choice::Auto, &reads) {
            receipt.unwrap();
        }
    }
    fs::write(&path, b"shorter").unwrap();
    fs::read(&path).unwrap();
    let reads = [small_read(0, 3)];
    if let Some(outcome) = executor.read_resident(&handle, Choice::Auto, &reads) {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Precondition);
    }
}

/// Writes `bytes` at `offset` by a job that keeps the bytes around them.
fn write_part(executor: &Executor, draft: &dyn Draft, offset: u64, bytes: &[u8], choice: Choice) {
    let mut region = Region::host(bytes.len() as u64).unwrap();
    region.as_mut_slice().copy_from_slice(bytes);
    let objects = Objects::new(Arc::new(Files::default()), vec![draft.handle()]);
    let ask = Ask {
        syncs: false,
        keeps_edges: true,
        ..Ask::from(choice)
    };
    let moves = vec![Move {
        object: 0,
        extent: Extent::new(offset, bytes.len() as u64),
        at: 0,
    }];
    let ticket = executor.write(&Arc::new(region), objects, moves, ask).unwrap();
    assert_eq!(ticket.wait().unwrap().bytes, bytes.len() as u64);
}

#[test]
fn a_file_is_written_in_place_and_the_bytes_around_each_write_stay() {
    let folder = folder();
    let path = folder.path().join("f");
    let mut expected = bytes_of(1_000_003);
    fs::write(&path, &expected).unwrap();
    let executor = Executor::new(Settings::default()).unwrap();
    let store = Files::default();
    let draft = store.create(path.as_os_str(), 0, &Like::InPlace).unwrap();
    let mut at = 1;
    for (number, bytes) in [1, 4096, 70_000, 200_001, 3, 8192].into_iter().enumerate() {
        let part: Vec<u8> = bytes_of(bytes).iter().map(|byte| !byte).collect();
        at += 4099 * (number + 1);
        for choice in [Choice::Auto, Choice::Only(Route::Buffered)] {
            write_part(&executor, &*draft, at as u64, &part, choice);
        }
        expected[at..at + bytes].copy_from_slice(&part);
        at += bytes;
    }
    // A write beyond the end makes it longer.
    draft.grow(1_000_010).unwrap();
    write_part(&executor, &*draft, 1_000_005, b"ahead", Choice::Auto);
    expected.resize(1_000_005, 0);
    expected.extend(b"ahead");
    store.sync(&[draft.handle()]).unwrap();
    store.commit(vec![draft], CommitMode::InOrder).unwrap();
    assert!(fs::read(&path).unwrap() == expected);
    let absent = store.create(OsStr::new("/absent/f"), 0, &Like::InPlace).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::NotFound);
}

#[test]
fn a_new_file_grows_and_has_its_name_when_it_is_committed() {
    let folder = folder();
    let path = folder.path().join("f");
    let executor = Executor::new(Settings::default()).unwrap();
    let store = Files::default();
    let draft = store.create(path.as_os_str(), 0, &Like::Replaced).unwrap();
    let all = bytes_of(500_000);
    for (start, end) in [(100_001, 500_000), (0, 70_001), (70_001, 100_001)] {
        draft.grow(end as u64).unwrap();
        write_part(&executor, &*draft, start as u64, &all[start..end], Choice::Auto);
    }
    assert!(!path.exists() && draft.handle().object().bytes == 500_000);
    store.sync(&[draft.handle()]).unwrap();
    store.commit(vec![draft], CommitMode::InOrder).unwrap();
    assert!(fs::read(&path).unwrap() == all);
}
