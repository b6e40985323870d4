//! An open object of any store, from which bytes go to arrays and to which they come from arrays.
//!
//! A new object is a draft until `close`: it gets its name when all writes have succeeded and are durable. A local file
//! can also be written in place. A forked child opens the object again for reading; it cannot write to the files of its
//! parent.

use std::{
    mem::ManuallyDrop,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
    types::{PyBytes, PyDict},
};
use straightway_core::{Error, ErrorKind, Lock, Result};
use straightway_io::{
    StoreExt,
    store::{CommitMode, Draft, Tag},
};
use straightway_stores::StoreOptions;
use straightway_sys::{File, Process};

use super::{
    call::{Call, Options, Target},
    export::{Access, release_ended},
    opened::{Mode, Opened},
    ranges::read_bytes,
    transfer::{Running, Transfer},
};
use crate::{
    error::OrRaise,
    receipt::Receipt,
    stores::{StorageOptions, is_local, parsed},
    waiting::{self, SIGNAL_CHECK_INTERVAL},
};

/// An open object of any store.
#[pyclass(frozen, module = "straightway", name = "File", weakref)]
#[derive(Debug)]
pub(crate) struct RawFile {
    uri: PathBuf,
    mode: Mode,
    options: Options,
    storage: StoreOptions,
    /// What this process has of it. A forked child does not drop what is its parent's.
    opened: ManuallyDrop<Lock<Opened>>,
    draft: ManuallyDrop<Lock<Option<Box<dyn Draft>>>>,
    is_closed: AtomicBool,
    process: Process,
}

