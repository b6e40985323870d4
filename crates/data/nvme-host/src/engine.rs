//! The data path of a lane: one queue pair per controller, on io_uring sockets.
//!
//! A read becomes one or more commands within the controller's limits. Waiting commands are sent together. Payload is
//! received directly into the memory of the I/O: one vectored operation receives the rest of a payload and the next
//! header. Small payloads that arrive with their headers are copied. A write carries its data in the capsule if it
//! fits, or sends it after an R2T.
//!
//! Every PDU is checked against its command: the command identifier, which is not reused soon; the offset, which must
//! follow the previous data; the length. A fault ends the connection and the whole controller. Its operations are
//! cancelled and completed before any I/O is moved to another queue. The path of one I/O does not allocate, and it
//! takes no lock while the paths do not change.
//!
//! | file | content |
//! |---|---|
//! | `engine.rs` | the `Engine` implementation; timers |
//! | `engine/request.rs` | an I/O in progress |
//! | `engine/queue.rs` | a queue pair: its commands and buffers |
//! | `engine/issuing.rs` | assignment of I/Os to controllers, and their commands |
//! | `engine/sending.rs` | sending |
//! | `engine/receiving.rs` | receiving |
//! | `engine/failing.rs` | retries, failover and errors |

mod failing;
mod issuing;
mod queue;
mod receiving;
mod request;
mod sending;

