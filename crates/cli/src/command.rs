//! The commands, one file each: its arguments as data, and `run`.

pub(crate) mod doctor;
