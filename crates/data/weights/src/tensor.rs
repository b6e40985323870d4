//! A tensor of a model, as the header describes it.

use straightway_core::Extent;

use super::{Dtype, Shape, TensorName};

/// A tensor in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name, unique in the model.
    pub name: TensorName,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its lengths along each dimension, in row-major order.
    pub shape: Shape,
    /// The number of its file in the model.
    pub file: u32,
    /// The extent of its bytes in that file.
    pub extent: Extent,
}

/// A name for an error message: in quotes, with control characters escaped, and at most 200 characters long.
pub fn quoted(name: &str) -> String {
    const SHOWN_CHARS: usize = 200;
    let cut: String = name.chars().take(SHOWN_CHARS).collect();
    let more = if cut.len() < name.len() { "…" } else { "" };
    format!("{cut:?}{more}")
}

/// The size of `elements` elements in bytes. `None` if that is not a whole number of bytes, or if the number of bits
/// overflows 64 bits, which is also the limit of the format's reference implementation.
pub fn whole_bytes(elements: u64, dtype: Dtype) -> Option<u64> {
    let bits = elements.checked_mul(dtype.bits())?;
    bits.is_multiple_of(8).then_some(bits / 8)
}
