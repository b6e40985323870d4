//! The session of the process, and the options of a call for its stores.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use pyo3::prelude::*;
use straightway_core::{Error, Result, Scheme, Uri};
use straightway_io::store::{Location, Registry, Verb};
use straightway_stores::{Session, StoreOptions};

/// The stores, facts about drives, and executors of this process.
pub(crate) static SESSION: Session = Session::new();

/// A value of `storage_options`.
#[derive(FromPyObject)]
pub(crate) enum Setting {
    /// True or false.
    #[pyo3(transparent)]
    Flag(bool),
    /// Any other value.
    #[pyo3(transparent)]
    Text(String),
}

/// `storage_options`, by name.
pub(crate) type StorageOptions = BTreeMap<String, Setting>;

/// The stores of a call with its options.
pub(crate) fn stores(options: Option<&StorageOptions>) -> Result<Arc<Registry>> {
    parsed(options).map(|options| SESSION.stores(&options))
}

/// The options of stores.
pub(crate) fn parsed(options: Option<&StorageOptions>) -> Result<StoreOptions> {
    let options = options.into_iter().flatten().map(|(name, value)| match value {
        Setting::Flag(true) => (name.as_str(), "true"),
        Setting::Flag(false) => (name.as_str(), "false"),
        Setting::Text(text) => (name.as_str(), text.as_str()),
    });
    StoreOptions::parse(options)
}

/// The location that a path or URI names, for calls without options.
pub(crate) fn locate(name: &Path) -> Result<Location> {
    stores(None)?.locate(name)
}

/// Whether a name is a local path and not a URI.
#[pyfunction]
pub(crate) fn is_local(name: PathBuf) -> bool {
    Uri::parse(name).is_ok_and(|uri| uri.scheme() == Scheme::Path)
}

/// Whether this package supports the store of a path or URI; with `writes`, whether checkpoints can be saved to it.
/// Nothing is opened.
#[pyfunction]
#[pyo3(signature = (name, *, writes=false))]
pub(crate) fn has_store(name: PathBuf, writes: bool) -> bool {
    let find = || {
        let uri = Uri::parse(name)?;
        Ok::<_, Error>(stores(None)?.find(&uri)?.0)
    };
    find().is_ok_and(|store| !writes || store.verbs().has(Verb::PutIfAbsent))
}
