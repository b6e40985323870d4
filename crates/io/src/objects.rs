//! Open objects of one store: what a job reads from or writes to.

use std::sync::Arc;

use straightway_core::{Object, Result};
use straightway_sys::File;

use crate::{
    handle::{Handle, file},
    request::handle,
    store::{Files, Store},
};

/// Open objects of one store.
#[derive(Clone, Debug)]
pub struct Objects {
    store: Arc<dyn Store>,
    handles: Vec<Arc<dyn Handle>>,
}

impl Objects {
    /// These objects of a store.
    pub fn new(store: Arc<dyn Store>, handles: Vec<Arc<dyn Handle>>) -> Self {
        Self { store, handles }
    }

    /// Their store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The objects, open.
    pub fn handles(&self) -> &[Arc<dyn Handle>] {
        &self.handles
    }

    /// Their names and lengths.
    pub(crate) fn list(&self) -> Vec<Object> {
        self.handles.iter().map(|handle| handle.object()).collect()
    }

    /// What a message calls them: the first one's name.
    pub(crate) fn name(&self) -> String {
        let first = self.handles.first();
        first.map_or_else(String::new, |handle| handle.object().name)
    }

    /// The files that they are, or an error where they are none.
    pub(crate) fn files(&self) -> Result<Vec<Arc<File>>> {
        self.handles.iter().map(file).collect()
    }
}

impl From<Vec<Arc<File>>> for Objects {
    fn from(files: Vec<Arc<File>>) -> Self {
        let handles = files.into_iter().map(handle).collect();
        Self::new(Arc::new(Files::default()), handles)
    }
}
