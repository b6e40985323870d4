//! Objects with a `Content-Encoding`.

use std::sync::Arc;

use straightway_core::{ErrorKind, Result};
use straightway_net::{Head, NetworkSettings, Service};
use straightway_webserver::{ReceivedRequest, Server, ServerStep, with_headers};

use super::{
    TAG,
    fixture::{Lab, content, read_all},
};

/// A service whose objects may be stored compressed.
#[derive(Debug)]
struct Stored {
    host: String,
}

impl Service for Stored {
    fn head(&self, out: &mut Vec<u8>) -> Result<Head> {
        let host = &self.host;
        out.extend_from_slice(format!("GET /object HTTP/1.1\r\nHost: {host}\r\n").as_bytes());
        Ok(Head::Ready)
    }

    fn asks_whole(&self) -> bool {
        true
    }

    fn stores_encoded(&self) -> bool {
        true
    }
}

/// The correct response with a `Content-Encoding`.
fn encoded(request: &ReceivedRequest, object: &[u8]) -> Vec<ServerStep> {
    let response = request.response_bytes(object, TAG);
    vec![ServerStep::Bytes(with_headers(
        response,
        &[("Content-Encoding", "gzip")],
    ))]
}

#[test]
fn ranges_of_an_encoded_object_are_its_stored_bytes() {
    let object = content(50_000, 26);
    let copy = object.clone();
    let server = Server::start(move |request| encoded(request, &copy));
    let lab = Lab::new(&server, NetworkSettings::default());
    let service = Stored {
        host: lab.origin.site().authority(),
    };
    let remote = lab.with("/object", 50_000, TAG, Arc::new(service));
    let got = read_all(&mut lab.engine(4), &remote, object.len(), 7000).unwrap();
    assert!(got.bytes == object);
    let mut threads = straightway_net::threads(4).unwrap();
    let got = read_all(&mut threads, &remote, object.len(), 7000).unwrap();
    assert!(got.bytes == object);
}

#[test]
fn ranges_of_a_compressed_form_are_refused() {
    let object = content(50_000, 28);
    let server = Server::start(move |request| encoded(request, &object));
    let lab = Lab::new(&server, NetworkSettings::default());
    let error = lab.try_open("/object").unwrap_err();
    assert!(error.to_string().contains("compressed"), "{error}");
    let remote = lab.known("/object", 50_000, TAG);
    let error = read_all(&mut lab.engine(1), &remote, 50_000, 7000).unwrap_err();
    assert!(error.to_string().contains("compressed"), "{error}");
}

#[test]
fn an_object_that_the_server_compressed_on_the_way_is_refused() {
    // Short enough for one response. The server ignores ranges.
    let server = Server::start(|request| {
        let whole = ReceivedRequest {
            headers: Vec::new(),
            ..request.clone()
        };
        encoded(&whole, &[7; 50])
    });
    let lab = Lab::new(&server, NetworkSettings::default());
    let error = lab.try_open("/object").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("compressed"), "{error}");
    let remote = lab.known("/object", 50, TAG);
    let error = read_all(&mut lab.engine(1), &remote, 50, 50).unwrap_err();
    assert!(error.to_string().contains("compressed"), "{error}");
}

#[test]
fn a_whole_object_that_is_stored_encoded_is_read() {
    let object = content(5000, 27);
    let copy = object.clone();
    let server = Server::start(move |request| {
        assert_eq!(request.header("range"), None);
        encoded(request, &copy)
    });
    let lab = Lab::new(&server, NetworkSettings::default());
    let service = Stored {
        host: lab.origin.site().authority(),
    };
    let remote = lab.with("/object", 5000, TAG, Arc::new(service));
    let got = read_all(&mut lab.engine(1), &remote, 5000, 5000).unwrap();
    assert!(got.bytes == object);
    let mut threads = straightway_net::threads(1).unwrap();
    let got = read_all(&mut threads, &remote, 5000, 5000).unwrap();
    assert!(got.bytes == object);
}
