//! Writes through a proxy that injects faults: every object is complete or absent, and every result is true.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    sync::{Arc, Mutex},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use md5::Digest as _;
use straightway_core::{Error, ErrorKind};
use straightway_io::{
    Settings, Store,
    store::{CommitMode, Condition, Durability, Like, Missing, Tag},
};
use straightway_lab::{FaultProxy, ProxyFault, ProxyFaults, S3Server};
use straightway_net::{Network, suited};
use straightway_s3::S3;
use straightway_webserver::ReceivedRequest;

use super::{
    access, behind_proxy, content, open, read,
    server::{Reply, Server},
    store,
    writes::{open_uploads, upload, write},
};

const PART: usize = 8 << 20;

/// A store behind a proxy without faults so far.
fn behind(proxy: &FaultProxy) -> S3 {
    let network = Network::new(straightway_net::NetworkSettings {
        stall_max: Duration::from_secs(5),
        ..straightway_net::NetworkSettings::default()
    });
    S3::new(S3Server::BUCKET, &access(&proxy.url()), &network).unwrap()
}

/// Writes objects through a proxy with these faults. All must be correct, and no upload may stay open.
#[track_caller]
fn survives(folder: &str, shares: &[(ProxyFault, u32)], seed: u64) {
    let Some((weed, proxy)) = behind_proxy() else {
        return;
    };
    let through = behind(&proxy);
    proxy.set(ProxyFaults {
        seed,
        shares: shares.to_vec(),
        only: Some(folder.to_owned()),
        after: 0,
    });
    let plain = store(&access(&weed.url()));
    for number in 0..3 {
        let bytes = content(seed + number, 3 * PART + 1000 + number as usize);
        let small = content(seed + 100 + number, 5000);
        let name = format!("{folder}/{number}");
        upload(&through, &name, &bytes).unwrap();
        upload(&through, &format!("{name}-small"), &small).unwrap();
        assert!(read(&plain, &name).unwrap() == bytes);
        assert!(read(&plain, &format!("{name}-small")).unwrap() == small);
    }
    let counts = proxy.counts();
    assert!(counts.faults > 0, "{counts:?}");
    let inside = plain.below(OsStr::new(folder), Missing::Refuse).unwrap();
    assert_eq!(open_uploads(&*inside), [""; 0]);
}

#[test]
fn uploads_survive_cut_connections_and_lost_responses() {
    let faults = [(ProxyFault::CutUpload, 1500), (ProxyFault::LoseAnswer, 1500)];
    survives("cut-uploads", &faults, 21);
}

#[test]
fn uploads_survive_many_refusals() {
    let faults = [
        (ProxyFault::RefuseUpload(500), 1500),
        (ProxyFault::RefuseUpload(503), 1500),
    ];
    survives("refused-uploads", &faults, 22);
}

#[test]
fn bytes_damaged_in_transit_are_detected_and_sent_again() {
    survives("damaged-uploads", &[(ProxyFault::FlipUpload, 2500)], 23);
}

#[test]
fn an_error_after_a_status_of_success_is_an_error() {
    survives("late-errors", &[(ProxyFault::ErrorIn200, 2500)], 24);
}

#[test]
fn conditional_puts_report_their_winner_despite_lost_responses() {
    let Some((weed, proxy)) = behind_proxy() else {
        return;
    };
    let through = Arc::new(behind(&proxy));
    let plain = store(&access(&weed.url()));
    // The probe is not tested here.
    let put = |store: &S3, name: &str, text: &str| {
        let (name, on) = (OsStr::new(name), Condition::IfAbsent);
        store.put(name, text.as_bytes(), &on, Durability::Synced)
    };
    put(&through, "lost/first", "x").unwrap();
    proxy.set(ProxyFaults {
        seed: 5,
        shares: vec![(ProxyFault::LoseAnswer, 5000)],
        only: Some("lost/".to_owned()),
        after: 0,
    });
    for round in 0..20 {
        let name = format!("lost/{round}");
        let won: Vec<bool> = std::thread::scope(|scope| {
            let racers = [&*through, &*through, &plain].map(|store| {
                let name = &name;
                // The same bytes: only the nonce distinguishes the puts.
                scope.spawn(move || put(store, name, "mine").unwrap())
            });
            racers.map(|racer| racer.join().unwrap()).to_vec()
        });
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
    }
    assert!(proxy.counts().faults > 5);
}

