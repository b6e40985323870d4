//! Header and data digests: CRC-32C, computed with CPU instructions where available.

use crc_fast::{CrcAlgorithm, Digest};

/// The bytes of a digest on the wire.
pub const DIGEST_BYTES: usize = 4;

/// The digest of `bytes`.
pub fn digest(bytes: &[u8]) -> u32 {
    let sum = crc_fast::checksum(CrcAlgorithm::Crc32Iscsi, bytes);
    u32::try_from(sum).expect("CRC-32C has 32 bits")
}

/// A digest over data that arrives in pieces.
#[derive(Clone, Debug)]
pub struct RunningDigest(Digest);

impl RunningDigest {
    /// The digest of no bytes.
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc32Iscsi))
    }

    /// Adds the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes so far.
    pub fn value(&self) -> u32 {
        u32::try_from(self.0.finalize()).expect("CRC-32C has 32 bits")
    }
}

impl Default for RunningDigest {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_crc32c() {
        assert_eq!(digest(b"123456789"), 0xe306_9283);
        assert_eq!(digest(&[0; 32]), 0x8a91_36aa);
        let mut running = RunningDigest::new();
        running.update(b"1234");
        running.update(b"56789");
        assert_eq!(running.value(), 0xe306_9283);
    }
}
