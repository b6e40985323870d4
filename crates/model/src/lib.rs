//! Planning formulas and simulators: pure, and reproducible from a seed.
//!
//! A model takes a plain serde input that knows its ranges ([`check`]), and gives a plain serde
//! answer that says what it rests on ([`provenance`]). Nothing here reads a file, a clock or the
//! environment; randomness is a [`seed::Seed`] that is passed in.

pub mod check;
pub mod dcqcn;
pub mod fabric;
pub mod fluid;
pub mod headroom;
pub mod provenance;
pub mod seed;
pub mod wheel;
