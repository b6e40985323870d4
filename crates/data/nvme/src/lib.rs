//! The NVMe over TCP protocol: PDUs, commands, data pages and status codes.
//!
//! This crate does no I/O and keeps no connection state. The host and the target use the same types, so each field has
//! one offset and one check. A receiver passes bytes to [`Framing::decode`], which returns the PDU or the number of
//! bytes it needs. A sender appends PDUs to a buffer with [`Framing::encode`]. Payload does not pass through this
//! crate: a decoded PDU gives the number of payload bytes that follow.
//!
//! | module | contents |
//! |---|---|
//! | [`pdu`] | framing, digests, and the faults that end a connection |
//! | [`entry`] | submission and completion queue entries |
//! | [`fabrics`], [`admin`], [`nvm`] | typed commands, converted to and from submission queue entries |
//! | [`identify`], [`log`] | the data structures that commands transfer |
//! | [`index`] | the names of the namespaces of a Straightway target |
//! | [`auth`] | DH-HMAC-CHAP, both roles |
//! | [`status`] | status codes and retry rules |

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

/// The longest transfer of one command: the limit of the Linux target.
pub const TRANSFER_BYTES_MAX: u32 = 4 << 20;

/// The in-capsule data size that every controller accepts on its admin queue and with Connect.
pub const ADMIN_CAPSULE_BYTES: u32 = 8192;

/// An invalid page or name. The string is the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}
