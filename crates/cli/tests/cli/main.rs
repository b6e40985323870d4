//! The `straightway` binary on real files: what works, what is refused, and what bad luck gets.
//!
//! One program, so that it is linked once. Every test has a yard of its own and leaves no trace.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod bench;
mod checkpoint;
mod copy;
mod hostile;
mod luck;
mod machine;
mod nvme;
mod refusal;
mod s3;
mod weights;
mod words;
mod yard;
