//! The name of a tensor, as part of a text that many names share.
//!
//! A model has hundreds of thousands of names, which stand in its header already. A name is where it
//! stands there: to make one takes no memory, and to keep one keeps the header.

use std::{
    fmt,
    ops::{Deref, Range},
    sync::Arc,
};

/// The name of a tensor.
#[derive(Clone)]
pub struct Name {
    text: Arc<String>,
    start: u32,
    bytes: u32,
}

impl Name {
    /// The name that stands at `place` in a text of less than 4 GiB.
    pub(crate) fn within(text: &Arc<String>, place: Range<usize>) -> Self {
        let offset = |at: usize| u32::try_from(at).expect("a header is short");
        assert!(
            text.get(place.clone()).is_some(),
            "a name is whole characters"
        );
        Self {
            text: Arc::clone(text),
            start: offset(place.start),
            bytes: offset(place.end - place.start),
        }
    }
}

impl Deref for Name {
    type Target = str;

    fn deref(&self) -> &str {
        let start = self.start as usize;
        &self.text[start..start + self.bytes as usize]
    }
}

impl From<&str> for Name {
    fn from(name: &str) -> Self {
        Self::within(&Arc::new(name.to_owned()), 0..name.len())
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Name {}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}
