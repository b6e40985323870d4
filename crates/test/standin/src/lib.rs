//! A stand-in for the CUDA driver and cuFile, for tests on machines without a GPU.
//!
//! The shared object of this crate exports the entry points that `straightway-sys` calls, over host memory. It is
//! stricter than a GPU, to expose mistakes:
//!
//! - Copies complete *late*, and in any order that streams and events allow. A seeded scheduler picks a stream, waits a
//!   little, and runs the copy at its head. Source bytes are read when the copy runs, so a slot that is reused too
//!   early delivers wrong bytes.
//! - The CPU cannot access device memory: its addresses are mapped without any permission.
//! - Any call can be made to fail, and so can a running copy.
//! - Misuse is counted: a slot reused or memory freed during a copy, copies from memory that is not pinned, handles
//!   used after they were destroyed.
//!
//! It tests ordering and error handling, not speed.
//!
//! Tests use [`Standin`]. It runs the body of a test in its own process, whose library path has the shared object under
//! the names of the real ones.
//!
//! [`expand`] simulates a whole machine: it makes the files of `/sys` and `/proc` from a short text.

mod client;
mod control;
mod cufile;
mod device;
mod driver;
mod manifest;
mod plan;
mod queue;
mod scheduler;
mod seccomp;
mod signal;
mod world;

pub use client::{Standin, library_path};
pub use manifest::expand;
pub use seccomp::forbid_io_uring_enter;
pub use signal::restore_stop_signals;
