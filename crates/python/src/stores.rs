//! The stores that this package knows, and how an argument names an object in one of them.

use std::{
    path::{Path, PathBuf},
    sync::LazyLock,
};

use pyo3::prelude::*;
use straightway_core::{Error, Kind, Result, Scheme, Uri};
use straightway_io::store::Registry;

/// All stores. A new kind of store is added here, and every function that reads models or checkpoints takes its URIs.
static STORES: LazyLock<Registry> = LazyLock::new(Registry::default);

/// The registry of this process.
pub(crate) fn stores() -> &'static Registry {
    &STORES
}

/// The local path that an argument names, for functions that take no other store.
pub(crate) fn local(operation: &'static str, argument: &Path) -> Result<PathBuf> {
    let uri = Uri::parse(argument)?;
    if uri.scheme() == Scheme::Path {
        return Ok(PathBuf::from(uri.name()));
    }
    let error = Error::new(
        Kind::Unsupported,
        operation,
        &uri,
        "only local paths are supported here",
    );
    Err(error.with_hint("use a local path, and copy the file to or from the store by its own tool"))
}

/// Whether a name is a path of this machine, and no URI.
#[pyfunction]
pub(crate) fn is_local(name: PathBuf) -> bool {
    Uri::parse(name).is_ok_and(|uri| uri.scheme() == Scheme::Path)
}

/// Whether this package has a store for a path or URI. Nothing is opened.
#[pyfunction]
pub(crate) fn has_store(name: PathBuf) -> bool {
    Uri::parse(name).is_ok_and(|uri| STORES.find(&uri).is_ok())
}
