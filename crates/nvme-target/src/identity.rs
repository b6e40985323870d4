//! Identifiers derived from names. They are the same on every port and, except for memory, after a restart.

use sha2::{Digest, Sha256};

/// The first 16 bytes of a digest over the parts, as a UUID of version 8.
pub(crate) fn uuid(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    let mut id = [0; 16];
    id.copy_from_slice(&digest[..16]);
    id[6] = id[6] & 0x0f | 0x80;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

/// A serial number of 16 hex digits.
pub(crate) fn serial(nqn: &str) -> String {
    let id = uuid(&[b"serial", nqn.as_bytes()]);
    let (_, low) = id.split_at(8);
    let low = low.first_chunk().expect("16 bytes have two halves");
    format!("{:016x}", u64::from_be_bytes(*low))
}
