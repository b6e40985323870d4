//! Open objects of one store, which a job reads or writes.

use std::sync::Arc;

use straightway_core::{Direction, Extent, Object, Result, Survey};
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
    /// Open objects of `store`.
    pub fn new(store: Arc<dyn Store>, handles: Vec<Arc<dyn Handle>>) -> Self {
        Self { store, handles }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    /// The open objects.
    pub fn handles(&self) -> &[Arc<dyn Handle>] {
        &self.handles
    }

    /// The names and lengths of the objects.
    pub(crate) fn list(&self) -> Vec<Object> {
        self.handles.iter().map(|handle| handle.object()).collect()
    }

    /// The surveys of the objects, each with the hull of its moves.
    pub(crate) fn survey(&self, hulls: &[Option<Extent>], direction: Direction) -> Result<Vec<Survey>> {
        let surveyed = self.handles.iter().zip(hulls);
        surveyed.map(|(handle, hull)| handle.survey(*hull, direction)).collect()
    }

    /// The name in messages: that of the first object.
    pub(crate) fn name(&self) -> String {
        let first = self.handles.first();
        first.map_or_else(String::new, |handle| handle.object().name)
    }

    /// The objects as files, or an error if one is not a file.
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
