//! A model's files as memory: tensors whose bytes are read when they are used, and never copied.
//!
//! `safe_open` gives tensors in host memory this way, as safetensors does. The pages are private: whoever writes to
//! such a tensor changes a page of the process, not the file. A file that is written to or cut while it is mapped changes
//! what Python's libraries read, as with every library that maps files; docs/weights.md says so.

use std::sync::Arc;

use pyo3::prelude::*;
use straightway_core::Result;
use straightway_pipeline::weights::{self, MappedTensor, Pick};
use straightway_sys::FilePages;

use crate::{error::OrRaise, handover::made, memory::Memory, model::Model};

/// A model's files, mapped. They stay mapped as long as this or any tensor of theirs.
#[pyclass(frozen, module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Mapped {
    model: Arc<weights::Model>,
    files: Vec<Arc<FilePages>>,
}

#[pymethods]
impl Mapped {
    #[new]
    fn new(py: Python<'_>, model: &Model) -> PyResult<Self> {
        let model = Arc::clone(&model.0);
        let map_all = || model.shards.iter().map(|shard| shard.map()).collect();
        let files: Result<Vec<_>> = py.detach(map_all);
        let files = files.or_raise()?;
        Ok(Self { model, files })
    }

    /// A tensor, made as `Loading.fill` makes it. `None` where its bytes are not aligned for its elements: such a
    /// tensor is loaded instead.
    fn tensor<'py>(
        &self,
        py: Python<'py>,
        name: &str,
        take: Option<Bound<'py, PyAny>>,
        convert: Bound<'py, PyAny>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let number = Model::number_in(&self.model, name)?;
        let pick = Pick {
            tensor: u32::try_from(number).expect("a model has fewer tensors"),
            part: None,
        };
        let pages = &self.files[pick.of(&self.model).file as usize];
        let Some(tensor) = MappedTensor::new(&self.model, &pick, pages) else {
            return Ok(None);
        };
        let memory = Memory::Pages(tensor.pages);
        let at = tensor.placed.at;
        made(py, (&memory, at), &tensor.placed, take.as_ref(), &convert).map(Some)
    }
}
