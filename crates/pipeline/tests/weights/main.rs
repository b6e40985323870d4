//! Weights from file to memory and back: every route, every slice, what is refused, and how much
//! memory it takes. The format's reference implementation says what a file holds.

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
