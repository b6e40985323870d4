//! The conformance suite: every verb of every store, single I/Os on every engine, and whole transfers of many objects
//! on every engine, route and file system.

#![expect(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::print_stderr,
    reason = "tests"
)]

mod case;
mod content;
mod cover;
mod defect;
mod engine;
mod extents;
mod gpu;
mod mounts;
mod network;
mod nvme;
mod run;
mod s3;
mod store;
mod suite;
