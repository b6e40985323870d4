//! In-band authentication by DH-HMAC-CHAP, for both roles. No I/O: callers supply random bytes and transfer the
//! messages.
//!
//! The host sends Negotiate. The controller answers with a Challenge. The host proves its secret with a Reply, and
//! Success1 ends the exchange. For mutual authentication, the Reply has a challenge of the host, Success1 has the
//! controller's response, and the host confirms it with Success2. With a DH group, each challenge is keyed with a fresh
//! shared secret, so a recorded exchange cannot be used for a dictionary attack on a weak secret.
//!
//! [`AuthHost`] and [`AuthController`] are the two state machines. [`Secret`] is a configured key in its text form.
//! Messages are the data of Authentication Send and Authentication Receive ([`crate::fabrics::Fabrics`]).

mod controller;
mod group;
mod host;
mod message;
mod response;
mod secret;

pub use controller::{AuthController, AuthKeys, AuthStep};
pub use group::DhGroup;
pub use host::AuthHost;
pub use message::{Challenge, Failure, FailureExplanation, Message, Negotiate, Reply, Success1};
pub use response::{Hash, Names};
pub use secret::Secret;

/// The longest message: a Reply with SHA-512 and ffdhe8192.
pub const MESSAGE_BYTES_MAX: usize = 16 + 2 * 64 + 1024;

/// Fresh random bytes for one side of one exchange. They must come from the system's generator and be used only once.
#[derive(Clone)]
pub struct AuthRandom {
    /// This side's challenge, truncated to the length of the hash.
    pub challenge: [u8; 64],
    /// This side's private DH exponent. 512 bits are twice the security strength of the largest group.
    pub exponent: [u8; 64],
    /// This side's sequence number. It must not be 0: 0 means that no authentication of the other side is requested.
    pub sequence: u32,
}

impl AuthRandom {
    /// The number of random bytes that it is made of.
    pub const BYTES: usize = 132;

    /// Divides fresh random bytes.
    pub fn new(bytes: &[u8; Self::BYTES]) -> Self {
        let (challenge, rest) = bytes.split_first_chunk().expect("there are 132");
        let (exponent, rest) = rest.split_first_chunk().expect("there are 132");
        let sequence = rest.first_chunk().expect("there are 132");
        Self {
            challenge: *challenge,
            exponent: *exponent,
            sequence: u32::from_le_bytes(*sequence).max(1),
        }
    }
}

impl std::fmt::Debug for AuthRandom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("AuthRandom")
    }
}
