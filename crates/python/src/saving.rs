//! Saving tensors that Python's libraries hold.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use pyo3::prelude::*;
use straightway_core::{Place, Result};
use straightway_pipeline::weights::{Dtype, Held, Holding, Saver, Shape};
use straightway_sys::cuda::{DeviceMemory, Driver};

use crate::{error::OrRaise, executor, loading::place, receipt::Receipt, waiting};

/// A tensor as Python describes it: name, type, shape, address, bytes, device, and the object that
/// the memory belongs to.
type Described = (String, String, Vec<u64>, u64, usize, String, Py<PyAny>);

/// A tensor to be saved, which its owner keeps where it is.
struct Subject {
    name: String,
    dtype: Dtype,
    shape: Shape,
    place: Place,
    address: u64,
    bytes: usize,
    owner: Py<PyAny>,
}

/// Writes tensors to a safetensors file, which appears when it is whole and durable.
#[pyfunction]
pub(crate) fn save(
    py: Python<'_>,
    tensors: Vec<Described>,
    path: PathBuf,
    metadata: BTreeMap<String, String>,
) -> PyResult<Receipt> {
    let subjects: Vec<_> = tensors
        .into_iter()
        .map(Subject::new)
        .collect::<PyResult<_>>()?;
    let saver = Saver::new(executor::shared().or_raise()?);
    let progress = Arc::clone(&saver.progress);
    let receipt = waiting::run(py, &progress, move || {
        let held = subjects.iter().map(Subject::held);
        saver.save_held(&path, &held.collect::<Result<Vec<_>>>()?, &metadata)
    })?;
    Ok(Receipt(receipt))
}

impl Subject {
    fn new(described: Described) -> PyResult<Self> {
        let (name, dtype, shape, address, bytes, device, owner) = described;
        Ok(Self {
            dtype: dtype.parse::<Dtype>().or_raise()?,
            shape: Shape::from_iter(shape),
            place: place(&device)?,
            name,
            address,
            bytes,
            owner,
        })
    }

    fn held(&self) -> Result<Held<'_>> {
        let bytes = match self.place {
            // An empty tensor may have any address, and none is as good.
            _ if self.bytes == 0 => Holding::Host(&[]),
            Place::Host => {
                let start = self.address as *const u8;
                // SAFETY: the library that the tensor belongs to says that so many bytes are there,
                // and they stay as long as their owner, which `self` keeps. Who changes a tensor
                // while it is saved saves a mixture, as with any library.
                Holding::Host(unsafe { std::slice::from_raw_parts(start, self.bytes) })
            }
            Place::Gpu(number) => {
                let context = Driver::load()?.device(number)?.context()?;
                let owner = Python::attach(|py| self.owner.clone_ref(py));
                let memory =
                    DeviceMemory::lend(&context, self.address, self.bytes, Arc::new(owner))?;
                Holding::Device(Arc::new(memory))
            }
        };
        Ok(Held {
            name: &self.name,
            dtype: self.dtype,
            shape: self.shape.clone(),
            bytes,
        })
    }
}
