//! Mistakes of users and services: each is a clear error in bounded time, and none shows a secret.

use std::{
    ffi::OsStr,
    net::TcpListener,
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind};
use straightway_io::{
    Store,
    store::{Missing, list_all},
};
use straightway_lab::S3Server;
use straightway_s3::{AccessKeys, CredentialSource, CustomerKey, S3, S3Access};

use super::{
    access, network, open, read,
    server::{Reply, Server},
    store,
};

/// The text and hint of an error, after a check for secrets.
#[track_caller]
fn full_text(error: &Error) -> String {
    let text = format!("{error}\n{}", error.hint().expect("each error has a remedy"));
    for secret in [
        S3Server::SECRET_ACCESS_KEY,
        S3Server::ACCESS_KEY_ID,
        "wrong-secret",
        "wrong-id",
        "AWS4-HMAC",
    ] {
        assert!(!text.contains(secret), "{text}");
        assert!(!format!("{error:?}").contains(secret), "{error:?}");
    }
    text
}

/// The error of opening an object on a server that always sends this reply.
#[track_caller]
fn refused(reply: impl Fn() -> Reply + Send + Sync + 'static) -> (ErrorKind, String) {
    let server = Server::start(move |_, _| reply());
    let store = store(&access(&server.url()));
    let start = Instant::now();
    let error = open(&store, "model/weights").unwrap_err();
    assert!(start.elapsed() < Duration::from_mins(1));
    let text = full_text(&error);
    assert!(text.contains("s3://lab/model/weights"), "{text}");
    (error.kind(), text)
}

#[test]
fn refusals_of_a_real_server_name_the_object_and_have_a_hint() {
    let Some(weed) = S3Server::shared() else {
        return;
    };
    let good = access(&weed.url());
    let missing = open(&store(&good), "none/such").unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(
        full_text(&missing).contains("straightway ls s3://lab/"),
        "{}",
        full_text(&missing)
    );

    let bucket = S3::new("no-such-bucket", &good, &network()).unwrap();
    let error = open(&bucket, "x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        full_text(&error).contains("no bucket no-such-bucket"),
        "{}",
        full_text(&error)
    );
    let error = list_all(&bucket).unwrap_err();
    assert!(full_text(&error).contains("no-such-bucket"), "{}", full_text(&error));

    let wrong = S3Access::with_keys(&weed.url(), S3Server::ACCESS_KEY_ID, "wrong-secret");
    let error = open(&store(&wrong), "x").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(
        full_text(&error).contains("check the secret access key"),
        "{}",
        full_text(&error)
    );
    let wrong = S3Access::with_keys(&weed.url(), "wrong-id", "wrong-secret");
    let error = list_all(&store(&wrong)).unwrap_err();
    assert!(
        full_text(&error).contains("check the access key id"),
        "{}",
        full_text(&error)
    );

    weed.put("denied", vec![1]);
    let mut nobody = good.clone();
    nobody.credentials = CredentialSource::Anonymous;
    let error = open(&store(&nobody), "denied").unwrap_err();
    assert!(
        full_text(&error).contains("access is denied to anonymous access"),
        "{}",
        full_text(&error)
    );
}

#[test]
fn the_hint_of_a_wrong_region_names_the_right_one() {
    let body = "<Error><Code>AuthorizationHeaderMalformed</Code><Message>wrong</Message>\
                <Region>eu-north-1</Region></Error>";
    let (kind, text) = refused(move || Reply::new(400, &[], body));
    assert_eq!(kind, ErrorKind::Invalid);
    assert!(text.contains("use region eu-north-1"), "{text}");
    let moved = [
        ("x-amz-bucket-region", "ap-south-1"),
        ("location", "https://elsewhere/"),
    ];
    let (_, text) = refused(move || Reply::new(301, &moved, "<Error><Code>PermanentRedirect</Code></Error>"));
    assert!(text.contains("use region ap-south-1"), "{text}");
}

#[test]
fn a_clock_skew_is_reported() {
    let (_, text) = refused(|| {
        let mut reply = Reply::error(403, "RequestTimeTooSkewed");
        reply
            .headers
            .push(("Date".to_owned(), "Mon, 16 Nov 2020 03:04:05 GMT".to_owned()));
        reply
    });
    assert!(text.contains("minutes ahead of"), "{text}");
    assert!(text.contains("set the clock"), "{text}");
}

#[test]
fn an_endpoint_that_is_not_s3_is_reported_in_bounded_time() {
    for (status, body) in [
        (200, "<html>welcome</html>"),
        (404, "<html>nginx</html>"),
        (400, "bad"),
        (405, "no"),
    ] {
        let (_, text) = refused(move || Reply::new(status, &[], body));
        assert!(text.contains("endpoint or AWS_ENDPOINT_URL_S3"), "{text}");
    }
    let server = Server::start(|_, _| Reply::new(200, &[], "<html>welcome</html>"));
    let error = list_all(&store(&access(&server.url()))).unwrap_err();
    assert!(
        full_text(&error).contains("does not respond like an S3 service"),
        "{}",
        full_text(&error)
    );
}

#[test]
fn an_unreachable_server_is_reported_in_bounded_time() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let start = Instant::now();
    let error = list_all(&store(&access(&format!("http://127.0.0.1:{port}")))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient);
    assert!(
        full_text(&error).contains("endpoint or AWS_ENDPOINT_URL_S3"),
        "{}",
        full_text(&error)
    );
    assert!(start.elapsed() < Duration::from_mins(1));
}

