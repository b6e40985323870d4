//! Planning formulas and simulators: pure, and reproducible from a seed.
//!
//! A model takes a plain serde input that knows its ranges ([`check`]), and gives a plain serde
//! answer that says what it rests on ([`provenance`]). Nothing here reads a file, a clock or the
//! environment; randomness is a [`seed::Seed`] that is passed in.

pub mod architecture;
pub mod check;
pub mod checkpoint;
pub mod claim;
pub mod dcqcn;
pub mod dpu;
pub mod fabric;
pub mod fluid;
pub mod headroom;
pub mod ingest;
pub mod measured;
#[cfg(test)]
mod near;
pub mod path;
pub mod pcie;
pub mod provenance;
pub mod qos;
pub mod queue;
pub mod rail;
pub mod reduction;
pub mod registration;
pub mod s3;
pub mod scenario;
pub mod seed;
pub mod setting;
pub mod sweep;
pub mod transport;
pub mod wheel;
