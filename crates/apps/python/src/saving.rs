//! Saves tensors of Python libraries.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use pyo3::prelude::*;
use straightway_core::Result;
use straightway_io::Progress;
use straightway_weights::{FileSaver, Held};

use crate::{
    borrowed::{BorrowedTensor, Contexts},
    receipt::Receipt,
    stores::{SESSION, StorageOptions, stores},
    waiting,
};

/// Writes tensors to a safetensors file, which appears when it is complete and durable.
#[pyfunction]
#[pyo3(signature = (tensors, path, metadata, *, storage_options=None))]
pub(crate) fn save(
    py: Python<'_>,
    tensors: Vec<Py<BorrowedTensor>>,
    path: PathBuf,
    metadata: BTreeMap<String, String>,
    storage_options: Option<StorageOptions>,
) -> PyResult<Receipt> {
    let progress = Arc::new(Progress::default());
    let watched = Arc::clone(&progress);
    let receipt = waiting::run(py, &progress, move || {
        let mut contexts = Contexts::default();
        let held = tensors.iter().map(|tensor| held(tensor.get(), &mut contexts));
        let target = stores(storage_options.as_ref())?.locate(&path)?;
        let saver = FileSaver {
            progress: watched,
            ..FileSaver::new(SESSION.executor([&target])?.into())
        };
        saver.save_held(target, &held.collect::<Result<Vec<_>>>()?, &metadata)
    })?;
    Ok(Receipt(receipt))
}

fn held<'a>(tensor: &'a BorrowedTensor, contexts: &mut Contexts) -> Result<Held<'a>> {
    Ok(Held {
        name: &tensor.name,
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        bytes: tensor.holding(contexts)?,
    })
}
