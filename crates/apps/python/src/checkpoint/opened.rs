//! An open step.

use std::{path::PathBuf, sync::Arc, time::Instant};

use pyo3::{
    exceptions::{PyKeyError, PyRuntimeError, PyValueError},
    prelude::*,
    types::{PyBytes, PyDict, PyTuple},
};
use straightway_checkpoint::{self as checkpoint, EXPORT_BYTES, Fetched, Gathered, Saved, Wanted};
use straightway_core::{Place, Result};
use straightway_io::Progress;
use straightway_stores::{DriveFacts, TransferSpec};
use straightway_weights::{self as weights, Rectangle, Shape};

use crate::{
    arguments::place,
    borrowed::{BorrowedTensor, Contexts},
    handover::converted_tensors,
    memory::Memory,
    receipt::Receipt,
    stores::{SESSION, locate},
    waiting,
};

/// A tensor to fill, and its offset in the saved tensor of that name.
type Target = (Py<BorrowedTensor>, Vec<u64>);

/// An entry of a step: name, dtype, shape, whether it is opaque bytes instead of a tensor, and the offset and shape of
/// each part.
type Listed<'a> = (&'a str, &'static str, Vec<u64>, bool, Vec<(Vec<u64>, Vec<u64>)>);

/// An open step. It can be read to the end even if it is removed meanwhile.
#[pyclass(frozen, module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Checkpoint {
    pub(super) opened: Arc<checkpoint::Checkpoint>,
}

#[pymethods]
impl Checkpoint {
    /// The number of the step.
    #[getter]
    fn step(&self) -> u64 {
        self.opened.manifest().step
    }

    /// The number of ranks that saved it.
    #[getter]
    fn world(&self) -> u32 {
        self.opened.manifest().world
    }

    /// The metadata that was passed to `save`, as JSON.
    #[getter]
    fn metadata(&self) -> &str {
        &self.opened.manifest().metadata
    }

    /// The size of its shards, without chunks that are in other steps.
    #[getter]
    fn written_bytes(&self) -> u64 {
        self.opened.manifest().written_bytes()
    }

    /// The entries of the step.
    fn tensors(&self) -> Vec<Listed<'_>> {
        let list = |tensor: &'_ Saved| {
            let parts = tensor.parts.iter().map(|part| {
                let (start, lengths) = (part.rectangle.offsets(), part.rectangle.lengths());
                (start.to_vec(), lengths.to_vec())
            });
            (tensor.shape.to_vec(), tensor.opaque, parts.collect())
        };
        let tensors = self.opened.manifest().tensors.iter();
        tensors
            .map(|tensor| {
                let (shape, is_opaque, parts) = list(tensor);
                (&*tensor.name, tensor.dtype.name(), shape, is_opaque, parts)
            })
            .collect()
    }

    /// The dtype and shape of an entry; `None` if the step does not have it.
    fn find<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Option<(&'static str, Bound<'py, PyTuple>)>> {
        let Some(found) = self.opened.manifest().tensor(name) else {
            return Ok(None);
        };
        let shape = PyTuple::new(py, found.shape.iter())?;
        Ok(Some((found.dtype.name(), shape)))
    }

    /// The bytes of some entries, checked.
    fn contents<'py>(&self, py: Python<'py>, names: Vec<String>) -> PyResult<Bound<'py, PyDict>> {
        let mut gathered = self.gathered(py, names, Place::Host)?.0;
        let region = Arc::get_mut(&mut gathered.region);
        let in_use = || PyRuntimeError::new_err("the memory that was read into is still in use");
        let bytes = region.ok_or_else(in_use)?.as_slice();
        let contents = PyDict::new(py);
        for placed in &gathered.tensors {
            let at = |offset: u64| usize::try_from(offset).expect("it lies inside memory");
            let own = &bytes[at(placed.at)..at(placed.at + placed.bytes)];
            contents.set_item(&*placed.name, PyBytes::new(py, own))?;
        }
        Ok(contents)
    }

    /// Reads whole tensors into new memory of a device, converted as by `Loading.fill`. Returns them by name, and the
    /// statistics.
    fn gather<'py>(
        &self,
        py: Python<'py>,
        names: Vec<String>,
        device: &str,
        take: Option<Bound<'py, PyAny>>,
        convert: Bound<'py, PyAny>,
    ) -> PyResult<(Bound<'py, PyDict>, Bound<'py, PyDict>)> {
        let (gathered, seconds) = self.gathered(py, names, place(device)?)?;
        let Gathered {
            region,
            tensors,
            fetched,
        } = gathered;
        let tensors = converted_tensors(py, &Memory::Region(region), &tensors, take.as_ref(), &convert)?;
        Ok((tensors, stats_dict(py, &fetched, seconds)?))
    }

    /// Reads parts of tensors into memory of the caller. Bytes are checked before they are written. Returns the
    /// statistics.
    fn restore<'py>(&self, py: Python<'py>, targets: Vec<Target>) -> PyResult<Bound<'py, PyDict>> {
        check_apart(&targets)?;
        let checkpoint = Arc::clone(&self.opened);
        let (fetched, seconds) = self.run(py, move |restorer| {
            let mut contexts = Contexts::default();
            let wanted = targets
                .iter()
                .map(|(to, start)| wanted(&checkpoint, to.get(), start, &mut contexts));
            restorer.restore(&checkpoint, &wanted.collect::<Result<Vec<_>>>()?)
        })?;
        stats_dict(py, &fetched, seconds)
    }

    /// Reads and checks all bytes. Returns a line for each damage, and whether parity can repair it.
    fn verify(&self, py: Python<'_>) -> PyResult<(Vec<String>, bool)> {
        let checkpoint = Arc::clone(&self.opened);
        let (verdict, _) = self.run(py, move |restorer| restorer.verify(&checkpoint))?;
        Ok((verdict.damage, verdict.is_mendable))
    }

    /// Writes its tensors to a new folder as plain safetensors files. Returns the names of the files.
    fn export(&self, py: Python<'_>, folder: PathBuf) -> PyResult<Vec<String>> {
        let checkpoint = Arc::clone(&self.opened);
        let (exported, _) = self.run(py, move |restorer| {
            let target = locate(&folder)?;
            let saver = weights::FileSaver::new(SESSION.executor([&target])?.into());
            restorer.export(&checkpoint, &saver, target, EXPORT_BYTES)
        })?;
        Ok(exported.files)
    }
}

