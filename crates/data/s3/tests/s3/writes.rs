//! Writes on a real server: uploads through lanes, puts, removals, copies inside the service.

use std::{ffi::OsStr, sync::Arc, time::Duration};

use straightway_core::{Choice, ErrorKind, Extent, Move, Receipt, Result, Route};
use straightway_io::{
    Executor, Objects, Region, Settings, Store,
    store::{CommitMode, Condition, Draft, Durability, Like, Missing, Named, StoreExt, Sweep, Tag, list_all},
};
use straightway_net::suited;
use straightway_s3::S3;

use super::{access, content, on_server, open, read, store};

const PART: u64 = 8 << 20;
const NOW: Durability = Durability::Unsynced;

/// Writes bytes of memory to a draft, from offset `from`.
pub(crate) fn write(store: &S3, draft: &dyn Draft, bytes: &[u8], from: usize, settings: Settings) -> Result<Receipt> {
    let executor = Executor::new(settings)?;
    let mut region = Region::host(bytes.len().max(1) as u64)?;
    region.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    let moves = vec![Move {
        object: 0,
        extent: Extent::between(from as u64, bytes.len() as u64),
        at: from as u64,
    }];
    let objects = Objects::new(Arc::new(store.clone()), vec![draft.handle()]);
    executor.write(&Arc::new(region), objects, moves, Choice::Auto)?.wait()
}

/// All bytes of an object, through lanes.
pub(crate) fn read_by_lanes(store: &S3, name: &str, settings: Settings) -> Result<Vec<u8>> {
    let handle = open(store, name)?;
    let bytes = handle.object().bytes;
    let region = Arc::new(Region::host(bytes.max(1))?);
    if bytes > 0 {
        let objects = Objects::new(Arc::new(store.clone()), vec![handle]);
        let moves = vec![Extent::new(0, bytes).into()];
        let executor = Executor::new(settings)?;
        executor.read(objects, moves, &region, Choice::Auto)?.wait()?;
    }
    let mut region = Arc::into_inner(region).expect("the transfer is over");
    Ok(region.as_slice()[..bytes as usize].to_vec())
}

/// Creates an object of these bytes through lanes.
pub(crate) fn upload(store: &S3, name: &str, bytes: &[u8]) -> Result<()> {
    let draft = store.create(OsStr::new(name), bytes.len() as u64, &Like::Replaced)?;
    write(store, &*draft, bytes, 0, suited(Settings::default()))?;
    store.commit(vec![draft], CommitMode::InOrder)
}

/// The names of open uploads below a prefix.
pub(crate) fn open_uploads(store: &dyn Store) -> Vec<String> {
    store.sweep(Sweep::OlderThan(Duration::ZERO)).unwrap()
}

#[test]
fn objects_of_every_length_are_written_byte_for_byte() {
    let Some((_, store)) = on_server() else {
        return;
    };
    let lengths = [0, 1, 4097, PART - 1, PART, PART + 1, 3 * PART, 3 * PART + 12_345];
    for (number, length) in lengths.into_iter().enumerate() {
        let bytes = content(length + 1, length as usize);
        let name = format!("written/{number}");
        upload(&store, &name, &bytes).unwrap();
        assert!(read(&store, &name).unwrap() == bytes, "{length} bytes");
    }
    assert!(open_uploads(&store).is_empty());
}

#[test]
fn whole_parts_are_sent_straight_from_memory() {
    let Some((_, store)) = on_server() else {
        return;
    };
    let bytes = content(7, 4 * PART as usize + 5);
    let draft = store
        .create(OsStr::new("straight"), bytes.len() as u64, &Like::Replaced)
        .unwrap();
    let receipt = write(&store, &*draft, &bytes, 0, suited(Settings::default())).unwrap();
    assert_eq!(receipt.ios, 5, "{receipt}");
    assert_eq!(receipt.staging_bytes_peak, 0, "{receipt}");
    let is_socket = |row: &straightway_core::receipt::RouteBytes| row.route == Route::Socket;
    assert!(receipt.routes.iter().all(is_socket), "{receipt}");
    store.commit(vec![draft], CommitMode::InOrder).unwrap();
    assert!(read(&store, "straight").unwrap() == bytes);
}

#[test]
fn chunks_that_are_smaller_than_a_part_or_not_aligned_to_parts_are_combined() {
    let Some((_, store)) = on_server() else {
        return;
    };
    let bytes = content(8, 2 * PART as usize + 999);
    // A header, written separately, and odd chunks after it.
    let (header, chunk_bytes) = (4097, 1 << 20);
    let draft = store
        .create(OsStr::new("pieces"), bytes.len() as u64, &Like::Replaced)
        .unwrap();
    draft.write_all_at(0, &bytes[..header]).unwrap();
    let settings = Settings {
        chunk_bytes,
        ..Settings::default()
    };
    write(&store, &*draft, &bytes, header, settings).unwrap();
    store.commit(vec![draft], CommitMode::InOrder).unwrap();
    assert!(read(&store, "pieces").unwrap() == bytes);
}

#[test]
fn unwritten_bytes_are_zero() {
    let Some((_, store)) = on_server() else {
        return;
    };
    let length = 2 * PART + 7;
    let draft = store.create(OsStr::new("gaps"), length, &Like::Replaced).unwrap();
    draft.write_all_at(5, b"here").unwrap();
    store.commit(vec![draft], CommitMode::InOrder).unwrap();
    let mut wanted = vec![0; length as usize];
    wanted[5..9].copy_from_slice(b"here");
    assert!(read(&store, "gaps").unwrap() == wanted);
}

