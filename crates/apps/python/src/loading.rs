//! Background loads.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, thread::Builder};

use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::PyDict,
};
use straightway_core::{Class, ErrorKind, Place, Result, Share};
use straightway_io::{Region, store::Location};
use straightway_sys::cuda::Context;
use straightway_weights::{
    Filter, Layout, Loader, Mapped, Phase, Pick, Placed, Prepared, Rectangle, Selection, Shape, Slice, SlicePart,
};

use crate::{
    arguments::{choice, class, place},
    blocks::Blocks,
    borrowed::{BorrowedTensor, Contexts, context},
    error::{MissingTensorError, OrRaise, exception, text},
    handover::add,
    memory::Memory,
    model::Model,
    receipt::Receipt,
    stores::{SESSION, is_local},
    waiting::Work,
};

/// A filter, a dimension, and its range: start and stop.
pub(crate) type Cut = (Option<String>, usize, u64, u64);

/// A load that runs in the background. The address of each tensor is known from the start, so that the caller can make
/// the tensor objects meanwhile. Their bytes are valid when `wait` has returned.
#[pyclass(module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Loading {
    /// Tensors that are mapped pages of files. They are valid from the start.
    mapped: Vec<(Memory, Placed)>,
    /// The tensors that are loaded, and their memory.
    memory: Memory,
    placed: Arc<Vec<Placed>>,
    /// The tensors that are loaded into memory of a library.
    blocks: Blocks,
    /// The size of the tensors that are loaded into memory of the caller.
    given_bytes: u64,
    work: Option<Work<straightway_core::Receipt>>,
}

