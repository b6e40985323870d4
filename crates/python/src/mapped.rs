//! A model's files as memory: tensors whose bytes are read when they are used, and never copied.
//!
//! `safe_open` gives tensors in host memory this way, as safetensors does. The mapping is private: whoever writes to
//! such a tensor changes a page of the process, not the file.

use std::{ptr::NonNull, sync::Arc};

use memmap2::MmapOptions;
use pyo3::prelude::*;
use straightway_core::{Error, Result};
use straightway_io::Region;
use straightway_pipeline::weights::{self, Placed, Shard};
use straightway_sys::By;

use crate::{error::OrRaise, loading::made, model::Model};

/// A model's files, mapped. They stay mapped as long as this or any tensor of theirs.
#[pyclass(frozen, module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Mapped {
    model: Arc<weights::Model>,
    files: Vec<Arc<Region>>,
}

#[pymethods]
impl Mapped {
    #[new]
    fn new(py: Python<'_>, model: &Model) -> PyResult<Self> {
        let model = Arc::clone(&model.0);
        let map_all = || model.shards.iter().map(|shard| map(shard)).collect();
        let files: Result<Vec<_>> = py.detach(map_all);
        let files = files.or_raise()?;
        Ok(Self { model, files })
    }

    /// A tensor, made as `Loading.tensors` makes it. `None` where its bytes are not aligned for its elements: such a
    /// tensor is loaded instead.
    fn tensor<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        take: Option<Bound<'py, PyAny>>,
        convert: Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let tensor = &self.model.tensors[Model::number_in(&self.model, name)?];
        let region = &self.files[tensor.file as usize];
        let align = tensor.dtype.bits().div_ceil(8).next_power_of_two();
        let address = region.address() + tensor.extent.offset;
        if !address.is_multiple_of(align) {
            return Ok(None);
        }
        let placed = Placed {
            name: tensor.name.clone(),
            dtype: tensor.dtype,
            shape: tensor.shape.clone(),
            at: tensor.extent.offset,
            bytes: tensor.extent.bytes,
        };
        made(py, region, &placed, take.as_ref(), &convert).map(Some)
    }
}

/// A file as a region. It must be the one whose header was read; what is no file cannot be mapped.
fn map(shard: &Shard) -> Result<Arc<Region>> {
    let failed = |error| Error::os("map", shard.path.display(), error);
    let file = shard.file()?;
    let descriptor = file.descriptor(By::PageCache);
    let bytes = usize::try_from(shard.bytes).unwrap_or(usize::MAX);
    let mut options = MmapOptions::new();
    options.len(bytes).no_reserve_swap();
    // SAFETY: the mapping is private, and no reference to its bytes is made here. A file that is written to or cut
    // while it is mapped changes what Python's libraries read, as with every library that maps files; docs/python.md
    // says so.
    let mut mapping = unsafe { options.map_copy(&descriptor) }.map_err(failed)?;
    let start = NonNull::new(mapping.as_mut_ptr()).expect("a mapping has an address");
    // SAFETY: so many bytes are mapped and writable as long as the mapping, which the region keeps.
    unsafe { Region::lent_host(start, shard.bytes, Arc::new(mapping)) }.map(Arc::new)
}
