//! Scenarios: how a question to the planner or a simulator is read, checked, changed and swept.
//!
//! An input is a plain serde struct that knows its ranges ([`check`]). Any parameter can be changed by
//! its path ([`setting`]) or swept over many values ([`sweep`]). An answer says what it rests on
//! ([`provenance`]) and judges the figures published about its case ([`claim`]). Nothing here reads a
//! file, a clock or the environment; randomness is a [`seed::Seed`] that is passed in.

pub mod check;
pub mod claim;
pub mod library;
pub mod near;
pub mod origin;
pub mod provenance;
pub mod seed;
pub mod setting;
pub mod sweep;
