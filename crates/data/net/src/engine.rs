//! HTTP requests on the sockets of a lane: the engine of all stores whose objects are on web servers.
//!
//! A write becomes a request that stores one part of an upload, sent straight from the I/O's memory. A read becomes a
//! request for its range. The head of the response is received into a small buffer of the connection and checked; the
//! body is received straight into the I/O's memory. With TLS, ciphertext is received into a buffer of the connection,
//! decrypted there, and copied. A connection serves one request at a time and is kept for the next; after any failure
//! it is closed. The path of one I/O neither allocates nor locks.
//!
//! A failed read is retried from the first missing byte, and only for the same version of the object. Everything is
//! bounded: connections, attempts, heads, and the time without progress.
//!
//! | file | content |
//! |---|---|
//! | `engine.rs` | the engine's interface to the lane; timers |
//! | `engine/dispatch.rs` | assigns requests to connections, opens connections, sends hedges |
//! | `engine/completion.rs` | handles completed socket operations |
//! | `engine/sending.rs` | writes: the body of a request |
//! | `engine/response_head.rs` | handles the head of a response |
//! | `engine/failure.rs` | retries, renewal of credentials, and errors |

mod completion;
mod connection;
mod dispatch;
mod failure;
mod request;
mod response_head;
mod sending;
mod session;
mod threads;

use std::{
    collections::VecDeque,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{
    Error, ErrorKind, Result,
    random::{Rng, Seed},
};
use straightway_io::{
    Handle,
    engine::{Capabilities, Engine, EngineReport},
    gauge::{Gauge, Watched},
    request::{Done, Io, Op},
    store::{LaneSpec, Tuning},
};
use straightway_sys::{SocketRing, nonce::nonce, uring::sockets::SocketCompletion};

use crate::{network::Network, remote::Remote};
use connection::{Connection, Ending, Phase};
use failure::Renewal;
use request::{Request, State};
use straightway_io::slab::Slab;

pub use threads::threads;

/// The family of stores that share this engine.
pub const FAMILY: &str = "http";

/// The sizes for web servers: a round trip costs as much time as a MiB, and a single connection is slow.
pub const TUNING: Tuning = Tuning {
    chunk_bytes: 8 << 20,
    depth: 16,
};

/// The engine of a lane: this one, or threads where io_uring is forbidden.
pub fn engine(network: &Network, lane: &LaneSpec<'_>) -> Result<Box<dyn Engine>> {
    let connections_max = network.settings().connections_max;
    match HttpEngine::new(lane.depth(), connections_max) {
        Ok(engine) => Ok(Box::new(engine)),
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            let depth = lane.depth().min(connections_max);
            Ok(Box::new(threads(depth)?.in_place_of_ring(&error)))
        }
        Err(error) => Err(error),
    }
}

/// The object of an I/O.
type Object = Arc<dyn Handle>;

/// The interval of checks whether a lookup or renewal thread is done.
const CONTROL_INTERVAL: Duration = Duration::from_millis(2);

/// The longest interval between two checks of all timers.
const TICK_MAX: Duration = Duration::from_secs(1);

/// An engine for objects on web servers.
#[derive(Debug)]
pub struct HttpEngine {
    ring: SocketRing<Object>,
    depth: usize,
    /// The most connections, not counting those for hedges.
    connections_max: usize,
    connections: Slab<Connection>,
    requests: Slab<Request>,
    /// Requests without a connection, the oldest first.
    waiting: VecDeque<u32>,
    renewal: Option<Renewal>,
    finished: Vec<Done>,
    landed: Vec<SocketCompletion<Object>>,
    /// Draws the seeds of the requests' back-offs.
    rng: Rng,
    gauge: Gauge,
}

impl HttpEngine {
    /// An engine with queue depth `depth` on up to `connections_max` connections. `Unsupported` if io_uring is
    /// forbidden.
    pub fn new(depth: u32, connections_max: u32) -> Result<Self> {
        let depth = depth.clamp(1, straightway_sys::uring::DEPTH_MAX / 2);
        let connections_max = connections_max.clamp(1, depth);
        let room = connections_max + connections_max / 4 + 2;
        Ok(Self {
            ring: SocketRing::new(room)?,
            depth: depth as usize,
            connections_max: connections_max as usize,
            connections: Slab::new(room as usize),
            requests: Slab::new(depth as usize),
            waiting: VecDeque::with_capacity(depth as usize),
            renewal: None,
            finished: Vec::with_capacity(depth as usize),
            landed: Vec::with_capacity(room as usize),
            rng: Seed(nonce()).rng(),
            gauge: Gauge::default(),
        })
    }

    /// Queues the request of an I/O, or completes the I/O at once if it needs none.
    fn accept_io(&mut self, io: Io) {
        if io.op == Op::Write {
            return self.take_write(io);
        }
        let Some(remote) = Remote::of(&io.object) else {
            return self.refuse(io, "it is not an object of a web server");
        };
        let range = remote.range(io.offset, io.bytes);
        if range.is_empty() {
            self.finished.push(Done::new(io, Ok(0)));
            return;
        }
        match remote.kept(&range) {
            Ok(None) => {}
            Ok(Some(bytes)) => return self.finish_from(io, bytes),
            Err(error) => {
                let error = io::Error::other(error);
                return self.finished.push(Done::new(io, Err(error)));
            }
        }
        let request = Request::new(io, remote, range.end, self.next_seed(), Instant::now());
        self.queue(request);
    }

