//! One rank's saver. The snapshot is taken in the call; the rest goes on without Python.

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
use straightway_core::{Class, Rate, Result, Share};
use straightway_io::store::Missing;
use straightway_pipeline::{
    checkpoint::{self, Busy, Codec, Committed, Options, Rank, Source},
    weights::{Rectangle, Shape},
};

use super::store::steps;
use crate::{
    error::OrRaise,
    executor,
    receipt::Receipt,
    subject::{Described, Subject},
    waiting::DEAF_MAX,
};

/// How soon the end of a flush is looked for.
const POLL_MIN: Duration = Duration::from_millis(1);

/// A tensor of this rank: the tensor, whether it is no tensor but somebody's bytes, and where it is
/// part of a larger one, that one's shape and where in it this begins.
type Given = (Described, bool, Option<(Vec<u64>, Vec<u64>)>);

/// Saves the state of one rank, step by step.
#[pyclass(frozen, module = "straightway._straightway")]
#[derive(Debug)]
pub(crate) struct Saver {
    /// `None` when it is closed. Locked only where the interpreter's lock is not held.
    inside: Mutex<Option<checkpoint::Saver>>,
    waits: bool,
    /// The process that its threads and its lock belong to.
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
        let options = Options {
            incremental,
            codec: codec(compression)?,
            parity,
            memory_bytes_max: memory_bytes_max.unwrap_or(u64::MAX),
            timeout: timeout(timeout_s)?,
            busy: policy(busy)?,
            ..Options::default()
        };
        let waits = options.busy == Busy::Wait;
        let make = || {
            let share = Share {
                limit: rate_bytes_per_s.map(Rate),
                ..Share::of(Class::Background)
            };
            let executor = executor::of(&folder)?.sharing(share, Class::Background)?;
            let store = steps(&folder, Missing::Create)?;
            checkpoint::Saver::new(store, Rank { rank, world }, run, executor.into(), options)
        };
        let inside = Mutex::new(Some(py.detach(make).or_raise()?));
        let process = process::id();
        Ok(Self {
            inside,
            waits,
            process,
        })
    }

    /// Takes a snapshot and returns; the flush and the commit go on. All ranks call it, in the same order.
    fn save(&self, py: Python<'_>, step: u64, tensors: Vec<Given>, metadata: &str) -> PyResult<()> {
        self.start(py, tensors, |saver, sources| {
            saver.save(step, sources, metadata)
        })
    }

    /// Makes memory ready for states like this one, on a thread of its own.
    fn prepare(&self, py: Python<'_>, tensors: Vec<Given>) -> PyResult<()> {
        let parts: PyResult<Vec<_>> = tensors.into_iter().map(Held::new).collect();
        let parts = parts?;
        self.with(py, |saver| {
            let sources: Result<Vec<_>> = parts.iter().map(Held::source).collect();
            saver.prepare(&sources?)
        })?
        .or_raise()
    }

    /// As `save`, but without a commit: `wait_part` gives what `Store.commit` needs of every rank.
    fn write_shard(&self, py: Python<'_>, step: u64, tensors: Vec<Given>) -> PyResult<()> {
        self.start(py, tensors, |saver, sources| {
            saver.write_shard(step, sources)
        })
    }

    /// Waits for the save under way, and says what came of it. Ctrl-C ends the waiting, not the save.
    fn wait<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyDict>>> {
        self.settle(py)?;
        let committed = self.with(py, checkpoint::Saver::wait)?.or_raise()?;
        committed.map(|committed| told(py, committed)).transpose()
    }

    /// Waits for the shard under way, and gives its part.
    fn wait_part(&self, py: Python<'_>) -> PyResult<String> {
        self.settle(py)?;
        let part = self.with(py, checkpoint::Saver::wait_part)?.or_raise()?;
        Ok(part.text())
    }

    /// Counts a save that this rank could not even begin, as all ranks count alike.
    fn skip(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, checkpoint::Saver::skip)
    }

    /// Whether a save is under way.
    fn is_busy(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, |saver| saver.is_busy())
    }

    /// How many bytes of the save under way, or of the last, are written.
    fn written_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        self.with(py, |saver| saver.progress().moved_bytes())
    }

    /// Makes the save under way fail.
    fn cancel(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |saver| saver.progress().cancel())
    }

    /// Whether it was made in this process, and not before a fork that made this one.
    fn is_own(&self) -> bool {
        self.process == process::id()
    }

    /// Waits for the save under way and lets go of the folder, whoever still holds this object. After a fork
    /// that is the parent's to do.
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
        begin: impl FnOnce(&mut checkpoint::Saver, &[Source<'_>]) -> Result<()> + Send,
    ) -> PyResult<()> {
        let parts = match self.held(py, tensors) {
            Ok(parts) => parts,
            Err(error) => {
                // Where even that is refused, the error is the same.
                let _ = self.skip(py);
                return Err(error);
            }
        };
        self.with(py, |saver| {
            let sources: Result<Vec<_>> = parts.iter().map(Held::source).collect();
            let sources = sources.inspect_err(|_| saver.skip())?;
            begin(saver, &sources)
        })?
        .or_raise()
    }

    /// What is to be saved, once the save before is out of the way.
    fn held(&self, py: Python<'_>, tensors: Vec<Given>) -> PyResult<Vec<Held>> {
        let held = tensors.into_iter().map(Held::new).collect();
        if self.waits {
            self.settle(py)?;
        }
        held
    }

    /// Waits until nothing is under way, with an ear for Ctrl-C.
    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        let mut pause = POLL_MIN;
        while self.is_busy(py)? {
            py.detach(|| thread::sleep(pause));
            pause = (pause * 2).min(DEAF_MAX / 4);
            py.check_signals()?;
        }
        Ok(())
    }

    /// Does `work` without the interpreter's lock.
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut checkpoint::Saver) -> T + Send,
    ) -> PyResult<T> {
        // Asked before the lock, which a thread of the parent's may have held when it forked.
        if !self.is_own() {
            let message = format!(
                "this process was forked from {}, whose threads and lock save there\n\
                 hint: make a Checkpointer of its own in the child",
                self.process
            );
            return Err(PyRuntimeError::new_err(message));
        }
        let done = py.detach(|| self.locked().as_mut().map(work));
        done.ok_or_else(|| PyRuntimeError::new_err("it is closed"))
    }

    fn locked(&self) -> MutexGuard<'_, Option<checkpoint::Saver>> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        if !self.is_own() {
            // Its threads are none of ours: waiting for them, as dropping it would, never ends.
            let inside = self.inside.get_mut();
            std::mem::forget(inside.unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// Part of a tensor in this rank's memory.
#[derive(Debug)]
struct Held {
    subject: Subject,
    is_opaque: bool,
    shape: Shape,
    rectangle: Rectangle,
}

impl Held {
    fn new((described, is_opaque, within): Given) -> PyResult<Self> {
        // SAFETY: the package's own code describes tensors that it holds: see `Subject::new`.
        let subject = unsafe { Subject::new(described) }?;
        let lengths = subject.shape.clone();
        let (shape, rectangle) = match within {
            None => (lengths.clone(), Rectangle::whole(&lengths)),
            Some((shape, start)) => {
                let (shape, start) = (Shape::from_iter(shape), Shape::from_iter(start));
                let rectangle = Rectangle::new(&subject.name, &shape, start, lengths);
                (shape, rectangle.or_raise()?)
            }
        };
        Ok(Self {
            subject,
            is_opaque,
            shape,
            rectangle,
        })
    }

    fn source(&self) -> Result<Source<'_>> {
        Ok(Source {
            name: &self.subject.name,
            dtype: self.subject.dtype,
            shape: self.shape.clone(),
            rectangle: self.rectangle.clone(),
            opaque: self.is_opaque,
            memory: self.subject.holding()?,
        })
    }
}

/// What came of a save, as a dictionary.
fn told(py: Python<'_>, committed: Committed) -> PyResult<Bound<'_, PyDict>> {
    let told = PyDict::new(py);
    told.set_item("step", committed.step)?;
    told.set_item("bytes", committed.bytes)?;
    told.set_item("written_bytes", committed.written_bytes)?;
    told.set_item("estimate", committed.estimate)?;
    told.set_item("seconds", committed.took.as_secs_f64())?;
    told.set_item("receipt", Receipt(committed.receipt))?;
    Ok(told)
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
    let refuse = |_| PyValueError::new_err(format!("{seconds} seconds are no time-out"));
    Duration::try_from_secs_f64(seconds).map_err(refuse)
}