impl Checkpoint {
    /// Runs `work` with a restorer while this thread checks for Ctrl-C. Returns the result and the duration in
    /// seconds.
    fn run<T: Send + 'static>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&checkpoint::Restorer) -> Result<T> + Send + 'static,
    ) -> PyResult<(T, f64)> {
        let progress = Arc::new(Progress::default());
        let watched = Arc::clone(&progress);
        let location = self.opened.location();
        waiting::run(py, &progress, move || {
            let start = Instant::now();
            let executor = SESSION.executor_for(TransferSpec {
                ends: vec![&location],
                drive: DriveFacts::Readable,
                ..TransferSpec::default()
            })?;
            let done = work(&checkpoint::Restorer::on(&executor).with_progress(&watched))?;
            Ok((done, start.elapsed().as_secs_f64()))
        })
    }

    fn gathered(&self, py: Python<'_>, names: Vec<String>, place: Place) -> PyResult<(Gathered, f64)> {
        let manifest = self.opened.manifest();
        for name in &names {
            if manifest.tensor(name).is_none() {
                let message = format!("step {} has no entry {name:?}", manifest.step);
                return Err(PyKeyError::new_err(message));
            }
        }
        let checkpoint = Arc::clone(&self.opened);
        self.run(py, move |restorer| {
            let manifest = checkpoint.manifest();
            let tensors: Vec<_> = names.iter().filter_map(|name| manifest.tensor(name)).collect();
            restorer.gather(&checkpoint, &tensors, place)
        })
    }
}

fn wanted(
    checkpoint: &checkpoint::Checkpoint,
    to: &BorrowedTensor,
    start: &[u64],
    contexts: &mut Contexts,
) -> Result<Wanted> {
    let saved = checkpoint.manifest().tensor(&to.name);
    let rectangle = match saved {
        Some(saved) => {
            check_dtype(saved, to)?;
            Rectangle::new(&to.name, &saved.shape, Shape::from(start), to.shape.clone())?
        }
        // The restorer reports that the tensor does not exist.
        None => Rectangle::whole(&to.shape),
    };
    Ok(Wanted {
        name: to.name.clone(),
        rectangle,
        region: Arc::new(to.region(contexts)?),
        at: 0,
    })
}

fn check_dtype(saved: &Saved, to: &BorrowedTensor) -> Result<()> {
    use straightway_core::{Error, ErrorKind};
    if saved.dtype == to.dtype {
        return Ok(());
    }
    let message = format!("it was saved as {}, and goes to {}", saved.dtype, to.dtype);
    Err(Error::new(
        ErrorKind::Invalid,
        "restore",
        format!("tensor {:?}", to.name),
        message,
    ))
}

/// Raises for tensors that share memory: threads write to them concurrently.
fn check_apart(targets: &[Target]) -> PyResult<()> {
    let mut spans: Vec<_> = targets
        .iter()
        .map(|(to, _)| to.get())
        .filter(|to| to.bytes > 0)
        .map(|to| (to.place, to.address, to.bytes as u64, &to.name))
        .collect();
    spans.sort_unstable();
    for pair in spans.windows(2) {
        if pair[0].0 == pair[1].0 && pair[0].1.saturating_add(pair[0].2) > pair[1].1 {
            let message = format!(
                "tensors {:?} and {:?} share memory, and different bytes would go there",
                pair[0].3, pair[1].3
            );
            return Err(PyValueError::new_err(message));
        }
    }
    Ok(())
}

/// The statistics of a read, as a dictionary.
fn stats_dict<'py>(py: Python<'py>, fetched: &Fetched, seconds: f64) -> PyResult<Bound<'py, PyDict>> {
    let stats = PyDict::new(py);
    stats.set_item("bytes", fetched.receipt.bytes)?;
    stats.set_item("read_bytes", fetched.receipt.storage_bytes)?;
    stats.set_item("rebuilt", &fetched.rebuilt)?;
    stats.set_item("receipts", vec![Receipt(fetched.receipt.clone())])?;
    stats.set_item("seconds", seconds)?;
    Ok(stats)
}
