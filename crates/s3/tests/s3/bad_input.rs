//! What people and services get wrong: each is a clear error in bounded time, and none shows a secret.

use std::{
    ffi::OsStr,
    net::TcpListener,
    time::{Duration, Instant},
};

use straightway_core::{Error, Kind};
use straightway_io::{
    Store,
    store::{Missing, list_all},
};
use straightway_lab::Weed;
use straightway_s3::{Access, S3};

use super::{
    access, network, open, read,
    server::{Reply, Server},
    store,
};

/// An error in full, after a look for secrets.
#[track_caller]
fn told(error: &Error) -> String {
    let text = format!(
        "{error}\n{}",
        error.hint().expect("each error has a remedy")
    );
    for secret in [
        Weed::SECRET_ACCESS_KEY,
        Weed::ACCESS_KEY_ID,
        "wrong-secret",
        "wrong-id",
        "AWS4-HMAC",
    ] {
        assert!(!text.contains(secret), "{text}");
        assert!(!format!("{error:?}").contains(secret), "{error:?}");
    }
    text
}

/// The error of opening an object of a server that always answers like this.
#[track_caller]
fn refused(reply: impl Fn() -> Reply + Send + Sync + 'static) -> (Kind, String) {
    let server = Server::start(move |_, _| reply());
    let store = store(&access(&server.url()));
    let start = Instant::now();
    let error = open(&store, "model/weights").unwrap_err();
    assert!(start.elapsed() < Duration::from_mins(1));
    let text = told(&error);
    assert!(text.contains("s3://lab/model/weights"), "{text}");
    (error.kind(), text)
}

#[test]
fn a_real_server_s_refusals_name_the_object_and_the_remedy() {
    let Some(weed) = Weed::shared() else { return };
    let good = access(&weed.url());
    let missing = open(&store(&good), "none/such").unwrap_err();
    assert_eq!(missing.kind(), Kind::NotFound);
    assert!(
        told(&missing).contains("straightway ls s3://lab/"),
        "{}",
        told(&missing)
    );

    let bucket = S3::new("no-such-bucket", &good, &network()).unwrap();
    let error = open(&bucket, "x").unwrap_err();
    assert_eq!(error.kind(), Kind::NotFound);
    assert!(
        told(&error).contains("no bucket no-such-bucket"),
        "{}",
        told(&error)
    );
    let error = list_all(&bucket).unwrap_err();
    assert!(told(&error).contains("no-such-bucket"), "{}", told(&error));

    let mut wrong = good.clone();
    wrong.set("secret_access_key", "wrong-secret").unwrap();
    let error = open(&store(&wrong), "x").unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid);
    assert!(
        told(&error).contains("check the secret access key"),
        "{}",
        told(&error)
    );
    wrong.set("access_key_id", "wrong-id").unwrap();
    let error = list_all(&store(&wrong)).unwrap_err();
    assert!(
        told(&error).contains("check the access key id"),
        "{}",
        told(&error)
    );

    weed.put("denied", vec![1]);
    let mut nobody = good.clone();
    nobody.set("anonymous", "true").unwrap();
    let error = open(&store(&nobody), "denied").unwrap_err();
    assert!(
        told(&error).contains("access is denied to anonymous access"),
        "{}",
        told(&error)
    );
}

#[test]
fn the_hint_of_a_wrong_region_names_the_right_one() {
    let body = "<Error><Code>AuthorizationHeaderMalformed</Code><Message>wrong</Message>\
                <Region>eu-north-1</Region></Error>";
    let (kind, text) = refused(move || Reply::new(400, &[], body));
    assert_eq!(kind, Kind::Invalid);
    assert!(text.contains("--region eu-north-1"), "{text}");
    let moved = [
        ("x-amz-bucket-region", "ap-south-1"),
        ("location", "https://elsewhere/"),
    ];
    let (_, text) =
        refused(move || Reply::new(301, &moved, "<Error><Code>PermanentRedirect</Code></Error>"));
    assert!(text.contains("--region ap-south-1"), "{text}");
}

#[test]
fn a_clock_that_is_off_is_told() {
    let (_, text) = refused(|| {
        let mut reply = Reply::error(403, "RequestTimeTooSkewed");
        reply.headers.push((
            "Date".to_owned(),
            "Mon, 16 Nov 2020 03:04:05 GMT".to_owned(),
        ));
        reply
    });
    assert!(text.contains("minutes ahead of"), "{text}");
    assert!(text.contains("set the clock"), "{text}");
}