#[test]
fn a_dropped_upload_leaves_nothing_and_a_killed_one_is_swept() {
    let Some((_, store)) = on_server() else {
        return;
    };
    let inside = store.below(OsStr::new("left"), Missing::Create).unwrap();
    let begin = || inside.create(OsStr::new("object"), 3 * PART, &Like::Replaced).unwrap();
    drop(begin());
    assert!(inside.sweep(Sweep::OlderThan(Duration::ZERO)).unwrap().is_empty());
    // Like a killed process.
    std::mem::forget(begin());
    let young = inside.sweep(Sweep::OlderThan(Duration::from_hours(1))).unwrap();
    assert!(young.is_empty(), "{young:?}");
    let swept = inside.sweep(Sweep::OlderThan(Duration::ZERO)).unwrap();
    assert_eq!(swept, ["s3://lab/left/object"]);
    assert!(inside.sweep(Sweep::OlderThan(Duration::ZERO)).unwrap().is_empty());
    let error = open(&store, "left/object").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
}

#[test]
fn a_sweep_removes_probes_of_killed_processes_and_no_other_object() {
    let Some((weed, store)) = on_server() else {
        return;
    };
    let inside = store.below(OsStr::new("probed"), Missing::Create).unwrap();
    for name in [".straightway-probe-1", "object", "deeper/.straightway-probe-2"] {
        weed.put(&format!("probed/{name}"), "x");
    }
    let young = inside.sweep(Sweep::OlderThan(Duration::from_hours(1))).unwrap();
    assert!(young.is_empty(), "{young:?}");
    let swept = inside.sweep(Sweep::OlderThan(Duration::ZERO)).unwrap();
    assert_eq!(swept, ["s3://lab/probed/.straightway-probe-1"]);
    assert!(inside.sweep(Sweep::OlderThan(Duration::ZERO)).unwrap().is_empty());
    for name in ["object", "deeper/.straightway-probe-2"] {
        assert!(open(&*inside, name).is_ok(), "{name}");
    }
}

#[test]
fn an_upload_aborted_by_a_sweep_is_an_error_without_an_object() {
    let Some((_, store)) = on_server() else {
        return;
    };
    let inside = store.below(OsStr::new("ended"), Missing::Create).unwrap();
    let draft = inside.create(OsStr::new("object"), 2 * PART, &Like::Replaced).unwrap();
    inside.sweep(Sweep::OlderThan(Duration::ZERO)).unwrap();
    let error = inside.commit(vec![draft], CommitMode::InOrder).unwrap_err();
    assert!(error.to_string().contains("s3://lab/ended/object"), "{error}");
    assert!(open(&store, "ended/object").is_err());
}

#[test]
fn more_than_ten_thousand_parts_are_refused_without_a_request() {
    // Nothing listens there.
    let store = store(&access("http://127.0.0.1:9"));
    let error = store.create(OsStr::new("huge"), 20 << 40, &Like::Replaced).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("10000 parts"), "{error}");
}

#[test]
fn concurrent_conditional_puts_of_the_same_bytes_have_one_winner() {
    let Some((_, store)) = on_server() else {
        return;
    };
    for round in 0..8 {
        let name = format!("race/{round}");
        let won: usize = std::thread::scope(|scope| {
            let racers: Vec<_> = (0..12)
                .map(|_| {
                    let (store, name) = (&store, OsStr::new(&name));
                    scope.spawn(move || store.put(name, b"same", &Condition::IfAbsent, NOW))
                })
                .collect();
            let won = racers.into_iter().map(|r| r.join().unwrap().unwrap());
            won.filter(|won| *won).count()
        });
        assert_eq!(won, 1);
    }
}

#[test]
fn a_prefix_is_cleared_with_few_requests_and_its_neighbours_remain() {
    let Some((_, store)) = on_server() else {
        return;
    };
    for number in 0..30 {
        let name = format!("clear/a/deep/{number}");
        store.put(OsStr::new(&name), b"x", &Condition::Always, NOW).unwrap();
    }
    for odd in ["clear/a/<&>\"é ", "clear/ab", "clear/b"] {
        store.put(OsStr::new(odd), b"x", &Condition::Always, NOW).unwrap();
    }
    store.clear(OsStr::new("clear/a")).unwrap();
    let left = store.below(OsStr::new("clear"), Missing::Refuse).unwrap();
    let left = list_all(&*left).unwrap();
    let names: Vec<_> = left.objects.iter().map(|object| &object.name).collect();
    assert_eq!(names, ["ab", "b"]);
    assert!(left.folders.is_empty(), "{:?}", left.folders);
}

#[test]
fn objects_are_copied_inside_the_service_by_their_version() {
    let Some((_, store)) = on_server() else {
        return;
    };
    let bytes = content(3, 100_000);
    upload(&store, "inside/one é&+", &bytes).unwrap();
    let named = Named::new("inside/one é&+");
    let to = |name: &str| vec![(named.clone(), name.into())];
    if !store.copy_within(&store, &to("inside/two")).unwrap() {
        return super::skip("the service copies other versions than the named one");
    }
    assert!(read(&store, "inside/two").unwrap() == bytes);
    let other = Named {
        bytes: Some(100_000),
        tag: Some(Tag::Text("\"0123456789abcdef0123456789abcdef\"".to_owned())),
        ..named.clone()
    };
    let error = store
        .copy_within(&store, &[(other, "inside/three".into())])
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    assert!(open(&store, "inside/three").is_err());
    let error = store.copy_within(&store, &to("inside/one é&+")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}
