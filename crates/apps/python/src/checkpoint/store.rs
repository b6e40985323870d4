//! A folder of checkpoints.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use pyo3::prelude::*;
use straightway_checkpoint::{self as checkpoint, Retention, ShardReport};
use straightway_core::{Result, Uri};
use straightway_io::store::Missing;

use super::opened::Checkpoint;
use crate::{
    error::OrRaise,
    stores::{StorageOptions, stores},
};

/// The checkpoints in a folder, or below a URI.
pub(super) fn steps(
    folder: &Path,
    missing: Missing,
    storage_options: Option<StorageOptions>,
) -> Result<checkpoint::Steps> {
    checkpoint::Steps::find(&*stores(storage_options.as_ref())?, &Uri::parse(folder)?, missing)
}

/// A folder of checkpoints.
#[pyclass(frozen, module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Store {
    steps: checkpoint::Steps,
}

#[pymethods]
impl Store {
    /// Opens a folder. With `create`, a missing folder is created.
    #[new]
    #[pyo3(signature = (folder, *, create=false, storage_options=None))]
    fn new(folder: PathBuf, create: bool, storage_options: Option<StorageOptions>) -> PyResult<Self> {
        let missing = if create { Missing::Create } else { Missing::Refuse };
        let steps = steps(&folder, missing, storage_options).or_raise()?;
        Ok(Self { steps })
    }

    /// The complete steps, in order.
    fn steps(&self, py: Python<'_>) -> PyResult<Vec<u64>> {
        py.detach(|| self.steps.steps()).or_raise()
    }

    /// Opens a step, or the latest complete one.
    fn open(&self, py: Python<'_>, step: Option<u64>) -> PyResult<Checkpoint> {
        let opened = py.detach(|| match step {
            Some(step) => self.steps.checkpoint(step),
            None => self.steps.open_latest(),
        });
        Ok(Checkpoint {
            opened: Arc::new(opened.or_raise()?),
        })
    }

    /// Commits a step from the shards of all ranks. Each part is the result of a rank's `Saver.wait_part`.
    fn commit(&self, py: Python<'_>, parts: Vec<String>, metadata: &str, parity: usize) -> PyResult<()> {
        let commit = || {
            let parse = |text: &String| ShardReport::parse("the part of a rank", text.as_bytes());
            let parts = parts.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
            let attempt = parts.first().map(|part| part.attempt.clone());
            self.steps.commit(parts, metadata, parity).inspect_err(|_| {
                if let Some(attempt) = &attempt {
                    self.steps.abandon(attempt);
                }
            })
        };
        py.detach(commit).or_raise().map(drop)
    }

    /// Removes steps. It keeps the `last` steps by number, the `last` ones of `saved` in this order, multiples of
    /// `every`, steps with a tag, and all steps that a kept one references. Only `known` steps are removed. Returns the
    /// removed steps, and a line for each step that could not be read or removed.
    #[pyo3(signature = (last, every=None, saved=Vec::new(), known=None))]
    fn prune(
        &self,
        py: Python<'_>,
        last: usize,
        every: Option<u64>,
        saved: Vec<u64>,
        known: Option<Vec<u64>>,
    ) -> PyResult<(Vec<u64>, Vec<String>)> {
        let retention = Retention {
            last,
            every,
            saved,
            known,
        };
        let pruned = py.detach(|| self.steps.prune(&retention)).or_raise()?;
        let left = pruned.left.iter();
        let left = left.map(|(step, why)| format!("step {step} stays: {why}"));
        Ok((pruned.removed, left.collect()))
    }

    /// Gives a step a tag, which keeps it from being pruned.
    fn tag(&self, py: Python<'_>, step: u64, tag: &str) -> PyResult<()> {
        py.detach(|| self.steps.tag(step, tag)).or_raise()
    }

    /// Removes a tag from a step.
    fn untag(&self, py: Python<'_>, step: u64, tag: &str) -> PyResult<()> {
        py.detach(|| self.steps.untag(step, tag)).or_raise()
    }

    /// The tags of a step.
    fn tags(&self, py: Python<'_>, step: u64) -> PyResult<Vec<String>> {
        py.detach(|| self.steps.tags(step)).or_raise()
    }

    /// Removes a step that no other step references.
    fn remove(&self, py: Python<'_>, step: u64) -> PyResult<()> {
        py.detach(|| self.steps.remove(step)).or_raise()
    }
}

/// A unique name for a run.
#[pyfunction]
pub(crate) fn fresh_run() -> String {
    checkpoint::fresh_run()
}
