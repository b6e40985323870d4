//! The saver of one rank. The snapshot is taken in the call; flush and commit run without Python.

use std::{
    path::PathBuf,
    process,
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::PyDict,
};
use straightway_checkpoint::{self as checkpoint, Busy, Codec, Committed, Rank, SaveSource, SaverOptions};
use straightway_core::{Class, Rate, Result, Share};
use straightway_io::store::Missing;
use straightway_weights::{Rectangle, Shape};

use super::store::steps;
use crate::{
    borrowed::{BorrowedTensor, Contexts, Described},
    error::OrRaise,
    executor,
    receipt::Receipt,
    waiting::SIGNAL_CHECK_INTERVAL,
};

/// The first interval at which the end of a flush is polled.
const POLL_MIN: Duration = Duration::from_millis(1);

/// An entry of this rank: its description, whether it is opaque bytes instead of a tensor, and for a part of a larger
/// tensor, the whole shape and the offset.
type Given = (Described, bool, Option<(Vec<u64>, Vec<u64>)>, Option<String>);

/// Saves the state of one rank, step by step.
#[pyclass(frozen, module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Saver {
    /// `None` when it is closed. Locked only while the interpreter's lock is not held.
    inside: Mutex<Option<checkpoint::CheckpointSaver>>,
    waits: bool,
    /// The process that has its threads and its lock.
    process: u32,
}

#[pymethods]
impl Saver {
    #[new]
    #[pyo3(signature = (folder, *, rank, world, run, incremental, compression, parity, memory_bytes_max, timeout_s, busy, rate_bytes_per_s))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        rank: u32,
        world: u32,
        run: &str,
        incremental: bool,
        compression: Option<&str>,
        parity: usize,
        memory_bytes_max: Option<u64>,
        timeout_s: f64,
        busy: &str,
        rate_bytes_per_s: Option<f64>,
    ) -> PyResult<Self> {
        let options = SaverOptions {
            incremental,
            codec: codec(compression)?,
            parity,
            memory_bytes_max: memory_bytes_max.unwrap_or(u64::MAX),
            timeout: timeout(timeout_s)?,
            busy: policy(busy)?,
            ..SaverOptions::default()
        };
        let waits = options.busy == Busy::Wait;
        let make = || {
            let share = Share {
                limit: rate_bytes_per_s.map(Rate),
                ..Share::of(Class::Background)
            };
            let store = steps(&folder, Missing::Create)?;
            let executor = executor::of([&store.location()])?;
            let executor = executor.sharing(share, Class::Background)?;
            checkpoint::CheckpointSaver::new(store, Rank { rank, world }, run, executor.into(), options)
        };
        let inside = Mutex::new(Some(py.detach(make).or_raise()?));
        let process = process::id();
        Ok(Self { inside, waits, process })
    }

    /// Raises for options that no saver takes, before there is one.
    #[staticmethod]
    #[pyo3(signature = (*, compression, timeout_s, busy))]
    fn check(compression: Option<&str>, timeout_s: f64, busy: &str) -> PyResult<()> {
        codec(compression)?;
        timeout(timeout_s)?;
        policy(busy)?;
        Ok(())
    }

    /// Takes a snapshot and returns; flush and commit run in the background. All ranks call it in the same order.
    fn save(&self, py: Python<'_>, step: u64, tensors: Vec<Given>, metadata: &str) -> PyResult<()> {
        self.start(py, tensors, |saver, sources| saver.save(step, sources, metadata))
    }

    /// Allocates memory for states like this one, on a thread of its own.
    fn prepare(&self, py: Python<'_>, tensors: Vec<Given>) -> PyResult<()> {
        let parts: PyResult<Vec<_>> = tensors.into_iter().map(HeldPart::new).collect();
        let parts = parts?;
        self.with(py, |saver| saver.prepare(&sources(&parts)?))?.or_raise()
    }

    /// Like `save`, but without a commit: `wait_part` returns the part that `Store.commit` needs from every rank.
    fn write_shard(&self, py: Python<'_>, step: u64, tensors: Vec<Given>) -> PyResult<()> {
        self.start(py, tensors, |saver, sources| saver.write_shard(step, sources))
    }

    /// Waits for the save under way, and returns its result. Ctrl-C ends the wait, not the save.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.wait_until_idle(py)?;
        let committed = self.with(py, checkpoint::CheckpointSaver::wait)?.or_raise()?;
        committed.map(|committed| result_dict(py, committed)).transpose()
    }

    /// Waits for the shard under way, and returns its part.
    fn wait_part(&self, py: Python<'_>) -> PyResult<String> {
        self.wait_until_idle(py)?;
        let part = self.with(py, checkpoint::CheckpointSaver::wait_part)?.or_raise()?;
        Ok(part.text())
    }

    /// Counts a save that this rank could not begin: the counts of all ranks must agree.
    fn skip(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, checkpoint::CheckpointSaver::skip)
    }

    /// Whether a save is under way.
    fn is_busy(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |saver| saver.is_busy())
    }

    /// The number of bytes written by the save under way, or by the last one.
    fn written_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |saver| saver.progress().moved_bytes())
    }

    /// Makes the save under way fail.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |saver| saver.progress().cancel())
    }

    /// Whether it was made in this process, and not in a parent before a fork.
    fn is_own(&self) -> bool {
        self.process == process::id()
    }

    /// Waits for the save under way and unlocks the folder, even if this object is still referenced. Does nothing in a
    /// forked child.
    fn close(&self, py: Python<'_>) {
        if self.is_own() {
            py.detach(|| drop(self.locked().take()));
        }
    }
}

