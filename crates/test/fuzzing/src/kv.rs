//! The superblock and the records of a KV cache.

use straightway_kv::{Geometry, check_record};

use crate::assert_harmless;

/// Any bytes as a superblock and as records. A superblock is refused with a message, or its sizes fit its bound. A
/// record is refused, or is the same after it was written again.
pub(crate) fn files(data: &[u8]) {
    match Geometry::decode(data) {
        Ok(geometry) => {
            assert!(geometry.bytes() <= geometry.bytes_max());
            assert!(geometry.slots() > 0 && (1..=64).contains(&geometry.segments()));
            assert!(geometry.slots() >= geometry.segments() && geometry.chunk_bytes() > 0);
        }
        Err(why) => assert_harmless(&why),
    }
    let (words, _) = data.as_chunks::<8>();
    let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
    for record in words.as_chunks().0 {
        check_record(record);
    }
}
