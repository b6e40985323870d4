//! The words of NVMe over TCP: PDUs, commands, pages and status codes.
//!
//! Pure: no I/O and no state of a connection. The host and the target use the same types, so that each field has one
//! offset and one check. A receiver hands bytes to [`Framing::decode`], which says how many it needs or gives the PDU;
//! a sender appends PDUs to a buffer with [`Framing::encode`]. Payload never passes through here: a decoded PDU says
//! how many bytes of it follow.
//!
//! | module | what |
//! |---|---|
//! | [`pdu`] | framing, digests, and the fault that ends a connection |
//! | [`entry`] | submission and completion queue entries |
//! | [`fabrics`], [`admin`], [`nvm`] | typed commands, to and from submission entries |
//! | [`identify`], [`log`] | the pages that commands transfer |
//! | [`index`] | which names the namespaces of our targets have |
//! | [`auth`] | DH-HMAC-CHAP, both roles |
//! | [`status`] | status codes, and whether to retry |

pub mod admin;
pub mod auth;
pub mod digest;
pub mod entry;
pub mod fabrics;
pub mod identify;
pub mod index;
pub mod log;
pub mod nqn;
pub mod nvm;
pub mod pdu;
pub mod status;
mod wire;

use std::fmt;

pub use digest::{DIGEST_BYTES, RunningDigest, digest};
pub use entry::{Cqe, Sgl, Sqe};
pub use nqn::{DISCOVERY_NQN, Nqn};
pub use pdu::{Decoded, Digests, Fault, Frame, Framing, Pdu, Role};
pub use status::Status;

/// The port of I/O controllers.
pub const IO_PORT: u16 = 4420;

/// The port of discovery controllers.
pub const DISCOVERY_PORT: u16 = 8009;

/// The longest transfer of one command: what Linux's target takes.
pub const TRANSFER_BYTES_MAX: u32 = 4 << 20;

/// In-capsule data that every controller takes on its admin queue and with Connect.
pub const ADMIN_CAPSULE_BYTES: u32 = 8192;

/// A page or a name that breaks the rules, with the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}
