//! The checksum of a stored part in S3's response headers.
//!
//! The response to a request for a range that is exactly one part of a composite upload has the checksum of that part.
//! Some services send the checksum of the whole object with any range, most of them with the type `FULL_OBJECT`. So a
//! checksum is taken for that of the range only if its type is `COMPOSITE`, its value does not end with a number of
//! parts, and the range can be one of as many parts as the object has.

use std::ops::Range;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use straightway_net::{Algorithm, Checksum, ContentRange, HttpResponse};

/// The checksum in the headers of a response with a range.
pub(crate) fn part_checksum(response: &HttpResponse<'_>) -> Option<Checksum> {
    let kind = response.text("x-amz-checksum-type")?;
    if !kind.eq_ignore_ascii_case("COMPOSITE") {
        return None;
    }
    let ContentRange { range, total } = response.content_range().ok()??;
    if !can_be_part(&range?, total?, parts(response)) {
        return None;
    }
    // A CRC-64/NVME is never a composite checksum.
    [
        ("x-amz-checksum-crc32c", Algorithm::Crc32C),
        ("x-amz-checksum-crc32", Algorithm::Crc32),
    ]
    .into_iter()
    .find_map(|(name, algorithm)| {
        // A number of parts at the end is not valid base64.
        let value = BASE64_STANDARD.decode(response.header(name)?).ok()?;
        let value = u32::from_be_bytes(value.try_into().ok()?);
        Some(Checksum::new(algorithm, value.into()))
    })
}

/// The number of parts that the object was uploaded in, if the response states it.
fn parts(response: &HttpResponse<'_>) -> Option<u64> {
    let stated = response.text("x-amz-mp-parts-count");
    let tag = || response.text("etag")?.trim_matches('"').rsplit_once('-');
    stated.or_else(|| Some(tag()?.1))?.parse().ok()
}

/// Whether a range can be one part of an object. All parts but the last have the same length.
fn can_be_part(range: &Range<u64>, total: u64, parts: Option<u64>) -> bool {
    let bytes = range.end - range.start;
    // The whole object is not a part: its checksum is that of the parts' checksums.
    if bytes == total || parts.is_some_and(|parts| parts < 2) {
        return false;
    }
    let Some(parts) = parts else {
        return true;
    };
    if range.end < total {
        return range.start.is_multiple_of(bytes) && total.div_ceil(bytes) == parts;
    }
    let part_bytes = range.start / (parts - 1);
    part_bytes * (parts - 1) == range.start && bytes <= part_bytes
}

#[cfg(test)]
mod tests {
    use straightway_net::head::{Parsed, parse};

    use super::*;

    const RANGE: (&str, &str) = ("Content-Range", "bytes 100-199/250");
    const TAG: (&str, &str) = ("ETag", "\"0123-3\"");
    const COMPOSITE: (&str, &str) = ("x-amz-checksum-type", "COMPOSITE");
    const SUM: (&str, &str) = ("x-amz-checksum-crc32c", "4waSgw==");

    fn found(headers: &[(&str, &str)]) -> Option<Checksum> {
        let mut text = "HTTP/1.1 206 Partial Content\r\n".to_owned();
        for &(name, value) in headers {
            text.extend([name, ": ", value, "\r\n"]);
        }
        text.push_str("\r\n");
        match parse(text.as_bytes(), |response, _| part_checksum(response)) {
            Parsed::Whole(_, found) => found,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_a_composite_checksum_without_a_number_of_parts_is_that_of_a_part() {
        let sum = Checksum::new(Algorithm::Crc32C, 0xe306_9283);
        assert_eq!(found(&[RANGE, TAG, COMPOSITE, SUM]), Some(sum));
        let crc32 = ("x-amz-checksum-crc32", "y/Q5Jg==");
        let sum = Checksum::new(Algorithm::Crc32, 0xcbf4_3926);
        assert_eq!(found(&[RANGE, TAG, COMPOSITE, crc32]), Some(sum));
        let full = ("x-amz-checksum-type", "FULL_OBJECT");
        let with_number = ("x-amz-checksum-crc32c", "4waSgw==-3");
        let of_object = ("x-amz-checksum-crc64nvme", "rosUhgp5mIg=");
        for headers in [
            &[RANGE, TAG, full, SUM][..],
            &[RANGE, TAG, SUM],
            &[RANGE, TAG, COMPOSITE, with_number],
            &[RANGE, TAG, COMPOSITE, of_object],
            &[TAG, COMPOSITE, SUM],
            &[("Content-Range", "bytes 0-249/250"), TAG, COMPOSITE, SUM],
            &[("Content-Range", "bytes 100-198/250"), TAG, COMPOSITE, SUM],
            &[RANGE, TAG, ("x-amz-mp-parts-count", "2"), COMPOSITE, SUM],
        ] {
            assert_eq!(found(headers), None, "{headers:?}");
        }
    }

    #[test]
    fn a_part_lies_at_a_multiple_of_its_length_or_at_the_end() {
        let is_part = |range: Range<u64>, parts| can_be_part(&range, 250, parts);
        for range in [0..100, 100..200, 200..250] {
            assert!(is_part(range.clone(), Some(3)), "{range:?}");
            assert!(is_part(range.clone(), None), "{range:?}");
            assert!(!is_part(range.clone(), Some(4)), "{range:?}");
            assert!(!is_part(range.clone(), Some(1)), "{range:?}");
        }
        for range in [0..250, 0..130, 1..101, 50..150, 199..250, 100..250] {
            assert!(!is_part(range.clone(), Some(3)), "{range:?}");
        }
    }
}
