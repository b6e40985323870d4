//! Reads through a cache: cached bytes are copied; missing bytes are fetched by the store's engine and cached.
//!
//! A few threads read and write the files, since both may block on a drive. An I/O goes to a thread, which looks up its
//! bytes. If they are cached, the I/O is done. Otherwise it goes to the store's engine, and then to a thread again,
//! which stores the fetched bytes. If another process is fetching the bytes, the lookup is repeated after a while. If
//! that takes too long, they are fetched here as well, and not stored.

use std::{
    collections::{HashMap, VecDeque},
    fmt, io, mem,
    sync::{Arc, MutexGuard},
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind, Lock, Object, Result};
use straightway_io::{
    Handle,
    engine::{
        Capabilities, Engine, EngineReport,
        pool::{Pool, Run},
    },
    request::{Done, Io, Op},
    store::own_handle,
};
use straightway_sys::Tries;

use crate::{
    entry::Claim,
    object::{CacheLookup, CachedObject},
};

/// The threads per lane that read and write files. Several lanes share the processor.
const THREADS: u32 = 4;

/// The poll timeout while both the threads and the store's engine have I/Os: a wait covers only one of them.
const TURN: Duration = Duration::from_millis(1);

/// The interval of repeated lookups while another process fetches the bytes, and the longest wait for it.
const BUSY_INTERVAL: Duration = Duration::from_millis(10);
const BUSY_MAX: Duration = Duration::from_secs(30);

/// An engine with a cache in front of it.
#[derive(Debug)]
pub(crate) struct CacheEngine {
    inner: Box<dyn Engine>,
    threads: Pool,
    /// I/Os that wait for a thread.
    to_threads: VecDeque<Io>,
    /// I/Os that wait for the store's engine.
    to_inner: VecDeque<Io>,
    /// The fetches of cached objects in the store's engine, by the tag of the I/O, with the I/O's full length.
    fetching: HashMap<u32, (Arc<Task>, usize)>,
    /// I/Os whose bytes another process is fetching, with the time of their next lookup.
    busy: VecDeque<(Instant, Io)>,
    /// Cancelled I/Os.
    cancelled: Vec<Done>,
    in_threads: usize,
    in_inner: usize,
    depth: usize,
    note: Option<String>,
    is_used: bool,
}

/// The work of a thread on an I/O. It replaces the I/O's object while a thread or a queue has the I/O.
struct Task {
    object: Arc<CachedObject>,
    since: Instant,
    step: Lock<Step>,
}

#[derive(Debug, Default)]
enum Step {
    /// To do: look up the bytes.
    #[default]
    Lookup,
    /// The result of the lookup.
    Found(CacheLookup),
    /// To do: store the fetched bytes.
    Store(Claim, Fetched),
    /// The fetched bytes were stored, if that was possible.
    Stored(Fetched),
}

/// The number of fetched bytes, with the retries.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    bytes: usize,
    tries: Tries,
}

impl CacheEngine {
    /// An engine that reads through the caches of its objects.
    pub(crate) fn new(inner: Box<dyn Engine>) -> Result<Self> {
        let depth = inner.capabilities().depth;
        let run: Arc<Run> = Arc::new(run);
        let threads = THREADS.min(u32::try_from(depth).unwrap_or(THREADS));
        Ok(Self {
            threads: Pool::running("cache", threads, &run)?,
            inner,
            to_threads: VecDeque::with_capacity(depth),
            to_inner: VecDeque::with_capacity(depth),
            fetching: HashMap::with_capacity(depth),
            busy: VecDeque::with_capacity(depth),
            cancelled: Vec::new(),
            in_threads: 0,
            in_inner: 0,
            depth,
            note: None,
            is_used: false,
        })
    }

    fn in_flight(&self) -> usize {
        let queued = self.to_threads.len() + self.to_inner.len() + self.busy.len();
        queued + self.cancelled.len() + self.in_threads + self.in_inner
    }

