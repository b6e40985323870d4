//! Encryption of chunks: AES-256-GCM, with a key for each tier and namespace.
//!
//! A key file has 32 random bytes. HKDF-SHA256 derives from it the key of a namespace (the salt is the tier's identity,
//! the info is the namespace, which is a hash of the model, the configuration, the layout and the user's salt). A nonce
//! is 96 random bits. The tag covers the chunk and everything that it is [bound](crate::record) to.

use std::{fmt, path::Path};

use aws_lc_rs::{
    aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey},
    error::Unspecified,
    hkdf::{HKDF_SHA256, KeyType, Salt},
};
use straightway_core::{Error, ErrorKind, Result};
use straightway_sys::{nonce::fill_random, plain_file::open_plain};

use crate::{
    format::TierId,
    key::KvNamespace,
    record::{Binding, Proof},
};

/// The number of bytes of a secret.
const SECRET_BYTES: usize = 32;

/// The longest key file: 64 digits, and a line break.
const FILE_BYTES_MAX: u64 = 66;

/// The secret from which the keys of all namespaces are derived.
#[derive(Clone)]
pub struct KeyFile {
    secret: [u8; SECRET_BYTES],
    /// A number that tells secrets apart and says nothing about them. It is never 0.
    number: u32,
}

/// The key of one namespace.
pub(crate) struct Cipher {
    key: LessSafeKey,
    number: u32,
}

impl KeyFile {
    /// Reads a key file: 32 bytes, or their 64 hexadecimal digits.
    pub fn read(path: &Path) -> Result<Self> {
        let file = open_plain(path).map_err(|e| Error::os("read", path.display(), e))?;
        let mut bytes = Vec::new();
        let read = std::io::Read::read_to_end(&mut std::io::Read::take(file, FILE_BYTES_MAX + 1), &mut bytes);
        read.map_err(|e| Error::os("read", path.display(), e))?;
        let secret = secret(&bytes).ok_or_else(|| {
            let why = "it is no key: 32 bytes or 64 hexadecimal digits are expected";
            Error::new(ErrorKind::Invalid, "read", path.display(), why)
                .with_hint("make one with `head -c 32 /dev/urandom >FILE`")
        })?;
        Ok(Self::new(secret))
    }

    /// A secret.
    pub fn new(secret: [u8; SECRET_BYTES]) -> Self {
        let mut number = [0; SECRET_BYTES];
        let derived = Salt::new(HKDF_SHA256, b"").extract(&secret);
        let info: [&[u8]; 1] = [b"straightway kv key number 1"];
        let filled = derived.expand(&info, HKDF_SHA256).and_then(|okm| okm.fill(&mut number));
        filled.expect("its length is that of the hash");
        let number = u32::from_le_bytes([number[0], number[1], number[2], number[3]]).max(1);
        Self { secret, number }
    }

    /// The number that records of chunks encrypted with it have.
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// The key of a namespace.
    pub(crate) fn cipher(&self, tier: TierId, namespace: KvNamespace) -> Cipher {
        let [first, second] = tier.0.map(u64::to_le_bytes);
        let salt = [first, second].concat();
        let derived = Salt::new(HKDF_SHA256, &salt).extract(&self.secret);
        let namespace = namespace.bytes();
        let info: [&[u8]; 2] = [b"straightway kv chunk 1", &namespace];
        debug_assert_eq!((&AES_256_GCM).len(), SECRET_BYTES);
        let key = derived.expand(&info, &AES_256_GCM).map(UnboundKey::from);
        Cipher {
            key: LessSafeKey::new(key.expect("the length of a key is allowed")),
            number: self.number,
        }
    }
}

/// The secret in a key file.
fn secret(bytes: &[u8]) -> Option<[u8; SECRET_BYTES]> {
    if let Ok(secret) = bytes.try_into() {
        return Some(secret);
    }
    let text = std::str::from_utf8(bytes).ok()?.trim_ascii_end();
    let mut secret = [0; SECRET_BYTES];
    let is_hex = text.len() == 2 * SECRET_BYTES && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_hex {
        return None;
    }
    for (at, byte) in secret.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(secret)
}

