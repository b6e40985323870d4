//! Writes that a service refuses or cannot do: a clear error, before data is lost, and nothing is left behind.

use std::{
    ffi::OsStr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use straightway_core::{Choice, ErrorKind, Extent};
use straightway_io::{
    Ask, Executor, Objects, Progress, Region, Settings, Store,
    store::{Condition, Durability, Like, Missing, StoreExt, Tag, list_all},
};
use straightway_lab::{ProxyFault, ProxyFaults, S3Server};
use straightway_net::{Network, suited};
use straightway_s3::{
    S3, S3Access,
    doctor::{CheckState, examine},
};
use straightway_webserver::ReceivedRequest;

use super::{
    access, behind_proxy, content, network, on_server, open, read,
    server::{Reply, Server},
    store,
    writes::{open_uploads, upload},
};

const PART: u64 = 8 << 20;
const NOW: Durability = Durability::Unsynced;

/// The bucket with read-only credentials.
fn read_only(weed: &S3Server) -> S3 {
    let (id, secret) = (S3Server::READER_ACCESS_KEY_ID, S3Server::READER_SECRET_ACCESS_KEY);
    store(&S3Access::with_keys(&weed.url(), id, secret))
}

#[test]
fn read_only_credentials_are_refused_before_a_byte_is_sent() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let store = read_only(weed);
    let name = OsStr::new("read-only/object");
    let error = store.create(name, 3 * PART, &Like::Replaced).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.hint().unwrap().contains("s3:PutObject"), "{error}");
    for on in [Condition::Always, Condition::IfAbsent] {
        let error = store.put(name, b"x", &on, NOW).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    }
    assert!(open(&super::store(&access(&weed.url())), "read-only/object").is_err());
    let checks = examine(&store, OsStr::new("read-only"), true);
    let last = checks.last().unwrap();
    assert_eq!(last.state, CheckState::Wrong, "{checks:?}");
    assert!(matches!(last.name, "access" | "conditional put"), "{checks:?}");
}

#[test]
fn a_bucket_with_object_lock_accepts_objects_and_the_doctor_notes_the_lock() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let lock = [("x-amz-bucket-object-lock-enabled", "true")];
    let made = weed.make_bucket("locked", &lock);
    assert_eq!(made, 200);
    let store = S3::new("locked", &access(&weed.url()), &network()).unwrap();
    let bytes = content(31, 2 * PART as usize + 9);
    for _ in 0..2 {
        upload(&store, "object", &bytes).unwrap();
        assert!(read(&store, "object").unwrap() == bytes);
    }
    let try_put = |on: &Condition| store.put(OsStr::new("record"), b"x", on, NOW);
    if let Err(error) = try_put(&Condition::IfAbsent) {
        // Ceph 16 does not support conditions in versioned buckets.
        assert!(error.to_string().contains("If-None-Match"), "{error}");
        return super::skip("the service has no conditional puts in buckets with object lock");
    }
    store.remove(OsStr::new("record"), NOW).unwrap();
    let put = |on: &Condition| try_put(on).unwrap();
    assert!(put(&Condition::IfAbsent) && !put(&Condition::IfAbsent));
    let tag = open(&store, "record").unwrap().tag().unwrap();
    assert!(store.remove_if_match(OsStr::new("record"), &tag, NOW).unwrap());
    store.remove(OsStr::new("object"), NOW).unwrap();
    assert_eq!(list_all(&store).unwrap().objects, []);
    assert!(put(&Condition::IfAbsent), "the removed object is absent");
    let checks = examine(&store, OsStr::new(""), true);
    assert!(checks.iter().any(|check| check.name == "object lock"), "{checks:?}");
}

