//! The checksum that S3 tells of an object.
//!
//! Only a checksum of the whole object is compared with its bytes. One of an object that was uploaded in parts may be made
//! of the checksums of these; S3 then says `COMPOSITE`, or its value ends with the number of parts, and some services
//! leave that number out.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use straightway_net::{Algorithm, Answer, Checksum};

/// The checksum in the head of an answer with the whole object.
pub(crate) fn checksum(answer: &Answer<'_>) -> Option<Checksum> {
    let kind = answer.text("x-amz-checksum-type");
    let has_parts = answer.text("etag").is_some_and(|tag| tag.contains('-'));
    let is_whole = |algorithm| match kind {
        Some(kind) => kind.eq_ignore_ascii_case("FULL_OBJECT"),
        // There is none of this kind that is made of those of parts.
        None => algorithm == Algorithm::Crc64Nvme || !has_parts,
    };
    [
        ("x-amz-checksum-crc64nvme", Algorithm::Crc64Nvme, 8),
        ("x-amz-checksum-crc32c", Algorithm::Crc32C, 4),
        ("x-amz-checksum-crc32", Algorithm::Crc32, 4),
    ]
    .into_iter()
    .find_map(|(name, algorithm, bytes)| {
        let value = BASE64_STANDARD.decode(answer.header(name)?).ok()?;
        let fits = value.len() == bytes && is_whole(algorithm);
        let value = value
            .iter()
            .fold(0, |value, byte| value << 8 | u64::from(*byte));
        fits.then(|| Checksum::new(algorithm, value))
    })
}
