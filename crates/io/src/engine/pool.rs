//! I/O by a pool of threads: by `pread` and `pwrite` where io_uring is forbidden, as in most
//! containers, or by whatever else takes a thread for as long as it runs.
//!
//! Each thread runs one I/O at a time, so the queue is as deep as the pool has threads.

use std::{
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    thread::{Builder, JoinHandle},
    time::Duration,
};

use straightway_core::{Error, Result};
use straightway_sys::{Done, Io, blocking};

use super::{Capabilities, Engine};

/// A thread costs a stack and a switch: beyond this, more of them make nothing faster.
pub const THREADS_MAX: u32 = 64;

/// How a thread of a pool runs an I/O.
pub(super) type Run = dyn Fn(Io) -> Done + Send + Sync;

/// A pool of threads as an engine.
#[derive(Debug)]
pub struct Pool {
    /// `None` only while being dropped.
    work: Option<Sender<Io>>,
    done: Receiver<Done>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
    name: &'static str,
}

impl Pool {
    /// A pool that runs `depth` I/Os at a time, at most [`THREADS_MAX`].
    pub fn new(depth: u32) -> Result<Self> {
        let run: Arc<Run> = Arc::new(blocking::run);
        Self::running("thread pool", depth, &run)
    }

    /// A pool whose threads do what `run` does.
    pub(super) fn running(name: &'static str, depth: u32, run: &Arc<Run>) -> Result<Self> {
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
        })
    }
}

/// Takes one I/O after the other until the engine is dropped.
fn serve(inbox: &Mutex<Receiver<Io>>, outbox: &Sender<Done>, run: &Run) {
    loop {
        let next = inbox
            .lock()
            .expect("no thread panics while it waits")
            .recv();
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
                Err(RecvTimeoutError::Timeout) => return Ok(0),
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = std::io::Error::other("all its threads have ended");
                    return Err(Error::os("wait for", "the thread pool", ended));
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
