//! The executors of the process: started once, shared by all calls.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    thread::Builder,
};

use pyo3::prelude::*;
use straightway_core::{Place, Result};
use straightway_io::{Executor, Settings};
use straightway_net::suited;
use straightway_probe::profile::DriveTuning;

use crate::{
    borrowed::context,
    loading::place,
    per_process::PerProcess,
    stores::is_local,
    tuning::{self, DriveInfo},
};

/// The shared executors: one per drive tuning, and one (`None`) for all drives that were not measured.
type Executors = BTreeMap<Option<DriveTuning>, Arc<Executor>>;

/// The executors for drives. A forked child makes its own: it does not have the threads of its parent's.
static SHARED: PerProcess<Executors> = PerProcess::new();

/// The executor for stores on a network.
static REMOTE: PerProcess<Executors> = PerProcess::new();

/// The executor of this process for a file at `path`, which may not exist yet.
pub(crate) fn of(path: &Path) -> Result<Arc<Executor>> {
    let DriveInfo { tuning, learning } = tuning::of(path)?;
    let executor = shared(&SHARED, tuning, || DriveTuning::settings(tuning))?;
    Ok(Arc::new(executor.learning(learning)))
}

/// The executor of this process for stores on a network.
pub(crate) fn remote() -> Result<Arc<Executor>> {
    shared(&REMOTE, None, || suited(Settings::default()))
}

/// The executor of this process for a path or URI.
pub(crate) fn of_name(name: &Path) -> Result<Arc<Executor>> {
    if is_local(name.to_owned()) {
        of(name)
    } else {
        remote()
    }
}

/// The executor of this process for transfers between these paths or URIs.
pub(crate) fn of_names<'a>(
    names: impl Iterator<Item = &'a PathBuf> + Clone,
) -> Result<Arc<Executor>> {
    if names.clone().all(|name| is_local(name.clone())) {
        return names.clone().next().map_or_else(plain, |first| of(first));
    }
    remote()
}

/// The executor of this process with default settings, for work without a path.
pub(crate) fn plain() -> Result<Arc<Executor>> {
    shared(&SHARED, None, Settings::default)
}

/// Starts to prepare a load of a model to a device, and returns at once. Lanes and pinned memory are made while headers
/// are read and memory is allocated. On failure the load tries again and reports the error.
#[pyfunction]
pub(crate) fn warm(model: PathBuf, device: &str) -> PyResult<()> {
    let Place::Gpu(number) = place(device)? else {
        return Ok(());
    };
    if !is_local(model.clone()) {
        return Ok(());
    }
    let work = move || -> Result<()> { of(&model)?.prepare_gpu(&context(number)?) };
    let run = move || {
        if let Err(error) = work() {
            tracing::debug!(%error, "cannot prepare lanes ahead of the load");
        }
    };
    // Without the thread the load makes its own lanes.
    let _ = Builder::new()
        .name("straightway-warm".to_owned())
        .spawn(run);
    Ok(())
}

/// The executor for a drive tuning. It is made with `settings` if it is missing.
fn shared(
    executors: &PerProcess<Executors>,
    tuning: Option<DriveTuning>,
    settings: impl FnOnce() -> Settings,
) -> Result<Arc<Executor>> {
    let mut executors = executors.lock();
    if let Some(executor) = executors.get(&tuning) {
        return Ok(Arc::clone(executor));
    }
    let fresh = Arc::new(Executor::new(settings())?);
    executors.insert(tuning, Arc::clone(&fresh));
    Ok(fresh)
}
