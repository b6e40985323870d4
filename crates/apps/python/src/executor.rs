//! The executors of the process: started once, shared by all calls.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    thread::Builder,
};

use pyo3::prelude::*;
use straightway_core::{Place, Result};
use straightway_io::{
    Executor, Settings,
    store::{Location, Medium, Tuning},
};
use straightway_probe::profile::DriveTuning;

use crate::{
    borrowed::context,
    loading::place,
    per_process::PerProcess,
    stores::is_local,
    tuning::{self, DriveInfo},
};

/// The tuning of a network, or that of a drive. A drive that was not measured has neither.
type Key = (Option<Tuning>, Option<DriveTuning>);

/// The shared executors. A forked child makes its own: it does not have the threads of its parent's.
static SHARED: PerProcess<BTreeMap<Key, Arc<Executor>>> = PerProcess::new();

/// The executor of this process for transfers between these locations, which may not exist yet.
pub(crate) fn of<'a>(ends: impl IntoIterator<Item = &'a Location>) -> Result<Arc<Executor>> {
    tuned(ends, tuning::of)
}

/// As [`of`], for reads of a checkpoint. A damaged profile must not stop a restore: it is a warning.
pub(crate) fn of_checkpoint(location: &Location) -> Result<Arc<Executor>> {
    tuned([location], |path| {
        Ok(tuning::of(path).unwrap_or_else(|error| {
            tracing::warn!(%error, "the default settings are used");
            DriveInfo::default()
        }))
    })
}

/// The executor for transfers between these locations. `info` returns the tuning of the drive behind a path.
fn tuned<'a>(
    ends: impl IntoIterator<Item = &'a Location>,
    info: impl FnOnce(&Path) -> Result<DriveInfo>,
) -> Result<Arc<Executor>> {
    let medium = Medium::of(ends);
    let (network, drive) = match &medium {
        Medium::Drive(path) => (None, info(path)?),
        Medium::Network(tuning) => (Some(*tuning), DriveInfo::default()),
    };
    let executor = shared((network, drive.tuning), || {
        medium.settings([], |_| Ok(DriveTuning::settings(drive.tuning)))
    })?;
    Ok(Arc::new(executor.learning(drive.learning)))
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
    let work = move || -> Result<()> {
        let executor = of([&Location::from(&model)])?;
        executor.prepare_gpu(&context(number)?)
    };
    let run = move || {
        if let Err(error) = work() {
            tracing::debug!(%error, "cannot prepare lanes ahead of the load");
        }
    };
    // Without the thread the load makes its own lanes.
    let _ = Builder::new().name("straightway-warm".to_owned()).spawn(run);
    Ok(())
}

/// The executor of a key. It is made with `settings` if it is missing.
fn shared(key: Key, settings: impl FnOnce() -> Result<Settings>) -> Result<Arc<Executor>> {
    let mut executors = SHARED.lock();
    if let Some(executor) = executors.get(&key) {
        return Ok(Arc::clone(executor));
    }
    let fresh = Arc::new(Executor::new(settings()?)?);
    executors.insert(key, Arc::clone(&fresh));
    Ok(fresh)
}
