//! Copies of files, the doctor, and the machine's free memory.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use pyo3::{exceptions::PyValueError, prelude::*, types::PyModule};
use straightway_copy::{Copier, CopyJob, CopyOptions, LinkChoice, Sources, verify::verify as compare};
use straightway_core::{Error, ErrorKind, Place, Result};
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
#[pyo3(signature = (
    sources, target, *, route="auto", links="auto", verify=false, to_device=false, storage_options=None
))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn copy(
    py: Python<'_>,
    sources: Vec<PathBuf>,
    target: PathBuf,
    route: &str,
    links: &str,
    verify: bool,
    to_device: bool,
    storage_options: Option<StorageOptions>,
) -> PyResult<Receipt> {
    let choice = choice(route)?;
    let links: LinkChoice = links
        .parse()
        .map_err(|_| PyValueError::new_err(format!("links is auto, keep or follow, not {links:?}")))?;
    if to_device && verify {
        return Err(PyValueError::new_err("verify cannot be used with to_device"));
    }
    let progress = Arc::new(Progress::default());
    let watched = Arc::clone(&progress);
    let receipt = waiting::run(py, &progress, move || {
        let stores = stores(storage_options.as_ref())?;
        check_not_memory(&target)?;
        let Sources { found, has_pattern } = Sources::find(&stores, &sources)?;
        let target = stores.locate(&target)?;
        let executor = SESSION.executor(found.iter().chain([&target]))?;
        let job = if to_device {
            CopyJob::onto_device(&found, &target)?
        } else {
            let options = CopyOptions {
                links,
                into_folder: has_pattern,
            };
            CopyJob::with(&found, &target, options)?
        };
        let copier = Copier {
            executor: &executor,
            choice,
            progress: Arc::clone(&watched),
        };
        let mut receipt = copier.run(&job)?;
        if verify {
            compare(&executor, &job, &watched)?.enter(&mut receipt);
        }
        Ok(receipt)
    })?;
    Ok(Receipt(receipt))
}

/// Fails if the target of a copy is a name of memory, or looks like one: a file of that name would be a mistake.
fn check_not_memory(target: &Path) -> Result<()> {
    let Some(place) = Place::of_target(target.as_os_str())? else {
        return Ok(());
    };
    let message = format!("that is memory ({place}), and a copy is written to files or objects");
    let target = target.display();
    Err(
        Error::new(ErrorKind::Invalid, "copy to", &target, message).with_hint(format!(
            "load_file reads into memory; a file of that name is ./{target}"
        )),
    )
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
