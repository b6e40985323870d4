//! Mapped files of a model: tensors whose bytes are read at first use and not copied.
//!
//! `safe_open` returns tensors in host memory this way, as safetensors does. The pages are private: a write to such a
//! tensor changes a page of the process, not the file. If the file is written to or truncated while it is mapped,
//! Python libraries read the changed bytes, as with every library that maps files; docs/weights.md says so.

use std::sync::Arc;

use pyo3::prelude::*;
use straightway_core::Result;
use straightway_sys::FilePages;
use straightway_weights::{self as weights, MappedTensor, Pick};

use crate::{error::OrRaise, handover::convert_tensor, memory::Memory, model::Model};

/// The mapped files of a model. They stay mapped as long as this object or any of its tensors lives.
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

    /// A tensor, converted as by `Loading.fill`. Returns `None` if its bytes are not aligned for its elements: such a
    /// tensor has to be loaded instead.
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
        convert_tensor(py, (&memory, at), &tensor.placed, take.as_ref(), &convert).map(Some)
    }
}
