//! The stores that this package knows, and how an argument names an object in one of them.

use std::{path::PathBuf, sync::LazyLock};

use pyo3::prelude::*;
use straightway_core::{Scheme, Uri};
use straightway_io::store::Registry;

/// All stores. A new kind of store is added here, and every function that reads models or checkpoints takes its URIs.
static STORES: LazyLock<Registry> = LazyLock::new(Registry::default);

/// The registry of this process.
pub(crate) fn stores() -> &'static Registry {
    &STORES
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
