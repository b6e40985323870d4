//! Loads on their way: all at once, or batch by batch.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use pyo3::{
    exceptions::{PyRuntimeError, PyTimeoutError, PyValueError},
    ffi,
    prelude::*,
    types::PyDict,
};
use straightway_core::{Class, Kind, Place, Result, Share};
use straightway_io::{Progress, Region};
use straightway_pipeline::weights::{
    self, Filter, Loader, Part, Pick, Placed, Rectangle, Selection, Shape, Slice,
};

use crate::{
    dlpack::{self, View},
    error::{MissingTensorError, OrRaise, raised, text},
    executor,
    model::Model,
    receipt::Receipt,
    service::choice,
    tensor::Tensor,
    waiting::{DEAF_MAX, Work},
};

/// A filter, a dimension, and which indices of it.
type Cut = (Option<String>, usize, u64, u64);

/// A load that goes on by itself. Where each tensor will be is known from the start, so that its
/// owner can make objects of them meanwhile; their bytes are there when `wait` has returned.
#[pyclass(module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Loading {
    region: Arc<Region>,
    placed: Arc<Vec<Placed>>,
    work: Option<Work<straightway_core::Receipt>>,
}

#[pymethods]
impl Loading {
    /// Begins to load what `filters` want of a model, cut by `slices`.
    #[new]
    #[pyo3(signature = (model, *, device, filters, slices, route, priority))]
    fn new(
        py: Python<'_>,
        model: &Model,
        device: &str,
        filters: Vec<String>,
        slices: Vec<Cut>,
        route: &str,
        priority: &str,
    ) -> PyResult<Self> {
        let selection = select(model, &filters, slices)?;
        let loader = loader(model, route, class(priority)?)?;
        Self::begin(py, model, &selection, device, &loader)
    }

    /// Begins to load one tensor, or the part of it from `starts` on with `lengths`.
    #[staticmethod]
    #[pyo3(signature = (model, name, part, *, device, route))]
    fn of(
        py: Python<'_>,
        model: &Model,
        name: &str,
        part: Option<(Vec<u64>, Vec<u64>)>,
        device: &str,
        route: &str,
    ) -> PyResult<Self> {
        let number = model.number(name)?;
        let shape = &model.0.tensors[number].shape;
        let cut = |(starts, lengths): (Vec<u64>, Vec<u64>)| {
            let (starts, lengths) = (Shape::from_iter(starts), Shape::from_iter(lengths));
            Rectangle::new(name, shape, starts, lengths).map(Box::new)
        };
        let pick = Pick {
            tensor: u32::try_from(number).expect("a model has fewer tensors"),
            part: part.map(cut).transpose().or_raise()?,
        };
        let selection = Selection::of(&model.0, vec![pick]).or_raise()?;
        let loader = loader(model, route, Class::default())?;
        Self::begin(py, model, &selection, device, &loader)
    }

    /// The tensors by name: `take` makes one of a capsule, and `convert` of what no capsule can
    /// name, or of all where there is no `take`.
    fn tensors<'py>(
        &self,
        py: Python<'py>,
        take: Option<Bound<'py, PyAny>>,
        convert: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyDict>> {
        handed_over(py, &self.region, &self.placed, take.as_ref(), &convert)
    }

    /// Waits for the last byte.
    fn wait(&mut self, py: Python<'_>) -> PyResult<Receipt> {
        let work = self.work.take().ok_or_else(waited_for)?;
        work.wait(py).map(Receipt)
    }

    /// Waits for the last byte, but at most `DEAF_MAX`. `None` where the load is still under way.
    fn wait_briefly(&mut self, py: Python<'_>) -> PyResult<Option<Receipt>> {
        let work = self.work.as_ref().ok_or_else(waited_for)?;
        let outcome = work.wait_briefly(py);
        if !matches!(outcome, Ok(None)) {
            self.work = None;
        }
        Ok(outcome?.map(Receipt))
    }