#[pymethods]
impl Loading {
    /// Begins to load the tensors of a model that match `filters`, cut by `slices`. `None` matches all tensors. Without a
    /// route, local files are mapped if the device is the host.
    #[new]
    #[pyo3(signature = (model, *, device, filters, slices, route, priority, allocate=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        model: &Model,
        device: &str,
        filters: Option<Vec<String>>,
        slices: Vec<Cut>,
        route: Option<&str>,
        priority: &str,
        allocate: Option<Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let selection = select(model, filters.as_deref(), slices)?;
        let loader = loader(model, route.unwrap_or("auto"), class(priority)?)?;
        let place = place(device)?;
        if route.is_none() && place == Place::Host && model.0.is_local() {
            let mapped = py.detach(|| loader.map(&model.0, &selection)).or_raise()?;
            return Self::mapped(mapped, &loader);
        }
        Self::begin(py, model, &selection, place, &loader, allocate.as_ref())
    }

    /// Begins to load one tensor, or the part of it from `starts` on with `lengths`.
    #[staticmethod]
    #[pyo3(signature = (model, name, part, *, device, route, allocate=None))]
    fn of(
        py: Python<'_>,
        model: &Model,
        name: &str,
        part: Option<(Vec<u64>, Vec<u64>)>,
        device: &str,
        route: &str,
        allocate: Option<Bound<'_, PyAny>>,
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
        let allocate = allocate.as_ref();
        Self::begin(py, model, &selection, place(device)?, &loader, allocate)
    }

    /// Begins to load tensors of a model, each by its name there, into memory that exists already. All of it is on one
    /// GPU, and no work of the caller uses it any more.
    #[staticmethod]
    #[pyo3(signature = (model, targets, *, route, priority))]
    fn into(
        py: Python<'_>,
        model: &Model,
        targets: BTreeMap<String, Py<BorrowedTensor>>,
        route: &str,
        priority: &str,
    ) -> PyResult<Self> {
        let names: Vec<_> = targets.keys().map(|name| format!("name:{name}")).collect();
        let selection = select(model, Some(&names), Vec::new())?;
        let loader = loader(model, route, class(priority)?)?;
        let layout = Layout::new(&model.0, &selection, Phase::Free);
        let mut contexts = Contexts::default();
        let mut regions = Vec::with_capacity(layout.tensors.len());
        for placed in &layout.tensors {
            let target = targets[&*placed.name].get();
            if target.dtype != placed.dtype || target.shape != placed.shape {
                let message = format!(
                    "tensor {:?} is {} {}, and its target is {} {}",
                    &*placed.name, placed.dtype, placed.shape, target.dtype, target.shape
                );
                return Err(PyValueError::new_err(message));
            }
            regions.push(Arc::new(target.region(&mut contexts).or_raise()?));
        }
        let prepared = py
            .detach(|| loader.prepare_into(&model.0, layout, regions))
            .or_raise()?;
        let bytes = selection.bytes();
        let work = Work::begin(&loader.progress, move || prepared.run()).or_raise()?;
        Ok(Self {
            mapped: Vec::new(),
            memory: Memory::Region(Arc::new(Region::at(Place::Host, 0).or_raise()?)),
            placed: Arc::default(),
            blocks: Blocks::default(),
            given_bytes: bytes,
            work: Some(work),
        })
    }

    /// Adds the tensors to a dictionary, by name. `take` converts a capsule; `convert` converts tensors of dtypes that
    /// DLPack does not have, or all tensors if there is no `take`.
    fn fill<'py>(
        &self,
        tensors: Bound<'py, PyDict>,
        take: Option<Bound<'py, PyAny>>,
        convert: Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let mapped = self.mapped.iter().map(|(memory, placed)| (memory, placed));
        let loaded = self.placed.iter().map(|placed| (&self.memory, placed));
        add(&tensors, mapped.chain(loaded), take.as_ref(), &convert)?;
        self.blocks.add(&tensors, take.as_ref(), &convert)?;
        tracing::trace!("all tensors are made");
        Ok(())
    }

    /// Waits for the last byte.
    fn wait(&mut self, py: Python<'_>) -> PyResult<Receipt> {
        let work = self.work.take().ok_or_else(waited_for)?;
        work.wait(py).map(Receipt)
    }

    /// Waits for the last byte, at most `SIGNAL_CHECK_INTERVAL`. Returns `None` if the load is still running.
    fn wait_briefly(&mut self, py: Python<'_>) -> PyResult<Option<Receipt>> {
        let work = self.work.as_ref().ok_or_else(waited_for)?;
        let outcome = work.wait_briefly(py);
        if !matches!(outcome, Ok(None)) {
            self.work = None;
        }
        Ok(outcome?.map(Receipt))
    }

    /// Stops the load, and waits at most a second for I/O in flight. The content of its tensors is then undefined.
    fn stop(&mut self, py: Python<'_>) {
        if let Some(work) = self.work.take() {
            work.stop(py);
        }
    }

    /// The number of bytes to load.
    #[getter]
    fn bytes(&self) -> u64 {
        let loaded: u64 = self.placed.iter().map(|placed| placed.bytes).sum();
        loaded + self.blocks.bytes() + self.given_bytes + self.mapped_bytes()
    }

    /// The number of bytes loaded so far.
    #[getter]
    fn moved_bytes(&self) -> u64 {
        let work = self.work.as_ref();
        work.map_or_else(
            || self.bytes(),
            |work| self.mapped_bytes() + work.progress().moved_bytes(),
        )
    }
}

fn waited_for() -> PyErr {
    PyRuntimeError::new_err("`wait` was already called on this load")
}

impl Loading {
    fn begin(
        py: Python<'_>,
        model: &Model,
        selection: &Selection,
        place: Place,
        loader: &Loader,
        allocate: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        if let Some(allocate) = allocate
            && let Some(context) = library_context(py, model, selection, place, loader)?
        {
            let of = (loader, &context);
            let (blocks, work) = Blocks::begin(py, model, selection, of, allocate)?;
            return Ok(Self {
                mapped: Vec::new(),
                memory: Memory::Region(Arc::new(Region::at(Place::Host, 0).or_raise()?)),
                placed: Arc::default(),
                blocks,
                given_bytes: 0,
                work: Some(work),
            });
        }
        let prepared = py.detach(|| loader.prepare(&model.0, selection, place)).or_raise()?;
        Self::run(Vec::new(), prepared, loader)
    }

