//! Loads through a cache: every byte is compared, whatever happens to the folder, the objects and the processes.

#![expect(clippy::unwrap_used, reason = "tests")]

mod fixture;
mod listed;
mod processes;

use std::{
    fs,
    os::unix::fs::{FileExt, PermissionsExt, symlink},
    path::Path,
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use fixture::{MIB, Opened, Web, cache, content, files};
use straightway_cache::{BYTES_MIN, Cache};
use straightway_core::ErrorKind;
use straightway_io::{ExecutorParts, wrapper::faulty::Faults};
use straightway_webserver::{Server, ServerStep};

/// Lengths of objects: many short and odd ones, and some that need several requests.
fn lengths(count: usize) -> Vec<usize> {
    let short = (0..count).map(|n| 1 + n * 7919 % 30_011);
    short.chain([8 * MIB, 8 * MIB + 1, 11 * MIB + 13]).collect()
}

#[test]
fn thousands_of_odd_objects_are_fetched_once_and_then_come_from_the_cache() {
    let (_folder, cache) = cache(1 << 30);
    let web = Web::start(lengths(3000));
    let cold = web.check(&cache, &web.all());
    assert_eq!(cold.ways(), (cold.receipt.bytes, 0));
    let warm = web.check(&cache, &web.all());
    assert_eq!(warm.ways(), (0, warm.receipt.bytes));
    assert_eq!((warm.requests, warm.receipt.requests), (0, None));
    assert!(warm.receipt.engine.contains("cache"), "{}", warm.receipt.engine);
}

#[test]
fn only_wanted_ranges_are_fetched_and_no_byte_twice() {
    let (_folder, cache) = cache(1 << 30);
    let web = Web::start(vec![40 * MIB, 5000]);
    let slices = [(0, 3 * MIB + 5..5 * MIB), (0, 30 * MIB..33 * MIB + 1), (1, 100..200)];
    let first = web.check(&cache, &slices);
    let wanted: usize = slices.iter().map(|(_, range)| range.len()).sum();
    assert!(first.sent < wanted as u64 + 4096, "{} for {wanted}", first.sent);
    // More than the slices: only the bytes around them are fetched.
    let second = web.check(&cache, &[(0, MIB..34 * MIB)]);
    let (socket, cached) = second.ways();
    assert_eq!(cached, (5 * MIB - 3 * MIB - 5 + 3 * MIB + 1) as u64);
    assert!(second.sent < socket + 16_384, "{} for {socket}", second.sent);
    // Less than the cached ranges, with other boundaries.
    let third = web.check(&cache, &[(0, 2 * MIB + 1..2 * MIB + 3), (0, 20 * MIB..29 * MIB + 7)]);
    assert_eq!((third.ways().0, third.requests), (0, 0));
}

/// Damages a file of the cache in one of 13 ways.
fn spoil(kind: usize, path: &Path, other: &Path) {
    let flip = |at: u64| {
        let file = fs::File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
    };
    let bytes = fs::metadata(path).unwrap().len();
    let cut = |bytes| {
        fs::File::options()
            .write(true)
            .open(path)
            .unwrap()
            .set_len(bytes)
            .unwrap();
    };
    match kind {
        0 => flip(4096 + (bytes - 4096) / 2),
        1 => flip(bytes - 1),
        2 => flip(20),
        3 => flip(4000),
        4 => cut(bytes - 1),
        5 => cut(0),
        6 => cut(bytes + 1),
        7 => fs::write(path, "of somebody else").unwrap(),
        8 => drop(fs::copy(other, path).unwrap()),
        9 => {
            fs::remove_file(path).unwrap();
            symlink(other, path).unwrap();
        }
        10 => {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }
        11 => fs::set_permissions(path, fs::Permissions::from_mode(0o666)).unwrap(),
        12 => {
            // A draft that is a link to a file of the user.
            fs::remove_file(path).unwrap();
            let draft = format!("{}.part", path.display());
            symlink(other, draft).unwrap();
        }
        _ => unreachable!("there are 13 kinds"),
    }
}

#[test]
fn a_damaged_or_foreign_entry_is_fetched_again_and_never_delivered() {
    let web = Web::start(vec![300_001, 300_001, 9 * MIB + 7]);
    for kind in 0..13 {
        let (folder, cache) = cache(1 << 30);
        web.check(&cache, &web.all());
        let outside = folder.path().join("outside");
        fs::write(&outside, "kept").unwrap();
        let all = files(cache.path());
        assert!(all.len() >= 4, "{all:?}");
        for (number, path) in all.iter().enumerate() {
            let other = if kind == 8 {
                &all[(number + 1) % all.len()]
            } else {
                &outside
            };
            spoil(kind, path, other);
        }
        let again = web.check(&cache, &web.all());
        // The copies go round in a circle, so one file may get its original content back.
        assert!(
            again.ways().0 > again.receipt.bytes / 2,
            "kind {kind}: {:?}",
            again.ways()
        );
        assert_eq!(fs::read(&outside).unwrap(), b"kept", "kind {kind}");
        web.check(&cache, &web.all());
        let mended = web.check(&cache, &web.all());
        assert_eq!(mended.ways().0, 0, "kind {kind}");
    }
}

#[test]
fn versions_are_never_mixed() {
    let (_folder, cache) = cache(1 << 30);
    let web = Web::start(vec![20 * MIB + 3, 777]);
    for seed in [1, 2, 1, 3, 2] {
        web.replace(seed);
        web.check(&cache, &web.all());
        web.check(&cache, &[(0, 5 * MIB..6 * MIB)]);
    }
    // Both versions that were loaded before come from the cache.
    web.replace(1);
    assert_eq!(web.check(&cache, &web.all()).ways().0, 0);
    // Replaced between the open and the read: an error, or cached bytes of the opened version.
    let opened = Opened::new(&web.server.url("/"), &cache, &web.all(), ExecutorParts::default());
    web.replace(4);
    let (seen, _) = opened.load().unwrap();
    let old = [content(0, 1, 20 * MIB + 3), content(1, 1, 777)].concat();
    assert!(seen == old, "it is the opened version");
    let opened = Opened::new(&web.server.url("/"), &cache, &web.all(), ExecutorParts::default());
    web.replace(5);
    assert_eq!(opened.load().unwrap_err().kind(), ErrorKind::Precondition);
}

#[test]
fn a_cache_stays_within_its_limit_and_keeps_recently_used_entries() {
    let (_folder, cache) = cache(BYTES_MIN);
    let web = Web::start(vec![3 * MIB + 1; 40]);
    let favourite = [(0, 0..3 * MIB + 1)];
    web.check(&cache, &favourite);
    for number in 1..40 {
        web.check(&cache, &[(number, 0..3 * MIB + 1)]);
        // A read updates the time of use only after a minute.
        for path in files(cache.path()) {
            let age = Duration::from_secs(100);
            let file = fs::File::open(&path).unwrap();
            let at = file.metadata().unwrap().modified().unwrap();
            file.set_modified(at - age).unwrap();
        }
        assert_eq!(web.check(&cache, &favourite).ways().0, 0, "after {number}");
        let held: u64 = files(cache.path()).iter().map(|p| p.metadata().unwrap().len()).sum();
        assert!(held <= BYTES_MIN, "{held} after {number}");
    }
    assert!(web.check(&cache, &[(1, 0..MIB)]).ways().0 > 0, "it was evicted");
    assert_eq!(web.check(&cache, &[(39, 0..MIB)]).ways().0, 0);
}

#[test]
fn short_late_and_reordered_reads_are_completed() {
    let web = Web::start(lengths(50));
    for seed in 0..6 {
        let (_folder, cache) = cache(1 << 30);
        for _ in 0..3 {
            let faults = Faults {
                seed,
                short_per_mille: 200,
                late_per_mille: 200,
                ..Faults::default()
            };
            let opened = Opened::new(&web.server.url("/"), &cache, &web.all(), faults.into());
            let (seen, receipt) = opened.load().unwrap();
            assert!(seen == web.expected(&web.all()), "seed {seed}");
            let counted: u64 = receipt.routes.iter().map(|row| row.bytes).sum();
            assert_eq!(counted, receipt.bytes);
        }
    }
}

#[test]
fn a_folder_that_others_may_write_to_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |path: &Path| {
        let error = Cache::open(path, BYTES_MIN).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    };
    for mode in [0o777, 0o770, 0o1777, 0o702] {
        let path = folder.path().join(format!("{mode:o}"));
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        refused(&path);
    }
    let path = folder.path().join("own");
    Cache::open(&path, BYTES_MIN).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&path.join("00"))), (0o700, 0o700));
    fs::remove_dir(path.join("7f")).unwrap();
    symlink(folder.path(), path.join("7f")).unwrap();
    refused(&path);
    fs::remove_file(path.join("7f")).unwrap();
    fs::create_dir(path.join("7f")).unwrap();
    fs::set_permissions(path.join("7f"), fs::Permissions::from_mode(0o777)).unwrap();
    refused(&path);
    let error = Cache::open(&folder.path().join("small"), BYTES_MIN - 1).unwrap_err();
    assert!(error.to_string().contains("64 MiB"), "{error}");
}

