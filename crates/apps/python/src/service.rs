//! Copies of files, the doctor, and the machine's free memory.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use pyo3::{exceptions::PyValueError, prelude::*, types::PyModule};
use straightway_copy::{Copier, CopyJob, verify::verify as compare};
use straightway_core::{Error, Result};
use straightway_io::Progress;
use straightway_probe::doctor::{DoctorRequest, Measurements, diagnose};
use straightway_sys::{FreeMemory, root::Root};

use crate::{
    arguments::choice,
    receipt::Receipt,
    stores::{SESSION, StorageOptions, stores},
    waiting,
};

/// Copies files and folders. Each appears under its name when it is complete and durable.
#[pyfunction]
#[pyo3(signature = (sources, target, *, route="auto", verify=false, to_device=false, storage_options=None))]
pub(crate) fn copy(
    py: Python<'_>,
    sources: Vec<PathBuf>,
    target: PathBuf,
    route: &str,
    verify: bool,
    to_device: bool,
    storage_options: Option<StorageOptions>,
) -> PyResult<Receipt> {
    let choice = choice(route)?;
    if to_device && verify {
        return Err(PyValueError::new_err("verify cannot be used with to_device"));
    }
    let progress = Arc::new(Progress::default());
    let watched = Arc::clone(&progress);
    let receipt = waiting::run(py, &progress, move || {
        let stores = stores(storage_options.as_ref())?;
        let sources = sources.iter().map(|source| stores.locate(source));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        let target = stores.locate(&target)?;
        let executor = SESSION.executor(sources.iter().chain([&target]))?;
        let job = if to_device {
            CopyJob::onto_device(&sources, &target)?
        } else {
            CopyJob::new(&sources, &target)?
        };
        let copier = Copier {
            executor: &executor,
            choice,
            progress: Arc::clone(&watched),
        };
        let mut receipt = copier.run(&job)?;
        if verify {
            receipt.warnings.extend(compare(&executor, &job, &watched)?);
        }
        Ok(receipt)
    })?;
    Ok(Receipt(receipt))
}

/// Diagnoses whether bytes can go directly from `path` into GPU memory, and if not, why not. The result is that of
/// `straightway doctor --json`.
#[pyfunction]
#[pyo3(signature = (path=None))]
pub(crate) fn doctor(py: Python<'_>, path: Option<PathBuf>) -> PyResult<Bound<'_, PyAny>> {
    let path = path.unwrap_or_else(|| PathBuf::from("."));
    let environment: BTreeMap<_, _> = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    let progress = Arc::new(Progress::default());
    let text = waiting::run(py, &progress, move || {
        std::fs::metadata(&path).map_err(|e| Error::os("examine", path.display(), e))?;
        let diagnosis = diagnose(&DoctorRequest {
            root: &Root::machine(),
            path: &path,
            environment: &environment,
            measured: &Measurements::here(&path),
        });
        Ok(serde_json::to_string(&diagnosis).expect("a diagnosis is plain data"))
    })?;
    PyModule::import(py, "json")?.call_method1("loads", (text,))
}

/// The number of bytes of host memory that this process can still use, by what the machine has available and what its
/// control groups allow. Page cache counts as free. `None` if the machine does not report it.
#[pyfunction]
pub(crate) fn free_memory(py: Python<'_>) -> Option<u64> {
    py.detach(|| FreeMemory::of(&Root::machine())).map(|free| free.bytes)
}
