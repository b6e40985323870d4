//! In-band authentication by DH-HMAC-CHAP, for both roles. Pure: callers bring the random bytes and carry the messages.
//!
//! The host sends Negotiate, the controller answers with a Challenge, the host proves its secret with a Reply, and
//! Success1 ends it. Where the host also wants proof, its Reply has a challenge of its own, Success1 has the
//! controller's response, and the host confirms it with Success2. With a DH group each challenge is keyed with a fresh
//! shared secret, so that a recorded exchange cannot be searched for a weak secret.
//!
//! [`Host`] and [`Controller`] are the two state machines; [`Secret`] is a configured key in its text form. Messages
//! travel as the data of Authentication Send and Receive ([`crate::fabrics::Fabrics`]).

mod controller;
mod group;
mod host;
mod message;
mod response;
mod secret;

pub use controller::{Controller, Keys, Step};
pub use group::Group;
pub use host::Host;
pub use message::{Challenge, Failure, Message, Negotiate, Reply, Success1, Why};
pub use response::{Hash, Names};
pub use secret::Secret;

/// The longest message: a Reply with SHA-512 and ffdhe8192.
pub const MESSAGE_BYTES_MAX: usize = 16 + 2 * 64 + 1024;

/// Fresh random bytes for one side of one exchange. They must come from the system's generator and be used once.
#[derive(Clone)]
pub struct Random {
    /// This side's challenge, cut to the length of the hash.
    pub challenge: [u8; 64],
    /// This side's private DH exponent. 512 bits: twice the strength of the largest group.
    pub exponent: [u8; 64],
    /// This side's sequence number; it must not be 0, which would mean that no proof is wanted.
    pub sequence: u32,
}

impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Random")
    }
}