/// A service that accepts only parts, rejects checksums, and stores each part in `takes`.
fn simple(numbers: &Arc<Mutex<Vec<u32>>>, takes: Duration) -> Server {
    let numbers = Arc::clone(numbers);
    Server::start(move |_, request: &ReceivedRequest| {
        let has_sums = |name: &str| request.header(name).is_some();
        if has_sums("x-amz-checksum-algorithm") || has_sums("x-amz-checksum-crc64nvme") {
            return Reply::error(501, "NotImplemented");
        }
        let part = request.target.split("partNumber=").nth(1);
        let part = part.and_then(|rest| rest.split('&').next()?.parse().ok());
        match (request.method.as_str(), part) {
            ("POST", _) if request.target.contains("uploads") => {
                let root = "InitiateMultipartUploadResult";
                Reply::new(200, &[], format!("<{root}><UploadId>u1</UploadId></{root}>"))
            }
            ("PUT", Some(number)) => {
                numbers.lock().unwrap().push(number);
                std::thread::sleep(takes);
                Reply::new(200, &[("ETag", "\"x\"")], "")
            }
            ("POST", _) => Reply::new(200, &[], "<CompleteMultipartUploadResult/>"),
            _ => Reply::new(204, &[], ""),
        }
    })
}

#[test]
fn uploads_are_sent_without_checksums_if_they_are_not_implemented() {
    let numbers = Arc::default();
    let server = simple(&numbers, Duration::ZERO);
    let store = store(&access(&server.url()));
    upload(&store, "object", &content(3, 2 * PART as usize + 5)).unwrap();
    let mut numbers = numbers.lock().unwrap().clone();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3]);
    // If uploads are not implemented at all, it is an error.
    let server = Server::start(|_, _: &ReceivedRequest| Reply::error(501, "NotImplemented"));
    let error = super::store(&access(&server.url()))
        .create(OsStr::new("object"), 3 * PART, &Like::Replaced)
        .unwrap_err();
    assert!(error.to_string().contains("NotImplemented"), "{error}");
    assert!(server.requests() < 30);
}

#[test]
fn parts_that_a_busy_service_stores_slowly_are_sent_once() {
    let numbers = Arc::default();
    let server = simple(&numbers, Duration::from_secs(3));
    // Without the longer wait for parts every part would be sent again.
    let network = Network::new(straightway_net::NetworkSettings {
        stall_max: Duration::from_secs(2),
        ..straightway_net::NetworkSettings::default()
    });
    let store = S3::new(S3Server::BUCKET, &access(&server.url()), &network).unwrap();
    upload(&store, "object", &content(4, 2 * PART as usize + 5)).unwrap();
    let mut numbers = numbers.lock().unwrap().clone();
    numbers.sort_unstable();
    assert_eq!(numbers, [1, 2, 3]);
}

#[test]
fn a_service_that_compares_tags_without_quotes_accepts_the_version_that_is_there() {
    // As Ceph 16 does: its puts compare the header to the tag without quotes.
    let puts = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&puts);
    let server = Server::start(move |_, request: &ReceivedRequest| {
        let tag = ("ETag", "\"abc\"");
        match (request.method.as_str(), request.header("if-match")) {
            ("PUT", Some("abc")) => {
                count.fetch_add(1, Ordering::Relaxed);
                Reply::new(200, &[tag], "")
            }
            ("PUT", Some(_)) => Reply::error(412, "PreconditionFailed"),
            ("HEAD", _) => Reply::new(200, &[tag], ""),
            _ => Reply::new(200, &[], ""),
        }
    });
    let store = store(&access(&server.url()));
    let put = |tag: &str| {
        let on = Condition::IfMatch(Tag::Text(tag.to_owned()));
        store.put(OsStr::new("record"), b"x", &on, NOW).unwrap()
    };
    assert!(put("\"abc\""), "the version that is there matches");
    assert!(!put("\"older\""), "another version does not match");
    assert_eq!(puts.load(Ordering::Relaxed), 1);
}

#[test]
fn a_full_server_is_an_error_in_bounded_time_and_leaves_nothing() {
    if S3Server::shared().is_none() {
        return;
    }
    let weed = S3Server::start_full().unwrap();
    // The server searches for space for half a minute before it responds.
    let network = Network::new(straightway_net::NetworkSettings {
        attempts_max: 0,
        stall_max: Duration::from_mins(1),
        ..straightway_net::NetworkSettings::default()
    });
    let store = S3::new(S3Server::BUCKET, &access(&weed.url()), &network).unwrap();
    std::thread::scope(|scope| {
        for (name, bytes) in [("full/small", 100), ("full/large", 2 * PART as usize)] {
            let store = &store;
            scope.spawn(move || {
                let start = Instant::now();
                let error = upload(store, name, &content(1, bytes)).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
                assert!(error.to_string().contains(name), "{error}");
                assert!(start.elapsed() < Duration::from_mins(3));
                assert!(open(store, name).is_err());
            });
        }
    });
    assert!(open_uploads(&store).is_empty());
}

