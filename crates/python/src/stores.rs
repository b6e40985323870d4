//! The stores of the package, and the options of a call for them.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use pyo3::prelude::*;
use straightway_cli::stores::{registry, variables};
use straightway_core::{Result, Scheme, Uri};
use straightway_io::store::{Registry, Verb};

/// The environment variables that a registry was made from, and the registry.
type Made = (Vec<(String, String)>, Arc<Registry>);

/// The registry of calls without options, in one process.
///
/// A forked child makes its own. Threads that the child does not have may hold locks of the parent's registry, for
/// example while they wait for credentials. Nobody would release these locks in the child, so it neither waits for them
/// nor drops the registry.
struct Shared {
    process: u32,
    made: Mutex<Option<Made>>,
    /// The one of a forked child.
    child: OnceLock<Box<Shared>>,
}

static SHARED: OnceLock<Shared> = OnceLock::new();

impl Shared {
    fn new(process: u32) -> Self {
        Self {
            process,
            made: Mutex::new(None),
            child: OnceLock::new(),
        }
    }

    /// The one of process `process`, which is this process. It is made if it is missing.
    fn of(&self, process: u32) -> &Self {
        let mut shared = self;
        while shared.process != process {
            shared = shared.child.get_or_init(|| Box::new(Self::new(process)));
        }
        shared
    }
}

/// The registry of this process. It is made again when the environment has changed.
pub(crate) fn stores() -> Result<Arc<Registry>> {
    let now = variables();
    let process = process::id();
    let shared = SHARED.get_or_init(|| Shared::new(process)).of(process);
    let mut made = shared.made.lock().unwrap_or_else(PoisonError::into_inner);
    match &*made {
        Some((then, registry)) if *then == now => Ok(Arc::clone(registry)),
        _ => {
            let fresh = Arc::new(registry(&[])?);
            *made = Some((now, Arc::clone(&fresh)));
            Ok(fresh)
        }
    }
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
