//! A step that is open to be read.

use std::{path::PathBuf, sync::Arc, time::Instant};

use pyo3::{
    exceptions::{PyKeyError, PyRuntimeError, PyValueError},
    prelude::*,
    types::{PyBytes, PyDict},
};
use straightway_core::{Place, Result, Uri};
use straightway_io::Progress;
use straightway_pipeline::{
    checkpoint::{self, EXPORT_BYTES, Fetched, Gathered, Saved, Wanted},
    weights::{self, Rectangle, Shape},
};

use crate::{
    executor,
    handover::handed_over,
    loading::place,
    memory::Memory,
    receipt::Receipt,
    stores::stores,
    subject::{Described, Subject},
    waiting,
};

/// A tensor to put bytes into, and where what goes there begins in the tensor of that name.
type Target = (Described, Vec<u64>);

/// A tensor of a step: name, type, shape, whether it is no tensor but somebody's bytes, and where each
/// of its parts begins and how long it is.
type Listed<'a> = (
    &'a str,
    &'static str,
    Vec<u64>,
    bool,
    Vec<(Vec<u64>, Vec<u64>)>,
);

/// A step that is open: it is read to its end even where it is removed meanwhile.
#[pyclass(frozen, module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Checkpoint(pub(super) Arc<checkpoint::Checkpoint>);

#[pymethods]
impl Checkpoint {
    /// Which step it is.
    #[getter]
    fn step(&self) -> u64 {
        self.0.manifest().step
    }

    /// How many ranks saved it.
    #[getter]
    fn world(&self) -> u32 {
        self.0.manifest().world
    }

    /// What its owner said of it, as JSON.
    #[getter]
    fn metadata(&self) -> &str {
        &self.0.manifest().metadata
    }

    /// How many bytes its shards take, without what lies in other steps.
    #[getter]
    fn written_bytes(&self) -> u64 {
        self.0.manifest().written_bytes()
    }

    /// What is in it.
    fn tensors(&self) -> Vec<Listed<'_>> {
        let list = |tensor: &'_ Saved| {
            let parts = tensor.parts.iter().map(|part| {
                let (start, lengths) = (part.rectangle.offsets(), part.rectangle.lengths());
                (start.to_vec(), lengths.to_vec())
            });
            (tensor.shape.to_vec(), tensor.opaque, parts.collect())
        };
        let tensors = self.0.manifest().tensors.iter();
        tensors
            .map(|tensor| {
                let (shape, is_opaque, parts) = list(tensor);
                (&*tensor.name, tensor.dtype.name(), shape, is_opaque, parts)
            })
            .collect()
    }

    /// The bytes of some entries, checked.
    fn contents<'py>(&self, py: Python<'py>, names: Vec<String>) -> PyResult<Bound<'py, PyDict>> {
        let mut gathered = self.gathered(py, names, Place::Host)?.0;
        let region = Arc::get_mut(&mut gathered.region);
        let in_use = || PyRuntimeError::new_err("what was read is still in use");
        let bytes = region.ok_or_else(in_use)?.as_slice();
        let contents = PyDict::new(py);
        for placed in &gathered.tensors {
            let at = |offset: u64| usize::try_from(offset).expect("it lies inside memory");
            let own = &bytes[at(placed.at)..at(placed.at + placed.bytes)];
            contents.set_item(&*placed.name, PyBytes::new(py, own))?;
        }
        Ok(contents)
    }

    /// Tensors by name, whole, in new memory of a device, as `Loading.tensors` has them; and what was read.
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
        let tensors = handed_over(
            py,
            &Memory::Region(region),
            &tensors,
            take.as_ref(),
            &convert,
        )?;
        Ok((tensors, told(py, &fetched, seconds)?))
    }

    /// Puts parts of tensors where they go, each checked before it arrives. Says what was read.
    fn restore<'py>(&self, py: Python<'py>, targets: Vec<Target>) -> PyResult<Bound<'py, PyDict>> {
        let targets: Vec<_> = targets
            .into_iter()
            .map(|(described, start)| {
                // SAFETY: the package's own code describes tensors that it holds: see `Subject::new`.
                let subject = unsafe { Subject::new(described) }?;
                Ok((subject, Shape::from_iter(start)))
            })
            .collect::<PyResult<_>>()?;
        check_apart(&targets)?;
        let checkpoint = Arc::clone(&self.0);
        let (fetched, seconds) = run(py, move |restorer| {
            let wanted = targets
                .iter()
                .map(|(to, start)| wanted(&checkpoint, to, start));
            restorer.restore(&checkpoint, &wanted.collect::<Result<Vec<_>>>()?)
        })?;
        told(py, &fetched, seconds)
    }

    /// Reads all of it and checks it: what is damaged, a line each, and whether parity makes it good.
    fn verify(&self, py: Python<'_>) -> PyResult<(Vec<String>, bool)> {
        let checkpoint = Arc::clone(&self.0);
        let (verdict, _) = run(py, move |restorer| restorer.verify(&checkpoint))?;
        Ok((verdict.damage, verdict.is_mendable))
    }

    /// Writes its tensors to a new folder as plain safetensors files. Says which files.
    fn export(&self, py: Python<'_>, folder: PathBuf) -> PyResult<Vec<String>> {
        let checkpoint = Arc::clone(&self.0);
        let (exported, _) = run(py, move |restorer| {
            let saver = weights::Saver::new(executor::of(&folder)?);
            let target = stores()?.find(&Uri::parse(&folder)?)?;
            restorer.export(&checkpoint, &saver, target, EXPORT_BYTES)
        })?;
        Ok(exported.files)
    }
}

