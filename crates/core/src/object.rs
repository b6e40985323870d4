//! Named, sized bytes in a store.

use serde::{Deserialize, Serialize};

/// A file, an S3 object, an NVMe namespace: something with a name and a length.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Object {
    /// What people call it: a path or a URI.
    pub name: String,
    /// How long it is. For an object that is being written, how long it will be.
    pub bytes: u64,
}

impl Object {
    /// An object called `name` that holds `bytes` bytes.
    pub fn new(name: impl Into<String>, bytes: u64) -> Self {
        Self {
            name: name.into(),
            bytes,
        }
    }
}
