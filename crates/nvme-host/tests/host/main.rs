//! The host against a target for tests: right answers, every lie, cuts, several paths, and discovery.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod cuts;
mod lies;
mod ours;
mod paths;
mod relay;
mod rig;
mod target;
mod transfers;