    /// Submits queued I/Os to the threads and to the store's engine. Returns the time of the next repeated lookup.
    fn dispatch(&mut self, now: Instant) -> Option<Instant> {
        while let Some((_, io)) = self.busy.pop_front_if(|(at, _)| *at <= now) {
            self.to_threads.push_back(io);
        }
        while let Some(io) = self.to_threads.pop_front() {
            if let Err(io) = self.threads.submit(io) {
                self.to_threads.push_front(io);
                break;
            }
            self.in_threads += 1;
        }
        while let Some(io) = self.to_inner.pop_front() {
            if let Err(io) = self.fetch(io) {
                self.to_inner.push_front(io);
                break;
            }
            self.in_inner += 1;
        }
        self.busy.front().map(|(at, _)| *at)
    }

    /// Submits an I/O, or its missing front, to the store's engine. Returns the I/O if the queue is full.
    fn fetch(&mut self, mut io: Io) -> Result<(), Io> {
        let Some(task) = Task::of(&io.object) else {
            return self.inner.submit(io);
        };
        let (tag, whole) = (io.tag, io.bytes);
        if let Step::Found(CacheLookup::Remote(bytes, _)) = &*task.step() {
            io.bytes = whole.min(*bytes);
        }
        let remote = Arc::clone(&task.object.remote);
        if let Err(io) = self.inner.submit(io.map(|_| remote)) {
            let io = io.map(|_| task as Arc<dyn Handle>);
            return Err(Io { bytes: whole, ..io });
        }
        self.fetching.insert(tag, (task, whole));
        Ok(())
    }

    /// Handles the completions of the threads.
    fn poll_threads(&mut self, done: &mut Vec<Done>, wait: Duration) -> Result<()> {
        let mut came = Vec::new();
        self.in_threads -= self.threads.poll(&mut came, wait)?;
        for Done { io, .. } in came {
            let task = Task::of(&io.object).expect("threads have only tasks");
            let step = mem::take(&mut *task.step());
            let object = Arc::clone(&task.object) as Arc<dyn Handle>;
            match step {
                Step::Found(CacheLookup::Copied(bytes)) => {
                    let copied = Done::new(io.map(|_| object), Ok(bytes));
                    done.push(Done {
                        is_from_cache: true,
                        ..copied
                    });
                }
                Step::Found(CacheLookup::Busy) => {
                    self.busy.push_back((Instant::now() + BUSY_INTERVAL, io));
                }
                Step::Found(found) => {
                    *task.step() = Step::Found(found);
                    self.to_inner.push_back(io);
                }
                Step::Stored(Fetched { bytes, tries }) => {
                    let stored = Done::new(io.map(|_| object), Ok(bytes));
                    done.push(Done { tries, ..stored });
                }
                Step::Lookup | Step::Store(..) => unreachable!("a thread has done it"),
            }
            if self.note.is_none() {
                self.note = task.object.cache().recent_note();
            }
        }
        Ok(())
    }

    /// Handles the completions of the store's engine, and queues the fetched bytes to be stored.
    fn poll_inner(&mut self, done: &mut Vec<Done>, wait: Duration) -> Result<()> {
        let mut came = Vec::new();
        let polled = self.inner.poll(&mut came, wait);
        self.in_inner -= came.len();
        for fetched in came {
            let Some((task, whole)) = self.fetching.remove(&fetched.io.tag) else {
                done.push(fetched);
                continue;
            };
            let asked = fetched.io.bytes;
            let claim = match mem::take(&mut *task.step()) {
                Step::Found(CacheLookup::Remote(_, claim)) => claim,
                _ => None,
            };
            let tries = fetched.tries;
            let io = Io {
                bytes: whole,
                ..fetched.io
            };
            match (fetched.result, claim) {
                // A short read is not stored: the claim is for the whole range.
                (Ok(bytes), Some(claim)) if bytes == asked => {
                    *task.step() = Step::Store(claim, Fetched { bytes, tries });
                    self.to_threads.push_back(io.map(|_| task as _));
                }
                (result, _) => {
                    let object = Arc::clone(&task.object) as Arc<dyn Handle>;
                    let fetched = Done::new(io.map(|_| object), result);
                    done.push(Done { tries, ..fetched });
                }
            }
        }
        polled.map(|_| ())
    }