#[pymethods]
impl RawFile {
    #[new]
    #[pyo3(signature = (uri, mode="r", *, size=None, route="auto", priority="soon", limit=None, storage_options=None))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        uri: PathBuf,
        mode: &str,
        size: Option<u64>,
        route: &str,
        priority: &str,
        limit: Option<f64>,
        storage_options: Option<StorageOptions>,
    ) -> PyResult<Self> {
        let mode = match mode.replace('b', "").as_str() {
            "r" => Mode::Read,
            "w" | "w+" | "+w" => Mode::Write,
            "r+" | "+r" => Mode::InPlace,
            _ => {
                let message = format!("a mode is \"r\", \"w\" (a new file) or \"r+\" (in place), not {mode:?}");
                return Err(PyValueError::new_err(message));
            }
        };
        if size.is_some() && mode != Mode::Write {
            return Err(PyValueError::new_err("only a new file has a size= (mode \"w\")"));
        }
        let options = Options::default().with(Some(route), Some(priority), limit)?;
        let storage = parsed(storage_options.as_ref()).or_raise()?;
        let (name, given) = (uri.clone(), storage.clone());
        let open = move || match mode {
            Mode::Read => Opened::read(&name, &given, options, None).map(|opened| (opened, None)),
            Mode::Write | Mode::InPlace => {
                Opened::written(&name, &given, options, (mode, size)).map(|(opened, draft)| (opened, Some(draft)))
            }
        };
        let (opened, draft) = if is_local(uri.clone()) {
            py.detach(open).or_raise()?
        } else {
            waiting::run(py, &Arc::default(), open)?
        };
        Ok(Self {
            uri,
            mode,
            options,
            storage,
            opened: ManuallyDrop::new(Lock::new(opened)),
            draft: ManuallyDrop::new(Lock::new(draft)),
            is_closed: AtomicBool::new(false),
            process: Process::this(),
        })
    }

    /// Reads as many bytes as an array has, from `file_offset` on, into its memory.
    #[pyo3(signature = (array, file_offset=0, *, route=None, priority=None, limit=None, stream=None, wait=true))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn read_into<'py>(
        slf: &Bound<'py, Self>,
        array: Bound<'py, PyAny>,
        file_offset: u64,
        route: Option<&str>,
        priority: Option<&str>,
        limit: Option<f64>,
        stream: Option<Bound<'py, PyAny>>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = slf.get().options.with(route, priority, limit)?;
        let range = [Ok((file_offset, array))];
        slf.get().run(
            slf.py(),
            Access::Filled,
            (options, limit.is_some() || priority.is_some()),
            range,
            stream,
            wait,
        )
    }

    /// Reads many ranges, each as long as its array: `[(file_offset, array), …]`, with one receipt.
    #[pyo3(signature = (ranges, *, route=None, priority=None, limit=None, stream=None, wait=true))]
    fn read_ranges<'py>(
        slf: &Bound<'py, Self>,
        ranges: Bound<'py, PyAny>,
        route: Option<&str>,
        priority: Option<&str>,
        limit: Option<f64>,
        stream: Option<Bound<'py, PyAny>>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = slf.get().options.with(route, priority, limit)?;
        let ranges = ranges.try_iter()?.map(|range| range?.extract());
        slf.get().run(
            slf.py(),
            Access::Filled,
            (options, limit.is_some() || priority.is_some()),
            ranges,
            stream,
            wait,
        )
    }

    /// Writes the bytes of an array to the file, from `file_offset` on.
    #[pyo3(signature = (array, file_offset=0, *, route=None, priority=None, limit=None, stream=None, wait=true))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn write_from<'py>(
        slf: &Bound<'py, Self>,
        array: Bound<'py, PyAny>,
        file_offset: u64,
        route: Option<&str>,
        priority: Option<&str>,
        limit: Option<f64>,
        stream: Option<Bound<'py, PyAny>>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = slf.get().options.with(route, priority, limit)?;
        let range = [Ok((file_offset, array))];
        slf.get().run(
            slf.py(),
            Access::Taken,
            (options, limit.is_some() || priority.is_some()),
            range,
            stream,
            wait,
        )
    }

    /// Writes many arrays, each to its offset: `[(file_offset, array), …]`, with one receipt.
    #[pyo3(signature = (ranges, *, route=None, priority=None, limit=None, stream=None, wait=true))]
    fn write_ranges<'py>(
        slf: &Bound<'py, Self>,
        ranges: Bound<'py, PyAny>,
        route: Option<&str>,
        priority: Option<&str>,
        limit: Option<f64>,
        stream: Option<Bound<'py, PyAny>>,
        wait: bool,
    ) -> PyResult<Py<PyAny>> {
        let options = slf.get().options.with(route, priority, limit)?;
        let ranges = ranges.try_iter()?.map(|range| range?.extract());
        slf.get().run(
            slf.py(),
            Access::Taken,
            (options, limit.is_some() || priority.is_some()),
            ranges,
            stream,
            wait,
        )
    }

    /// Reads ranges, each `(offset, bytes)`, as objects of type `bytes`. All are one job, in which neighbours share
    /// requests.
    fn read_bytes<'py>(
        &self,
        py: Python<'py>,
        ranges: Vec<(u64, u64)>,
    ) -> PyResult<(Vec<Bound<'py, PyBytes>>, Receipt)> {
        let target = self.target(self.options, false)?;
        let size = target.handle.object().bytes;
        let ends = ranges.iter().map(|(offset, length)| offset.checked_add(*length));
        ends.into_iter().try_for_each(|end| self.check_range(end, size))?;
        read_bytes(py, &target, self.options.choice, &ranges)
    }

    /// Waits for all transfers. A new file then gets its name, if all writes succeeded; a file that was written in place
    /// is durable. Does nothing if the file is closed.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) || !self.process.is_this() {
            return Ok(());
        }
        self.finish_transfers(py)?;
        let Some(draft) = self.draft.lock().take() else {
            return Ok(());
        };
        let (location, writes) = {
            let opened = self.opened.lock();
            (opened.location.clone(), Arc::clone(&opened.writes))
        };
        let is_new = self.mode == Mode::Write;
        waiting::run(py, &Arc::default(), move || {
            writes.check().map_err(|error| {
                let why = if is_new {
                    "a write failed, so it was not given its name"
                } else {
                    "a write failed"
                };
                location.error(error.kind(), "complete", format!("{why}: {error}"))
            })?;
            location.store.sync(&[draft.handle()])?;
            location.store.commit(vec![draft], CommitMode::InOrder)
        })
    }

    /// Waits for all transfers, and removes a new file, which then never had its name.
    fn discard(&self, py: Python<'_>) -> PyResult<()> {
        if self.is_closed.swap(true, Ordering::AcqRel) || !self.process.is_this() {
            return Ok(());
        }
        self.opened.lock().running.iter().for_each(|running| running.cancel());
        self.finish_transfers(py)?;
        let draft = self.draft.lock().take();
        py.detach(|| drop(draft));
        Ok(())
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    #[pyo3(signature = (kind=None, _raised=None, _trace=None))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        _raised: Option<Bound<'_, PyAny>>,
        _trace: Option<Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        match kind.filter(|kind| !kind.is_none()) {
            Some(_) if self.mode == Mode::Write => self.discard(py),
            _ => self.close(py),
        }
    }

    /// The length of the file now.
    #[getter]
    fn size(&self) -> PyResult<u64> {
        Ok(self.target(self.options, false)?.handle.object().bytes)
    }

    /// Its path or URI.
    #[getter]
    fn uri(&self) -> PathBuf {
        self.uri.clone()
    }

    /// Its mode: "r", "w" or "r+".
    #[getter]
    fn mode(&self) -> &'static str {
        match self.mode {
            Mode::Read => "r",
            Mode::Write => "w",
            Mode::InPlace => "r+",
        }
    }

    /// Whether it is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whether a new file may become longer than the size that it was opened with: local files may.
    #[getter]
    fn grows(&self) -> PyResult<bool> {
        Ok(self.mode != Mode::Read && self.target(self.options, false)?.handle.file().is_some())
    }

    /// Its URI, size, and version: the `ETag` where the store has one.
    fn stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let handle = self.target(self.options, false)?.handle;
        let version = match handle.tag() {
            Some(Tag::Text(text)) => Some(text),
            Some(Tag::File(_)) | None => None,
        };
        let stat = PyDict::new(py);
        stat.set_item("uri", self.uri.to_string_lossy())?;
        stat.set_item("size", handle.object().bytes)?;
        stat.set_item("version", version)?;
        stat.set_item("is_local", handle.file().is_some())?;
        Ok(stat)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!(
            "<File {:?}, mode {:?}{state}>",
            self.uri.display().to_string(),
            self.mode()
        )
    }
}