#[test]
fn an_endpoint_that_is_not_s3_is_told_in_bounded_time() {
    for (status, body) in [
        (200, "<html>welcome</html>"),
        (404, "<html>nginx</html>"),
        (400, "bad"),
        (405, "no"),
    ] {
        let (_, text) = refused(move || Reply::new(status, &[], body));
        assert!(text.contains("--endpoint"), "{text}");
    }
    let server = Server::start(|_, _| Reply::new(200, &[], "<html>welcome</html>"));
    let error = list_all(&store(&access(&server.url()))).unwrap_err();
    assert!(
        told(&error).contains("does not answer as S3 does"),
        "{}",
        told(&error)
    );
}

#[test]
fn a_server_that_is_not_there_is_told_in_bounded_time() {
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    let start = Instant::now();
    let error = list_all(&store(&access(&format!("http://127.0.0.1:{port}")))).unwrap_err();
    assert_eq!(error.kind(), Kind::Transient);
    assert!(told(&error).contains("--endpoint"), "{}", told(&error));
    assert!(start.elapsed() < Duration::from_mins(1));
}

#[test]
fn a_server_that_fails_for_a_while_is_asked_again() {
    let server = Server::start(|number, request| match number {
        0 => Reply::error(503, "SlowDown"),
        1 => Reply::error(500, "InternalError"),
        2 => Reply::new(502, &[], "<html>bad gateway</html>"),
        _ => Reply::of_object(request, 5, "\"1\"", |_, _| b"hello".to_vec()),
    });
    let store = store(&access(&server.url()));
    assert_eq!(read(&store, "x").unwrap(), b"hello");
    assert_eq!(server.requests(), 4);
}

#[test]
fn an_object_of_5_tib_is_opened_and_read_at_its_end() {
    let bytes = 5_u64 << 40;
    let server = Server::start(move |_, request| {
        let byte = |at: u64| (at % 251) as u8;
        Reply::of_object(request, bytes, "\"big\"", move |from, to| {
            (from..to).map(byte).collect()
        })
    });
    let store = store(&access(&server.url()));
    let opened = open(&store, "big").unwrap();
    assert_eq!(opened.object().bytes, bytes);
    let mut end = [0; 5];
    opened.read_exact_at(bytes - 5, &mut end).unwrap();
    assert_eq!(
        end.map(u64::from),
        [5, 4, 3, 2, 1].map(|back| (bytes - back) % 251)
    );
    assert_eq!(
        opened
            .read_exact_at(bytes - 4, &mut end)
            .unwrap_err()
            .kind(),
        Kind::Corrupt
    );
}

