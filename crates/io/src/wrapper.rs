//! Wrappers: what cuts across all engines, each in one file.

pub mod faulty;
pub mod traced;