    /// Completes a read with bytes from memory.
    fn finish_from(&mut self, mut io: Io, bytes: &[u8]) {
        io.fill(bytes);
        self.finished.push(Done::new(io, Ok(bytes.len())));
    }

    fn next_seed(&mut self) -> Seed {
        Seed(self.rng.bits())
    }

    fn queue(&mut self, request: Request) {
        let number = self.requests.insert(request);
        self.waiting.push_back(number.expect("the queue has room"));
    }

    fn refuse(&mut self, io: Io, why: &str) {
        let error = Error::new(ErrorKind::Unsupported, "transfer", io.object.object().name, why);
        self.finished.push(Done::new(io, Err(io::Error::other(error))));
    }

    /// Does the work that is due. Returns the time of the next.
    fn tick(&mut self, now: Instant) -> Instant {
        let mut due = now + TICK_MAX;
        self.gauge.look(now, watched(&self.connections));
        due = self.gauge.due().map_or(due, |look| due.min(look));
        if self.renewal.is_some() {
            due = due.min(self.check_renewal(now));
        }
        due = due.min(self.check_deadlines(now));
        due = due.min(self.start_waiting(now));
        due.min(self.hedge(now))
    }

    /// Fails connections whose deadline has passed, and checks the progress of bodies. Returns the next deadline.
    fn check_deadlines(&mut self, now: Instant) -> Instant {
        let mut due = now + TICK_MAX;
        for number in 0..u32::try_from(self.connections.capacity()).expect("there are few") {
            let Some(connection) = self.connections.get(number) else {
                continue;
            };
            if connection.operation.is_none() || connection.ending.is_some() {
                continue;
            }
            if connection.deadline > now {
                due = due.min(connection.deadline);
            } else if connection.fills_io() && !connection.watch.is_checking {
                self.check_progress(number, now);
            } else {
                self.give_up_waiting(number, now);
            }
        }
        due
    }

    /// Completes the I/O of a request.
    fn finish(&mut self, number: u32, result: io::Result<usize>) {
        let Request { io, tries, .. } = self.requests.remove(number);
        let io = io.expect("the ring does not have it");
        let done = Done::new(io, result);
        self.finished.push(Done { tries, ..done });
    }
}

impl Engine for HttpEngine {
    fn submit(&mut self, io: Io) -> Result<(), Io> {
        if self.requests.len() + self.finished.len() >= self.depth {
            return Err(io);
        }
        if !self.gauge.is_running() {
            self.gauge.begin(Instant::now(), watched(&self.connections));
        }
        self.accept_io(io);
        Ok(())
    }

    fn poll(&mut self, done: &mut Vec<Done>, timeout: Duration) -> Result<usize> {
        let deadline = Instant::now() + timeout;
        loop {
            let now = Instant::now();
            let due = self.tick(now).min(deadline);
            if self.finished.is_empty() && self.requests.len() > 0 && self.ring.in_flight() == 0 {
                // All requests wait for a timer or a thread.
                std::thread::sleep(due.saturating_duration_since(now));
            } else {
                let is_waiting = self.finished.is_empty() && self.requests.len() > 0;
                let (least, wait) = if is_waiting {
                    (1, due.saturating_duration_since(now))
                } else {
                    (0, Duration::ZERO)
                };
                let mut landed = std::mem::take(&mut self.landed);
                let polled = self.ring.poll(&mut landed, least, wait);
                let now = Instant::now();
                for one in landed.drain(..) {
                    self.land(one, now);
                }
                self.landed = landed;
                polled?;
            }
            let count = self.finished.len();
            if count > 0 || self.requests.len() == 0 || Instant::now() >= deadline {
                done.append(&mut self.finished);
                return Ok(count);
            }
        }
    }

    fn cancel(&mut self, is_unwanted: &dyn Fn(u32) -> bool) {
        for number in 0..u32::try_from(self.requests.capacity()).expect("queues are short") {
            let request = self.requests.get(number);
            if request.is_some_and(|request| is_unwanted(request.tag)) {
                self.abandon(number, Instant::now());
            }
        }
    }

    /// Closes idle connections that the server has closed; the others are kept for the next transfer.
    fn rest(&mut self) {
        self.gauge.rest();
        for number in 0..u32::try_from(self.connections.capacity()).expect("there are few") {
            let is_idle = self.connections.get(number).is_some_and(Connection::is_idle);
            if is_idle && !self.connections[number].is_quiet() {
                self.close(number, Ending::Unneeded);
            }
        }
    }

    fn report(&mut self) -> EngineReport {
        let open = watched(&self.connections);
        EngineReport {
            sockets: self.gauge.tally(Instant::now(), open).into_iter().collect(),
            ..EngineReport::of(self.capabilities().name)
        }
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            name: "io_uring sockets",
            depth: self.depth,
        }
    }
}

/// The established connections, for the gauge.
fn watched(connections: &Slab<Connection>) -> impl Iterator<Item = Watched<'_>> {
    let all = connections.iter();
    let all = all.filter(|(_, connection)| connection.phase != Phase::Connecting);
    all.map(|(number, connection)| Watched {
        key: u64::from(number),
        socket: &connection.socket,
        is_owed: connection.phase.request().is_some(),
    })
}
