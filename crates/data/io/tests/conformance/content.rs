//! Bytes that identify their object and their offset.

use straightway_core::random::mix;

/// The content of regions before a transfer. No transfer brings a run of these.
pub(crate) const BLANK: u8 = 0xA5;

/// The first `len` bytes of the object with this key. Every eight bytes are unique.
pub(crate) fn bytes(key: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    let key = mix(key);
    for (word, place) in (0_u64..).zip(bytes.chunks_mut(8)) {
        let value = mix(key ^ word).to_le_bytes();
        place.copy_from_slice(&value[..place.len()]);
    }
    bytes
}

/// Describes the first difference between two byte strings, and the number of differing bytes.
pub(crate) fn difference(seen: &[u8], expected: &[u8]) -> Option<String> {
    if seen == expected {
        return None;
    }
    if seen.len() != expected.len() {
        return Some(format!("{} bytes instead of {}", seen.len(), expected.len()));
    }
    let wrong = || (0..seen.len()).filter(|i| seen[*i] != expected[*i]);
    let first = wrong().next().unwrap_or(0);
    Some(format!("{} bytes differ, the first at {first}", wrong().count()))
}