#[test]
fn a_completion_with_a_lost_response_succeeds() {
    let Some((weed, proxy)) = behind_proxy() else {
        return;
    };
    let through = behind(&proxy);
    let bytes = content(9, 2 * PART + 3);
    let draft = through
        .create(OsStr::new("done/object"), bytes.len() as u64, &Like::Replaced)
        .unwrap();
    write(&through, &*draft, &bytes, 0, suited(Settings::default())).unwrap();
    proxy.set(ProxyFaults {
        seed: 1,
        shares: vec![(ProxyFault::LoseAnswer, 5000)],
        only: Some("uploadId=".to_owned()),
        after: 0,
    });
    through.commit(vec![draft], CommitMode::InOrder).unwrap();
    let plain = store(&access(&weed.url()));
    assert!(read(&plain, "done/object").unwrap() == bytes);
}

#[test]
fn a_start_with_a_lost_response_leaves_no_upload() {
    let Some((weed, proxy)) = behind_proxy() else {
        return;
    };
    let through = behind(&proxy);
    let bytes = content(11, PART + 3);
    proxy.set(ProxyFaults {
        seed: 2,
        shares: vec![(ProxyFault::LoseAnswer, 4500)],
        only: Some("uploads=".to_owned()),
        after: 0,
    });
    for number in 0..4 {
        upload(&through, &format!("starts/{number}"), &bytes).unwrap();
    }
    assert!(proxy.counts().faults > 0);
    let plain = store(&access(&weed.url()));
    let inside = plain.below(OsStr::new("starts"), Missing::Refuse).unwrap();
    assert_eq!(open_uploads(&*inside), [""; 0]);
}

#[test]
fn an_upload_that_fails_for_good_leaves_nothing() {
    let Some((weed, proxy)) = behind_proxy() else {
        return;
    };
    let through = behind(&proxy);
    let bytes = content(10, 2 * PART + 3);
    let draft = through
        .create(OsStr::new("fails/object"), bytes.len() as u64, &Like::Replaced)
        .unwrap();
    proxy.set(ProxyFaults {
        seed: 1,
        shares: vec![(ProxyFault::RefuseUpload(403), 10_000)],
        only: Some("partNumber=".to_owned()),
        after: 0,
    });
    let error = write(&through, &*draft, &bytes, 0, suited(Settings::default())).unwrap_err();
    assert!(error.to_string().contains("s3://lab/fails/object"), "{error}");
    assert_eq!(error.to_string().split_whitespace().nth(1), Some("write"), "{error}");
    drop(draft);
    let plain = store(&access(&weed.url()));
    let inside = plain.below(OsStr::new("fails"), Missing::Refuse).unwrap();
    assert!(open_uploads(&*inside).is_empty());
    assert!(open(&plain, "fails/object").is_err());
}

/// A server that ignores conditions of puts.
fn unconditional() -> Server {
    Server::start(|_, request: &ReceivedRequest| match request.method.as_str() {
        "DELETE" => Reply::new(204, &[], ""),
        "PUT" => Reply::new(200, &[("ETag", "\"x\"")], ""),
        _ => Reply::error(404, "NoSuchKey"),
    })
}

#[test]
fn a_service_without_conditional_puts_is_detected_before_a_commit() {
    let server = unconditional();
    let store = store(&access(&server.url()));
    let error = store
        .put(OsStr::new("manifest"), b"x", &Condition::IfAbsent, Durability::Synced)
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("If-None-Match"), "{error}");
}

/// A server that refuses all writes with this status and code.
fn refusing(status: u16, code: &'static str) -> S3 {
    let server = Server::start(move |_, _: &ReceivedRequest| Reply::error(status, code));
    let store = store(&access(&server.url()));
    // The server runs until the process ends.
    std::mem::forget(server);
    store
}

