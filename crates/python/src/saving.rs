//! Saves tensors of Python libraries.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use pyo3::prelude::*;
use straightway_core::{Result, Uri};
use straightway_pipeline::weights::{FileSaver, Held};

use crate::{
    borrowed::{BorrowedTensor, Described},
    error::OrRaise,
    executor,
    receipt::Receipt,
    stores::stores,
    waiting,
};

/// Writes tensors to a safetensors file, which appears when it is complete and durable.
#[pyfunction]
pub(crate) fn save(
    py: Python<'_>,
    tensors: Vec<Described>,
    path: PathBuf,
    metadata: BTreeMap<String, String>,
) -> PyResult<Receipt> {
    let tensors: Vec<_> = tensors
        .into_iter()
        // SAFETY: the package's own code describes tensors that it holds: see `BorrowedTensor::new`.
        .map(|described| unsafe { BorrowedTensor::new(described) })
        .collect::<PyResult<_>>()?;
    let saver = FileSaver::new(executor::of_name(&path).or_raise()?);
    let progress = Arc::clone(&saver.progress);
    let receipt = waiting::run(py, &progress, move || {
        let held = tensors.iter().map(held);
        let target = stores()?.find(&Uri::parse(&path)?)?;
        saver.save_held(target, &held.collect::<Result<Vec<_>>>()?, &metadata)
    })?;
    Ok(Receipt(receipt))
}

fn held(tensor: &BorrowedTensor) -> Result<Held<'_>> {
    Ok(Held {
        name: &tensor.name,
        dtype: tensor.dtype,
        shape: tensor.shape.clone(),
        bytes: tensor.holding()?,
    })
}
