//! The host against the target of this project, directly and through a relay that changes and forges PDUs: correct
//! responses, injected faults, connection losses, several paths, and discovery.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    clippy::cast_possible_truncation,
    reason = "tests"
)]

mod cuts;
mod faults;
mod lengths;
mod nodes;
mod ours;
mod paths;
mod rig;
mod swaps;
mod target;
mod transfers;
mod versions;