    /// Waits for a completion of the threads or the store's engine, up to `most`.
    fn wait(&mut self, done: &mut Vec<Done>, most: Duration) -> Result<()> {
        match (self.in_threads > 0, self.in_inner > 0) {
            (true, false) => self.poll_threads(done, most),
            (false, true) => self.poll_inner(done, most),
            (true, true) => self.poll_inner(done, most.min(TURN)),
            (false, false) => {
                std::thread::sleep(most.min(BUSY_INTERVAL));
                Ok(())
            }
        }
    }
}

/// Runs the next step of a task on a thread.
fn run(mut io: Io) -> Done {
    let task = Task::of(&io.object).expect("threads have only tasks");
    let step = mem::take(&mut *task.step());
    let next = match step {
        Step::Lookup => {
            let waits = task.since.elapsed() < BUSY_MAX;
            Step::Found(task.object.lookup(&mut io, waits))
        }
        Step::Store(claim, fetched) => {
            claim.store(&io);
            Step::Stored(fetched)
        }
        done => done,
    };
    *task.step() = next;
    Done::new(io, Ok(0))
}

impl Engine for CacheEngine {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.in_flight() >= self.depth {
            return Err(io);
        }
        match CachedObject::of(&io.object).filter(|_| io.op == Op::Read) {
            Some(object) => {
                self.is_used = true;
                let task = Arc::new(Task {
                    object,
                    since: Instant::now(),
                    step: Lock::default(),
                });
                self.to_threads.push_back(io.map(|_| task as _));
            }
            None => self.to_inner.push_back(io),
        }
        // I/Os that cannot be submitted now are retried by each poll.
        self.dispatch(Instant::now());
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        let (before, deadline) = (done.len(), Instant::now() + timeout);
        loop {
            let now = Instant::now();
            let due = self.dispatch(now);
            done.append(&mut self.cancelled);
            self.poll_threads(done, Duration::ZERO)?;
            self.poll_inner(done, Duration::ZERO)?;
            let count = done.len() - before;
            if count > 0 || self.in_flight() == 0 || now >= deadline {
                return Ok(count);
            }
            let is_queued = !self.to_threads.is_empty() || !self.to_inner.is_empty();
            let most = if is_queued { TURN } else { deadline - now };
            let due = due.map_or(most, |due| due.saturating_duration_since(now));
            self.wait(done, most.min(due))?;
        }
    }

    /// Cancels I/Os that wait for the server or for another process. Those in threads end soon.
    fn cancel(&mut self, is_unwanted: &dyn Fn(u32) -> bool) {
        self.inner.cancel(is_unwanted);
        let busy = mem::take(&mut self.busy).into_iter();
        let (unwanted, wanted): (Vec<_>, Vec<_>) = busy.partition(|(_, io)| is_unwanted(io.tag));
        self.busy = wanted.into();
        let queued = mem::take(&mut self.to_inner).into_iter();
        let (queued, wanted): (Vec<_>, Vec<_>) = queued.partition(|io| is_unwanted(io.tag));
        self.to_inner = wanted.into();
        for io in unwanted.into_iter().map(|(_, io)| io).chain(queued) {
            let name = io.object.object().name;
            let error = Error::new(ErrorKind::Cancelled, "read", name, "it was stopped");
            let object = Task::of(&io.object).map(|task| Arc::clone(&task.object) as _);
            let io = io.map(|handle| object.unwrap_or(handle));
            self.cancelled.push(Done::new(io, Err(io::Error::other(error))));
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            depth: self.depth,
            ..self.inner.capabilities()
        }
    }

    fn report(&mut self) -> EngineReport {
        let mut report = self.inner.report();
        report.names.extend(self.is_used.then_some("cache"));
        report.warning = self.note.clone().or(report.warning);
        report
    }

    fn rest(&mut self) {
        self.is_used = false;
        self.note = None;
        self.inner.rest();
    }
}

impl Task {
    fn of(handle: &Arc<dyn Handle>) -> Option<Arc<Self>> {
        own_handle(handle)
    }

    fn step(&self) -> MutexGuard<'_, Step> {
        self.step.lock()
    }
}

impl Handle for Task {
    fn object(&self) -> Object {
        self.object.object()
    }

    fn read_exact_at(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.object.read_exact_at(offset, bytes)
    }

    fn check_unchanged(&self) -> Result<()> {
        self.object.check_unchanged()
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Task").field(&self.object).finish()
    }
}