    /// Stops the load, and waits a second at most for what is in flight. Its tensors hold anything then.
    fn stop(&mut self, py: Python<'_>) {
        if let Some(work) = self.work.take() {
            work.stop(py);
        }
    }

    /// How many bytes it loads.
    #[getter]
    fn bytes(&self) -> u64 {
        self.placed.iter().map(|placed| placed.bytes).sum()
    }

    /// How many of them are in place.
    #[getter]
    fn moved_bytes(&self) -> u64 {
        let work = self.work.as_ref();
        work.map_or_else(|| self.bytes(), |work| work.progress().moved_bytes())
    }
}

fn waited_for() -> PyErr {
    PyRuntimeError::new_err("this load was waited for already")
}

impl Loading {
    fn begin(
        py: Python<'_>,
        model: &Model,
        selection: &Selection,
        device: &str,
        loader: &Loader,
    ) -> PyResult<Self> {
        let place = place(device)?;
        let prepared = py
            .detach(|| loader.prepare(&model.0, selection, place))
            .or_raise()?;
        let (region, placed) = (
            Arc::clone(prepared.region()),
            Arc::clone(prepared.tensors()),
        );
        let work = Work::begin(&loader.progress, move || prepared.run()).or_raise()?;
        Ok(Self {
            region,
            placed,
            work: Some(work),
        })
    }
}

/// A model batch by batch: the next loads while the last is used.
#[pyclass(module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Stream {
    /// Behind a lock only because Python's objects may be shared between threads.
    batches: Mutex<weights::Stream>,
    progress: Arc<Progress>,
    receipts: Vec<straightway_core::Receipt>,
}

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (model, *, device, filters, slices, batch_bytes, route, priority))]
    fn new(
        model: &Model,
        device: &str,
        filters: Vec<String>,
        slices: Vec<Cut>,
        batch_bytes: u64,
        route: &str,
        priority: &str,
    ) -> PyResult<Self> {
        let selection = select(model, &filters, slices)?;
        let loader = loader(model, route, class(priority)?)?;
        let batches = loader.stream(&model.0, &selection, place(device)?, batch_bytes);
        Ok(Self {
            batches: Mutex::new(batches.or_raise()?),
            progress: Arc::clone(&loader.progress),
            receipts: Vec::new(),
        })
    }

    /// The tensors of the next batch by name, as `Loading.tensors` has them; `None` after the last. A batch that takes
    /// longer than `timeout_s` ends the stream with `TimeoutError`.
    #[pyo3(signature = (take, convert, timeout_s=None))]
    fn next<'py>(
        &mut self,
        py: Python<'py>,
        take: Option<Bound<'py, PyAny>>,
        convert: Bound<'py, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let batches = self.batches.get_mut();
        let batches = batches.unwrap_or_else(PoisonError::into_inner);
        let begun = Instant::now();
        let batch = loop {
            if let Some(batch) = py.detach(|| batches.next_within(DEAF_MAX)) {
                break batch;
            }
            if let Some(limit) = timeout_s.filter(|s| begun.elapsed().as_secs_f64() > *s) {
                self.progress.cancel();
                let message = format!("the next batch took longer than {limit} s");
                return Err(PyTimeoutError::new_err(message));
            }
            if let Err(raised) = py.check_signals() {
                self.progress.cancel();
                return Err(raised);
            }
        };
        let Some(loaded) = batch.transpose().or_raise()? else {
            return Ok(None);
        };
        self.receipts.push(loaded.receipt);
        handed_over(py, &loaded.region, &loaded.tensors, take.as_ref(), &convert).map(Some)
    }

    /// How each batch came, of those that were taken.
    #[getter]
    fn receipts(&self) -> Vec<Receipt> {
        self.receipts.iter().cloned().map(Receipt).collect()
    }
}

