//! A few threads for work that may block: the ends of jobs, and calls that a caller waits for.
//!
//! They start when needed, are used again, and end after a while without work. Work has a key, such as the file system
//! that it waits for, and each key has a limited share of the threads: storage that hangs holds up the work of its own
//! key and no other.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    hash::Hash,
    sync::{Arc, MutexGuard},
    thread::Builder,
    time::Duration,
};

use straightway_core::{Error, Lock, Signal};

/// How long a thread waits for more work before it ends.
const IDLE_MAX: Duration = Duration::from_secs(10);

/// What a thread runs.
pub type Work = Box<dyn FnOnce() + Send>;

/// Threads that run work. When this is dropped, they do what was given to them, and nobody waits for them.
#[derive(Debug)]
pub struct Threads<K>(Arc<Shared<K>>);

/// The limits of threads, and their name.
#[derive(Clone, Copy, Debug)]
pub struct ThreadLimits {
    /// The most threads.
    pub threads: usize,
    /// The most threads that run work of one key.
    pub per_key: usize,
    /// Their name.
    pub name: &'static str,
}

#[derive(Debug)]
struct Shared<K> {
    limits: ThreadLimits,
    state: Lock<State<K>>,
    changed: Signal,
}

struct State<K> {
    /// Work that a thread may begin. Each counts as running.
    ready: VecDeque<(K, Work)>,
    /// Work of keys that have all their threads.
    waiting: HashMap<K, VecDeque<Work>>,
    /// The number of ready and running works of each key.
    running: HashMap<K, usize>,
    threads: usize,
    /// Threads that were started and look for their first work.
    starting: usize,
    idle: usize,
    is_closed: bool,
}

impl<K: Clone + Eq + Hash + Send + 'static> Threads<K> {
    /// Threads within these limits. None is started yet.
    pub fn new(limits: ThreadLimits) -> Self {
        let state = State {
            ready: VecDeque::new(),
            waiting: HashMap::new(),
            running: HashMap::new(),
            threads: 0,
            starting: 0,
            idle: 0,
            is_closed: false,
        };
        Self(Arc::new(Shared {
            limits,
            state: Lock::new(state),
            changed: Signal::new(),
        }))
    }

    /// Runs `work`, which must not panic, on one of the threads. If none can be started, the work comes back.
    pub fn run(&self, key: K, work: impl FnOnce() + Send + 'static) -> Result<(), (Error, Work)> {
        let ThreadLimits { threads, per_key, name } = self.0.limits;
        let mut state = self.0.lock();
        state.add(key, Box::new(work), per_key);
        if state.ready.len() <= state.idle + state.starting || state.threads >= threads {
            self.0.changed.notify_all();
            return Ok(());
        }
        let shared = Arc::clone(&self.0);
        let started = Builder::new().name(name.to_owned()).spawn(move || shared.serve());
        let Err(error) = started else {
            state.threads += 1;
            state.starting += 1;
            return Ok(());
        };
        if state.threads > 0 {
            // The others do it later.
            return Ok(());
        }
        let (key, work) = state.ready.pop_back().expect("without threads, new work is ready");
        state.end(&key);
        Err((Error::os("start", "a thread", error), work))
    }
}

impl<K> Drop for Threads<K> {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.changed.notify_all();
    }
}

impl<K: Clone + Eq + Hash> Shared<K> {
    /// The main loop of a thread.
    fn serve(&self) {
        let mut state = self.lock();
        state.starting -= 1;
        loop {
            if let Some((key, work)) = state.ready.pop_front() {
                drop(state);
                work();
                state = self.lock();
                state.end(&key);
                continue;
            }
            state.idle += 1;
            let is_idle = |state: &mut State<K>| state.ready.is_empty() && !state.is_closed;
            state = self.changed.wait_timeout_while(state, IDLE_MAX, is_idle);
            state.idle -= 1;
            if state.ready.is_empty() {
                break;
            }
        }
        state.threads -= 1;
    }
}

impl<K> Shared<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.state.lock()
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    fn add(&mut self, key: K, work: Work, per_key: usize) {
        let running = self.running.entry(key.clone()).or_default();
        if *running < per_key {
            *running += 1;
            self.ready.push_back((key, work));
        } else {
            self.waiting.entry(key).or_default().push_back(work);
        }
    }

    /// Notes that a work of a key has ended. The next one of the same key takes its place.
    fn end(&mut self, key: &K) {
        if let Some(waiting) = self.waiting.get_mut(key) {
            let next = waiting.pop_front();
            if waiting.is_empty() {
                self.waiting.remove(key);
            }
            if let Some(next) = next {
                return self.ready.push_back((key.clone(), next));
            }
        }
        if let Some(running) = self.running.get_mut(key) {
            *running -= 1;
            if *running == 0 {
                self.running.remove(key);
            }
        }
    }
}

impl<K> fmt::Debug for State<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    const LIMITS: ThreadLimits = ThreadLimits {
        threads: 20,
        per_key: 4,
        name: "test-threads",
    };

    /// Gives `count` works of a key that wait until the returned sender is dropped.
    fn hang(threads: &Threads<u32>, key: u32, count: usize) -> Sender<()> {
        let (release, held) = channel::<()>();
        let held = Arc::new(Lock::new(held));
        for _ in 0..count {
            let held = Arc::clone(&held);
            let work = move || held.lock().recv().unwrap_or_default();
            assert!(threads.run(key, work).is_ok());
        }
        release
    }

    #[test]
    fn keys_that_hang_delay_only_their_own_work_and_threads_stay_few() {
        let threads = Threads::new(LIMITS);
        let hanging: Vec<_> = (0..4).map(|key| hang(&threads, key, 1000)).collect();
        assert_eq!(threads.0.lock().threads, 4 * LIMITS.per_key);
        let (ended, inbox) = channel();
        for number in 0..1000 {
            let ended = ended.clone();
            assert!(threads.run(4, move || ended.send(number).unwrap()).is_ok());
        }
        drop(ended);
        assert_eq!(inbox.iter().count(), 1000);
        assert!(threads.0.lock().threads <= LIMITS.threads);
        drop(hanging);
    }

    #[test]
    fn work_that_was_given_is_done_after_its_owner_is_gone() {
        let threads = Threads::new(LIMITS);
        let shared = Arc::clone(&threads.0);
        let (ended, inbox) = channel();
        let release = hang(&threads, 1, LIMITS.per_key);
        assert!(threads.run(1, move || ended.send(()).unwrap()).is_ok());
        drop((threads, release));
        inbox.recv().unwrap();
        while shared.lock().threads > 0 {
            std::thread::yield_now();
        }
        assert!(shared.lock().running.is_empty());
    }
}