impl Checkpoint {
    fn gathered(
        &self,
        py: Python<'_>,
        names: Vec<String>,
        place: Place,
    ) -> PyResult<(Gathered, f64)> {
        let manifest = self.0.manifest();
        for name in &names {
            if manifest.tensor(name).is_none() {
                let message = format!("step {} has no entry {name:?}", manifest.step);
                return Err(PyKeyError::new_err(message));
            }
        }
        let checkpoint = Arc::clone(&self.0);
        run(py, move |restorer| {
            let manifest = checkpoint.manifest();
            let tensors: Vec<_> = names
                .iter()
                .filter_map(|name| manifest.tensor(name))
                .collect();
            restorer.gather(&checkpoint, &tensors, place)
        })
    }
}

/// Does `work` with the process's restorer while this thread looks for Ctrl-C; and how long it took.
fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&checkpoint::Restorer) -> Result<T> + Send + 'static,
) -> PyResult<(T, f64)> {
    let progress = Arc::new(Progress::default());
    let watched = Arc::clone(&progress);
    waiting::run(py, &progress, move || {
        let start = Instant::now();
        let executor = executor::plain()?;
        let done = work(&checkpoint::Restorer::on(&executor).with_progress(&watched))?;
        Ok((done, start.elapsed().as_secs_f64()))
    })
}

fn wanted(checkpoint: &checkpoint::Checkpoint, to: &Subject, start: &Shape) -> Result<Wanted> {
    let saved = checkpoint.manifest().tensor(&to.name);
    let rectangle = match saved {
        Some(saved) => {
            check_dtype(saved, to)?;
            Rectangle::new(&to.name, &saved.shape, start.clone(), to.shape.clone())?
        }
        // The restorer says that there is none.
        None => Rectangle::whole(&to.shape),
    };
    Ok(Wanted {
        name: to.name.clone(),
        rectangle,
        region: Arc::new(to.region()?),
        at: 0,
    })
}

fn check_dtype(saved: &Saved, to: &Subject) -> Result<()> {
    use straightway_core::{Error, Kind};
    if saved.dtype == to.dtype {
        return Ok(());
    }
    let message = format!("it was saved as {}, and goes to {}", saved.dtype, to.dtype);
    Err(Error::new(
        Kind::Invalid,
        "restore",
        format!("tensor {:?}", to.name),
        message,
    ))
}

/// Refuses tensors that share memory: threads write to them side by side.
fn check_apart(targets: &[(Subject, Shape)]) -> PyResult<()> {
    let mut spans: Vec<_> = targets
        .iter()
        .filter(|(to, _)| to.bytes > 0)
        .map(|(to, _)| {
            (
                format!("{:?}", to.place),
                to.address,
                to.bytes as u64,
                &to.name,
            )
        })
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

/// What was read, as a dictionary.
fn told<'py>(py: Python<'py>, fetched: &Fetched, seconds: f64) -> PyResult<Bound<'py, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("bytes", fetched.receipt.bytes)?;
    told.set_item("read_bytes", fetched.receipt.storage_bytes)?;
    told.set_item("rebuilt", &fetched.rebuilt)?;
    told.set_item("receipts", vec![Receipt(fetched.receipt.clone())])?;
    told.set_item("seconds", seconds)?;
    Ok(told)
}
