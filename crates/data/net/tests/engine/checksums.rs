//! Ranges that are exactly one stored part, whose checksum the server states.

use std::sync::Arc;

use straightway_core::{ErrorKind, Result};
use straightway_io::engine::Engine;
use straightway_net::{Algorithm, Checksum, Head, HttpResponse, NetworkSettings, Remote, Service};
use straightway_webserver::{ReceivedRequest, Server, ServerStep, with_headers};

use super::{
    TAG,
    fixture::{Lab, content, read_range},
};

const PART_BYTES: usize = 10_000;
const PARTS: usize = 3;

/// A service whose responses state the CRC-32C of a part.
#[derive(Debug)]
struct Summed {
    host: String,
}

impl Service for Summed {
    fn head(&self, out: &mut Vec<u8>) -> Result<Head> {
        let host = &self.host;
        out.extend_from_slice(format!("GET /object HTTP/1.1\r\nHost: {host}\r\n").as_bytes());
        Ok(Head::Ready)
    }

    fn part_checksum(&self, response: &HttpResponse<'_>) -> Option<Checksum> {
        let sum = u64::from_str_radix(response.text("x-sum")?, 16).ok()?;
        Some(Checksum::new(Algorithm::Crc32C, sum))
    }
}

/// The correct response, with the checksum of a range that is exactly one part.
fn summed(request: &ReceivedRequest, object: &[u8]) -> Vec<u8> {
    let response = request.response_bytes(object, TAG);
    let range = request.range(object.len()).unwrap();
    if range.len() == PART_BYTES && range.start.is_multiple_of(PART_BYTES) {
        let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &object[range]);
        return with_headers(response, &[("X-Sum", &format!("{sum:x}"))]);
    }
    response
}

/// Calls `check` with each engine and an object on a new server. `respond` gets each request and the correct response.
fn with_both(
    respond: fn(&ReceivedRequest, Vec<u8>) -> Vec<ServerStep>,
    check: impl Fn(&mut dyn Engine, &Arc<Remote>, &[u8]),
) {
    let object = content(PARTS * PART_BYTES, 25);
    for is_ring in [true, false] {
        let copy = object.clone();
        let server = Server::start(move |request| respond(request, summed(request, &copy)));
        let lab = Lab::new(&server, NetworkSettings::default());
        let service = Summed {
            host: lab.origin.site().authority(),
        };
        let remote = lab.with("/object", object.len() as u64, TAG, Arc::new(service));
        if is_ring {
            check(&mut lab.engine(1), &remote, &object);
        } else {
            check(&mut straightway_net::threads(1).unwrap(), &remote, &object);
        }
    }
}

/// Flips a bit of the last byte.
fn damaged(mut bytes: Vec<u8>) -> Vec<ServerStep> {
    if let Some(last) = bytes.last_mut() {
        *last ^= 1;
    }
    vec![ServerStep::Bytes(bytes)]
}

#[test]
fn a_damaged_part_is_read_again() {
    let respond = |request: &ReceivedRequest, bytes: Vec<u8>| match request.number {
        0 => damaged(bytes),
        _ => vec![ServerStep::Bytes(bytes)],
    };
    with_both(respond, |engine, remote, object| {
        let got = read_range(engine, remote, PART_BYTES as u64, PART_BYTES).unwrap();
        assert!(got.bytes == object[PART_BYTES..2 * PART_BYTES]);
        assert_eq!(got.tries.retries, 1);
    });
}

#[test]
fn a_part_that_never_matches_its_checksum_is_an_error() {
    with_both(
        |_, bytes| damaged(bytes),
        |engine, remote, object| {
            let error = read_range(engine, remote, 0, PART_BYTES).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
            assert!(error.to_string().contains("checksum"), "{error}");
            // Other ranges have no checksum.
            let got = read_range(engine, remote, 0, PART_BYTES + 1).unwrap();
            assert!(got.bytes[..PART_BYTES] == object[..PART_BYTES]);
        },
    );
}

#[test]
fn the_checksum_of_a_resumed_rest_is_not_that_of_all_bytes() {
    let respond = |request: &ReceivedRequest, bytes: Vec<u8>| {
        if request.number > 0 {
            return vec![ServerStep::Bytes(bytes)];
        }
        // The body ends where the second part begins, so the rest is exactly one part.
        let body_bytes = request.range(PARTS * PART_BYTES).unwrap().len();
        let end = bytes.len() - body_bytes + PART_BYTES;
        vec![ServerStep::Bytes(bytes[..end].to_vec()), ServerStep::Close]
    };
    with_both(respond, |engine, remote, object| {
        let got = read_range(engine, remote, 0, 2 * PART_BYTES).unwrap();
        assert!(got.bytes == object[..2 * PART_BYTES]);
        assert_eq!(got.tries.retries, 1);
    });
}
