//! A tensor of a model, as its header describes it.

use straightway_core::Extent;

use super::{Dtype, Name, Shape};

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// What it is called. No other tensor of the model is.
    pub name: Name,
    /// What its elements are.
    pub dtype: Dtype,
    /// How long it is along each dimension; rows follow each other.
    pub shape: Shape,
    /// Which of the model's files it is in.
    pub file: u32,
    /// Where its bytes are in that file.
    pub extent: Extent,
}

/// A name as an error shows it: in quotes, control characters escaped, and not longer than a line.
pub(crate) fn quoted(name: &str) -> String {
    const SHOWN_CHARS: usize = 200;
    let cut: String = name.chars().take(SHOWN_CHARS).collect();
    let more = if cut.len() < name.len() { "…" } else { "" };
    format!("{cut:?}{more}")
}

/// How many bytes `elements` elements take; `None` where that is no whole number of bytes, or more
/// bits than 64 bits can count, which is also where the format's reference draws the line.
pub fn whole_bytes(elements: u64, dtype: Dtype) -> Option<u64> {
    let bits = elements.checked_mul(dtype.bits())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}
