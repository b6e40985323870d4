//! Saving tensors that Python's libraries hold.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use pyo3::prelude::*;
use straightway_core::{Result, Uri};
use straightway_pipeline::weights::{Held, Saver};

use crate::{
    error::OrRaise,
    executor,
    receipt::Receipt,
    stores::stores,
    subject::{Described, Subject},
    waiting,
};

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
        // SAFETY: the package's own code describes tensors that it holds: see `Subject::new`.
        .map(|described| unsafe { Subject::new(described) })
        .collect::<PyResult<_>>()?;
    let saver = Saver::new(executor::of(&path).or_raise()?);
    let progress = Arc::clone(&saver.progress);
    let receipt = waiting::run(py, &progress, move || {
        let held = subjects.iter().map(held);
        let target = stores()?.find(&Uri::parse(&path)?)?;
        saver.save_held(target, &held.collect::<Result<Vec<_>>>()?, &metadata)
    })?;
    Ok(Receipt(receipt))
}

fn held(subject: &Subject) -> Result<Held<'_>> {
    Ok(Held {
        name: &subject.name,
        dtype: subject.dtype,
        shape: subject.shape.clone(),
        bytes: subject.holding()?,
    })
}
