//! Loads on their way: all at once, or batch by batch.

use std::sync::{
    Arc,
    mpsc::{Receiver, RecvTimeoutError, sync_channel},
};

use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::PyDict,
};
use straightway_core::{Place, Result};
use straightway_io::{Progress, Region};
use straightway_pipeline::weights::{
    Filter, Loader, Part, Pick, Placed, Rectangle, Selection, Shape, Slice,
};

use crate::{
    dlpack, error::OrRaise, executor, model::Model, receipt::Receipt, service::choice,
    tensor::Tensor, waiting::Work,
};

/// A filter, a dimension, and which indices of it.
type Cut = (Option<String>, usize, u64, u64);

/// A load that goes on by itself. Where each tensor will be is known from the start, so that its
/// owner can make objects of them meanwhile; their bytes are there when `wait` has returned.
#[pyclass(module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Loading {
    region: Arc<Region>,
    placed: Vec<Placed>,
    work: Option<Work<straightway_core::Receipt>>,
}

#[pymethods]
impl Loading {
    /// Begins to load what `filters` want of a model, cut by `slices`.
    #[new]
    #[pyo3(signature = (model, *, device, filters, slices, route))]
    fn new(
        py: Python<'_>,
        model: &Model,
        device: &str,
        filters: Vec<String>,
        slices: Vec<Cut>,
        route: &str,
    ) -> PyResult<Self> {
        let selection = select(model, &filters, slices)?;
        Self::begin(py, model, &selection, device, route)
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
        Self::begin(py, model, &selection, device, route)
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
        let again = || PyRuntimeError::new_err("this load was waited for already");
        let work = self.work.take().ok_or_else(again)?;
        work.wait(py).map(Receipt)
    }
}

impl Loading {
    fn begin(
        py: Python<'_>,
        model: &Model,
        selection: &Selection,
        device: &str,
        route: &str,
    ) -> PyResult<Self> {
        let loader = loader(route)?;
        let place = place(device)?;
        let prepared = py
            .detach(|| loader.prepare(&model.0, selection, place))
            .or_raise()?;
        let (region, placed) = (Arc::clone(prepared.region()), prepared.tensors().to_vec());
        let work = Work::begin(&loader.progress, move || prepared.run()).or_raise()?;
        Ok(Self {
            region,
            placed,
            work: Some(work),
        })
    }
}