#[test]
fn transient_server_errors_are_retried() {
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
    assert_eq!(end.map(u64::from), [5, 4, 3, 2, 1].map(|back| (bytes - back) % 251));
    assert_eq!(
        opened.read_exact_at(bytes - 4, &mut end).unwrap_err().kind(),
        ErrorKind::Corrupt
    );
}

#[test]
fn wrong_listings_are_refused() {
    for (body, words) in [
        ("<Contents><Key>other/x</Key><Size>1</Size></Contents>", "wrong prefix"),
        ("<Contents><Key>a/x/y</Key><Size>1</Size></Contents>", "wrong prefix"),
        ("<CommonPrefixes><Prefix>a/../</Prefix></CommonPrefixes>", "`..`"),
        ("<CommonPrefixes><Prefix>a//</Prefix></CommonPrefixes>", "empty part"),
        ("<IsTruncated>true</IsTruncated>", "no continuation token"),
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
fn a_service_that_ignores_continuation_tokens_is_an_error_and_not_an_endless_listing() {
    for contents in ["", "<Contents><Key>x</Key><Size>1</Size></Contents>"] {
        let page = format!(
            "<ListBucketResult><IsTruncated>true</IsTruncated>\
             <NextContinuationToken>again and again</NextContinuationToken>{contents}</ListBucketResult>"
        );
        let server = Server::start(move |_, _| Reply::new(200, &[], page.clone()));
        let error = list_all(&store(&access(&server.url()))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        let text = full_text(&error);
        assert!(
            text.contains("s3://lab/") && text.contains("same continuation token"),
            "{text}"
        );
        assert_eq!(server.requests(), 2);
    }
}

#[test]
fn invalid_names_are_refused_without_a_request() {
    let server = Server::start(|_, _| Reply::error(404, "NoSuchKey"));
    let store = store(&access(&server.url()));
    for name in ["", "a/../b", "./a", "a/."] {
        assert_eq!(open(&store, name).unwrap_err().kind(), ErrorKind::Invalid, "{name}");
    }
    assert_eq!(server.requests(), 0);
}

const CUSTOMER_KEY: &str = "aGlkZGVuIGhpZGRlbiBoaWRkZW4gaGlkZGVuIGhpZGQ=";

/// The access of the test server, with a session token.
fn with_token(url: &str, token: &str) -> S3Access {
    S3Access {
        credentials: CredentialSource::Keys(AccessKeys {
            access_key_id: S3Server::ACCESS_KEY_ID.to_owned(),
            secret_access_key: S3Server::SECRET_ACCESS_KEY.to_owned(),
            session_token: Some(token.to_owned()),
        }),
        ..access(url)
    }
}

#[test]
fn neither_a_store_nor_its_objects_show_secrets_in_debug() {
    let server = Server::start(|_, request| Reply::of_object(request, 1, "\"1\"", |_, _| vec![1]));
    let mut access = with_token(&server.url(), "hidden-token");
    access.customer_key = Some(CustomerKey::new(CUSTOMER_KEY).unwrap());
    let store = S3::new("lab", &access, &network()).unwrap();
    let opened = open(&store, "x").unwrap();
    let shown = format!("{access:?}{store:?}{opened:?}");
    for secret in [
        S3Server::SECRET_ACCESS_KEY,
        "hidden-token",
        "aGlkZGVu",
        "AWS4-HMAC",
        "Signature",
    ] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[test]
fn every_request_has_the_configured_headers() {
    let server = Server::start(move |_, request| {
        let has = |name: &str, value: &str| request.header(name) == Some(value);
        let signed = request.header("authorization").unwrap_or_default().to_owned();
        let is_right = has("x-amz-request-payer", "requester")
            && has("x-amz-server-side-encryption-customer-key", CUSTOMER_KEY)
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
    let access = S3Access {
        requester_pays: true,
        customer_key: Some(CustomerKey::new(CUSTOMER_KEY).unwrap()),
        region: Some("eu-west-1".to_owned()),
        ..with_token(&server.url(), "a-token")
    };
    let store = S3::new("lab", &access, &network()).unwrap();
    assert_eq!(read(&store, "a b?versionId=v.1-_").unwrap(), b"yes");
}

#[test]
fn invalid_access_settings_are_refused_when_a_store_is_created() {
    let half = S3Access::with_keys("http://127.0.0.1:9", "wrong-id", "");
    let error = S3::new("lab", &half, &network()).unwrap_err();
    assert!(full_text(&error).contains("secret_access_key"));
    let endpoint = S3Access {
        endpoint: Some("localhost:9000".to_owned()),
        ..S3Access::default()
    };
    let error = S3::new("lab", &endpoint, &network()).unwrap_err();
    assert!(full_text(&error).contains("http://HOST[:PORT]"));
}

#[test]
fn keys_with_an_empty_part_are_read_by_name_and_refused_in_listings() {
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
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(
        full_text(&error).contains("s3://lab/a//") && full_text(&error).contains("empty part"),
        "{error}"
    );
}

#[test]
fn an_empty_object_is_opened_even_if_the_refusal_of_a_range_has_no_length() {
    let server = Server::start(|_, request| match request.header("range") {
        Some(_) => Reply::error(416, "InvalidRange"),
        None => Reply::new(200, &[("ETag", "\"1\"")], ""),
    });
    let store = store(&access(&server.url()));
    assert_eq!(read(&store, "model/empty").unwrap(), b"");
    assert_eq!(server.requests(), 2);
}
