//! Named, sized bytes in a store.

use serde::{Deserialize, Serialize};

/// A file, an S3 object, an NVMe namespace: something with a name and a length.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Object {
    /// Its path or URI.
    pub name: String,
    /// Its length. For an object that is being written, its final length.
    pub bytes: u64,
}

impl Object {
    /// An object with this name and length.
    pub fn new(name: impl Into<String>, bytes: u64) -> Self {
        Self {
            name: name.into(),
            bytes,
        }
    }
}
