//! The saver of one rank. The snapshot is taken in the call; flush and commit run without Python.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, IntoRawFd},
    path::PathBuf,
    sync::{Arc, MutexGuard},
    thread,
    time::{Duration, Instant},
};

use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::PyDict,
};
use straightway_checkpoint::{self as checkpoint, Busy, Codec, Committed, Rank, SaveSource, SaverOptions};
use straightway_core::{Class, Lock, Rate, Result, Share};
use straightway_io::store::Missing;
use straightway_sys::{Event, Process};
use straightway_weights::{Rectangle, Shape};

use super::store::steps;
use crate::{
    borrowed::{BorrowedTensor, Contexts},
    error::OrRaise,
    receipt::Receipt,
    stores::{SESSION, StorageOptions, stores},
    waiting::SIGNAL_CHECK_INTERVAL,
};

/// The first interval at which the end of a flush is polled.
const POLL_MIN: Duration = Duration::from_millis(1);

/// An entry of this rank: its memory, whether it is opaque bytes instead of a tensor, for a part of a larger tensor the
/// whole shape and the offset, and its identity.
type Given = (Py<BorrowedTensor>, bool, Option<(Vec<u64>, Vec<u64>)>, Option<String>);

/// Saves the state of one rank, step by step.
#[pyclass(frozen, module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Saver {
    /// `None` when it is closed. Locked only while the interpreter's lock is not held.
    inside: Lock<Option<Inside>>,
    waits: bool,
    /// The process that has its threads and its lock.
    process: Process,
}

/// A saver, and the outcomes of its saves.
#[derive(Debug)]
struct Inside {
    saver: checkpoint::CheckpointSaver,
    /// The number of saves begun so far, which is the number of the last one.
    begun: u64,
    /// The outcomes that nobody has waited for yet, by the numbers of their saves.
    ended: BTreeMap<u64, Result<Committed>>,
}

impl Inside {
    /// Waits for the save under way, and keeps its outcome. Otherwise the next save would drop it.
    fn settle(&mut self) {
        if let Some(outcome) = self.saver.wait().transpose() {
            self.ended.insert(self.begun, outcome);
        }
    }
}