use std::{
    collections::VecDeque,
    fmt, io,
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_io::{
    Handle,
    engine::{Capabilities, Engine, EngineReport},
    gauge::{Gauge, Watched},
    request::{Done, Io},
    slab::Slab,
};
use straightway_sys::{Process, SocketRing, uring::sockets::SocketCompletion};

use issuing::Reach;
use queue::{ConnectDelay, ConnectingQueue, Queue};
use request::Request;

/// The object of an I/O.
type Object = Arc<dyn Handle>;

/// The maximum number of controllers that one lane connects to.
const QUEUES_MAX: usize = 64;

/// The polling interval while waiting for another thread.
const CONTROL_INTERVAL: Duration = Duration::from_millis(1);

/// The maximum time between two checks of all timers.
const TICK_MAX: Duration = Duration::from_millis(100);

/// The time that a cancelled I/O may take before its connection is closed.
const UNWANTED_MAX: Duration = Duration::from_secs(1);

/// An engine for NVMe/TCP namespaces.
pub struct NvmeEngine {
    ring: SocketRing<Object>,
    depth: usize,
    requests: Slab<Request>,
    queues: Slab<Queue>,
    /// An upper bound of all queue numbers used so far.
    queues_end: u32,
    /// The process ID, updated when an I/O finds the engine idle. Querying it is a system call.
    process: Process,
    /// Queues that threads are connecting.
    connecting: Vec<ConnectingQueue>,
    /// Failed attempts of this lane.
    delays: Vec<ConnectDelay>,
    /// Requests without a queue, oldest first.
    waiting: VecDeque<u32>,
    reaches: Vec<Reach>,
    finished: Vec<Done>,
    landed: Vec<SocketCompletion<Object>>,
    /// A buffer for computing digests of an I/O's memory.
    scratch: Vec<u8>,
    turn: usize,
    /// Whether the last poll of the ring returned completions.
    is_moving: bool,
    looked: Instant,
    /// The time of the last clock read. It is precise enough for new I/Os.
    now: Instant,
    gauge: Gauge,
}

impl NvmeEngine {
    /// An engine for up to `depth` concurrent I/Os. Fails with `Unsupported` if io_uring is not permitted.
    pub fn new(depth: u32) -> Result<Self> {
        let depth = depth.clamp(1, straightway_sys::uring::DEPTH_MAX / 2) as usize;
        let operations = u32::try_from(2 * QUEUES_MAX).expect("there are few");
        Ok(Self {
            ring: SocketRing::new(operations)?,
            depth,
            requests: Slab::new(depth),
            queues: Slab::new(QUEUES_MAX),
            queues_end: 0,
            process: Process::this(),
            connecting: Vec::new(),
            delays: Vec::new(),
            waiting: VecDeque::with_capacity(depth),
            reaches: Vec::new(),
            finished: Vec::with_capacity(depth),
            landed: Vec::with_capacity(2 * QUEUES_MAX),
            scratch: vec![0; 64 << 10],
            turn: 0,
            is_moving: false,
            looked: Instant::now(),
            now: Instant::now(),
            gauge: Gauge::default(),
        })
    }

    /// Does all due work. Returns the time of the next.
    fn tick(&mut self, now: Instant) -> Instant {
        self.now = now;
        let mut due = now + TICK_MAX;
        if now.duration_since(self.looked) >= TICK_MAX / 2 {
            self.looked = now;
            self.check_deadlines(now);
        }
        self.gauge.look(now, watched(&self.queues));
        due = self.gauge.due().map_or(due, |look| due.min(look));
        self.drop_ended(now);
        self.add_connected(now);
        if !self.connecting.is_empty() {
            due = due.min(now + CONTROL_INTERVAL);
        }
        due = due.min(self.start_waiting(now));
        for number in self.queue_numbers() {
            self.issue(number, now);
            self.send(number, now);
            self.receive(number, now);
        }
        due
    }

    /// Whether to poll on because payload of a long read is arriving and most requests are unfinished. I/Os that finish
    /// together are replaced by commands that are sent together, which is cheaper for both sides.
    fn should_poll_on(&self) -> bool {
        let count = self.finished.len();
        let mut queues = self.queues.iter();
        self.is_moving
            && count > 0
            && count < self.requests.len()
            && queues.any(|(_, queue)| queue.long_reads > 0 && queue.incoming.is_some())
    }

    /// The range of queue numbers in use.
    fn queue_numbers(&self) -> impl Iterator<Item = u32> + use<> {
        // Queues use the lowest free numbers, so the range is short.
        0..self.queues_end
    }

    /// Completes a request.
    fn finish(&mut self, number: u32, result: io::Result<usize>) {
        let Request { io, tries, .. } = self.requests.remove(number);
        let io = io.expect("the ring does not have it");
        self.finished.push(Done {
            tries,
            ..Done::new(io, result)
        });
    }

    fn refuse(&mut self, io: Io, kind: ErrorKind, why: &str) {
        let error = Error::new(kind, "transfer", io.object.object().name, why);
        self.finished.push(Done::new(io, Err(io::Error::other(error))));
    }
}

impl Engine for NvmeEngine {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.requests.len() + self.finished.len() >= self.depth {
            return Err(io);
        }
        if !self.gauge.is_running() {
            self.gauge.begin(Instant::now(), watched(&self.queues));
        }
        self.accept(io);
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        let mut now = Instant::now();
        let deadline = now + timeout;
        loop {
            let due = self.tick(now).min(deadline);
            let is_waiting = self.finished.is_empty() && self.requests.len() > 0;
            let wait = due.saturating_duration_since(now);
            if is_waiting && self.ring.in_flight() == 0 {
                // All requests wait for a time or for another thread.
                std::thread::sleep(wait);
                now = Instant::now();
            } else {
                let (least, wait) = if is_waiting { (1, wait) } else { (0, Duration::ZERO) };
                let mut landed = std::mem::take(&mut self.landed);
                let polled = self.ring.poll(&mut landed, least, wait);
                self.is_moving = !landed.is_empty();
                now = Instant::now();
                for one in landed.drain(..) {
                    self.handle_completion(one, now);
                }
                self.landed = landed;
                polled?;
            }
            if self.should_poll_on() {
                continue;
            }
            let count = self.finished.len();
            if count > 0 || self.requests.len() == 0 || now >= deadline {
                done.append(&mut self.finished);
                return Ok(count);
            }
        }
    }

    fn cancel(&mut self, is_unwanted: &dyn Fn(u32) -> bool) {
        let now = Instant::now();
        for number in 0..u32::try_from(self.requests.capacity()).expect("queues are short") {
            let request = self.requests.get(number);
            if request.is_some_and(|request| is_unwanted(request.tag)) {
                self.requests[number].unwanted_since.get_or_insert(now);
            }
        }
        self.looked = now.checked_sub(TICK_MAX).unwrap_or(now);
    }

    /// Closes queues of controllers that have ended. Others are kept for the next transfer.
    fn rest(&mut self) {
        self.drop_ended(Instant::now());
        self.reaches.clear();
        self.delays.clear();
        self.gauge.rest();
    }

    fn report(&mut self) -> EngineReport {
        let open = watched(&self.queues);
        EngineReport {
            sockets: self.gauge.tally(Instant::now(), open).into_iter().collect(),
            ..EngineReport::of(self.capabilities().name)
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "nvme over io_uring sockets",
            depth: self.depth,
        }
    }
}

/// The connections for the gauge.
fn watched(queues: &Slab<Queue>) -> impl Iterator<Item = Watched<'_>> {
    queues.iter().map(|(number, queue)| Watched {
        key: u64::from(number),
        socket: &queue.socket,
        is_owed: queue.commands.len() > 0,
    })
}

impl fmt::Debug for NvmeEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, waiting) = (self.requests.len(), self.waiting.len());
        let (queues, connecting) = (self.queues.len(), self.connecting.len());
        write!(f, "NvmeEngine {{ I/Os: {requests}, {waiting} of them waiting; ")?;
        write!(f, "queues: {queues}, and {connecting} being made }}")
    }
}
