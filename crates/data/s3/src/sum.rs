//! The checksum of an object in S3's response headers.
//!
//! Only a checksum of the whole object can be compared with its bytes. The checksum of a multipart upload may instead
//! be composed of those of its parts. S3 then sends `COMPOSITE`, or its value ends with the number of parts; some
//! services omit that number.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use straightway_net::{Algorithm, Checksum, HttpResponse};

/// The checksum in the headers of a response with the whole object.
pub(crate) fn checksum(response: &HttpResponse<'_>) -> Option<Checksum> {
    let kind = response.text("x-amz-checksum-type");
    let has_parts = response.text("etag").is_some_and(|tag| tag.contains('-'));
    let is_whole = |algorithm| match kind {
        Some(kind) => kind.eq_ignore_ascii_case("FULL_OBJECT"),
        // A CRC-64/NVME is never a composite checksum.
        None => algorithm == Algorithm::Crc64Nvme || !has_parts,
    };
    [
        ("x-amz-checksum-crc64nvme", Algorithm::Crc64Nvme, 8),
        ("x-amz-checksum-crc32c", Algorithm::Crc32C, 4),
        ("x-amz-checksum-crc32", Algorithm::Crc32, 4),
    ]
    .into_iter()
    .find_map(|(name, algorithm, bytes)| {
        let value = BASE64_STANDARD.decode(response.header(name)?).ok()?;
        let fits = value.len() == bytes && is_whole(algorithm);
        let value = value.iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        fits.then(|| Checksum::new(algorithm, value))
    })
}
