//! One call: ranges of a file, each with an array, and how they are moved.

use std::{sync::Arc, time::Instant};

use pyo3::{
    exceptions::{PyTypeError, PyValueError},
    prelude::*,
};
use straightway_core::{Choice, Class, Extent, Move, Place, Rate, Receipt as CoreReceipt, Result, Share};
use straightway_io::{Ask, Executor, Handle, Objects, Region, Ticket, resident::SmallRead, store::Store};
use straightway_sys::cuda::{DeviceMemory, Fence, Owner};

use super::{
    export::{Access, Array, Export},
    layout::ROWS_MAX,
    trace,
    transfer::{Running, Together},
    writes::Writes,
};
use crate::{
    arguments::{choice, class},
    borrowed::Contexts,
    error::OrRaise,
};

/// The most ranges of one call.
const RANGES_MAX: usize = 1 << 16;

/// The options of a file or of one call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) choice: Choice,
    pub(crate) class: Class,
    pub(crate) limit: Option<Rate>,
}

impl Options {
    /// These options with those that are given.
    pub(crate) fn with(self, route: Option<&str>, priority: Option<&str>, limit: Option<f64>) -> PyResult<Self> {
        if limit.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            return Err(PyValueError::new_err(
                "a limit is a number of bytes per second, greater than 0",
            ));
        }
        Ok(Self {
            choice: route.map_or(Ok(self.choice), choice)?,
            class: priority.map_or(Ok(self.class), class)?,
            limit: limit.map(Rate).or(self.limit),
        })
    }

    /// Whether jobs with these options run by a shared executor as it is.
    pub(crate) fn is_plain(&self) -> bool {
        self.class == Class::default() && self.limit.is_none()
    }

    /// The executor of jobs with these options.
    pub(crate) fn executor(&self, shared: &Executor) -> Result<Executor> {
        if self.is_plain() {
            return Ok(shared.clone());
        }
        let share = Share {
            limit: self.limit,
            ..Share::of(self.class)
        };
        shared.sharing(share, self.class)
    }
}

/// What the jobs of a call work on.
pub(crate) struct Target {
    pub(crate) executor: Executor,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) handle: Arc<dyn Handle>,
    pub(crate) writes: Arc<Writes>,
}

/// A call.
pub(crate) struct Call {
    pub(crate) access: Access,
    pub(crate) choice: Choice,
    /// Whether the caller waits for the end.
    pub(crate) waits: bool,
    parts: Vec<Part>,
    bytes: u64,
}

/// A range of the file and the array that belongs to it.
struct Part {
    offset: u64,
    array: Array,
}

impl Call {
    /// A call with these offsets and arrays.
    pub(crate) fn new<'py>(
        access: Access,
        (choice, waits): (Choice, bool),
        ranges: impl IntoIterator<Item = PyResult<(u64, Bound<'py, PyAny>)>>,
    ) -> PyResult<Self> {
        let (mut parts, mut bytes, mut rows) = (Vec::new(), 0_u64, 0);
        for range in ranges {
            let (offset, array) = range?;
            let array = Array::of(&array, access)?;
            let own = array.layout.bytes();
            rows += array.layout.rows();
            if offset.checked_add(own).is_none_or(|end| end > i64::MAX.cast_unsigned()) {
                return Err(PyValueError::new_err(format!(
                    "no file has bytes beyond offset {offset}"
                )));
            }
            bytes += own;
            parts.push(Part { offset, array });
            if parts.len() > RANGES_MAX || rows > ROWS_MAX {
                let message = format!("a call has at most {RANGES_MAX} ranges and {ROWS_MAX} rows with gaps");
                return Err(PyValueError::new_err(message));
            }
        }
        Ok(Self {
            access,
            choice,
            waits,
            parts,
            bytes,
        })
    }

    /// The end of its last range. An empty write does not make a file longer.
    pub(crate) fn end(&self) -> u64 {
        let counts = |part: &&Part| self.access == Access::Filled || part.array.layout.bytes() > 0;
        let ends = self
            .parts
            .iter()
            .filter(counts)
            .map(|part| part.offset + part.array.layout.bytes());
        ends.max().unwrap_or(0)
    }

    /// Whether all arrays are in host memory.
    fn is_on_host(&self) -> bool {
        self.parts.iter().all(|part| part.array.place == Place::Host)
    }