#[test]
fn a_cancelled_upload_ends_soon_and_leaves_nothing() {
    let Some((weed, proxy)) = behind_proxy() else {
        return;
    };
    let store = store(&access(&proxy.url()));
    let name = OsStr::new("cancelled/object");
    let draft = store.create(name, 12 * PART, &Like::Replaced).unwrap();
    // For half of the parts the response is lost, so they are sent again and again.
    proxy.set(ProxyFaults {
        seed: 4,
        shares: vec![(ProxyFault::LoseAnswer, 5000)],
        only: Some("partNumber=".to_owned()),
        after: 2,
    });
    let executor = Executor::new(suited(Settings::default())).unwrap();
    let region = Arc::new(Region::host(12 * PART).unwrap());
    let progress = Arc::new(Progress::default());
    let objects = Objects::new(Arc::new(store.clone()), vec![draft.handle()]);
    let moves = vec![Extent::new(0, 12 * PART).into()];
    let ask = Ask::new(Choice::Auto, &progress);
    let ticket = executor.write(&region, objects, moves, ask).unwrap();
    while proxy.counts().requests < 3 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let start = Instant::now();
    progress.cancel();
    // It may have finished before it was cancelled.
    if let Err(error) = ticket.wait() {
        assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    proxy.set(ProxyFaults::default());
    drop(draft);
    let plain = super::store(&access(&weed.url()));
    let inside = plain.below(OsStr::new("cancelled"), Missing::Refuse).unwrap();
    assert!(open_uploads(&*inside).is_empty());
    assert!(open(&plain, "cancelled/object").is_err());
}

#[test]
fn the_doctor_detects_missing_conditional_puts_only_if_it_may_write() {
    let writes = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&writes);
    let server = Server::start(move |_, request: &ReceivedRequest| match request.method.as_str() {
        "GET" if request.target.contains("list-type") => {
            Reply::new(200, &[], "<ListBucketResult><Name>lab</Name></ListBucketResult>")
        }
        "GET" | "HEAD" => Reply::error(404, "NoSuchKey"),
        _ => {
            seen.fetch_add(1, Ordering::Relaxed);
            Reply::new(200, &[("ETag", "\"x\"")], "")
        }
    });
    let store = store(&access(&server.url()));
    let checks = examine(&store, OsStr::new("runs/new"), false);
    assert_eq!(writes.load(Ordering::Relaxed), 0);
    assert!(checks.iter().all(|check| check.name != "conditional put"));
    let checks = examine(&store, OsStr::new("runs/new"), true);
    let found = checks.iter().find(|check| check.name == "conditional put").unwrap();
    assert_eq!(found.state, CheckState::Wrong);
    assert!(found.seen.contains("5 of 5 puts"), "{}", found.seen);
}

#[test]
fn the_doctor_tests_writes_and_leaves_nothing_behind() {
    let Some((_, store)) = on_server() else {
        return;
    };
    let checks = examine(&store, OsStr::new("doctor/new"), true);
    for name in ["conditional put", "multipart", "unfinished uploads"] {
        let check = checks.iter().find(|check| check.name == name).unwrap();
        assert_eq!(check.state, CheckState::Fine, "{check:?}");
    }
    // Some services ignore the condition of a removal.
    assert!(
        checks.iter().any(|check| check.name == "conditional removal"),
        "{checks:?}"
    );
    let inside = store.below(OsStr::new("doctor"), Missing::Refuse).unwrap();
    let left = list_all(&*inside).unwrap();
    assert!(left.objects.is_empty() && open_uploads(&*inside).is_empty());
}
