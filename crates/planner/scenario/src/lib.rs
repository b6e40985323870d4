//! Scenarios: reading, checking, changing and sweeping the inputs of the planner and the simulators.
//!
//! An input is a plain serde struct that checks its own ranges ([`check`]). Any parameter can be changed by its path
//! ([`setting`]) or swept over many values ([`sweep`]). An answer lists its formulas and constants ([`provenance`]) and
//! judges the figures published about its case ([`claim`]). This crate reads no file, no clock and no environment.
//! Randomness comes from a [`straightway_core::random::Seed`] that the caller passes in.

pub mod check;
pub mod claim;
pub mod library;
pub mod near;
pub mod origin;
pub mod parameter;
pub mod provenance;
pub mod setting;
pub mod sweep;
