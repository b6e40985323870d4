//! Loads batch by batch: the next batch loads while the current one is used.

use std::{collections::VecDeque, mem::ManuallyDrop, sync::Arc, time::Instant};

use pyo3::{
    exceptions::{PyRuntimeError, PyTimeoutError},
    prelude::*,
    types::PyDict,
};
use straightway_core::Lock;
use straightway_io::Progress;
use straightway_sys::{Process, cuda::Context};
use straightway_weights::{self as weights, Loader, Selection};

use crate::{
    arguments::{class, place},
    blocks::{BegunLoad, Blocks},
    error::OrRaise,
    handover::converted_tensors,
    loading::{Cut, library_context, loader, select},
    memory::Memory,
    model::Model,
    receipt::Receipt,
    waiting::SIGNAL_CHECK_INTERVAL,
};

/// A load of a model, batch by batch.
#[pyclass(module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Stream {
    batches: ManuallyDrop<Batches>,
    progress: Arc<Progress>,
    receipts: Vec<straightway_core::Receipt>,
    /// The bytes of all batches.
    bytes: u64,
    /// The process whose threads load the batches. A forked child does not have them.
    process: Process,
}

/// The source of the batches.
#[derive(Debug)]
enum Batches {
    /// A thread that loads each batch into memory of its own. The lock is there only because Python objects may be
    /// shared between threads.
    Own(Lock<weights::BatchStream>),
    /// Loads into memory of a library, which is allocated when the previous batch is returned.
    Library(LibraryBatches),
}

/// Loads into memory of a library.
#[derive(Debug)]
struct LibraryBatches {
    model: Py<Model>,
    loader: Loader,
    context: Context,
    allocate: Py<PyAny>,
    left: VecDeque<Selection>,
    next: Option<BegunLoad>,
}

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (model, *, device, filters, slices, batch_bytes, route, priority, allocate=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        model: Bound<'_, Model>,
        device: &str,
        filters: Option<Vec<String>>,
        slices: Vec<Cut>,
        batch_bytes: u64,
        route: &str,
        priority: &str,
        allocate: Option<Py<PyAny>>,
    ) -> PyResult<Self> {
        let (opened, place) = (model.get(), place(device)?);
        let selection = select(opened, filters.as_deref(), slices)?;
        let loader = loader(opened, route, class(priority)?)?;
        let progress = Arc::clone(&loader.progress);
        let context = if allocate.is_some() {
            library_context(model.py(), opened, &selection, place, &loader)?
        } else {
            None
        };
        let batches = if let (Some(context), Some(allocate)) = (context, allocate) {
            let left = loader.batches(&opened.0, &selection, batch_bytes);
            Batches::Library(LibraryBatches {
                model: model.unbind(),
                context,
                allocate,
                left: left.or_raise()?.into(),
                next: None,
                loader,
            })
        } else {
            let stream = loader.stream_in_turns(&opened.0, &selection, place, batch_bytes);
            Batches::Own(Lock::new(stream.or_raise()?))
        };
        Ok(Self {
            batches: ManuallyDrop::new(batches),
            progress,
            receipts: Vec::new(),
            bytes: selection.bytes(),
            process: Process::this(),
        })
    }

    /// The tensors of the next batch by name, as `Loading.fill` converts them; `None` after the last. A batch that
    /// takes longer than `timeout_s` ends the stream with `TimeoutError`.
    #[pyo3(signature = (take, convert, timeout_s=None))]
    fn next<'py>(
        &mut self,
        py: Python<'py>,
        take: Option<Bound<'py, PyAny>>,
        convert: Bound<'py, PyAny>,
        timeout_s: Option<f64>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        if !self.is_own() {
            let message = format!(
                "this process was forked from {}, whose threads load the batches of this iterator\n\
                 hint: call iterate() in the child",
                self.process.number()
            );
            return Err(PyRuntimeError::new_err(message));
        }
        let batch = match &mut *self.batches {
            Batches::Own(batches) => {
                let batches = batches.get_mut();
                let poll = |py: Python<'py>| {
                    let next = py.detach(|| batches.next_within(SIGNAL_CHECK_INTERVAL));
                    py.check_signals()?;
                    Ok(next)
                };
                let Some(batch) = wait(py, &self.progress, timeout_s, poll)? else {
                    return Ok(None);
                };
                let loaded = batch.or_raise()?;
                self.receipts.push(loaded.receipt);
                let memory = Memory::Region(loaded.region);
                converted_tensors(py, &memory, &loaded.tensors, take.as_ref(), &convert)?
            }
            Batches::Library(library) => {
                let Some((blocks, work)) = library.take(py)? else {
                    return Ok(None);
                };
                let poll = |py: Python<'py>| work.wait_briefly(py);
                let receipt = wait(py, work.progress(), timeout_s, poll)?;
                self.receipts.push(receipt);
                library.next = library.begin(py)?;
                let tensors = PyDict::new(py);
                blocks.add(&tensors, take.as_ref(), &convert)?;
                tensors
            }
        };
        Ok(Some(batch))
    }

    /// The number of bytes of all batches.
    #[getter]
    fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The receipts of the batches returned so far.
    #[getter]
    fn receipts(&self) -> Vec<Receipt> {
        self.receipts.iter().cloned().map(Receipt).collect()
    }
}

impl Stream {
    fn is_own(&self) -> bool {
        self.process.is_this()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.is_own() {
            // SAFETY: nothing uses the batches after this.
            unsafe { ManuallyDrop::drop(&mut self.batches) };
        }
        // In a forked child their threads do not exist. Dropping the batches would wait for them forever.
    }
}

impl LibraryBatches {
    /// The load of the next batch; `None` after the last.
    fn take(&mut self, py: Python<'_>) -> PyResult<Option<BegunLoad>> {
        match self.next.take() {
            None => self.begin(py),
            next => Ok(next),
        }
    }

    /// Begins the load of another batch.
    fn begin(&mut self, py: Python<'_>) -> PyResult<Option<BegunLoad>> {
        let Some(selection) = self.left.pop_front() else {
            return Ok(None);
        };
        let model = self.model.get();
        // A finished load cancels its progress when it is dropped. It must not cancel other loads.
        let loader = Loader {
            progress: Arc::default(),
            ..self.loader.clone()
        };
        let of = (&loader, &self.context);
        Blocks::begin(py, model, &selection, of, self.allocate.bind(py)).map(Some)
    }
}

/// Calls `poll` until it returns a value. The load is stopped after `timeout_s`, or if `poll` raises.
fn wait<'py, T>(
    py: Python<'py>,
    progress: &Progress,
    timeout_s: Option<f64>,
    mut poll: impl FnMut(Python<'py>) -> PyResult<Option<T>>,
) -> PyResult<T> {
    let begun = Instant::now();
    loop {
        match poll(py) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => {}
            Err(raised) => {
                progress.cancel();
                return Err(raised);
            }
        }
        if let Some(limit) = timeout_s.filter(|s| begun.elapsed().as_secs_f64() > *s) {
            progress.cancel();
            let message = format!("the next batch took longer than {limit} s");
            return Err(PyTimeoutError::new_err(message));
        }
    }
}