/// What filters and slices select of a model.
fn select(model: &Model, filters: &[String], slices: Vec<Cut>) -> PyResult<Selection> {
    if filters.is_empty() && slices.is_empty() {
        return Ok(Selection::all(&model.0));
    }
    let filters = filters.iter().map(|f| f.parse::<Filter>());
    let filters = filters.collect::<Result<_>>().or_raise()?;
    let slice = |(filter, dim, start, stop): Cut| {
        let filter = filter.map(|f| f.parse::<Filter>()).transpose()?;
        let part = Part::Range { start, stop };
        Ok(Slice { filter, dim, part })
    };
    let slices: Vec<_> = slices
        .into_iter()
        .map(slice)
        .collect::<Result<_>>()
        .or_raise()?;
    Selection::new(&model.0, &filters, &slices).map_err(|error| match error.kind() {
        // No file is missing.
        Kind::NotFound => MissingTensorError::new_err(text(&error)),
        _ => raised(&error),
    })
}

fn loader(model: &Model, route: &str, class: Class) -> PyResult<Loader> {
    let executor = if model.0.is_local() {
        executor::of(&model.0.path).or_raise()?
    } else {
        executor::remote().or_raise()?
    };
    let executor = if class == Class::default() {
        executor
    } else {
        Arc::new(executor.sharing(Share::of(class), class).or_raise()?)
    };
    Ok(Loader {
        choice: choice(route)?,
        ..Loader::new(executor)
    })
}

/// The class that a word means.
fn class(priority: &str) -> PyResult<Class> {
    let all = [Class::Now, Class::Soon, Class::Background];
    let found = all.into_iter().find(|class| class.to_string() == priority);
    found.ok_or_else(|| {
        let message = format!("a priority is now, soon or background, not {priority:?}");
        PyValueError::new_err(message)
    })
}

pub(crate) fn place(device: &str) -> PyResult<Place> {
    let unknown = |_| {
        let message =
            format!("a device is cpu, or cuda and a number such as cuda:0, not {device:?}");
        PyValueError::new_err(message)
    };
    device.parse().map_err(unknown)
}

/// Python's collector of cycles, at rest. Hundreds of thousands of new objects make it look through
/// all of them again and again, which takes longer than making them, and none of them is garbage.
struct Pause<'py> {
    /// Proof that the interpreter's lock is held as long as this lives.
    _locked: Python<'py>,
    was_on: bool,
}

impl<'py> Pause<'py> {
    fn new(py: Python<'py>) -> Self {
        // SAFETY: the interpreter's lock is held, as `py` shows.
        let was_on = unsafe { ffi::PyGC_Disable() } == 1;
        Self {
            _locked: py,
            was_on,
        }
    }
}

impl Drop for Pause<'_> {
    fn drop(&mut self) {
        if self.was_on {
            // SAFETY: as above.
            unsafe { ffi::PyGC_Enable() };
        }
    }
}

/// Makes another library's tensors of ours.
pub(crate) fn handed_over<'py>(
    py: Python<'py>,
    region: &Arc<Region>,
    placed: &[Placed],
    take: Option<&Bound<'py, PyAny>>,
    convert: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let tensors = PyDict::new(py);
    let _pause = Pause::new(py);
    for p in placed {
        tensors.set_item(&*p.name, made(py, region, p, take, convert)?)?;
    }
    Ok(tensors)
}

/// Makes another library's tensor of one of ours.
pub(crate) fn made<'py>(
    py: Python<'py>,
    region: &Arc<Region>,
    placed: &Placed,
    take: Option<&Bound<'py, PyAny>>,
    convert: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    match take {
        Some(take) if dlpack::code(placed.dtype).is_some() => {
            let view = View {
                region,
                at: placed.at,
                bytes: placed.bytes,
                dtype: placed.dtype,
                shape: &placed.shape,
            };
            take.call1((dlpack::capsule(py, &view)?,))
        }
        _ => convert.call1((Tensor {
            region: Arc::clone(region),
            at: placed.at,
            bytes: placed.bytes,
            dtype: placed.dtype,
            shape: placed.shape.clone(),
        },)),
    }
}
