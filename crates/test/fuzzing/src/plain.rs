//! Values that are not tensors: the encoding of checkpoints, and pickles.

use straightway_checkpoint::{DEPTH_MAX, Plain};
use straightway_core::Result;

use crate::assert_harmless;

/// The size that any input may produce, however short, in bytes.
const MADE_BYTES_MIN: usize = 16 << 20;

/// The additional size that each input byte may produce, in bytes.
const MADE_PER_BYTE: usize = 64;

/// Any bytes as an encoded value. It is refused with an error, or its size is within bounds.
pub(crate) fn encoded(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        bounded(data.len(), Plain::decode(text));
    }
}

/// Any bytes as a pickle. It is refused with an error, or its size is within bounds. No code is run.
pub(crate) fn pickle(data: &[u8]) {
    bounded(data.len(), Plain::unpickle(data));
}

fn bounded(bytes: usize, value: Result<Plain>) {
    match value {
        Err(error) => {
            assert_harmless(&error.to_string());
            assert_harmless(error.hint().unwrap_or_default());
        }
        Ok(value) => {
            let made = weight(&value, 0);
            assert!(
                made <= MADE_BYTES_MIN + bytes * MADE_PER_BYTE,
                "{bytes} bytes made {made}"
            );
        }
    }
}

/// The bytes of data in a value, plus one for each value in it.
fn weight(value: &Plain, depth: usize) -> usize {
    assert!(depth <= DEPTH_MAX, "a value lies deeper than allowed");
    let all = |values: &[Plain]| values.iter().map(|value| weight(value, depth + 1)).sum();
    1 + match value {
        Plain::Long(bytes) | Plain::Surrogates(bytes) | Plain::Bytes(bytes) => bytes.len(),
        Plain::Text(text) => text.len(),
        Plain::Items(_, items) | Plain::Object(_, items) => all(items),
        Plain::Pairs(pairs) => {
            let pair = |(key, value): &(Plain, Plain)| weight(key, depth + 1) + weight(value, depth + 1);
            pairs.iter().map(pair).sum()
        }
        Plain::Array(array) => array.data.len(),
        _ => 0,
    }
}
