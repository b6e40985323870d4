//! Answers as pages: the verdict, the figures, and beside them what was published and what they rest on.
//!
//! [`plan`] shows the planner's answers, [`pcie`], [`fabric`], [`ecn`] and [`headroom`] those of the
//! simulators, [`compare`] predictions beside measurements, and [`sweep`] one question over many values.
//! Pure: a page is data of the crate `report`, and who shows it (a terminal, a file, a server) is the
//! caller's affair.

mod basis;
mod cells;
pub mod claims;
pub mod compare;
pub mod ecn;
pub mod fabric;
pub mod headroom;
pub mod pcie;
pub mod plan;
pub mod sweep;

pub use basis::with_basis;
