//! The process's lanes: started once, used by every call.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread::Builder,
};

use pyo3::prelude::*;
use straightway_core::{Place, Result};
use straightway_io::{Executor, Settings};
use straightway_net::suited;
use straightway_probe::profile::Tuning;

use crate::{
    loading::place,
    stores::is_local,
    subject::context,
    tuning::{self, Known},
};

/// The executors that all calls share: one for each kind of drive that was measured, and one for all others.
type Executors = BTreeMap<Option<Tuning>, Arc<Executor>>;

/// Executors, and the process that their threads belong to.
struct Shared(Mutex<(u32, Executors)>);

static SHARED: Shared = Shared::new();

/// Those whose requests go over a network.
static REMOTE: Shared = Shared::new();

/// The executor of this process for what is, or will be, at `path`.
pub(crate) fn of(path: &Path) -> Result<Arc<Executor>> {
    let Known { tuning, learning } = tuning::of(path)?;
    let shared = SHARED.get(tuning, || Tuning::settings(tuning))?;
    Ok(Arc::new(shared.learning(learning)))
}

/// The executor of this process for what comes over a network.
pub(crate) fn remote() -> Result<Arc<Executor>> {
    REMOTE.get(None, || suited(Settings::default()))
}

/// The executor of this process for what a path or URI names.
pub(crate) fn of_name(name: &Path) -> Result<Arc<Executor>> {
    if is_local(name.to_owned()) {
        of(name)
    } else {
        remote()
    }
}

/// The executor of this process for what is at no path.
pub(crate) fn plain() -> Result<Arc<Executor>> {
    SHARED.get(None, Settings::default)
}

/// Begins to make ready what a load of a model to a device needs, and returns at once: lanes and pinned memory are made
/// while headers are read and memory is allocated. What cannot be made ready is tried again by the load, which has the
/// error then.
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
            tracing::debug!(%error, "lanes could not be made ready ahead");
        }
    };
    // Without the thread the load makes its own lanes.
    let _ = Builder::new()
        .name("straightway-warm".to_owned())
        .spawn(run);
    Ok(())
}

impl Shared {
    const fn new() -> Self {
        Self(Mutex::new((0, BTreeMap::new())))
    }

    fn get(
        &self,
        tuning: Option<Tuning>,
        settings: impl FnOnce() -> Settings,
    ) -> Result<Arc<Executor>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (process, executors) = &mut *kept;
        let here = std::process::id();
        if *process != here {
            // After a fork the parent's lanes are no threads of ours: waiting for them to end, as
            // dropping the executors would, never ends.
            std::mem::forget(std::mem::take(executors));
            *process = here;
        }
        if let Some(executor) = executors.get(&tuning) {
            return Ok(Arc::clone(executor));
        }
        let fresh = Arc::new(Executor::new(settings())?);
        executors.insert(tuning, Arc::clone(&fresh));
        Ok(fresh)
    }
}
