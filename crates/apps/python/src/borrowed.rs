//! A tensor of a Python library, whose memory is read or written.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    ptr::NonNull,
    sync::Arc,
};

use pyo3::{exceptions::PyValueError, prelude::*, types::PyTuple};
use straightway_core::{Place, Result};
use straightway_io::Region;
use straightway_sys::{
    LentBytes,
    cuda::{Context, DeviceMemory, Driver, Owner},
};
use straightway_weights::{Dtype, Holding, Shape, whole_bytes};

use crate::{arguments::place, error::OrRaise};

/// A tensor in memory that a Python object owns and keeps at its address.
///
/// Only the package's own code makes one, for bytes that are mapped and initialised as long as their owner lives, and
/// that may be written to if it is the target of a restore. `_memory.py` checks that first.
#[pyclass(frozen, module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct BorrowedTensor {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Shape,
    pub(crate) place: Place,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    owner: Arc<Py<PyAny>>,
}

#[pymethods]
impl BorrowedTensor {
    /// A tensor of `bytes` bytes at an address of a device (`host:` or `cuda:N`), which `owner` keeps.
    #[new]
    fn new(
        name: String,
        dtype: &str,
        shape: Vec<u64>,
        address: u64,
        bytes: usize,
        device: &str,
        owner: Py<PyAny>,
    ) -> PyResult<Self> {
        let dtype = dtype.parse::<Dtype>().or_raise()?;
        let shape = Shape::from_iter(shape);
        let needed = shape.elements().and_then(|n| whole_bytes(n, dtype));
        let fits = needed == Some(bytes as u64) && address.checked_add(bytes as u64).is_some();
        if !fits || (bytes > 0 && address == 0) {
            let message = format!("tensor {name:?} of {dtype} {shape} is not {bytes} bytes at {address:#x}");
            return Err(PyValueError::new_err(message));
        }
        Ok(Self {
            dtype,
            shape,
            place: place(device)?,
            name,
            address,
            bytes,
            owner: Arc::new(owner),
        })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    #[getter]
    fn dtype(&self) -> &'static str {
        self.dtype.name()
    }

    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.shape.iter())
    }

    #[getter]
    fn address(&self) -> u64 {
        self.address
    }

    /// Its size in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.bytes
    }

    #[getter]
    fn device(&self) -> String {
        self.place.to_string()
    }
}

impl BorrowedTensor {
    /// Its bytes, for reading.
    pub(crate) fn holding(&self, contexts: &mut Contexts) -> Result<Holding<'static>> {
        Ok(match (self.place, NonNull::new(self.address as *mut u8)) {
            (Place::Host, Some(start)) if self.bytes > 0 => {
                // SAFETY: the bytes are valid as long as their owner, which this keeps alive. Python threads may write
                // to them meanwhile.
                Holding::Lent(unsafe { LentBytes::new(start, self.bytes, self.owner()) })
            }
            (Place::Gpu(number), Some(_)) if self.bytes > 0 => {
                let context = contexts.on(number)?;
                // SAFETY: the memory stays allocated as long as its owner, which this keeps alive.
                let memory = unsafe { DeviceMemory::lend(context, self.address, self.bytes, self.owner()) }?;
                Holding::Device(Arc::new(memory))
            }
            // An empty tensor may have any address, or none.
            _ => Holding::Host(&[]),
        })
    }

    /// Its bytes, for writing.
    pub(crate) fn region(&self, contexts: &mut Contexts) -> Result<Region> {
        match (self.place, NonNull::new(self.address as *mut u8)) {
            (Place::Gpu(number), Some(_)) if self.bytes > 0 => {
                let (context, bytes) = (contexts.on(number)?, self.bytes as u64);
                // SAFETY: the memory stays allocated as long as its owner, which the region keeps alive.
                unsafe { Region::lent(context, self.address, bytes, self.owner()) }
            }
            (Place::Host, Some(start)) if self.bytes > 0 => {
                // SAFETY: the bytes are valid for all threads as long as their owner, which the region keeps alive, and
                // Python has no Rust reference to them. A Python thread that reads them meanwhile sees a mixture.
                unsafe { Region::lent_host(start, self.bytes as u64, self.owner()) }
            }
            // Nothing is written to an empty tensor.
            _ => Region::at(Place::Host, 1),
        }
    }

    fn owner(&self) -> Owner {
        Arc::clone(&self.owner) as Owner
    }
}

/// The contexts of the GPUs that the tensors of one call are on. Each is found once per call and not once per tensor:
/// finding one takes six calls of the driver.
#[derive(Debug, Default)]
pub(crate) struct Contexts(BTreeMap<u32, Context>);

impl Contexts {
    /// The context of a GPU.
    pub(crate) fn on(&mut self, number: u32) -> Result<&Context> {
        Ok(match self.0.entry(number) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(free) => free.insert(context(number)?),
        })
    }
}

/// The context of a GPU.
pub(crate) fn context(number: u32) -> Result<Context> {
    Driver::load()?.device(number)?.context()
}