    /// Starts the load of the tensors that cannot be mapped.
    fn mapped(mapped: Mapped, loader: &Loader) -> PyResult<Self> {
        let tensors = mapped.tensors.into_iter();
        let pages = tensors.map(|tensor| (Memory::Pages(tensor.pages), tensor.placed));
        Self::run(pages.collect(), mapped.rest, loader)
    }

    fn run(mapped: Vec<(Memory, Placed)>, prepared: Prepared, loader: &Loader) -> PyResult<Self> {
        let memory = Memory::Region(Arc::clone(prepared.region()));
        let placed = Arc::clone(prepared.tensors());
        let work = Work::begin(&loader.progress, move || Ok(prepared.run()?.receipt)).or_raise()?;
        Ok(Self {
            mapped,
            memory,
            placed,
            blocks: Blocks::default(),
            given_bytes: 0,
            work: Some(work),
        })
    }

    fn mapped_bytes(&self) -> u64 {
        self.mapped.iter().map(|(_, placed)| placed.bytes).sum()
    }
}

/// The context for a load into memory of a library; `None` if the memory is one block of the driver or of the host.
///
/// GPUDirect Storage needs one block. It gets it only if it is demanded or proven: users rely on the library's memory.
pub(crate) fn library_context(
    py: Python<'_>,
    model: &Model,
    selection: &Selection,
    place: Place,
    loader: &Loader,
) -> PyResult<Option<Context>> {
    let Place::Gpu(number) = place else {
        return Ok(None);
    };
    let find = || -> Result<Option<Context>> {
        let context = context(number)?;
        let is_direct = loader.will_go_direct(&model.0, selection, &context);
        Ok((!is_direct).then_some(context))
    };
    py.detach(find).or_raise()
}

/// The selection of filters and slices. An empty list of filters selects nothing.
pub(crate) fn select(model: &Model, filters: Option<&[String]>, slices: Vec<Cut>) -> PyResult<Selection> {
    let Some(filters) = filters else {
        if slices.is_empty() {
            return Ok(Selection::all(&model.0));
        }
        return select_some(model, &[], slices);
    };
    if filters.is_empty() {
        // Slices are checked, too.
        select_some(model, &[], slices)?;
        return Selection::of(&model.0, Vec::new()).or_raise();
    }
    select_some(model, filters, slices)
}

fn select_some(model: &Model, filters: &[String], slices: Vec<Cut>) -> PyResult<Selection> {
    let filters = filters.iter().map(|f| f.parse::<Filter>());
    let filters = filters.collect::<Result<_>>().or_raise()?;
    let slice = |(filter, dim, start, stop): Cut| {
        let filter = filter.map(|f| f.parse::<Filter>()).transpose()?;
        let part = SlicePart::Range { start, stop };
        Ok(Slice { filter, dim, part })
    };
    let slices: Vec<_> = slices.into_iter().map(slice).collect::<Result<_>>().or_raise()?;
    Selection::new(&model.0, &filters, &slices).map_err(|error| match error.kind() {
        // A tensor is missing, not a file.
        ErrorKind::NotFound => MissingTensorError::new_err(text(&error)),
        _ => exception(&error),
    })
}

pub(crate) fn loader(model: &Model, route: &str, class: Class) -> PyResult<Loader> {
    let mut executor = SESSION.executor([&model.0.location()]).or_raise()?;
    if class != Class::default() {
        executor = executor.sharing(Share::of(class), class).or_raise()?;
    }
    Ok(Loader {
        choice: choice(route)?,
        ..Loader::new(Arc::new(executor))
    })
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
        let executor = SESSION.executor([&Location::from(&model)])?;
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