    /// Runs the call, or begins it.
    pub(crate) fn begin(
        self,
        py: Python<'_>,
        target: &Target,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Arc<Running>> {
        let traces = trace::current(py)?;
        if self.bytes == 0 {
            return Ok(Running::ended(CoreReceipt::sum([], 0.0), traces));
        }
        let extents = || {
            self.parts
                .iter()
                .map(|part| Extent::new(part.offset, part.array.layout.bytes()))
        };
        let is_contiguous = || self.parts.iter().all(|part| part.array.layout.rows() <= 1);
        let is_small = self.access == Access::Filled
            && self.is_on_host()
            && is_contiguous()
            && target.executor.suits_resident(&*target.handle, self.choice, extents());
        let (access, choice, waits, bytes) = (self.access, self.choice, self.waits, self.bytes);
        let (lent, exports) = self.lend(py, target, stream)?;
        if is_small {
            let small = |part: &Lent| SmallRead {
                extent: Extent::new(part.offset, part.region.bytes()),
                to: Arc::clone(&part.region),
                at: 0,
            };
            let reads: Vec<_> = lent.iter().map(small).collect();
            let read = py.detach(|| target.executor.read_resident(&target.handle, choice, &reads));
            if let Some(outcome) = read {
                drop((reads, lent));
                exports
                    .into_iter()
                    .filter_map(Arc::into_inner)
                    .for_each(|export| export.release(py));
                return outcome.map(|receipt| Running::ended(receipt, traces)).or_raise();
            }
        }
        let jobs = Jobs {
            target,
            access,
            choice,
            waits,
        };
        py.detach(|| jobs.begin(lent))
            .map(|(begun, all)| Running::new(begun, all, bytes, traces))
            .or_raise()
    }

    /// Lends the memory of the arrays to regions.
    fn lend(
        self,
        py: Python<'_>,
        target: &Target,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Vec<Lent>, Vec<Arc<Export>>)> {
        let mut fences = Fences::default();
        let (mut lent, mut exports) = (
            Vec::with_capacity(self.parts.len()),
            Vec::with_capacity(self.parts.len()),
        );
        for Part { offset, array } in self.parts {
            let Array {
                place,
                layout,
                export,
                stream: own,
            } = array;
            if layout.bytes() == 0 {
                continue;
            }
            let export = Arc::new(export);
            let owner: Owner = Arc::clone(&export) as Owner;
            exports.push(export);
            let region = match place {
                Place::Gpu(number) => {
                    let fence = fences.of(py, number, stream.filter(|s| !s.is_none()), own)?;
                    if target.executor.gds().may_serve(place, layout.bytes(), self.choice) {
                        // Copies wait for a fence on the device. cuFile does not know it.
                        py.detach(|| fence.wait()).or_raise()?;
                    }
                    let context = fences.contexts.on(number).or_raise()?;
                    let bytes = usize::try_from(layout.span_bytes).unwrap_or(usize::MAX);
                    // SAFETY: the memory stays allocated as long as its export, which the region keeps.
                    let memory = unsafe { DeviceMemory::lend(context, layout.start, bytes, owner) }.or_raise()?;
                    Region::of_device(Arc::new(memory.after(&fence)))
                }
                Place::Host | Place::P2p(_) => {
                    let start = std::ptr::NonNull::new(layout.start as *mut u8);
                    let start = start.ok_or_else(|| PyTypeError::new_err("the array has no memory"))?;
                    // SAFETY: the bytes of the array are valid for all threads as long as its export, which the region
                    // keeps, and no Rust reference to them exists. An array that is filled is writable; of others the
                    // region is only read. The bytes between rows are not touched: no move of the call has them.
                    unsafe { Region::lent_host(start, layout.span_bytes, owner) }.or_raise()?
                }
            };
            lent.push(Lent {
                offset,
                moves: layout.moves(offset).collect(),
                region: Arc::new(region),
            });
        }
        Ok((lent, exports))
    }
}

/// A range whose array is lent to a region.
struct Lent {
    offset: u64,
    moves: Vec<Move>,
    region: Arc<Region>,
}

/// The fences of the GPUs of one call.
#[derive(Default)]
struct Fences {
    contexts: Contexts,
    known: Vec<(u32, u64, Arc<Fence>)>,
}

impl Fences {
    /// The fence after all work that is now in the caller's stream.
    fn of(
        &mut self,
        py: Python<'_>,
        gpu: u32,
        stream: Option<&Bound<'_, PyAny>>,
        own: Option<u64>,
    ) -> PyResult<Arc<Fence>> {
        let handle = match own.filter(|_| stream.is_none()) {
            Some(handle) => handle,
            None => py
                .import("straightway._arrays")?
                .call_method1("stream_of", (stream, gpu))?
                .extract()?,
        };
        if let Some((.., fence)) = self
            .known
            .iter()
            .find(|(number, of, _)| (*number, *of) == (gpu, handle))
        {
            return Ok(Arc::clone(fence));
        }
        let context = self.contexts.on(gpu).or_raise()?;
        // SAFETY: the handle is that of the caller's stream, or of the current stream of a library on that GPU.
        let fence = Arc::new(unsafe { Fence::record(context, handle) }.or_raise()?);
        self.known.push((gpu, handle, Arc::clone(&fence)));
        Ok(fence)
    }
}

/// The jobs of a call.
struct Jobs<'a> {
    target: &'a Target,
    access: Access,
    choice: Choice,
    waits: bool,
}

/// Begun jobs, each with the seconds from the start of the call, and their common end if there are several.
type Begun = (Vec<(Ticket, f64)>, Option<Arc<Together>>);

impl Jobs<'_> {
    fn begin(&self, lent: Vec<Lent>) -> Result<Begun> {
        let (count, start) = (lent.len(), Instant::now());
        let all = (count > 1).then(|| Together::new(count));
        let mut begun = Vec::with_capacity(count);
        for part in lent {
            // If one cannot be begun, those before it are cancelled as their tickets are dropped.
            let ticket = self.job(part, all.as_ref())?;
            begun.push((ticket, start.elapsed().as_secs_f64()));
        }
        Ok((begun, all))
    }

    fn job(&self, part: Lent, all: Option<&Arc<Together>>) -> Result<Ticket> {
        let objects = Objects::new(Arc::clone(&self.target.store), vec![Arc::clone(&self.target.handle)]);
        let ask = Ask {
            syncs: false,
            keeps_edges: true,
            may_try: self.waits,
            ..Ask::from(self.choice)
        };
        let executor = &self.target.executor;
        if self.access == Access::Filled {
            let ask = match all.cloned() {
                Some(all) => ask.then(move |_| all.end(1)),
                None => ask,
            };
            return executor.read(objects, part.moves, &part.region, ask);
        }
        let (writes, all) = (Arc::clone(&self.target.writes), all.cloned());
        self.target.writes.begin();
        let ask = ask.then(move |outcome| {
            writes.end(outcome);
            if let Some(all) = &all {
                all.end(1);
            }
        });
        let begun = executor.write(&part.region, objects, part.moves, ask);
        if let Err(error) = &begun {
            self.target.writes.end(&Err(error.again()));
        }
        begun
    }
}
