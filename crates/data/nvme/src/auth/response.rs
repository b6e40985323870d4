//! Responses to challenges: HMACs over a challenge and the names of both sides.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256, Sha384, Sha512};

use super::group::DhGroup;

/// A hash function for challenges and responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Hash {
    /// SHA-256.
    Sha256 = 1,
    /// SHA-384.
    Sha384 = 2,
    /// SHA-512.
    Sha512 = 3,
}

impl Hash {
    /// All hashes, shortest first.
    pub const ALL: [Self; 3] = [Self::Sha256, Self::Sha384, Self::Sha512];

    /// The hash with this identifier on the wire.
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|hash| *hash as u8 == id)
    }

    /// The length of its digest.
    pub fn bytes(self) -> usize {
        match self {
            Self::Sha256 => 32,
            Self::Sha384 => 48,
            Self::Sha512 => 64,
        }
    }

    pub(super) fn hmac(self, key: &[u8], parts: &[&[u8]]) -> Vec<u8> {
        match self {
            Self::Sha256 => mac::<Hmac<Sha256>>(key, parts).finalize().into_bytes().to_vec(),
            Self::Sha384 => mac::<Hmac<Sha384>>(key, parts).finalize().into_bytes().to_vec(),
            Self::Sha512 => mac::<Hmac<Sha512>>(key, parts).finalize().into_bytes().to_vec(),
        }
    }

    /// Whether `claimed` is the HMAC. Compares in constant time.
    fn is_hmac(self, key: &[u8], parts: &[&[u8]], claimed: &[u8]) -> bool {
        match self {
            Self::Sha256 => mac::<Hmac<Sha256>>(key, parts).verify_slice(claimed).is_ok(),
            Self::Sha384 => mac::<Hmac<Sha384>>(key, parts).verify_slice(claimed).is_ok(),
            Self::Sha512 => mac::<Hmac<Sha512>>(key, parts).verify_slice(claimed).is_ok(),
        }
    }

    fn digest(self, bytes: &[u8]) -> Vec<u8> {
        match self {
            Self::Sha256 => Sha256::digest(bytes).to_vec(),
            Self::Sha384 => Sha384::digest(bytes).to_vec(),
            Self::Sha512 => Sha512::digest(bytes).to_vec(),
        }
    }
}

fn mac<M: Mac + KeyInit>(key: &[u8], parts: &[&[u8]]) -> M {
    let mut mac = <M as KeyInit>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac
}

/// The NQNs of both sides. Every response covers them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// The NQN of the host.
    pub host: String,
    /// The NQN of the subsystem.
    pub subsystem: String,
}

/// The side that proves its secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prover {
    Host,
    Controller,
}

/// The negotiated parameters of one exchange.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) hash: Hash,
    pub(super) group: DhGroup,
    pub(super) transaction: u16,
    /// The `SC_C` field of Negotiate.
    pub(super) secure_channel: u8,
}

/// A challenge and the other inputs of its response.
#[derive(Debug)]
pub(super) struct ResponseInput<'a> {
    pub(super) prover: Prover,
    pub(super) names: &'a Names,
    pub(super) terms: &'a Terms,
    pub(super) challenge: &'a [u8],
    pub(super) sequence: u32,
    /// The DH shared secret; empty for the null group.
    pub(super) shared: &'a [u8],
}

impl ResponseInput<'_> {
    /// Computes the response with the prover's transformed key.
    pub(super) fn response(&self, key: &[u8]) -> Vec<u8> {
        self.with_parts(|hash, parts| hash.hmac(key, parts))
    }

    /// Whether a response is correct.
    pub(super) fn is_correct(&self, key: &[u8], claimed: &[u8]) -> bool {
        self.with_parts(|hash, parts| hash.is_hmac(key, parts, claimed))
    }

    fn with_parts<T>(&self, use_parts: impl FnOnce(Hash, &[&[u8]]) -> T) -> T {
        let hash = self.terms.hash;
        let challenge = if self.terms.group == DhGroup::Null {
            self.challenge.to_vec()
        } else {
            hash.hmac(&hash.digest(self.shared), &[self.challenge])
        };
        let (role, first, second) = match self.prover {
            Prover::Host => ("HostHost", &self.names.host, &self.names.subsystem),
            Prover::Controller => ("Controller", &self.names.subsystem, &self.names.host),
        };
        use_parts(
            hash,
            &[
                &challenge,
                &self.sequence.to_le_bytes(),
                &self.terms.transaction.to_le_bytes(),
                &[self.terms.secure_channel],
                role.as_bytes(),
                first.as_bytes(),
                &[0],
                second.as_bytes(),
            ],
        )
    }
}
