//! The stores of the package, and the options of a call for them.

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::Arc,
};

use pyo3::prelude::*;
use straightway_cli::stores::{registry, variables};
use straightway_core::{Result, Scheme, Uri};
use straightway_io::store::{Location, Registry, Verb};

use crate::per_process::PerProcess;

/// Names and values.
type Settings = Vec<(String, String)>;

/// A registry that is used again.
struct Shared {
    /// The environment variables that it was made from.
    variables: Settings,
    options: Settings,
    registry: Arc<Registry>,
}

/// The maximum number of shared registries. The one that was made first is dropped for a new one.
const SHARED_MAX: usize = 8;

/// The registry of calls without options, and those of folders of checkpoints with options, which are opened for every
/// call. One that waits for credentials holds locks, so a forked child makes its own.
static SHARED: PerProcess<VecDeque<Shared>> = PerProcess::new();

/// The registry of calls without options.
pub(crate) fn stores() -> Result<Arc<Registry>> {
    shared(Settings::new())
}

/// The shared registry for options. It is made again when the environment has changed.
fn shared(options: Settings) -> Result<Arc<Registry>> {
    let variables = variables();
    let mut known = SHARED.lock();
    if let Some(at) = known.iter().position(|shared| shared.options == options) {
        if known[at].variables == variables {
            return Ok(Arc::clone(&known[at].registry));
        }
        known.remove(at);
    }
    let registry = Arc::new(registry(&options)?);
    if known.len() == SHARED_MAX {
        known.pop_front();
    }
    known.push_back(Shared {
        variables,
        options,
        registry: Arc::clone(&registry),
    });
    Ok(registry)
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
    let options = settings(options);
    if options.is_empty() {
        return stores();
    }
    Ok(Arc::new(registry(&options)?))
}

/// The registry of a folder of checkpoints with its own options. Later calls for the folder share it.
pub(crate) fn stores_shared(options: Option<StorageOptions>) -> Result<Arc<Registry>> {
    shared(settings(options))
}

fn settings(options: Option<StorageOptions>) -> Settings {
    let text = |(name, value)| match value {
        Setting::Flag(flag) => (name, flag.to_string()),
        Setting::Text(text) => (name, text),
    };
    options.into_iter().flatten().map(text).collect()
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
