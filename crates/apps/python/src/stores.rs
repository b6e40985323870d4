//! The stores of the package, and the options of a call for them.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use pyo3::prelude::*;
use straightway_cli::stores::{registry, variables};
use straightway_core::{Result, Scheme, Uri};
use straightway_io::store::{Location, Registry, Verb};

use crate::per_process::PerProcess;

/// The environment variables that a registry was made from, and the registry.
type Made = (Vec<(String, String)>, Arc<Registry>);

/// The registry of calls without options. One that waits for credentials holds locks, so a forked child makes its own.
static SHARED: PerProcess<Option<Made>> = PerProcess::new();

/// The registry of this process. It is made again when the environment has changed.
pub(crate) fn stores() -> Result<Arc<Registry>> {
    let now = variables();
    let mut made = SHARED.lock();
    match &*made {
        Some((then, registry)) if *then == now => Ok(Arc::clone(registry)),
        _ => {
            let fresh = Arc::new(registry(&[])?);
            *made = Some((now, Arc::clone(&fresh)));
            Ok(fresh)
        }
    }
}

/// The location that a path or URI names, for calls without options.
pub(crate) fn locate(name: &Path) -> Result<Location> {
    stores()?.locate(name)
}

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

/// The registry of a call with its own options.
pub(crate) fn stores_with(options: Option<StorageOptions>) -> Result<Arc<Registry>> {
    let Some(options) = options.filter(|options| !options.is_empty()) else {
        return stores();
    };
    let text = |(name, value)| match value {
        Setting::Flag(flag) => (name, flag.to_string()),
        Setting::Text(text) => (name, text),
    };
    let options: Vec<_> = options.into_iter().map(text).collect();
    Ok(Arc::new(registry(&options)?))
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
        Ok::<_, straightway_core::Error>(stores()?.find(&uri)?.0)
    };
    find().is_ok_and(|store| !writes || store.verbs().has(Verb::PutIfAbsent))
}
