//! A stand-in for the CUDA driver and cuFile, for tests on machines without a GPU.
//!
//! The shared object this crate builds exports the entry points that `straightway-sys` calls, over
//! host memory. It is nastier than a GPU in the ways that matter for finding mistakes:
//!
//! - Copies complete *late*, and in any order that streams and events allow: a seeded scheduler
//!   picks a stream, waits a little, and runs the copy at its head. Source bytes are read when the
//!   copy runs, so a slot that is reused too early delivers the wrong ones.
//! - Device memory cannot be touched by the CPU: its addresses are mapped without any access.
//! - Any call can be told to fail, and so can a copy half-way.
//! - Misuse is counted: a slot used or memory freed under a copy, copies from memory that is not pinned, handles
//!   used after they were destroyed.
//!
//! It proves ordering and error handling, never speed.
//!
//! Tests use the other half, [`Standin`]: it runs the test's body in a process of its own whose
//! library path holds the shared object under the names of the real ones.
//!
//! [`expand`] stands in for a whole machine: it makes the files of `/sys` and `/proc` from a short text.

mod client;
mod control;
mod cufile;
mod device;
mod driver;
mod manifest;
mod plan;
mod queue;
mod scheduler;
mod signal;
mod world;

pub use client::{Standin, library_path};
pub use manifest::expand;
pub use signal::let_stop;
