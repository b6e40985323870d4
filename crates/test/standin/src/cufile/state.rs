//! The state of cuFile.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{c_int, c_uint};

pub(crate) const GPUS_MAX: usize = 16;
/// The number of words of one GPU's counters, as in the header: two for the UUID and 29 others.
const GPU_WORDS: usize = 31;

/// The state of cuFile.
#[derive(Debug, Default)]
pub(crate) struct Cufile {
    pub(crate) is_open: bool,
    /// Registered files: handle and descriptor.
    pub(crate) files: HashMap<usize, c_int>,
    /// Registered device memory: base and length.
    pub(crate) buffers: BTreeMap<u64, usize>,
    /// Parameters that were set, by number.
    pub(crate) parameters: HashMap<c_uint, bool>,
    pub(crate) level: c_int,
    pub(crate) is_counting: bool,
    pub(crate) counters: [[u64; GPU_WORDS]; GPUS_MAX],
}
