//! The data path of a lane: one queue pair for each controller, on sockets of an io_uring.
//!
//! A read becomes one command or several, each within the controller's limits. All that wait are sent together. Payload
//! is received straight into the memory that the I/O owns: the rest of a payload and the next header come by one
//! operation on two pieces. Small payloads that came with their headers are copied. A write carries its data in the
//! capsule where that fits, or sends it when the target asks for it.
//!
//! Every PDU is checked against the command that it names: the number, which is not used again soon; the offset, which
//! follows what came before; the length. A fault gives the connection up, with the whole controller. Its operations
//! are cancelled and land before any I/O goes elsewhere. Nothing on the way of one I/O allocates, and nothing there
//! locks while the paths stay as they are.
//!
//! | file | content |
//! |---|---|
//! | `engine.rs` | what the lane sees; timers |
//! | `engine/request.rs` | an I/O on its way |
//! | `engine/queue.rs` | a queue pair: its commands and buffers |
//! | `engine/issuing.rs` | which I/O goes to which controller, and its commands |
//! | `engine/sending.rs` | what is sent |
//! | `engine/receiving.rs` | what comes |
//! | `engine/failing.rs` | what follows when something failed |

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

use straightway_core::{Error, Kind, Result};
use straightway_io::{
    Handle,
    engine::{Capabilities, Engine},
    gauge::{Gauge, SocketTally, Watched},
    request::{Done, Io},
    slab::Slab,
};
use straightway_sys::{Sockets, uring::sockets::Landed};

use issuing::Reach;
use queue::{Joining, Queue};
use request::Request;

/// An object as I/Os have it.
type Object = Arc<dyn Handle>;

/// The most controllers that one lane is connected to.
const QUEUES_MAX: usize = 64;

/// How often it looks whether a thread that it waits for is done.
const CONTROL_INTERVAL: Duration = Duration::from_millis(1);

/// The longest time between two looks at everything.
const TICK_MAX: Duration = Duration::from_millis(100);

/// How long an I/O that nobody wants any more may take before its connection is given up.
const UNWANTED_MAX: Duration = Duration::from_secs(1);

/// An engine for namespaces over TCP.
pub struct NvmeEngine {
    ring: Sockets<Object>,
    depth: usize,
    requests: Slab<Request>,
    queues: Slab<Queue>,
    /// All numbers that queues ever had are below.
    queues_end: u32,
    /// The process, as of the last I/O that found the engine idle: asking is a system call.
    process: u32,
    /// Queues that threads are making.
    joining: Vec<Joining>,
    /// Requests without a queue, the oldest first.
    waiting: VecDeque<u32>,
    reaches: Vec<Reach>,
    finished: Vec<Done>,
    landed: Vec<Landed<Object>>,
    /// Bytes of an I/O on their way through a digest.
    scratch: Vec<u8>,
    turn: usize,
    /// Whether the last look at the ring found anything.
    is_moving: bool,
    looked: Instant,
    /// The last look at the clock: I/Os that are taken on need no better one.
    now: Instant,
    gauge: Gauge,
}

impl NvmeEngine {
    /// An engine for `depth` I/Os at a time; `Unsupported` where io_uring is forbidden.
    pub fn new(depth: u32) -> Result<Self> {
        let depth = depth.clamp(1, straightway_sys::uring::DEPTH_MAX / 2) as usize;
        let operations = u32::try_from(2 * QUEUES_MAX).expect("there are few");
        Ok(Self {
            ring: Sockets::new(operations)?,
            depth,
            requests: Slab::new(depth),
            queues: Slab::new(QUEUES_MAX),
            queues_end: 0,
            process: std::process::id(),
            joining: Vec::new(),
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

    /// Does what is due. Answers when the next thing is.
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
        self.take_joined(now);
        if !self.joining.is_empty() {
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

    /// Whether payload of another read is on its way, while the target has at least as many commands as are done. What is
    /// done together is replaced by commands that are sent together, which costs both sides less.
    fn is_more_there(&self) -> bool {
        let count = self.finished.len();
        let mut queues = self.queues.iter();
        self.is_moving
            && count > 0
            && count < self.requests.len()
            && queues.any(|(_, queue)| queue.long_reads > 0 && queue.filling.is_some())
    }

    /// The numbers that queues can have.
    fn queue_numbers(&self) -> impl Iterator<Item = u32> + use<> {
        // Queues have the lowest free numbers, so that few are looked at.
        0..self.queues_end
    }

    /// Ends a request.
    fn finish(&mut self, number: u32, result: io::Result<usize>) {
        let Request { io, tries, .. } = self.requests.remove(number);
        let io = io.expect("the ring does not have it");
        self.finished.push(Done {
            tries,
            ..Done::new(io, result)
        });
    }

    fn refuse(&mut self, io: Io, kind: Kind, why: &str) {
        let error = Error::new(kind, "transfer", io.object.object().name, why);
        self.finished
            .push(Done::new(io, Err(io::Error::other(error))));
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
        self.take_on(io);
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
                // Everything waits for its time, or for a thread.
                std::thread::sleep(wait);
                now = Instant::now();
            } else {
                let (least, wait) = if is_waiting {
                    (1, wait)
                } else {
                    (0, Duration::ZERO)
                };
                let mut landed = std::mem::take(&mut self.landed);
                let polled = self.ring.poll(&mut landed, least, wait);
                self.is_moving = !landed.is_empty();
                now = Instant::now();
                for one in landed.drain(..) {
                    self.land(one, now);
                }
                self.landed = landed;
                polled?;
            }
            if self.is_more_there() {
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

    /// Closes queues of controllers that have ended; good ones are kept for the next transfer.
    fn rest(&mut self) {
        self.drop_ended(Instant::now());
        self.reaches.clear();
        self.gauge.rest();
    }

    fn sockets(&mut self) -> Vec<SocketTally> {
        let open = watched(&self.queues);
        self.gauge.tally(Instant::now(), open).into_iter().collect()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "nvme over io_uring sockets",
            depth: self.depth,
        }
    }
}

/// The connections, for the gauge.
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
        let (queues, joining) = (self.queues.len(), self.joining.len());
        write!(
            f,
            "NvmeEngine {{ I/Os: {requests}, {waiting} of them waiting; "
        )?;
        write!(f, "queues: {queues}, and {joining} being made }}")
    }
}
