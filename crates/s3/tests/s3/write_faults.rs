//! Writes through a proxy that injects faults: every object is whole or not there, and every answer is true.

use std::{ffi::OsStr, sync::Arc, time::Duration};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use md5::Digest as _;
use straightway_core::{Error, Kind};
use straightway_io::{
    Settings, Store,
    store::{Condition, Durability, Like, Missing},
};
use straightway_lab::{Fault, Faults, Proxy, Weed};
use straightway_net::{Network, suited};
use straightway_s3::S3;
use straightway_webserver::Asked;

use super::{
    access, content, open, read,
    server::{Reply, Server},
    store,
    writes::{open_uploads, upload, write},
};

const PART: usize = 8 << 20;

/// A store behind a proxy, which has no faults yet.
fn behind(proxy: &Proxy) -> S3 {
    let network = Network::new(straightway_net::Settings {
        stall_max: Duration::from_secs(5),
        ..straightway_net::Settings::default()
    });
    S3::new(Weed::BUCKET, &access(&proxy.url()), &network).unwrap()
}

/// Writes objects through a proxy with these faults. All come right, and no upload stays open.
#[track_caller]
fn survives(folder: &str, shares: &[(Fault, u32)], seed: u64) {
    let Some(weed) = Weed::shared() else { return };
    let proxy = Proxy::start(&weed.address(), Faults::default()).unwrap();
    let through = behind(&proxy);
    proxy.set(Faults {
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
    // An answer that was lost when an upload began leaves one that only a sweep finds.
    open_uploads(&*inside);
    assert!(open_uploads(&*inside).is_empty());
}

#[test]
fn uploads_survive_cut_connections_and_lost_answers() {
    let faults = [(Fault::CutUpload, 1500), (Fault::LoseAnswer, 1500)];
    survives("cut-uploads", &faults, 21);
}

#[test]
fn uploads_survive_storms_of_refusals() {
    let faults = [
        (Fault::RefuseUpload(500), 1500),
        (Fault::RefuseUpload(503), 1500),
    ];
    survives("refused-uploads", &faults, 22);
}

#[test]
fn bytes_that_are_damaged_on_their_way_are_noticed_and_sent_again() {
    survives("damaged-uploads", &[(Fault::FlipUpload, 2500)], 23);
}

#[test]
fn errors_behind_a_status_of_success_are_errors() {
    survives("late-errors", &[(Fault::ErrorIn200, 2500)], 24);
}

#[test]
fn whoever_loses_every_second_answer_still_knows_who_won() {
    let Some(weed) = Weed::shared() else { return };
    let proxy = Proxy::start(&weed.address(), Faults::default()).unwrap();
    let through = Arc::new(behind(&proxy));
    let plain = store(&access(&weed.url()));
    // The probe is not what is tested here.
    let put = |store: &S3, name: &str, text: &str| {
        let (name, on) = (OsStr::new(name), Condition::IfAbsent);
        store.put(name, text.as_bytes(), &on, Durability::Synced)
    };
    put(&through, "lost/first", "x").unwrap();
    proxy.set(Faults {
        seed: 5,
        shares: vec![(Fault::LoseAnswer, 5000)],
        only: Some("lost/".to_owned()),
        after: 0,
    });
    for round in 0..20 {
        let name = format!("lost/{round}");
        let won: Vec<bool> = std::thread::scope(|scope| {
            let racers = [&*through, &*through, &plain].map(|store| {
                let name = &name;
                // The same bytes: only the number that each put carries tells them apart.
                scope.spawn(move || put(store, name, "mine").unwrap())
            });
            racers.map(|racer| racer.join().unwrap()).to_vec()
        });
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{won:?}");
    }
    assert!(proxy.counts().faults > 5);
}

#[test]
fn a_completion_whose_answer_is_lost_is_known_to_be_done() {
    let Some(weed) = Weed::shared() else { return };
    let proxy = Proxy::start(&weed.address(), Faults::default()).unwrap();
    let through = behind(&proxy);
    let bytes = content(9, 2 * PART + 3);
    let draft = through
        .create(
            OsStr::new("done/object"),
            bytes.len() as u64,
            &Like::Replaced,
        )
        .unwrap();
    write(&through, &*draft, &bytes, 0, suited(Settings::default())).unwrap();
    proxy.set(Faults {
        seed: 1,
        shares: vec![(Fault::LoseAnswer, 5000)],
        only: Some("uploadId=".to_owned()),
        after: 0,
    });
    through.commit(vec![draft]).unwrap();
    let plain = store(&access(&weed.url()));
    assert!(read(&plain, "done/object").unwrap() == bytes);
}

#[test]
fn an_upload_that_fails_for_good_leaves_nothing() {
    let Some(weed) = Weed::shared() else { return };
    let proxy = Proxy::start(&weed.address(), Faults::default()).unwrap();
    let through = behind(&proxy);
    let bytes = content(10, 2 * PART + 3);
    let draft = through
        .create(
            OsStr::new("fails/object"),
            bytes.len() as u64,
            &Like::Replaced,
        )
        .unwrap();
    proxy.set(Faults {
        seed: 1,
        shares: vec![(Fault::RefuseUpload(403), 10_000)],
        only: Some("partNumber=".to_owned()),
        after: 0,
    });
    let error = write(&through, &*draft, &bytes, 0, suited(Settings::default())).unwrap_err();
    assert!(
        error.to_string().contains("s3://lab/fails/object"),
        "{error}"
    );
    assert_eq!(
        error.to_string().split_whitespace().nth(1),
        Some("write"),
        "{error}"
    );
    drop(draft);
    let plain = store(&access(&weed.url()));
    let inside = plain.below(OsStr::new("fails"), Missing::Refuse).unwrap();
    assert!(open_uploads(&*inside).is_empty());
    assert!(open(&plain, "fails/object").is_err());
}

/// A server that puts whatever it is told to, whoever was first.
fn unconditional() -> Server {
    Server::start(|_, asked: &Asked| match asked.method.as_str() {
        "DELETE" => Reply::new(204, &[], ""),
        "PUT" => Reply::new(200, &[("ETag", "\"x\"")], ""),
        _ => Reply::error(404, "NoSuchKey"),
    })
}

#[test]
fn a_service_without_conditional_puts_is_found_out_before_anything_is_committed() {
    let server = unconditional();
    let store = store(&access(&server.url()));
    let error = store
        .put(
            OsStr::new("manifest"),
            b"x",
            &Condition::IfAbsent,
            Durability::Synced,
        )
        .unwrap_err();
    assert_eq!(error.kind(), Kind::Unsupported, "{error}");
    assert!(error.to_string().contains("If-None-Match"), "{error}");
}

/// A server that refuses all writes so.
fn refusing(status: u16, code: &'static str) -> S3 {
    let server = Server::start(move |_, _: &Asked| Reply::error(status, code));
    let store = store(&access(&server.url()));
    // It lives as long as the process.
    std::mem::forget(server);
    store
}

#[test]
fn read_only_credentials_and_full_services_are_told_before_data_moves() {
    for (status, code, kind, words) in [
        (403, "AccessDenied", Kind::Invalid, "s3:PutObject"),
        (507, "InsufficientStorage", Kind::Transient, "no room"),
        (403, "QuotaExceeded", Kind::Transient, "no room"),
        (400, "ObjectLocked", Kind::Invalid, "object lock"),
    ] {
        let store = refusing(status, code);
        let error = store
            .create(OsStr::new("object"), 3 * PART as u64, &Like::Replaced)
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let told = format!("{error} {}", error.hint().unwrap_or_default());
        assert!(told.contains(words), "{told}");
        let error = store
            .put(
                OsStr::new("object"),
                b"x",
                &Condition::Always,
                Durability::Synced,
            )
            .unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
    }
}

#[test]
fn what_is_written_to_a_service_that_does_not_compare_checksums_has_its_md5() {
    let digests = Arc::new(std::sync::Mutex::new(Vec::new()));
    let seen = Arc::clone(&digests);
    let server = Server::start(move |_, asked: &Asked| {
        let target = asked.target.as_str();
        if target.contains("uploads") {
            let root = "InitiateMultipartUploadResult";
            return Reply::new(
                200,
                &[],
                format!("<{root}><UploadId>u1</UploadId></{root}>"),
            );
        }
        if asked.method == "POST" {
            return Reply::new(200, &[], "<CompleteMultipartUploadResult/>");
        }
        if asked.method == "PUT" && !target.contains("probe") {
            let digest = md5::Md5::digest(&asked.body);
            let wanted = BASE64_STANDARD.encode(digest);
            seen.lock()
                .unwrap()
                .push(asked.header("content-md5") == Some(&wanted));
        }
        Reply::new(200, &[("ETag", "\"x\"")], "")
    });
    let store = store(&access(&server.url()));
    upload(&store, "large", &content(1, 2 * PART + 5)).unwrap();
    upload(&store, "small", &content(2, 500)).unwrap();
    assert_eq!(*digests.lock().unwrap(), [true; 4]);
}

/// Puts `x` under a name, whatever is there.
fn put(store: &S3, name: &str) -> Result<bool, Error> {
    let name = OsStr::new(name);
    store.put(name, b"x", &Condition::Always, Durability::Synced)
}

#[test]
fn checksums_are_left_out_where_they_are_not_implemented_and_nowhere_else() {
    let has_sum = |asked: &Asked| asked.header("x-amz-checksum-crc64nvme").is_some();
    let server = Server::start(move |_, asked: &Asked| {
        if has_sum(asked) {
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
        "the second object goes without at once"
    );
    // An object whose name has that number in it is no such answer.
    let server = Server::start(move |_, asked: &Asked| {
        match (has_sum(asked), asked.target.contains("step-501")) {
            (_, _) if asked.target.contains("probe") => Reply::error(400, "BadDigest"),
            (false, _) => Reply::error(400, "MissingChecksum"),
            (true, true) => Reply::error(403, "AccessDenied"),
            (true, false) => Reply::new(200, &[("ETag", "\"x\"")], ""),
        }
    });
    let with = store(&access(&server.url()));
    assert_eq!(put(&with, "step-501").unwrap_err().kind(), Kind::Invalid);
    assert!(put(&with, "a").unwrap());
    assert_eq!(
        server.requests(),
        3,
        "and one that finds out that checksums are compared"
    );
}
