//! The shape of a tensor.

use std::{fmt, ops::Deref};

use smallvec::SmallVec;

/// The maximum number of dimensions. `NumPy` and `PyTorch` allow 64.
pub const RANK_MAX: usize = 64;

/// Lengths along the dimensions of a tensor, outermost first. A scalar has none.
///
/// Up to four are stored inline: a model has hundreds of thousands of shapes, and nearly none is longer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Shape(SmallVec<[u64; 4]>);

impl Shape {
    /// The number of elements; `None` if it is 2^64 or more.
    pub fn elements(&self) -> Option<u64> {
        self.iter().try_fold(1_u64, |all, len| all.checked_mul(*len))
    }

    /// Adds an innermost dimension.
    pub(crate) fn push(&mut self, len: u64) {
        self.0.push(len);
    }
}

impl Deref for Shape {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        &self.0
    }
}

impl From<&[u64]> for Shape {
    fn from(lengths: &[u64]) -> Self {
        Self(SmallVec::from_slice(lengths))
    }
}

impl FromIterator<u64> for Shape {
    fn from_iter<I: IntoIterator<Item = u64>>(lengths: I) -> Self {
        Self(lengths.into_iter().collect())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lengths: Vec<_> = self.iter().map(u64::to_string).collect();
        f.pad(&format!("[{}]", lengths.join(", ")))
    }
}
