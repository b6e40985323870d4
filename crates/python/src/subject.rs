//! A tensor that a library of Python's holds: memory to take bytes from, or to put them into.

use std::{ptr::NonNull, sync::Arc};

use pyo3::prelude::*;
use straightway_core::{Place, Result};
use straightway_io::Region;
use straightway_pipeline::weights::{Dtype, Holding, Shape};
use straightway_sys::cuda::{Context, DeviceMemory, Driver, Owner};

use crate::{error::OrRaise, loading::place};

/// A tensor as Python describes it: name, type, shape, address, bytes, device, and the object that
/// the memory belongs to.
pub(crate) type Described = (String, String, Vec<u64>, u64, usize, String, Py<PyAny>);

/// A tensor that its owner keeps where it is.
#[derive(Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Shape,
    pub(crate) place: Place,
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    owner: Arc<Py<PyAny>>,
}

impl Subject {
    pub(crate) fn new(described: Described) -> PyResult<Self> {
        let (name, dtype, shape, address, bytes, device, owner) = described;
        Ok(Self {
            dtype: dtype.parse::<Dtype>().or_raise()?,
            shape: Shape::from_iter(shape),
            place: place(&device)?,
            name,
            address,
            bytes,
            owner: Arc::new(owner),
        })
    }

    /// Its bytes, to be read.
    pub(crate) fn holding(&self) -> Result<Holding<'_>> {
        Ok(match self.place {
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
                let context = context(number)?;
                // SAFETY: as for host memory above.
                let memory = unsafe {
                    DeviceMemory::lend(&context, self.address, self.bytes, self.owner())
                }?;
                Holding::Device(Arc::new(memory))
            }
        })
    }

    /// Its bytes, to be written.
    pub(crate) fn region(&self) -> Result<Region> {
        match (self.place, NonNull::new(self.address as *mut u8)) {
            (Place::Gpu(number), Some(_)) if self.bytes > 0 => {
                let (context, bytes) = (context(number)?, self.bytes as u64);
                // SAFETY: as for host memory below.
                unsafe { Region::lent(&context, self.address, bytes, self.owner()) }
            }
            (Place::Host, Some(start)) if self.bytes > 0 => {
                // SAFETY: the library that the tensor belongs to says that so many bytes are there,
                // and they stay as long as their owner, which the region keeps. Tensors that
                // share memory are refused before; who uses one while it is restored sees a mixture.
                unsafe { Region::lent_host(start, self.bytes as u64, self.owner()) }
            }
            // Nothing goes there.
            _ => Region::at(Place::Host, 1),
        }
    }

    fn owner(&self) -> Owner {
        Arc::clone(&self.owner) as Owner
    }
}

fn context(number: u32) -> Result<Context> {
    Driver::load()?.device(number)?.context()
}