impl Cipher {
    /// Encrypts a chunk in place.
    pub(crate) fn seal(&self, binding: &Binding, chunk: &mut [u8]) -> Result<Proof> {
        let failed = |_: Unspecified| Error::new(ErrorKind::Invalid, "encrypt", "a chunk", "it is too long");
        let mut nonce = [0; NONCE_LEN];
        fill_random(&mut nonce).map_err(|e| Error::os("draw", "a nonce", e))?;
        let (unique, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(binding.bytes()));
        let tag = self
            .key
            .seal_in_place_separate_tag(unique, aad, chunk)
            .map_err(failed)?;
        Ok(Proof::Sealed {
            key_number: self.number,
            nonce,
            tag: tag.as_ref().try_into().expect("a tag has 16 bytes"),
        })
    }

    /// Decrypts a chunk to `open`. Returns whether its tag matched; if not, `open` is undefined.
    pub(crate) fn open(
        &self,
        binding: &Binding,
        nonce: [u8; 12],
        tag: [u8; 16],
        chunk: &[u8],
        open: &mut [u8],
    ) -> bool {
        let (nonce, aad) = (Nonce::assume_unique_for_key(nonce), Aad::from(binding.bytes()));
        self.key.open_separate_gather(nonce, aad, chunk, &tag, open).is_ok()
    }
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFile({:08x})", self.number)
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cipher({:08x})", self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{format::SlotAt, key::Key, record::Position};

    fn binding(generation: u64) -> Binding {
        Binding {
            position: Position {
                tier: TierId([1, 2]),
                at: SlotAt { segment: 0, number: 0 },
            },
            generation,
            namespace: KvNamespace([3, 4]),
            key: Key::of(b"tokens"),
        }
    }

    #[test]
    fn a_chunk_opens_with_its_key_in_its_place_only() {
        let key = KeyFile::new([7; 32]);
        let cipher = |key: &KeyFile, tier, namespace| key.cipher(TierId(tier), KvNamespace(namespace));
        let right = cipher(&key, [1, 2], [3, 4]);
        let mut chunk = *b"people's words";
        let Proof::Sealed { nonce, tag, .. } = right.seal(&binding(2), &mut chunk).unwrap() else {
            panic!("it is sealed");
        };
        assert_ne!(&chunk, b"people's words");
        let opens = |cipher: &Cipher, generation, chunk: &[u8]| {
            let mut open = [0; 14];
            let is_open = cipher.open(&binding(generation), nonce, tag, chunk, &mut open);
            is_open.then_some(open)
        };
        assert_eq!(opens(&right, 2, &chunk), Some(*b"people's words"));
        assert_eq!(opens(&right, 4, &chunk), None);
        let others = [
            cipher(&KeyFile::new([8; 32]), [1, 2], [3, 4]),
            cipher(&key, [1, 3], [3, 4]),
            cipher(&key, [1, 2], [3, 5]),
        ];
        assert!(others.iter().all(|other| opens(other, 2, &chunk).is_none()));
        chunk[3] ^= 1;
        assert_eq!(opens(&right, 2, &chunk), None);
        assert_ne!(key.number(), KeyFile::new([8; 32]).number());
    }

    #[test]
    fn a_key_file_has_32_bytes_or_64_digits() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let read = |content: &[u8]| {
            std::fs::write(&path, content).unwrap();
            KeyFile::read(&path)
        };
        let number = KeyFile::new([0x41; 32]).number();
        assert_eq!(read(&[0x41; 32]).unwrap().number(), number);
        assert_eq!(
            read(format!("{}\n", "41".repeat(32)).as_bytes()).unwrap().number(),
            number
        );
        for bad in [&b""[..], &[0; 31], &[b'x'; 64], &[0; 4096]] {
            let error = read(bad).unwrap_err();
            assert!(error.to_string().contains("64 hexadecimal digits"), "{error}");
        }
    }
}
