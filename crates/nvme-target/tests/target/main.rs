//! The target over loopback, against a small host that is made of the same codec and can lie.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod auth;
mod host;
mod liars;
mod reads;
mod runtime;
mod writes;
