//! Wrappers that add behaviour to any engine, each in one file.

pub mod faulty;
pub mod traced;
