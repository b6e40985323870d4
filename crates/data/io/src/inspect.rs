//! The inspection of bytes in their slot before they are copied on: a checkpoint's checksums and compression.

use std::fmt;

use straightway_core::Error;

/// The buffer that holds a portion's image after an inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// The buffer that it was read into: the portion is not packed.
    Stored,
    /// The buffer that it was unpacked into.
    Unpacked,
}

/// Inspects the portions of a job, one at a time, on the lane that read them.
///
/// A portion's number is its index in the job's list of portions.
pub trait Inspect: fmt::Debug + Send + Sync {
    /// Whether any portion has to be unpacked. Lanes then set a slot aside for that.
    fn unpacks(&self) -> bool;

    /// Inspects a portion. `unpacked` is as long as its image, or empty if nothing is unpacked.
    fn inspect(&self, number: usize, stored: &[u8], unpacked: &mut [u8]) -> Result<Image, Error>;

    /// Records a portion that could not be read or is bad. None of its bytes are delivered. Returns whether the other
    /// portions are still wanted.
    fn refuse(&self, number: usize, error: Error) -> bool;
}

const _: [&dyn Inspect; 0] = [];
