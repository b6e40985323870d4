//! Keys and namespaces.
//!
//! An engine's key is a hash of tokens. It says nothing about the model, so two models have chunks with the same key. A
//! namespace tells them apart: it is a hash of the model, its configuration, the layout of its tensors over GPUs, and a
//! salt that separates users who must not share. A chunk is found only in the namespace in which it was stored.

use std::fmt;

use aws_lc_rs::digest;
use straightway_core::{Error, ErrorKind, Result};

/// The key of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub [u8; 32]);

impl Key {
    /// The key for bytes of any length: their SHA-256.
    pub fn of(bytes: &[u8]) -> Self {
        let hash = digest::digest(&digest::SHA256, bytes);
        Self(hash.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    pub(crate) fn words(self) -> [u64; 4] {
        let (words, _) = self.0.as_chunks::<8>();
        std::array::from_fn(|at| u64::from_le_bytes(words[at]))
    }

    pub(crate) fn from_words(words: [u64; 4]) -> Self {
        let mut bytes = [0; 32];
        for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *place = word.to_le_bytes();
        }
        Self(bytes)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a namespace is made of. Each part may be empty, and has at most 64 KiB.
#[derive(Clone, Copy, Debug, Default)]
pub struct NamespaceParts<'a> {
    /// The model: its name and revision, or a hash of its weights.
    pub model: &'a str,
    /// The configuration: everything that changes the bytes of a chunk, such as the data type of the cache and the
    /// number of tokens in a chunk.
    pub configuration: &'a str,
    /// The tensor-parallel layout: the number of ranks, and the rank whose part the chunks are.
    pub layout: &'a str,
    /// The salt of a user or a group of users. Without it, nobody finds what was stored with it.
    pub salt: &'a [u8],
}

/// A namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvNamespace(pub(crate) [u64; 2]);

/// The longest part of a namespace.
const PART_BYTES_MAX: usize = 64 << 10;

impl KvNamespace {
    /// The namespace of these parts: half of the SHA-256 of all parts, each with its length.
    pub fn new(parts: NamespaceParts<'_>) -> Result<Self> {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"straightway kv namespace 1\n");
        let parts = [
            ("model", parts.model.as_bytes()),
            ("configuration", parts.configuration.as_bytes()),
            ("layout", parts.layout.as_bytes()),
            ("salt", parts.salt),
        ];
        for (name, part) in parts {
            if part.len() > PART_BYTES_MAX {
                let why = format!("its {name} has {} bytes, and {PART_BYTES_MAX} are allowed", part.len());
                return Err(Error::new(ErrorKind::Invalid, "make", "a namespace", why));
            }
            context.update(&(part.len() as u64).to_le_bytes());
            context.update(part);
        }
        let hash = context.finish();
        let (words, _) = hash.as_ref().as_chunks::<8>();
        Ok(Self([u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]))
    }

    pub(crate) fn bytes(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.0[0].to_le_bytes());
        bytes[8..].copy_from_slice(&self.0[1].to_le_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_matters_and_parts_do_not_run_together() {
        let make = |model, configuration, layout, salt: &'static str| {
            let salt = salt.as_bytes();
            let parts = NamespaceParts {
                model,
                configuration,
                layout,
                salt,
            };
            KvNamespace::new(parts).unwrap()
        };
        let all = [
            make("m", "c", "l", "s"),
            make("mc", "", "l", "s"),
            make("m", "cl", "", "s"),
            make("m", "c", "l", ""),
            make("m", "c", "ls", ""),
            make("", "", "", ""),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(all[..at].iter().all(|other| other != one), "{at}");
        }
        assert_eq!(all[0], make("m", "c", "l", "s"));
        let long = "x".repeat(PART_BYTES_MAX + 1);
        let parts = NamespaceParts {
            model: &long,
            ..NamespaceParts::default()
        };
        assert!(KvNamespace::new(parts).is_err());
    }

    #[test]
    fn a_key_is_the_same_after_its_words() {
        let key = Key::of(b"tokens");
        assert_eq!(Key::from_words(key.words()), key);
        assert_eq!(key.to_string().len(), 64);
    }
}
