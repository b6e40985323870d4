//! Reads through a cache: what is there is copied, what is missing is fetched by the engine of the store and kept.
//!
//! Files are read and written by a few threads, since both may wait for a drive. An I/O goes to one of them, which looks
//! for its bytes. If they are there, it is done. If not, it goes to the store's engine, and then to a thread again, which
//! keeps what came. An I/O whose bytes another process is fetching is looked at again after a while; when that takes too
//! long, they are fetched here as well, and not kept.

use std::{
    any::Any,
    collections::{HashMap, VecDeque},
    fmt, io, mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use straightway_core::{Error, Kind, Object, Result};
use straightway_io::{
    Handle,
    engine::{
        Capabilities, Engine,
        pool::{Pool, Run},
    },
    gauge::SocketTally,
    request::{Done, Io, Op},
};
use straightway_sys::Tries;

use crate::{
    entry::Claim,
    object::{CachedObject, Found},
};

/// Threads of a lane that read and write files. Several lanes share the processor.
const THREADS: u32 = 4;

/// How long one side is waited for while the other has I/Os too: nothing waits for both at once.
const TURN: Duration = Duration::from_millis(1);

/// When an I/O is looked at again whose bytes another process is fetching, and how long that may take in all.
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
    /// What the store's engine fetches of cached objects, by the tag of the I/O.
    fetching: HashMap<u32, (Arc<Task>, usize)>,
    /// I/Os whose bytes another process is fetching, and when they are looked at again.
    busy: VecDeque<(Instant, Io)>,
    /// I/Os of jobs that were stopped.
    given_up: Vec<Done>,
    in_threads: usize,
    in_inner: usize,
    depth: usize,
    note: Option<String>,
    is_used: bool,
}

/// What a thread does with an I/O. It is the I/O's object while a thread or a queue has it.
struct Task {
    object: Arc<CachedObject>,
    since: Instant,
    step: Mutex<Step>,
}

#[derive(Debug, Default)]
enum Step {
    /// Look where the bytes are.
    #[default]
    Look,
    /// What a look found.
    Found(Found),
    /// Keep what was fetched.
    Keep(Claim, Fetched),
    /// That was done.
    Kept(Fetched),
}

/// How many bytes were fetched, and what it took.
#[derive(Clone, Copy, Debug)]
struct Fetched {
    bytes: usize,
    tries: Tries,
}

