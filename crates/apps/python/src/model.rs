//! An open model: the headers of its files.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use pyo3::{exceptions::PyFileNotFoundError, prelude::*, types::PyTuple};
use straightway_core::{Bytes, Uri};
use straightway_weights as weights;

use crate::{
    error::{MissingTensorError, OrRaise},
    handover::drop_in_background,
    loading::select,
    stores::{StorageOptions, stores},
};

/// A safetensors file, a folder of them, or an index, by path or URI.
#[pyclass(frozen, module = "straightway")]
#[derive(Debug)]
pub(crate) struct Model(pub(crate) Arc<weights::Model>);

impl Drop for Model {
    fn drop(&mut self) {
        drop_in_background(&self.0, self.0.tensors.len());
    }
}

impl Model {
    /// The index of a tensor.
    pub(crate) fn number(&self, name: &str) -> PyResult<usize> {
        Self::number_in(&self.0, name)
    }

    /// The index of a tensor in a model.
    pub(crate) fn number_in(model: &weights::Model, name: &str) -> PyResult<usize> {
        let absent = || {
            let path = model.path.display();
            MissingTensorError::new_err(format!("{path} has no tensor {name:?}"))
        };
        model.number(name).ok_or_else(absent)
    }

    fn tensor(&self, name: &str) -> PyResult<&weights::Tensor> {
        Ok(&self.0.tensors[self.number(name)?])
    }
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (path, *, storage_options=None))]
    fn new(py: Python<'_>, path: PathBuf, storage_options: Option<StorageOptions>) -> PyResult<Self> {
        if path.as_os_str().is_empty() {
            // Relative to the current folder it would be that folder.
            return Err(PyFileNotFoundError::new_err("the path of the model is empty"));
        }
        let open = || weights::Model::find(&*stores(storage_options.as_ref())?, &Uri::parse(&path)?);
        let model = py.detach(open).or_raise()?;
        Ok(Self(Arc::new(model)))
    }

    /// The names of its tensors, sorted.
    fn keys(&self) -> Vec<&str> {
        let mut names = self.offset_keys();
        names.sort_unstable();
        names
    }

    /// The names of its tensors, in the order of the files.
    fn offset_keys(&self) -> Vec<&str> {
        let mut order: Vec<_> = self.0.tensors.iter().collect();
        order.sort_by_key(|t| (t.file, t.extent.offset));
        order.into_iter().map(|t| &*t.name).collect()
    }

    /// The metadata of all files, merged.
    fn metadata(&self) -> Option<BTreeMap<&str, &str>> {
        let shards = self.0.shards.iter();
        let all: BTreeMap<_, _> = shards
            .flat_map(|s| s.metadata.iter().map(|(k, v)| (k.as_str(), v.as_str())))
            .collect();
        (!all.is_empty()).then_some(all)
    }

    /// The dtype of a tensor, as safetensors names it.
    fn dtype(&self, name: &str) -> PyResult<&'static str> {
        Ok(self.tensor(name)?.dtype.name())
    }

    /// The shape of a tensor.
    fn shape<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.tensor(name)?.shape.iter())
    }

    /// The file of a tensor: its path, or its name in the store.
    fn file(&self, name: &str) -> PyResult<PathBuf> {
        let file = self.tensor(name)?.file;
        Ok(self.0.shards[file as usize].path.clone())
    }

    /// The number of bytes of the tensors that match `filters`, and how many of them are in the page cache. `None`
    /// matches all tensors.
    fn cached(&self, py: Python<'_>, filters: Option<Vec<String>>) -> PyResult<(u64, u64)> {
        let selection = select(self, filters.as_deref(), Vec::new())?;
        let cached = py.detach(|| self.0.cached_bytes(&selection)).or_raise()?;
        Ok((selection.bytes(), cached))
    }

    /// The total size of its tensors.
    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.bytes()
    }

    fn __repr__(&self) -> String {
        let (path, tensors) = (self.0.path.display().to_string(), self.0.tensors.len());
        format!("<Model {path:?}: {tensors} tensors, {}>", Bytes(self.0.bytes()))
    }

    fn __len__(&self) -> usize {
        self.0.tensors.len()
    }

    fn __contains__(&self, name: &str) -> bool {
        self.0.number(name).is_some()
    }
}
