//! Raw bytes between an object of any store and arrays of other libraries.

mod call;
mod export;
mod file;
mod layout;
mod names;
mod npy;
mod opened;
mod ranges;
mod trace;
mod transfer;
mod writes;

pub(crate) use file::RawFile;
pub(crate) use names::{list_objects, remove_object};
pub(crate) use npy::{npy_header, parse_npy};
pub(crate) use trace::{count_trace, sum_receipts};
pub(crate) use transfer::Transfer;
