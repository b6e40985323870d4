//! Lengths from a listing that are wrong, or of another moment.

use std::{
    ffi::OsString,
    sync::{Arc, Mutex},
};

use straightway_core::ErrorKind;
use straightway_io::{
    Store,
    store::{Named, Tag},
};
use straightway_webserver::ReceivedRequest;

use super::{
    access,
    server::{Reply, Server},
    store,
};

const TAG: &str = "\"v1\"";

/// An object with the length and the version of a listing.
fn listed(bytes: u64) -> Named {
    Named {
        bytes: Some(bytes),
        tag: Some(Tag::Text(TAG.to_owned())),
        ..Named::new("object")
    }
}

#[test]
fn an_object_that_a_listing_calls_empty_is_asked_for() {
    for bytes in [0, 5] {
        let server = Server::start(move |_, request: &ReceivedRequest| {
            Reply::of_object(request, bytes, TAG, |start, end| vec![7; (end - start) as usize])
        });
        let store = store(&access(&server.url()));
        match store.open(&[listed(0)]) {
            Ok(opened) => assert_eq!((opened[0].object().bytes, bytes), (0, 0)),
            Err(error) => {
                assert_eq!((error.kind(), bytes), (ErrorKind::Corrupt, 5), "{error}");
                assert!(error.to_string().contains("its length is 5 bytes"), "{error}");
            }
        }
        assert_eq!(server.requests(), 1);
        // Another length needs no request: each range that is read is compared with it.
        store.open(&[listed(5)]).unwrap();
        assert_eq!(server.requests(), 1);
        assert!(store.open(&[listed(u64::MAX)]).is_err(), "no object is so long");
    }
}

#[test]
fn a_copy_in_parts_has_the_length_of_the_object_and_not_that_of_the_listing() {
    const BYTES: u64 = 7 << 30;
    let ranges: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&ranges);
    let server = Server::start(move |_, request: &ReceivedRequest| {
        let range = request.header("x-amz-copy-source-range");
        noted.lock().unwrap().extend(range.map(str::to_owned));
        let target = request.target.as_str();
        match request.method.as_str() {
            "PUT" if target.contains("probe") => Reply::error(412, "PreconditionFailed"),
            "PUT" => Reply::new(200, &[], "<CopyPartResult><ETag>\"p\"</ETag></CopyPartResult>"),
            "POST" if target.contains("uploads") => {
                let root = "InitiateMultipartUploadResult";
                Reply::new(200, &[], format!("<{root}><UploadId>u1</UploadId></{root}>"))
            }
            "POST" => Reply::new(200, &[], "<CompleteMultipartUploadResult/>"),
            _ => Reply::of_object(request, BYTES, TAG, |start, end| vec![7; (end - start) as usize]),
        }
    });
    let store = store(&access(&server.url()));
    let objects = [(listed(6 << 30), OsString::from("copy"))];
    assert!(store.copy_within(&store, &objects).unwrap());
    let ranges = ranges.lock().unwrap();
    let last = format!("-{}", BYTES - 1);
    assert!(ranges.iter().any(|range| range.ends_with(&last)), "{ranges:?}");
}
