//! The target over loopback, against a small host with the same codec that can violate the protocol.

#![expect(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod auth;
mod host;
mod hosts;
mod links;
mod reads;
mod runtime;
mod violations;
mod writes;