impl CacheEngine {
    /// An engine that reads through the caches of the objects that it gets.
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
            given_up: Vec::new(),
            in_threads: 0,
            in_inner: 0,
            depth,
            note: None,
            is_used: false,
        })
    }

    fn in_hand(&self) -> usize {
        let queued = self.to_threads.len() + self.to_inner.len() + self.busy.len();
        queued + self.given_up.len() + self.in_threads + self.in_inner
    }

    /// Hands on what waits. Answers when there is more to hand on, where that is known.
    fn hand_on(&mut self, now: Instant) -> Option<Instant> {
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

    /// Has an I/O, or the front of it, fetched. One that does not fit comes back.
    fn fetch(&mut self, mut io: Io) -> Result<(), Io> {
        let Some(task) = Task::of(&io.object) else {
            return self.inner.submit(io);
        };
        let (tag, whole) = (io.tag, io.bytes);
        if let Step::Found(Found::Remote(bytes, _)) = &*task.step() {
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

    /// Takes what the threads have done.
    fn poll_threads(&mut self, done: &mut Vec<Done>, wait: Duration) -> Result<()> {
        let mut came = Vec::new();
        self.in_threads -= self.threads.poll(&mut came, wait)?;
        for Done { io, .. } in came {
            let task = Task::of(&io.object).expect("threads have tasks alone");
            let step = mem::take(&mut *task.step());
            let object = Arc::clone(&task.object) as Arc<dyn Handle>;
            match step {
                Step::Found(Found::Copied(bytes)) => {
                    let copied = Done::new(io.map(|_| object), Ok(bytes));
                    done.push(Done {
                        is_from_cache: true,
                        ..copied
                    });
                }
                Step::Found(Found::Busy) => {
                    self.busy.push_back((Instant::now() + BUSY_INTERVAL, io));
                }
                Step::Found(found) => {
                    *task.step() = Step::Found(found);
                    self.to_inner.push_back(io);
                }
                Step::Kept(Fetched { bytes, tries }) => {
                    let kept = Done::new(io.map(|_| object), Ok(bytes));
                    done.push(Done { tries, ..kept });
                }
                Step::Look | Step::Keep(..) => unreachable!("a thread has done it"),
            }
            if self.note.is_none() {
                self.note = task.object.cache().recent_note();
            }
        }
        Ok(())
    }

    /// Takes what the store's engine has done, and has it kept.
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
                Step::Found(Found::Remote(_, claim)) => claim,
                _ => None,
            };
            let tries = fetched.tries;
            let io = Io {
                bytes: whole,
                ..fetched.io
            };
            match (fetched.result, claim) {
                // A part is not kept: the claim is of the whole range.
                (Ok(bytes), Some(claim)) if bytes == asked => {
                    *task.step() = Step::Keep(claim, Fetched { bytes, tries });
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

    /// Waits for whichever side has I/Os, up to `most`.
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

/// Does what a task says.
fn run(mut io: Io) -> Done {
    let task = Task::of(&io.object).expect("threads have tasks alone");
    let step = mem::take(&mut *task.step());
    let next = match step {
        Step::Look => {
            let waits = task.since.elapsed() < BUSY_MAX;
            Step::Found(task.object.look(&mut io, waits))
        }
        Step::Keep(claim, fetched) => {
            claim.keep(&io);
            Step::Kept(fetched)
        }
        done => done,
    };
    *task.step() = next;
    Done::new(io, Ok(0))
}

impl Engine for CacheEngine {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.in_hand() >= self.depth {
            return Err(io);
        }
        match CachedObject::of(&io.object).filter(|_| io.op == Op::Read) {
            Some(object) => {
                self.is_used = true;
                let task = Arc::new(Task {
                    object,
                    since: Instant::now(),
                    step: Mutex::default(),
                });
                self.to_threads.push_back(io.map(|_| task as _));
            }
            None => self.to_inner.push_back(io),
        }
        // What can begin begins now. What cannot is tried again by each poll.
        self.hand_on(Instant::now());
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        let (before, deadline) = (done.len(), Instant::now() + timeout);
        loop {
            let now = Instant::now();
            let due = self.hand_on(now);
            done.append(&mut self.given_up);
            self.poll_threads(done, Duration::ZERO)?;
            self.poll_inner(done, Duration::ZERO)?;
            let count = done.len() - before;
            if count > 0 || self.in_hand() == 0 || now >= deadline {
                return Ok(count);
            }
            let is_queued = !self.to_threads.is_empty() || !self.to_inner.is_empty();
            let most = if is_queued { TURN } else { deadline - now };
            let due = due.map_or(most, |due| due.saturating_duration_since(now));
            self.wait(done, most.min(due))?;
        }
    }

    /// Gives up what waits for the server or for another process. Threads are done in moments.
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
            let error = Error::new(Kind::Cancelled, "read", name, "it was stopped");
            let object = Task::of(&io.object).map(|task| Arc::clone(&task.object) as _);
            let io = io.map(|handle| object.unwrap_or(handle));
            self.given_up
                .push(Done::new(io, Err(io::Error::other(error))));
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            depth: self.depth,
            ..self.inner.capabilities()
        }
    }

    fn names(&self) -> Vec<&'static str> {
        let mut names = self.inner.names();
        names.extend(self.is_used.then_some("cache"));
        names
    }

    fn warning(&self) -> Option<&str> {
        self.note.as_deref().or_else(|| self.inner.warning())
    }

    fn sockets(&mut self) -> Vec<SocketTally> {
        self.inner.sockets()
    }

    fn rest(&mut self) {
        self.is_used = false;
        self.note = None;
        self.inner.rest();
    }
}

impl Task {
    fn of(handle: &Arc<dyn Handle>) -> Option<Arc<Self>> {
        let any: Arc<dyn Any + Send + Sync> = Arc::clone(handle) as _;
        any.downcast().ok()
    }

    fn step(&self) -> MutexGuard<'_, Step> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
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
