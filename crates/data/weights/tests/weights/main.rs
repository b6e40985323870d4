//! Weights from file to memory and back: every route, every slice, refused files, and memory use. The format's
//! reference implementation is the oracle.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests"
)]

mod attacks;
mod fixture;
mod gpu;
mod layout;
mod load;
mod mapped;
mod memory;
mod reference;
mod save;
mod store;
mod stream;