#[test]
fn objects_without_a_strong_etag_are_not_cached() {
    let (_folder, cache) = cache(1 << 30);
    for tag in ["W/\"weak\"", ""] {
        let server = Server::start(move |request| {
            let mut steps = request.response(&content(0, 1, 100_000), tag);
            if let [ServerStep::Bytes(bytes)] = steps.as_mut_slice() {
                let text = b"HTTP/1.1 206 Partial Content\r\n".len();
                let dated = b"Last-Modified: Sun, 15 Nov 2026 10:00:00 GMT\r\n";
                bytes.splice(text..text, dated.iter().copied());
            }
            steps
        });
        let opened = Opened::new(&server.url("/"), &cache, &[(0, 0..100_000)], ExecutorParts::default());
        let (seen, _) = opened.load().unwrap();
        assert!(seen == content(0, 1, 100_000));
    }
    assert!(files(cache.path()).is_empty());
}

#[test]
fn a_failed_load_leaves_no_draft_and_the_next_one_continues() {
    let (_folder, cache) = cache(1 << 30);
    let web = Web::start(vec![30 * MIB]);
    let opened = Opened::new(&web.server.url("/"), &cache, &web.all(), ExecutorParts::default());
    web.replace(2);
    opened.load().unwrap_err();
    let drafts = files(cache.path())
        .into_iter()
        .filter(|p| p.extension().is_some_and(|e| e == "part"));
    assert_eq!(drafts.count(), 0);
    web.replace(1);
    web.check(&cache, &web.all());
    assert!(web.sent.load(Ordering::SeqCst) > 30 * MIB as u64);
}

