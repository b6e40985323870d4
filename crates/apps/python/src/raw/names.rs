//! The names of objects, for file systems in Python that are not local.

use std::path::PathBuf;

use pyo3::prelude::*;
use straightway_core::Result;
use straightway_io::{
    StoreExt,
    store::{Durability, Missing, list_all},
};

use crate::{
    stores::{StorageOptions, stores},
    waiting,
};

/// A name, its length if the store says it, and whether it is a folder.
type Entry = (String, Option<u64>, bool);

/// The names directly below a prefix.
#[pyfunction]
#[pyo3(signature = (uri, storage_options=None))]
pub(crate) fn list_objects(
    py: Python<'_>,
    uri: PathBuf,
    storage_options: Option<StorageOptions>,
) -> PyResult<Vec<Entry>> {
    waiting::run(py, &std::sync::Arc::default(), move || -> Result<Vec<Entry>> {
        let location = stores(storage_options.as_ref())?.locate(&uri)?;
        let listing = list_all(&*location.below(Missing::Refuse)?)?;
        let folders = listing
            .folders
            .into_iter()
            .map(|name| (name.to_string_lossy().into_owned(), None, true));
        let objects = listing.objects.into_iter();
        let objects = objects.map(|object| (object.name.to_string_lossy().into_owned(), object.bytes, false));
        Ok(folders.chain(objects).collect())
    })
}

/// Removes an object. A missing one is not an error.
#[pyfunction]
#[pyo3(signature = (uri, storage_options=None))]
pub(crate) fn remove_object(py: Python<'_>, uri: PathBuf, storage_options: Option<StorageOptions>) -> PyResult<()> {
    waiting::run(py, &std::sync::Arc::default(), move || {
        let location = stores(storage_options.as_ref())?.locate(&uri)?;
        location.store.remove(location.name.as_os_str(), Durability::Synced)
    })
}
