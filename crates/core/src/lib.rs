//! The vocabulary of Straightway and its planner.
//!
//! Everything here is pure: no unsafe code, no I/O, no clock, no threads. That is what lets the
//! real executor and the simulators share one plan, and lets the planner be tested against every
//! ragged request a generator can think of.

pub mod error;
pub mod quantity;

pub use error::{Error, Kind, Result};
pub use quantity::{Bytes, Rate, Seconds};
