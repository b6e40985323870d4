//! Configured secrets in their text form, `DHHC-1:00:BASE64:`.
//!
//! The number selects how the key is transformed before use: 00 not at all, 01 to 03 by HMAC with SHA-256, SHA-384 or
//! SHA-512 over the owner's NQN. The base64 text has the key of 32, 48 or 64 bytes and its CRC-32, so that a typing
//! error is distinguished from a wrong key.

use std::{fmt, str::FromStr};

use base64::{Engine, engine::general_purpose::STANDARD};
use straightway_core::{Error, ErrorKind};

use super::response::Hash;

/// The secret of a host or of a subsystem.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    key: Vec<u8>,
    transform: Option<Hash>,
}

impl Secret {
    /// A secret with this key. Returns `None` if its length is not 32, 48 or 64 bytes, or not that of the hash.
    pub fn new(key: &[u8], transform: Option<Hash>) -> Option<Self> {
        let fits = match transform {
            Some(hash) => key.len() == hash.bytes(),
            None => matches!(key.len(), 32 | 48 | 64),
        };
        fits.then(|| Self {
            key: key.to_vec(),
            transform,
        })
    }

    /// The text form.
    pub fn to_text(&self) -> String {
        let mut bytes = self.key.clone();
        bytes.extend_from_slice(&crc32(&self.key).to_le_bytes());
        let id = self.transform.map_or(0, |hash| hash as u8);
        format!("DHHC-1:{id:02x}:{}:", STANDARD.encode(bytes))
    }

    /// The key for responses of the owner `nqn`.
    pub(super) fn transformed(&self, nqn: &str) -> Vec<u8> {
        match self.transform {
            None => self.key.clone(),
            Some(hash) => hash.hmac(&self.key, &[nqn.as_bytes(), b"NVMe-over-Fabrics"]),
        }
    }
}

impl FromStr for Secret {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        // The text itself stays out of the error: it may differ from the right one in a single character.
        let refuse = |why: &str| Error::new(ErrorKind::Invalid, "read", "a DH-HMAC-CHAP secret", why);
        let form = "a secret has the form DHHC-1:00:BASE64:";
        let rest = text.trim().strip_prefix("DHHC-1:");
        let rest = rest.and_then(|rest| rest.strip_suffix(':'));
        let (id, encoded) = rest.and_then(|rest| rest.split_once(':')).ok_or_else(|| refuse(form))?;
        let transform = match id {
            "00" => None,
            "01" => Some(Hash::Sha256),
            "02" => Some(Hash::Sha384),
            "03" => Some(Hash::Sha512),
            _ => return Err(refuse("its transform is not 00, 01, 02 or 03")),
        };
        let bytes = STANDARD.decode(encoded).map_err(|_| refuse("it is not base64"))?;
        let (key, sum) = bytes.split_last_chunk::<4>().ok_or_else(|| refuse("it is too short"))?;
        if crc32(key) != u32::from_le_bytes(*sum) {
            return Err(refuse("its checksum is wrong: is it mistyped?"));
        }
        Self::new(key, transform)
            .ok_or_else(|| refuse("its key does not have 32, 48 or 64 bytes, or not the length of its hash"))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret of {} bytes", self.key.len())
    }
}

/// CRC-32 as in zip and Ethernet.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key 00..1f, as `nvme gen-dhchap-key` writes it.
    const TEXT: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    #[test]
    fn the_text_form_matches_nvme_cli() {
        let key: Vec<u8> = (0..32).collect();
        let secret = Secret::new(&key, None).expect("32 bytes");
        assert_eq!(secret.to_text(), TEXT);
        assert_eq!(TEXT.parse::<Secret>().expect("it is valid"), secret);
    }

    #[test]
    fn every_length_and_transform_round_trips() {
        for (bytes, hash) in [
            (32, None),
            (48, None),
            (64, None),
            (32, Some(Hash::Sha256)),
            (48, Some(Hash::Sha384)),
            (64, Some(Hash::Sha512)),
        ] {
            let secret = Secret::new(&vec![0xa5; bytes], hash).expect("it fits");
            assert_eq!(secret.to_text().parse::<Secret>().expect("ours"), secret);
        }
        assert_eq!(Secret::new(&[0; 32], Some(Hash::Sha512)), None);
        assert_eq!(Secret::new(&[0; 31], None), None);
    }

    #[test]
    fn damaged_texts_are_refused_without_being_shown() {
        let swapped = TEXT.replace("AAEC", "ABEC");
        for bad in [
            "",
            "DHHC-1:",
            "DHHC-1:00:",
            "DHHC-1:00:AAAA:",
            "DHHC-1:04:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
            "DHHC-1:03:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
            "DHHC-1:00:AAECAwQF*gcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:",
            &swapped,
            &TEXT[..TEXT.len() - 1],
        ] {
            let error = bad.parse::<Secret>().expect_err(bad).to_string();
            assert!(!error.contains("AAEC"), "{error}");
        }
    }
}
