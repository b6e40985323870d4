//! The `straightway` binary on real files: success, refusals, interruptions.
//!
//! One program, so that it is linked once. Every test has a directory of its own and leaves nothing behind.

#![expect(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod bench;
mod checkpoint;
mod containers;
mod copy;
mod devices;
mod examples;
mod habits;
mod help;
mod hostile;
mod interruption;
mod kv;
mod listing;
mod machine;
mod mistakes;
mod nvme;
mod permissions;
mod refusal;
mod s3;
mod streams;
mod terminal;
mod test_dir;
mod waits;
mod web;
mod weights;
