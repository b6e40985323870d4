//! I/O by a pool of threads: `pread` and `pwrite` where io_uring is forbidden, as in most containers, or any other
//! blocking call.
//!
//! Each thread runs one I/O at a time, so the queue depth is the number of threads.

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use straightway_core::{Error, Result};
use straightway_sys::blocking;

use super::{Capabilities, Engine, EngineReport};
use crate::request::{Done, Io, run_on_file};

/// The most threads of a pool. More cost stacks and context switches and make nothing faster.
pub const THREADS_MAX: u32 = 64;

/// The function that runs an I/O on a thread of the pool.
pub type Run = dyn Fn(Io) -> Done + Send + Sync;

/// A pool of threads as an engine.
#[derive(Debug)]
pub struct Pool {
    /// `None` only while being dropped.
    work: Option<Sender<Io>>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
    name: &'static str,
    /// Why it runs instead of another engine.
    warning: Option<String>,
}

impl Pool {
    /// A pool with queue depth `depth`, at most [`THREADS_MAX`].
    pub fn new(depth: u32) -> Result<Self> {
        let run: Arc<Run> = Arc::new(|io| run_on_file(io, blocking::run));
        Self::running("thread pool", depth, &run)
    }

    /// The same, with a warning why it replaces io_uring.
    pub(crate) fn instead(depth: u32, why: &Error) -> Result<Self> {
        Ok(Self::new(depth)?.in_place_of_ring(why))
    }

    /// Adds a warning why it replaces io_uring.
    #[must_use]
    pub fn in_place_of_ring(mut self, why: &Error) -> Self {
        self.warning = Some(format!("a pool of threads runs the I/Os: {why}"));
        self
    }

    /// A pool whose threads call `run`.
    pub fn running(name: &'static str, depth: u32, run: &Arc<Run>) -> Result<Self> {
        let (work, inbox) = channel::<Io>();
        let (outbox, done) = channel();
        let inbox = Arc::new(Mutex::new(inbox));
        let threads = (0..depth.clamp(1, THREADS_MAX)).map(|i| {
            let (inbox, outbox, run) = (Arc::clone(&inbox), outbox.clone(), Arc::clone(run));
            let name = format!("straightway-pool-{i}");
            let work = move || serve(&inbox, &outbox, &*run);
            Builder::new()
                .name(name)
                .spawn(work)
                .map_err(|e| Error::os("start", "a pool thread", e))
        });
        let threads = threads.collect::<Result<_>>()?;
        Ok(Self {
            work: Some(work),
            done,
            threads,
            in_flight: 0,
            name,
            warning: None,
        })
    }
}

/// Runs I/Os until the engine is dropped.
fn serve(inbox: &Mutex<Receiver<Io>>, outbox: &Sender<Done>, run: &Run) {
    loop {
        let next = inbox.lock().expect("no thread panics while it waits").recv();
        let Ok(io) = next else { return };
        if outbox.send(run(io)).is_err() {
            return;
        }
    }
}

impl Engine for Pool {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.in_flight == self.threads.len() {
            return Err(io);
        }
        let work = self.work.as_ref().expect("there until it is dropped");
        work.send(io).map_err(|refused| refused.0)?;
        self.in_flight += 1;
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        let before = done.len();
        if self.in_flight > 0 {
            match self.done.recv_timeout(timeout) {
                Ok(first) => done.push(first),
                // A thread that has ended lost its I/O, which would never complete.
                Err(RecvTimeoutError::Timeout) if self.threads.iter().any(JoinHandle::is_finished) => {
                    return Err(ended("one of its threads has ended"));
                }
                Err(RecvTimeoutError::Timeout) => return Ok(0),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(ended("all its threads have ended"));
                }
            }
            done.extend(self.done.try_iter());
        }
        self.in_flight -= done.len() - before;
        Ok(done.len() - before)
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: self.name,
            depth: self.threads.len(),
        }
    }

    fn report(&mut self) -> EngineReport {
        EngineReport {
            warning: self.warning.clone(),
            ..EngineReport::of(self.name)
        }
    }
}

fn ended(message: &str) -> Error {
    Error::os("wait for", "the thread pool", std::io::Error::other(message))
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.work = None;
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing left to clean up.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use straightway_sys::{Buf, File, IoPath, Op, Slot};

    use super::*;

    #[test]
    fn a_panicking_thread_is_an_error_instead_of_an_endless_wait() {
        let run: Arc<Run> = Arc::new(|_| panic!("a thread that panics, for a test"));
        let mut pool = Pool::running("panics", 2, &run).unwrap();
        let slot = Slot::ring(1, 4096).unwrap().remove(0);
        let io = Io {
            op: Op::Read,
            object: Arc::new(File::open(&std::env::current_exe().unwrap()).unwrap()),
            by: IoPath::PageCache,
            offset: 0,
            buf: Buf::Slot(slot),
            start: 0,
            bytes: 4096,
            tag: 0,
        };
        pool.submit(io).unwrap();
        let mut done = Vec::new();
        let mut polls = (0..100).map(|_| pool.poll(&mut done, Duration::from_millis(50)));
        let error = polls.find_map(Result::err).expect("it is noticed");
        assert!(error.to_string().contains("has ended"), "{error}");
    }
}
