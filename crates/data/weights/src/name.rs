//! The name of a tensor, as a slice of a text that many names share.
//!
//! A model has hundreds of thousands of names, all of them in its header. A name is a range of that text: creating one
//! allocates nothing, and keeping one keeps the header in memory.

use std::{
    fmt,
    ops::{Deref, Range},
    sync::Arc,
};

/// The name of a tensor.
#[derive(Clone)]
pub struct TensorName {
    text: Arc<String>,
    start: u32,
    bytes: u32,
}

impl TensorName {
    /// The name at `place` in a text of less than 4 GiB.
    pub(crate) fn within(text: &Arc<String>, place: Range<usize>) -> Self {
        let offset = |at: usize| u32::try_from(at).expect("a header is short");
        assert!(text.get(place.clone()).is_some(), "a name is whole characters");
        Self {
            text: Arc::clone(text),
            start: offset(place.start),
            bytes: offset(place.end - place.start),
        }
    }
}

impl Deref for TensorName {
    type Target = str;

    fn deref(&self) -> &str {
        let start = self.start as usize;
        &self.text[start..start + self.bytes as usize]
    }
}

impl From<&str> for TensorName {
    fn from(name: &str) -> Self {
        Self::within(&Arc::new(name.to_owned()), 0..name.len())
    }
}

impl PartialEq for TensorName {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for TensorName {}

impl fmt::Debug for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for TensorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}