impl RawFile {
    /// Runs a call, or begins it.
    fn run<'py>(
        &self,
        py: Python<'py>,
        access: Access,
        (options, is_own): (Options, bool),
        ranges: impl IntoIterator<Item = PyResult<(u64, Bound<'py, PyAny>)>>,
        stream: Option<Bound<'py, PyAny>>,
        waits: bool,
    ) -> PyResult<Py<PyAny>> {
        let target = self.target(options, is_own)?;
        let call = Call::new(access, (options.choice, waits), ranges)?;
        match access {
            Access::Filled => {
                let size = target
                    .handle
                    .file()
                    .map_or_else(|| target.handle.object().bytes, File::bytes);
                self.check_range(Some(call.end()), size)?;
            }
            Access::Taken => self.make_room(py, call.end())?,
        }
        let running = call.begin(py, &target, stream.as_ref())?;
        if waits {
            running.wait(py)?;
            let receipt = running.result(py)?;
            return Ok(Receipt(receipt).into_pyobject(py)?.into_any().unbind());
        }
        self.keep(&running);
        release_ended(py);
        Ok(Transfer(running).into_pyobject(py)?.into_any().unbind())
    }

    /// What the jobs of a call work on. `is_own` says that the options are not those of the file.
    fn target(&self, options: Options, is_own: bool) -> PyResult<Target> {
        if self.closed() {
            return Err(PyValueError::new_err(format!("{} is closed", self.uri.display())));
        }
        if !self.process.is_this() && self.mode != Mode::Read {
            let number = self.process.number();
            let message = format!("it was opened for writing by process {number}, from which this one was forked");
            return Err(PyRuntimeError::new_err(format!("{message}\nhint: open it here")));
        }
        let mut opened = match self.opened.try_lock() {
            Some(opened) => opened,
            None if self.process.is_this() => self.opened.lock(),
            // Another thread of the parent held the lock when this process was forked.
            None => return self.reopened(options).or_raise(),
        };
        if !opened.process.is_this() {
            let tag = opened.handle.tag();
            let fresh = Opened::read(&self.uri, &self.storage, self.options, tag).or_raise()?;
            // The parent's has locks and threads that this process does not have.
            std::mem::forget(std::mem::replace(&mut *opened, fresh));
        }
        opened.target(options, is_own).or_raise()
    }

    /// A target of this process alone.
    fn reopened(&self, options: Options) -> Result<Target> {
        let opened = Opened::read(&self.uri, &self.storage, self.options, None)?;
        opened.target(options, true)
    }

    fn check_range(&self, end: Option<u64>, size: u64) -> PyResult<()> {
        if end.is_some_and(|end| end <= size) {
            return Ok(());
        }
        let (name, end) = (
            self.uri.display(),
            end.map_or("beyond 2^64".to_owned(), |end| format!("up to byte {end}")),
        );
        Err(PyValueError::new_err(format!(
            "{name} has {size} bytes, and bytes {end} are to be read"
        )))
    }

    /// Makes the file long enough for a write.
    fn make_room(&self, py: Python<'_>, end: u64) -> PyResult<()> {
        if self.mode == Mode::Read {
            let message = format!("{} is open for reading\nhint: mode=\"w\" or \"r+\"", self.uri.display());
            return Err(PyValueError::new_err(message));
        }
        let grown = py.detach(|| match &*self.draft.lock() {
            Some(draft) => draft.grow(end),
            None => Err(Error::new(
                ErrorKind::Invalid,
                "write to",
                self.uri.display(),
                "it is closed",
            )),
        });
        grown.or_raise()
    }

    /// Keeps a transfer until it has ended.
    fn keep(&self, running: &Arc<Running>) {
        let mut opened = self.opened.lock();
        opened.running.retain(|known| !known.is_done());
        opened.running.push(Arc::clone(running));
    }

    /// Waits for all transfers and writes.
    fn finish_transfers(&self, py: Python<'_>) -> PyResult<()> {
        let (running, writes) = {
            let mut opened = self.opened.lock();
            (std::mem::take(&mut opened.running), Arc::clone(&opened.writes))
        };
        running.iter().try_for_each(|running| running.wait(py))?;
        while !py.detach(|| writes.wait_for(SIGNAL_CHECK_INTERVAL)) {
            py.check_signals()?;
        }
        release_ended(py);
        Ok(())
    }
}

impl Drop for RawFile {
    fn drop(&mut self) {
        if self.process.is_this() {
            // SAFETY: nothing uses them after this.
            unsafe {
                ManuallyDrop::drop(&mut self.opened);
                ManuallyDrop::drop(&mut self.draft);
            }
        }
        // In a forked child the draft is the parent's, which goes on writing to it.
    }
}