impl Saver {
    fn start(
        &self,
        py: Python<'_>,
        tensors: Vec<Given>,
        begin: impl FnOnce(&mut checkpoint::CheckpointSaver, &[SaveSource<'_>]) -> Result<()> + Send,
    ) -> PyResult<()> {
        let parts = match self.held(py, tensors) {
            Ok(parts) => parts,
            Err(error) => {
                // If that fails too, it fails with the same error.
                let _ = self.skip(py);
                return Err(error);
            }
        };
        self.with(py, |saver| {
            let sources = sources(&parts).inspect_err(|_| saver.skip())?;
            begin(saver, &sources)
        })?
        .or_raise()
    }

    /// The parts to save, after the previous save has ended if this saver waits.
    fn held(&self, py: Python<'_>, tensors: Vec<Given>) -> PyResult<Vec<HeldPart>> {
        let held = tensors.into_iter().map(HeldPart::new).collect();
        if self.waits {
            self.wait_until_idle(py)?;
        }
        held
    }

    /// Waits until no save is under way, and checks for Ctrl-C.
    fn wait_until_idle(&self, py: Python<'_>) -> PyResult<()> {
        let mut pause = POLL_MIN;
        while self.is_busy(py)? {
            py.detach(|| thread::sleep(pause));
            pause = (pause * 2).min(SIGNAL_CHECK_INTERVAL / 4);
            py.check_signals()?;
        }
        Ok(())
    }

    /// Runs `work` without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut checkpoint::CheckpointSaver) -> T + Send,
    ) -> PyResult<T> {
        // Checked before locking: a thread of the parent may have held the lock at the fork.
        if !self.is_own() {
            let message = format!(
                "this process was forked from {}, whose threads and lock save there\n\
                 hint: make a Checkpointer of its own in the child",
                self.process
            );
            return Err(PyRuntimeError::new_err(message));
        }
        let done = py.detach(|| self.locked().as_mut().map(work));
        done.ok_or_else(|| PyRuntimeError::new_err("the saver is closed"))
    }

    fn locked(&self) -> MutexGuard<'_, Option<checkpoint::CheckpointSaver>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        if !self.is_own() {
            // Its threads do not exist in this process. Dropping it would wait for them forever.
            let inside = self.inside.get_mut();
            std::mem::forget(inside.unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// A part of a tensor in this rank's memory.
#[derive(Debug)]
struct HeldPart {
    tensor: BorrowedTensor,
    identity: Option<String>,
    is_opaque: bool,
    shape: Shape,
    rectangle: Rectangle,
}

impl HeldPart {
    fn new((described, is_opaque, within, identity): Given) -> PyResult<Self> {
        // SAFETY: the package's own code describes tensors that it holds: see `BorrowedTensor::new`.
        let tensor = unsafe { BorrowedTensor::new(described) }?;
        let lengths = tensor.shape.clone();
        let (shape, rectangle) = match within {
            None => (lengths.clone(), Rectangle::whole(&lengths)),
            Some((shape, start)) => {
                let (shape, start) = (Shape::from_iter(shape), Shape::from_iter(start));
                let rectangle = Rectangle::new(&tensor.name, &shape, start, lengths);
                (shape, rectangle.or_raise()?)
            }
        };
        Ok(Self {
            tensor,
            identity,
            is_opaque,
            shape,
            rectangle,
        })
    }

    fn source(&self, contexts: &mut Contexts) -> Result<SaveSource<'_>> {
        Ok(SaveSource {
            name: &self.tensor.name,
            identity: self.identity.as_deref(),
            dtype: self.tensor.dtype,
            shape: self.shape.clone(),
            rectangle: self.rectangle.clone(),
            opaque: self.is_opaque,
            memory: self.tensor.holding(contexts)?,
        })
    }
}

/// Parts as the saver takes them.
fn sources(parts: &[HeldPart]) -> Result<Vec<SaveSource<'_>>> {
    let mut contexts = Contexts::default();
    let sources = parts.iter().map(|part| part.source(&mut contexts));
    sources.collect()
}

/// The result of a save, as a dictionary.
fn result_dict(py: Python<'_>, committed: Committed) -> PyResult<Bound<'_, PyDict>> {
    let result = PyDict::new(py);
    result.set_item("step", committed.step)?;
    result.set_item("bytes", committed.bytes)?;
    result.set_item("written_bytes", committed.written_bytes)?;
    result.set_item("estimate", committed.estimate)?;
    result.set_item("seconds", committed.took.as_secs_f64())?;
    result.set_item("receipt", Receipt(committed.receipt))?;
    Ok(result)
}

fn codec(name: Option<&str>) -> PyResult<Codec> {
    match name {
        None => Ok(Codec::Raw),
        Some("zstd") => Ok(Codec::Zstd),
        Some("lz4") => Ok(Codec::Lz4),
        Some(other) => {
            let message = format!("compression is zstd, lz4 or None, not {other:?}");
            Err(PyValueError::new_err(message))
        }
    }
}

fn policy(name: &str) -> PyResult<Busy> {
    match name {
        "wait" => Ok(Busy::Wait),
        "refuse" => Ok(Busy::Refuse),
        _ => {
            let message = format!("busy is wait or refuse, not {name:?}");
            Err(PyValueError::new_err(message))
        }
    }
}

fn timeout(seconds: f64) -> PyResult<Duration> {
    let refuse = |_| PyValueError::new_err(format!("a timeout of {seconds} seconds is out of range"));
    Duration::try_from_secs_f64(seconds).map_err(refuse)
}