#[test]
fn listings_that_lie_are_refused() {
    for (body, words) in [
        (
            "<Contents><Key>other/x</Key><Size>1</Size></Contents>",
            "does not belong",
        ),
        (
            "<Contents><Key>a/x/y</Key><Size>1</Size></Contents>",
            "does not belong",
        ),
        (
            "<CommonPrefixes><Prefix>a/../</Prefix></CommonPrefixes>",
            "`..`",
        ),
        (
            "<CommonPrefixes><Prefix>a//</Prefix></CommonPrefixes>",
            "empty part",
        ),
        ("<IsTruncated>true</IsTruncated>", "where it goes on"),
    ] {
        let page = format!("<ListBucketResult>{body}</ListBucketResult>");
        let server = Server::start(move |_, _| Reply::new(200, &[], page.clone()));
        let below = store(&access(&server.url()))
            .below(OsStr::new("a"), Missing::Refuse)
            .unwrap();
        let error = list_all(&*below).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn names_that_no_request_can_have_are_refused_without_one() {
    let server = Server::start(|_, _| Reply::error(404, "NoSuchKey"));
    let store = store(&access(&server.url()));
    for name in ["", "a/../b", "./a", "a/."] {
        assert_eq!(
            open(&store, name).unwrap_err().kind(),
            Kind::Invalid,
            "{name}"
        );
    }
    assert_eq!(server.requests(), 0);
}

#[test]
fn neither_a_store_nor_its_objects_show_secrets_in_debug() {
    let server = Server::start(|_, request| Reply::of_object(request, 1, "\"1\"", |_, _| vec![1]));
    let mut access = access(&server.url());
    access.set("session_token", "hidden-token").unwrap();
    access
        .set(
            "sse_customer_key",
            "aGlkZGVuIGhpZGRlbiBoaWRkZW4gaGlkZGVuIGhpZGQ=",
        )
        .unwrap();
    let store = S3::new("lab", &access, &network()).unwrap();
    let opened = open(&store, "x").unwrap();
    let shown = format!("{access:?}{store:?}{opened:?}");
    for secret in [
        Weed::SECRET_ACCESS_KEY,
        "hidden-token",
        "aGlkZGVu",
        "AWS4-HMAC",
        "Signature",
    ] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn every_request_has_the_headers_that_were_asked_for() {
    let key = "aGlkZGVuIGhpZGRlbiBoaWRkZW4gaGlkZGVuIGhpZGQ=";
    let server = Server::start(move |_, request| {
        let has = |name: &str, value: &str| request.header(name) == Some(value);
        let signed = request
            .header("authorization")
            .unwrap_or_default()
            .to_owned();
        let is_right = has("x-amz-request-payer", "requester")
            && has("x-amz-server-side-encryption-customer-key", key)
            && has("x-amz-security-token", "a-token")
            && signed.contains("x-amz-server-side-encryption-customer-key-md5")
            && signed.contains("/eu-west-1/s3/aws4_request")
            && !signed.contains("range")
            && request.target.as_str() == "/lab/a%20b?versionId=v.1-_";
        if is_right {
            Reply::of_object(request, 3, "\"1\"", |_, _| b"yes".to_vec())
        } else {
            Reply::error(400, "Unexpected")
        }
    });
    let mut access = access(&server.url());
    for (name, value) in [
        ("requester_pays", "true"),
        ("sse_customer_key", key),
        ("session_token", "a-token"),
        ("region", "eu-west-1"),
    ] {
        access.set(name, value).unwrap();
    }
    let store = S3::new("lab", &access, &network()).unwrap();
    assert_eq!(read(&store, "a b?versionId=v.1-_").unwrap(), b"yes");
}

#[test]
fn access_that_makes_no_sense_is_refused_when_a_store_is_made() {
    let mut half = Access::default();
    half.set("access_key_id", "wrong-id").unwrap();
    let error = S3::new("lab", &half, &network()).unwrap_err();
    assert!(told(&error).contains("secret_access_key"));
    let mut endpoint = Access::default();
    endpoint.set("endpoint_url", "localhost:9000").unwrap();
    let error = S3::new("lab", &endpoint, &network()).unwrap_err();
    assert!(told(&error).contains("http://HOST[:PORT]"));
}

#[test]
fn keys_with_an_empty_part_are_read_by_name_and_refused_by_name_in_listings() {
    let server = Server::start(|_, request| {
        if request.target.contains("list-type") {
            let page = "<ListBucketResult><CommonPrefixes><Prefix>a//</Prefix></CommonPrefixes></ListBucketResult>";
            return Reply::new(200, &[], page);
        }
        assert_eq!(request.target, "/lab/a//b");
        Reply::of_object(request, 3, "\"1\"", |first, end| {
            b"yes"[first as usize..end as usize].to_vec()
        })
    });
    let store = store(&access(&server.url()));
    assert_eq!(read(&store, "a//b").unwrap(), b"yes");
    let inside = store.below(OsStr::new("a"), Missing::Refuse).unwrap();
    let error = list_all(&*inside).unwrap_err();
    assert_eq!(error.kind(), Kind::Invalid, "{error}");
    assert!(
        told(&error).contains("s3://lab/a//") && told(&error).contains("empty part"),
        "{error}"
    );
}

#[test]
fn an_empty_object_is_opened_also_where_the_refusal_of_a_range_does_not_tell_its_length() {
    let server = Server::start(|_, request| match request.header("range") {
        Some(_) => Reply::error(416, "InvalidRange"),
        None => Reply::new(200, &[("ETag", "\"1\"")], ""),
    });
    let store = store(&access(&server.url()));
    assert_eq!(read(&store, "model/empty").unwrap(), b"");
    assert_eq!(server.requests(), 2);
}
