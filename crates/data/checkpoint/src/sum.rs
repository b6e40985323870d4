//! The checksum of a chunk, which detects damage, and its optional digest, which tells whether two chunks are equal.
//!
//! The checksum is CRC-64/NVME, which detects every flip of a few bits and runs at cache speed. It does not prove
//! equality: a changed chunk has the same checksum with a chance of 1 in 2^64, and an attacker can construct one. The
//! digest is XXH3 with 128 bits.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// The name of the checksum in a manifest.
pub(crate) const CHECKSUM: &str = "crc64-nvme";

/// The name of the digest in a manifest.
pub(crate) const DIGEST: &str = "xxh3-128";

/// A checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum(pub u64);

/// A digest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digest(pub u128);

impl Sum {
    /// The checksum of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, bytes))
    }
}

impl Digest {
    /// The digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(twox_hash::XxHash3_128::oneshot(bytes))
    }
}

/// Writes a number as a fixed count of lower-case hexadecimal digits, in JSON as a string.
macro_rules! hexadecimal {
    ($name:ident, $digits:literal) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:0width$x}", self.0, width = $digits)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, writer: S) -> Result<S::Ok, S::Error> {
                writer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
                let number = hexadecimal(reader, $digits)?;
                Ok(Self(number.try_into().expect("that many digits fit")))
            }
        }
    };
}

hexadecimal!(Sum, 16);
hexadecimal!(Digest, 32);

/// Parses a number of exactly `digits` lower-case hexadecimal digits.
fn hexadecimal<'de, D: Deserializer<'de>>(reader: D, digits: usize) -> Result<u128, D::Error> {
    let text = std::borrow::Cow::<'de, str>::deserialize(reader)?;
    let fits = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    if text.len() != digits || !text.bytes().all(fits) {
        let message = format!("a checksum has {digits} lower-case hexadecimal digits");
        return Err(D::Error::custom(message));
    }
    u128::from_str_radix(&text, 16).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_one_that_nvme_names() {
        // The check value of CRC-64/NVME in the catalogue of parametrised CRC algorithms.
        assert_eq!(Sum::of(b"123456789").to_string(), "ae8b14860a799888");
    }

    #[test]
    fn sums_are_read_as_they_are_written_and_nothing_else_is() {
        let sum = Sum(0x0123_4567_89ab_cdef);
        let text = serde_json::to_string(&sum).unwrap();
        assert_eq!(serde_json::from_str::<Sum>(&text).unwrap(), sum);
        for text in ["\"0123456789ABCDEF\"", "\"123\"", "7", "\"+123456789abcdef\""] {
            assert!(serde_json::from_str::<Sum>(text).is_err(), "{text}");
        }
    }
}
