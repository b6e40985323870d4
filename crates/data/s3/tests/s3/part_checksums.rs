//! Checksums of parts that come with ranges.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use straightway_core::{ErrorKind, Result};
use straightway_webserver::ReceivedRequest;

use super::{
    access, content, open,
    server::{Reply, Server},
    store,
};

const PART_BYTES: usize = 1 << 20;
const BYTES: usize = 3 * PART_BYTES;
const TAG: &str = "\"0123456789abcdef-3\"";

fn object() -> Vec<u8> {
    content(77, BYTES)
}

fn crc32c(bytes: &[u8]) -> String {
    let sum = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes);
    BASE64_STANDARD.encode(&sum.to_be_bytes()[4..])
}

/// The requested range, with a checksum of this type and value.
fn reply(request: &ReceivedRequest, kind: &str, sum: &str) -> Reply {
    let mut reply = Reply::of_object(request, BYTES as u64, TAG, |from, to| {
        object()[from as usize..to as usize].to_vec()
    });
    for (name, value) in [("x-amz-checksum-type", kind), ("x-amz-checksum-crc32c", sum)] {
        reply.headers.push((name.to_owned(), value.to_owned()));
    }
    reply
}

/// Reads a range of the object.
fn read(server: &Server, offset: usize, bytes: usize) -> Result<Vec<u8>> {
    let opened = open(&store(&access(&server.url())), "model")?;
    let mut read = vec![0; bytes];
    opened.read_exact_at(offset as u64, &mut read)?;
    Ok(read)
}

#[test]
fn a_part_is_compared_with_its_checksum() {
    let right = Server::start(|_, request| {
        let range = request.range(BYTES).unwrap();
        reply(request, "COMPOSITE", &crc32c(&object()[range]))
    });
    let second = &object()[PART_BYTES..2 * PART_BYTES];
    assert!(read(&right, PART_BYTES, PART_BYTES).unwrap() == second);
    assert_eq!(right.requests(), 2);
    // The first response has the checksum of other bytes.
    let damaged = Server::start(|number, request| {
        let range = request.range(BYTES).unwrap();
        let sum = if number == 1 {
            crc32c(b"other")
        } else {
            crc32c(&object()[range])
        };
        reply(request, "COMPOSITE", &sum)
    });
    assert!(read(&damaged, PART_BYTES, PART_BYTES).unwrap() == second);
    assert_eq!(damaged.requests(), 3);
    let wrong = Server::start(|_, request| reply(request, "COMPOSITE", &crc32c(b"other")));
    let error = read(&wrong, PART_BYTES, PART_BYTES).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("checksum"), "{error}");
    assert_eq!(wrong.requests(), 5);
}

#[test]
fn the_checksum_of_the_whole_object_is_not_that_of_a_range() {
    let (kinds, start) = (["FULL_OBJECT", "COMPOSITE"], PART_BYTES + 1000);
    for (kind, suffix) in kinds.into_iter().flat_map(|kind| [(kind, ""), (kind, "-3")]) {
        let server = Server::start(move |_, request| {
            let sum = format!("{}{suffix}", crc32c(&object()));
            reply(request, kind, &sum)
        });
        let found = read(&server, start, PART_BYTES).unwrap();
        assert!(found == object()[start..start + PART_BYTES], "{kind}{suffix}");
        if (kind, suffix) != ("COMPOSITE", "") {
            let found = read(&server, PART_BYTES, PART_BYTES).unwrap();
            let part = &object()[PART_BYTES..2 * PART_BYTES];
            assert!(found == *part, "{kind}{suffix}");
        }
    }
}

#[test]
fn an_object_with_a_content_encoding_is_read_as_it_is_stored() {
    let server = Server::start(|_, request| {
        let mut reply = Reply::of_object(request, BYTES as u64, TAG, |from, to| {
            object()[from as usize..to as usize].to_vec()
        });
        let header = ("Content-Encoding".to_owned(), "gzip".to_owned());
        reply.headers.push(header);
        reply
    });
    assert!(read(&server, 0, BYTES).unwrap() == object());
    assert!(read(&server, 7, PART_BYTES).unwrap() == object()[7..7 + PART_BYTES]);
}
