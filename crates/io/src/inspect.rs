//! A look at bytes in their slot before any of them goes on: a checkpoint's checksums and compression.

use std::fmt;

use straightway_core::Error;

/// Which of its two buffers holds a portion's image after an inspection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// The one that it was read into: it is stored as it is.
    Stored,
    /// The one that it was unpacked into.
    Unpacked,
}

/// Looks at the portions of a job, one at a time, on the lane that read them.
///
/// Portions are known by their number in the list that the job was made of.
pub trait Inspect: fmt::Debug + Send + Sync {
    /// Whether any portion has to be unpacked. Lanes then keep a slot aside for that.
    fn unpacks(&self) -> bool;

    /// Looks at a portion. `unpacked` is as long as its image, or empty where nothing is unpacked.
    fn inspect(&self, number: usize, stored: &[u8], unpacked: &mut [u8]) -> Result<Image, Error>;

    /// Takes note of a portion that could not be read, or was found to be bad. Nothing of it is delivered. Answers
    /// whether the others are still wanted.
    fn refuse(&self, number: usize, error: Error) -> bool;
}

const _: [&dyn Inspect; 0] = [];
