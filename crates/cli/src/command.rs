//! The commands, one file each: its arguments as data, and `run`.

pub(crate) mod output;
pub(crate) mod plan;
pub(crate) mod sim;