#[test]
fn a_load_that_waits_for_another_fetch_can_be_cancelled() {
    let (_folder, cache) = cache(1 << 30);
    let object = content(0, 1, MIB);
    let copy = object.clone();
    let ranges = Arc::new(Mutex::new(Vec::new()));
    let requested = Arc::clone(&ranges);
    // Only its first bytes are sent.
    let server = Server::start(move |request| {
        let mut steps = request.response(&copy, "\"1\"");
        let range = request.range(MIB);
        if range.as_ref().is_none_or(|range| range.start > 0) {
            steps.insert(0, ServerStep::Wait(Duration::from_mins(1)));
            requested.lock().unwrap().push(range);
        }
        steps
    });
    let part = [(0, 200_000..MIB)];
    let url = server.url("/");
    let open = || Opened::new(&url, &cache, &part, ExecutorParts::default());
    let fetching = open().start().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while ranges.lock().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "nothing is fetched");
        std::thread::sleep(Duration::from_millis(1));
    }
    let waiting = open().start().unwrap();
    // Time for the other load to find that its bytes are being fetched. It must end in any case.
    std::thread::sleep(Duration::from_millis(200));
    let start = Instant::now();
    for (_executor, ticket) in [waiting, fetching] {
        ticket.cancel();
        assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let ranges = ranges.lock().unwrap();
    let is_repeated = |at: usize| ranges[..at].contains(&ranges[at]);
    assert!(!(0..ranges.len()).any(is_repeated), "both loads fetch: {ranges:?}");
    assert!(files(cache.path()).is_empty(), "{:?}", files(cache.path()));
}
