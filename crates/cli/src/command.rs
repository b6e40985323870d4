//! The commands, one file each: its arguments as data, and `run`.

mod ask;
mod bar;
pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod copy;
pub(crate) mod doctor;
mod library;
pub(crate) mod output;
pub(crate) mod plan;
pub(crate) mod sim;
mod source;
mod sweep;
mod tuning;
mod watch;
