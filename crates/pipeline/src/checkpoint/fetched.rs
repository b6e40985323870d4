//! What comes of reading a checkpoint.

use straightway_core::Receipt;

/// What was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Fetched {
    /// Which way the bytes went that were wanted, and are where they go.
    pub receipt: Receipt,
    /// Chunks that were read and checked.
    pub chunks: u64,
    /// Chunks that were damaged or lost and made anew from parity, in words.
    pub rebuilt: Vec<String>,
}
