//! The commands, one file each: its arguments as data, and `run`.

mod bar;
pub(crate) mod bench;
pub(crate) mod checkpoint;
pub(crate) mod completions;
pub(crate) mod copy;
pub(crate) mod doctor;
pub(crate) mod inspect;
pub(crate) mod interrupt;
mod library;
pub(crate) mod load;
mod load_args;
pub(crate) mod ls;
pub(crate) mod output;
pub(crate) mod plan;
pub(crate) mod rewrite;
pub(crate) mod rm;
mod scenario_args;
mod selection_args;
pub(crate) mod sim;
mod source;
mod stores;
mod sweep;
pub(crate) mod target;
mod tuning;
pub(crate) mod verbosity;
mod watch;
mod words;