#[pymethods]
impl Saver {
    #[new]
    #[pyo3(signature = (folder, *, rank, world, run, incremental, compression, parity, memory_bytes_max, timeout_s, busy, rate_bytes_per_s, storage_options=None))]
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
        storage_options: Option<StorageOptions>,
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
            let store = steps(&folder, Missing::Create, storage_options)?;
            let executor = SESSION.executor([&store.location()])?;
            let executor = executor.sharing(share, Class::Background)?;
            checkpoint::CheckpointSaver::new(store, Rank { rank, world }, run, executor.into(), options)
        };
        let inside = Inside {
            saver: py.detach(make).or_raise()?,
            begun: 0,
            ended: BTreeMap::new(),
        };
        Ok(Self {
            inside: Lock::new(Some(inside)),
            waits,
            process: Process::this(),
        })
    }

    /// Raises for options that no saver takes, before there is one.
    #[staticmethod]
    #[pyo3(signature = (*, compression, timeout_s, busy, storage_options=None))]
    fn check(
        compression: Option<&str>,
        timeout_s: f64,
        busy: &str,
        storage_options: Option<StorageOptions>,
    ) -> PyResult<()> {
        codec(compression)?;
        timeout(timeout_s)?;
        policy(busy)?;
        stores(storage_options.as_ref()).or_raise().map(drop)
    }

    /// Takes a snapshot and returns the number of the save; flush and commit run in the background. All ranks call it
    /// in the same order.
    fn save(&self, py: Python<'_>, step: u64, tensors: Vec<Given>, metadata: &str) -> PyResult<u64> {
        self.start(py, step, tensors, |saver, sources| saver.save(step, sources, metadata))
    }

    /// Allocates memory for states like this one, on a thread of its own.
    fn prepare(&self, py: Python<'_>, tensors: Vec<Given>) -> PyResult<()> {
        let parts: PyResult<Vec<_>> = tensors.into_iter().map(HeldPart::new).collect();
        let parts = parts?;
        self.with(py, |inside| inside.saver.prepare(&sources(&parts)?))?
            .or_raise()
    }

    /// Like `save`, but without a commit: `wait_part` returns the part that `Store.commit` needs from every rank.
    fn write_shard(&self, py: Python<'_>, step: u64, tensors: Vec<Given>) -> PyResult<()> {
        self.start(py, step, tensors, |saver, sources| saver.write_shard(step, sources))
            .map(drop)
    }

    /// Waits for the save with this number, or for the last one, and returns its result; `None` if it was not begun, or
    /// was waited for before. Ctrl-C ends the wait, not the save.
    #[pyo3(signature = (number=None))]
    fn wait<'py>(&self, py: Python<'py>, number: Option<u64>) -> PyResult<Option<Bound<'py, PyDict>>> {
        let number = match number {
            Some(number) => number,
            None => self.with(py, |inside| inside.begun)?,
        };
        self.wait_while(py, |inside| inside.begun == number && inside.saver.is_busy())?;
        let outcome = self.with(py, |inside| {
            if inside.begun == number {
                inside.settle();
            }
            inside.ended.remove(&number)
        })?;
        outcome.map(|outcome| result_dict(py, outcome.or_raise()?)).transpose()
    }

    /// A new descriptor that becomes readable once the save with this number is over. The caller closes it.
    fn event(&self, py: Python<'_>, number: u64) -> PyResult<i32> {
        let over = || -> Result<Arc<Event>> {
            let event = Event::new()?;
            event.raise();
            Ok(Arc::new(event))
        };
        let event = self.with(py, |inside| match inside.saver.ended()? {
            Some(event) if inside.begun == number => Ok(event),
            _ => over(),
        })?;
        let own = event.or_raise()?.as_fd().try_clone_to_owned()?;
        Ok(own.into_raw_fd())
    }

    /// Waits for the shard under way, and returns its part.
    fn wait_part(&self, py: Python<'_>) -> PyResult<String> {
        self.wait_until_idle(py)?;
        let part = self.with(py, |inside| inside.saver.wait_part())?.or_raise()?;
        Ok(part.text())
    }

    /// Counts a save that this rank could not begin: the counts of all ranks must agree.
    fn skip(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |inside| inside.saver.skip())
    }

    /// Whether a save is under way.
    fn is_busy(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |inside| inside.saver.is_busy())
    }

    /// The number of bytes written by the save under way, or by the last one.
    fn written_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |inside| inside.saver.progress().moved_bytes())
    }

    /// Makes the save under way fail.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |inside| inside.saver.progress().cancel())
    }

    /// Whether it was made in this process, and not in a parent before a fork.
    fn is_own(&self) -> bool {
        self.process.is_this()
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
        step: u64,
        tensors: Vec<Given>,
        begin: impl FnOnce(&mut checkpoint::CheckpointSaver, &[SaveSource<'_>]) -> Result<()> + Send,
    ) -> PyResult<u64> {
        let parts = match self.held(py, tensors) {
            Ok(parts) => parts,
            Err(error) => {
                // If that fails too, it fails with the same error.
                let _ = self.skip(py);
                return Err(error);
            }
        };
        self.with(py, |inside| {
            let sources = sources(&parts).and_then(|sources| inside.saver.check_idle(step).map(|()| sources));
            let sources = sources.inspect_err(|_| inside.saver.skip())?;
            inside.settle();
            begin(&mut inside.saver, &sources)?;
            inside.begun += 1;
            Ok(inside.begun)
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
        self.wait_while(py, |inside| inside.saver.is_busy())
    }

    /// Waits while `is_on` holds, and checks for Ctrl-C. The interpreter's lock is taken only for the check: a thread
    /// that waits for a save runs beside the job.
    fn wait_while(&self, py: Python<'_>, is_on: impl Fn(&Inside) -> bool + Send + Sync) -> PyResult<()> {
        self.check_own()?;
        let mut pause = POLL_MIN;
        loop {
            let checked_at = Instant::now() + SIGNAL_CHECK_INTERVAL;
            let is_over = py.detach(|| {
                loop {
                    if !self.locked().as_ref().is_some_and(&is_on) {
                        return true;
                    }
                    if Instant::now() >= checked_at {
                        return false;
                    }
                    thread::sleep(pause);
                    pause = (pause * 2).min(SIGNAL_CHECK_INTERVAL / 4);
                }
            });
            if is_over {
                return Ok(());
            }
            py.check_signals()?;
        }
    }

    /// Runs `work` without the interpreter's lock.
    fn with<T: Send>(&self, py: Python<'_>, work: impl FnOnce(&mut Inside) -> T + Send) -> PyResult<T> {
        self.check_own()?;
        let done = py.detach(|| self.locked().as_mut().map(work));
        done.ok_or_else(|| PyRuntimeError::new_err("the saver is closed"))
    }

    /// Raises in a forked child. It is called before every lock: a thread of the parent may have held it at the fork.
    fn check_own(&self) -> PyResult<()> {
        if !self.is_own() {
            let message = format!(
                "this process was forked from {}, whose threads and lock save there\n\
                 hint: make a Checkpointer of its own in the child",
                self.process.number()
            );
            return Err(PyRuntimeError::new_err(message));
        }
        Ok(())
    }

    fn locked(&self) -> MutexGuard<'_, Option<Inside>> {
        self.inside.lock()
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        if !self.is_own() {
            // Its threads do not exist in this process. Dropping it would wait for them forever.
            std::mem::forget(self.inside.get_mut().take());
        }
    }
}

/// A part of a tensor in this rank's memory.
#[derive(Debug)]
struct HeldPart {
    tensor: Py<BorrowedTensor>,
    identity: Option<String>,
    is_opaque: bool,
    shape: Shape,
    rectangle: Rectangle,
}

impl HeldPart {
    fn new((tensor, is_opaque, within, identity): Given) -> PyResult<Self> {
        let lengths = tensor.get().shape.clone();
        let (shape, rectangle) = match within {
            None => (lengths.clone(), Rectangle::whole(&lengths)),
            Some((shape, start)) => {
                let (shape, start) = (Shape::from_iter(shape), Shape::from_iter(start));
                let rectangle = Rectangle::new(&tensor.get().name, &shape, start, lengths);
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
        let tensor = self.tensor.get();
        Ok(SaveSource {
            name: &tensor.name,
            identity: self.identity.as_deref(),
            dtype: tensor.dtype,
            shape: self.shape.clone(),
            rectangle: self.rectangle.clone(),
            opaque: self.is_opaque,
            memory: tensor.holding(contexts)?,
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
