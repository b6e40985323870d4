//! Renders answers as pages: the verdict, the figures, the published figures, and the formulas and constants.
//!
//! [`plan`] shows the answers of the cluster planner; [`pcie`], [`fabric`], [`ecn`] and [`headroom`] those of the
//! simulators; [`compare`] predictions and measurements; [`sweep`] one question over many values. The crate is pure: a
//! page is data of the crate `report`, and the caller shows it in a terminal or writes it to a file.

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
