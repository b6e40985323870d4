//! The seal of a manifest: a checksum of its text, as the last member of the JSON object.
//!
//! A separate checksum file could be lost. So the text always ends in exactly the bytes `,"crc64":"…"}` and a newline,
//! and the checksum covers everything before them: every flipped bit, in the text or in the seal, is detected.

use serde::Serialize;
use straightway_core::{Error, ErrorKind, Result};

use super::sum::Sum;

const BEFORE: &str = ",\"crc64\":\"";
const AFTER: &str = "\"}\n";
const DIGITS: usize = 16;

/// Serializes and seals an object, which must be a JSON object with at least one member.
pub(crate) fn seal(object: &impl Serialize) -> String {
    let object = serde_json::to_string(object);
    let mut object = object.expect("names and numbers are always JSON");
    let end = object.pop();
    assert_eq!(end, Some('}'), "an object is sealed");
    let sum = Sum::of(object.as_bytes());
    format!("{object}{BEFORE}{sum}{AFTER}")
}

/// Checks the seal and returns the JSON object without it. Errors call the text `name`.
pub(crate) fn unseal(name: &str, text: &[u8]) -> Result<String> {
    let corrupt = |why: &str| Err(Error::new(ErrorKind::Corrupt, "read", name, why));
    let tail = BEFORE.len() + DIGITS + AFTER.len();
    let Some(start) = text.len().checked_sub(tail) else {
        return corrupt("it is too short to be whole");
    };
    let (body, tail) = text.split_at(start);
    let sealed = format!("{BEFORE}{}{AFTER}", Sum::of(body));
    if tail != sealed.as_bytes() {
        return corrupt("its checksum does not match: it is damaged or cut off");
    }
    let Ok(body) = std::str::from_utf8(body) else {
        return corrupt("it is not UTF-8");
    };
    Ok(format!("{body}}}"))
}

/// Whether a text ends in a seal of this form, valid or not.
pub(crate) fn is_sealed(text: &[u8]) -> bool {
    let ends = text.strip_suffix(AFTER.as_bytes());
    let before = ends.and_then(|text| text.split_last_chunk::<DIGITS>());
    before.is_some_and(|(text, digits)| text.ends_with(BEFORE.as_bytes()) && digits.iter().all(u8::is_ascii_hexdigit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_cut_of_a_sealed_text_is_found() {
        let text = seal(&serde_json::json!({"a": 1})).into_bytes();
        assert_eq!(unseal("t", &text).unwrap(), "{\"a\":1}");
        assert!(is_sealed(&text) && !is_sealed(b"{\"a\":1}\n") && !is_sealed(b""));
        for bit in 0..text.len() * 8 {
            let mut flipped = text.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(unseal("t", &flipped).is_err(), "bit {bit}");
        }
        for end in 0..text.len() {
            assert!(unseal("t", &text[..end]).is_err(), "cut at {end}");
        }
    }
}
