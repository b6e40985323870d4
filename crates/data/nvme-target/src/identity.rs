//! Identifiers derived from names. They are the same on every port and, except for memory, after a restart.

use std::fs;

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

/// A number for the current boot of this machine. A restarted machine has another. 0 if it is not known.
pub(crate) fn boot() -> u64 {
    match fs::read("/proc/sys/kernel/random/boot_id") {
        Ok(id) => boot_of(&id),
        Err(error) => {
            tracing::warn!("cannot read the boot ID of this machine: {error}");
            0
        }
    }
}

fn boot_of(id: &[u8]) -> u64 {
    // It is not 0: the version of a UUID is in these bytes.
    let id = uuid(&[b"boot", id]);
    u64::from_le_bytes(*id.first_chunk().expect("it has 16 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_has_a_number_and_another_boot_has_another() {
        assert_eq!(boot(), boot());
        let (one, two) = (boot_of(b"1f0c\n"), boot_of(b"9a31\n"));
        assert!(one != two && one != 0 && two != 0);
    }
}