#[test]
fn read_only_credentials_and_full_services_are_reported_before_data_is_sent() {
    for (status, code, kind, words) in [
        (403, "AccessDenied", ErrorKind::Denied, "s3:PutObject"),
        (507, "InsufficientStorage", ErrorKind::Transient, "no space"),
        (403, "QuotaExceeded", ErrorKind::Transient, "no space"),
        (400, "ObjectLocked", ErrorKind::Invalid, "object lock"),
    ] {
        let store = refusing(status, code);
        let error = store
            .create(OsStr::new("object"), 3 * PART as u64, &Like::Replaced)
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let text = format!("{error} {}", error.hint().unwrap_or_default());
        assert!(text.contains(words), "{text}");
        let error = store
            .put(OsStr::new("object"), b"x", &Condition::Always, Durability::Synced)
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn writes_to_a_service_that_does_not_compare_checksums_carry_an_md5() {
    let digests = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&digests);
    let server = Server::start(move |_, request: &ReceivedRequest| {
        let target = request.target.as_str();
        if target.contains("uploads") {
            let root = "InitiateMultipartUploadResult";
            return Reply::new(200, &[], format!("<{root}><UploadId>u1</UploadId></{root}>"));
        }
        if request.method == "POST" {
            return Reply::new(200, &[], "<CompleteMultipartUploadResult/>");
        }
        if request.method == "PUT" && !target.contains("probe") {
            let digest = md5::Md5::digest(&request.body);
            let wanted = BASE64_STANDARD.encode(digest);
            seen.lock()
                .unwrap()
                .push(request.header("content-md5") == Some(&wanted));
        }
        Reply::new(200, &[("ETag", "\"x\"")], "")
    });
    let store = store(&access(&server.url()));
    upload(&store, "large", &content(1, 2 * PART + 5)).unwrap();
    upload(&store, "small", &content(2, 500)).unwrap();
    assert_eq!(*digests.lock().unwrap(), [true; 4]);
}

/// Puts `x` under a name unconditionally.
fn put(store: &S3, name: &str) -> Result<bool, Error> {
    let name = OsStr::new(name);
    store.put(name, b"x", &Condition::Always, Durability::Synced)
}

#[test]
fn a_put_that_a_proxy_sent_twice_counts_as_won() {
    let nonce = Mutex::new(None);
    let server = Server::start(move |_, request: &ReceivedRequest| {
        let mut nonce = nonce.lock().unwrap();
        match (request.method.as_str(), &*nonce) {
            ("PUT", _) if request.target.contains("probe") => Reply::error(400, "BadDigest"),
            ("PUT", None) => {
                // The proxy sends the first put again, and forwards the response to the second one.
                *nonce = request.header("x-amz-meta-straightway-nonce").map(str::to_owned);
                Reply::error(412, "PreconditionFailed")
            }
            ("PUT", Some(_)) => Reply::error(412, "PreconditionFailed"),
            (_, nonce) => {
                let nonce = nonce.clone().unwrap_or_default();
                Reply::new(200, &[("x-amz-meta-straightway-nonce", &nonce)], "")
            }
        }
    });
    let store = store(&access(&server.url()));
    let on = Condition::IfMatch(Tag::Text("\"old\"".into()));
    let put = || store.put(OsStr::new("step"), b"x", &on, Durability::Synced);
    assert!(put().unwrap(), "the object has the nonce of this put");
    assert!(!put().unwrap(), "the object has the nonce of another put");
}

#[test]
fn a_failed_commit_does_not_remove_what_another_writer_put_under_its_names() {
    const NONCE: &str = "x-amz-meta-straightway-nonce";
    let objects = Arc::new(Mutex::new(BTreeMap::<String, String>::new()));
    let stored = Arc::clone(&objects);
    let server = Server::start(move |_, request: &ReceivedRequest| {
        let mut stored = stored.lock().unwrap();
        let key = request.target.rsplit('/').next().unwrap_or_default();
        match request.method.as_str() {
            "PUT" if request.target.contains("probe") => Reply::error(400, "BadDigest"),
            "PUT" if key == "last" => {
                stored.insert("theirs".to_owned(), "another".to_owned());
                Reply::error(403, "AccessDenied")
            }
            "PUT" => {
                stored.insert(key.to_owned(), request.header(NONCE).unwrap_or_default().to_owned());
                Reply::new(200, &[("ETag", "\"x\"")], "")
            }
            "DELETE" => {
                stored.remove(key);
                Reply::new(204, &[], "")
            }
            _ => match stored.get(key) {
                Some(nonce) => Reply::new(200, &[("ETag", "\"x\""), (NONCE, nonce)], ""),
                None => Reply::error(404, "NoSuchKey"),
            },
        }
    });
    let store = store(&access(&server.url()));
    let drafts = ["ours", "theirs", "last"].map(|name| {
        let draft = store.create(OsStr::new(name), 1, &Like::Replaced).unwrap();
        draft.write_all_at(0, b"x").unwrap();
        draft
    });
    let error = store.commit(drafts.into(), CommitMode::InOrder).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    let left: Vec<_> = objects.lock().unwrap().clone().into_iter().collect();
    assert_eq!(left, [("theirs".to_owned(), "another".to_owned())]);
}

#[test]
fn a_service_without_conditional_puts_is_named_as_such() {
    let server = Server::start(|_, request: &ReceivedRequest| match request.header("if-none-match") {
        Some(_) => Reply::error(501, "NotImplemented"),
        None if request.target.contains("probe") => Reply::error(400, "BadDigest"),
        None => Reply::new(200, &[("ETag", "\"x\"")], ""),
    });
    let store = store(&access(&server.url()));
    let name = OsStr::new("step");
    let put = |on| store.put(name, b"x", on, Durability::Synced);
    let error = put(&Condition::IfAbsent).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    let hint = error.hint().unwrap_or_default();
    assert!(hint.contains("conditional puts"), "{hint}");
    // The checksum was not the reason, so it is sent later too.
    let before = server.requests();
    assert!(put(&Condition::Always).unwrap());
    assert_eq!(server.requests(), before + 1);
}

#[test]
fn a_service_that_refuses_checksums_only_of_objects_gets_an_md5_instead() {
    let has_sum = |request: &ReceivedRequest| request.header("x-amz-checksum-crc64nvme").is_some();
    let server =
        Server::start(
            move |_, request: &ReceivedRequest| match (request.target.contains("probe"), has_sum(request)) {
                (true, _) => Reply::error(400, "BadDigest"),
                (false, true) => Reply::error(501, "NotImplemented"),
                (false, false) if request.header("content-md5").is_none() => Reply::error(400, "MissingContentMD5"),
                (false, false) => Reply::new(200, &[("ETag", "\"x\"")], ""),
            },
        );
    let store = store(&access(&server.url()));
    assert!(put(&store, "a").unwrap() && put(&store, "b").unwrap());
}

#[test]
fn checksums_are_omitted_only_if_they_are_not_implemented() {
    let has_sum = |request: &ReceivedRequest| request.header("x-amz-checksum-crc64nvme").is_some();
    let server = Server::start(move |_, request: &ReceivedRequest| {
        if has_sum(request) {
            Reply::error(501, "NotImplemented")
        } else {
            Reply::new(200, &[("ETag", "\"x\"")], "")
        }
    });
    let without = store(&access(&server.url()));
    assert!(put(&without, "a").unwrap() && put(&without, "b").unwrap());
    assert_eq!(
        server.requests(),
        3,
        "the second object is sent without checksums at once"
    );
    // An object whose name contains 501 does not count as such a response.
    let server = Server::start(move |_, request: &ReceivedRequest| {
        match (has_sum(request), request.target.contains("step-501")) {
            (_, _) if request.target.contains("probe") => Reply::error(400, "BadDigest"),
            (false, _) => Reply::error(400, "MissingChecksum"),
            (true, true) => Reply::error(403, "AccessDenied"),
            (true, false) => Reply::new(200, &[("ETag", "\"x\"")], ""),
        }
    });
    let with = store(&access(&server.url()));
    assert_eq!(put(&with, "step-501").unwrap_err().kind(), ErrorKind::Denied);
    assert!(put(&with, "a").unwrap());
    assert_eq!(
        server.requests(),
        3,
        "one more request tests whether checksums are compared"
    );
}
