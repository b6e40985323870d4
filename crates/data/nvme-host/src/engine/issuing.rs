//! Assignment of I/Os to controllers, and their commands.

use std::{
    io,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind};
use straightway_io::{
    Handle as _,
    request::{Done, Io, Op},
};
use straightway_nvme::{Pdu, Sgl, digest, nvm::Nvm};
use straightway_sys::Process;

use super::{
    NvmeEngine,
    queue::{COPIED_BYTES_MAX, Command, ConnectDelay, ConnectedQueue, ConnectingQueue, Queue},
    request::Request,
};
use crate::{
    identity::{reach::Choice, verdicts::Verdict, verify::VERIFY_INTERVAL},
    namespace::Namespace,
    quarantine::QUARANTINE,
    session::{controller::Controller, failure::Refusal},
};

/// The time for which a choice of controllers is cached. An ended controller is noticed immediately.
const REACH_CACHE_TIME: Duration = Duration::from_millis(20);

/// The cached controllers for a namespace.
#[derive(Debug)]
pub(super) struct Reach {
    /// The number of the opening.
    opening: u64,
    controllers: Vec<Arc<Controller>>,
    until: Instant,
}

/// The result of trying to bind a waiting request to a queue.
enum BindResult {
    /// It is bound to a queue.
    Bound,
    /// It waits until this time.
    Until(Instant),
    /// It fails.
    Failed(Error),
}

impl NvmeEngine {
    /// Accepts an I/O. Completes it at once if it is invalid.
    pub(super) fn accept(&mut self, io: Io) {
        let Some(namespace) = Namespace::of(&io.object) else {
            return self.refuse(io, ErrorKind::Unsupported, "it is not an NVMe namespace");
        };
        if self.requests.len() == 0 {
            // Only idle engines survive a fork: the threads that use others do not exist in the child.
            self.process = Process::this();
        }
        if !namespace.opened.subsystem().is_of(self.process) {
            let why = "it was opened before this process was forked: open it again";
            return self.refuse(io, ErrorKind::Invalid, why);
        }
        let (end, left) = (
            io.offset.saturating_add(io.bytes as u64),
            namespace.bytes().saturating_sub(io.offset),
        );
        if io.op == Op::Write && end > namespace.bytes() {
            let why = format!(
                "it is written up to byte {end}, beyond its end at {}",
                namespace.bytes()
            );
            return self.refuse(io, ErrorKind::Invalid, &why);
        }
        // Bytes beyond the end do not exist.
        let bytes = usize::try_from(left).map_or(io.bytes, |left| left.min(io.bytes));
        if bytes == 0 {
            self.finished.push(Done::new(io, Ok(0)));
            return;
        }
        let block = namespace.block_bytes();
        if !io.offset.is_multiple_of(block) || !(bytes as u64).is_multiple_of(block) {
            let why = format!("it is read and written in whole blocks of {block} bytes");
            return self.refuse(io, ErrorKind::Unsupported, &why);
        }
        let request = Request::new(io, namespace, bytes, self.now);
        let number = self.requests.insert(request);
        self.waiting.push_back(number.expect("the queue has room"));
    }

    /// Binds waiting requests to queues. Returns the time of the next attempt.
    pub(super) fn start_waiting(&mut self, now: Instant) -> Instant {
        let mut due = now + super::TICK_MAX;
        for _ in 0..self.waiting.len() {
            let number = self.waiting.pop_front().expect("it was counted");
            match self.try_bind(number, now) {
                BindResult::Bound => {}
                BindResult::Until(at) => {
                    due = due.min(at);
                    self.waiting.push_back(number);
                }
                BindResult::Failed(error) => self.finish(number, Err(io::Error::other(error))),
            }
        }
        due
    }

    fn try_bind(&mut self, number: u32, now: Instant) -> BindResult {
        let request = &self.requests[number];
        let namespace = Arc::clone(&request.namespace);
        if request.unwanted_since.is_some() {
            return BindResult::Failed(Error::new(
                ErrorKind::Cancelled,
                "transfer",
                namespace.name(),
                "its job was stopped",
            ));
        }
        if request.not_before > now {
            return BindResult::Until(request.not_before);
        }
        if request.is_write() && !request.is_repeat {
            let bytes = request.offset..request.offset + request.bytes as u64;
            let nqn = &namespace.opened.subsystem().nqn;
            if let Some(until) = QUARANTINE.until(nqn, namespace.nsid(), &bytes, now) {
                return BindResult::Until(until);
            }
        }
        let reach = match self.reach(&namespace, now) {
            Ok(reach) => reach,
            Err(result) => return result,
        };
        self.turn = self.turn.wrapping_add(1);
        let controllers = &self.reaches[reach].controllers;
        let in_turn = |step: usize| &controllers[self.turn.wrapping_add(step) % controllers.len()];
        let is_delayed = |controller: &&Arc<Controller>| {
            let mut delays = self.delays.iter();
            delays.any(|delay| delay.serves == controller.number && delay.until > now)
        };
        let mut ready = (0..controllers.len()).map(in_turn);
        let ready = ready.find(|controller| !is_delayed(controller));
        let controller = Arc::clone(ready.unwrap_or(&controllers[self.turn % controllers.len()]));
        let serves = |queue: &Queue| queue.serves == controller.number && queue.ending.is_none();
        let joined = self.queues.iter().find(|(_, queue)| serves(queue));
        let Some(queue) = joined.map(|(queue, _)| queue) else {
            return self.connect_for(namespace.name(), &controller, now);
        };
        if self.queues[queue].controller.number != controller.number
            && let Err(result) = self.confirm(number, queue, now)
        {
            return result;
        }
        let request = &mut self.requests[number];
        let history = &namespace.opened.history;
        if request.is_write() && !history.begin_write_on(&self.queues[queue].controller.association) {
            // Another lane has just written to another machine. The next choice leaves this one out.
            self.reaches.retain(|reach| reach.opening != history.opening);
            return BindResult::Until(now + VERIFY_INTERVAL);
        }
        request.queue = Some(queue);
        request.issued = 0;
        request.refused = None;
        self.queues[queue].backlog.push_back(number);
        BindResult::Bound
    }

    /// Returns an error unless the association of a queue confirmed the namespace of a request. Another association
    /// than the chosen controller may be with another target.
    fn confirm(&mut self, number: u32, queue: u32, now: Instant) -> Result<(), BindResult> {
        let own = &self.queues[queue].controller;
        let request = &mut self.requests[number];
        let namespace = &request.namespace;
        match namespace.opened.verdict(own) {
            Verdict::Same => return Ok(()),
            Verdict::Other(why) => return Err(BindResult::Failed(namespace.opened.replaced(&why))),
            Verdict::Pending => {}
        }
        // An association that ends before it answers is replaced, but not endlessly.
        if request.asked != Some(own.number) {
            request.failures += u32::from(request.asked.is_some());
            request.asked = Some(own.number);
        }
        if request.failures > own.settings.retries_max {
            let why = format!("{} does not confirm the namespace", own.address);
            let error = Error::new(ErrorKind::Transient, "transfer", namespace.name(), why)
                .with_hint("check the network and the target");
            return Err(BindResult::Failed(error));
        }
        Err(BindResult::Until(now + VERIFY_INTERVAL))
    }

    /// The index of the cached controllers for a namespace. Chooses again when the cache entry is old.
    fn reach(&mut self, namespace: &Namespace, now: Instant) -> Result<usize, BindResult> {
        let opening = namespace.opened.history.opening;
        let known = self.reaches.iter().position(|r| r.opening == opening);
        if let Some(known) = known {
            let reach = &self.reaches[known];
            let is_good = |controller: &Arc<Controller>| controller.ended().is_none();
            if reach.until > now && reach.controllers.iter().all(is_good) {
                return Ok(known);
            }
            self.reaches.swap_remove(known);
        }
        match namespace.opened.choose(now) {
            Choice::Use(controllers) => {
                for controller in &controllers {
                    controller.touch();
                }
                // A job may have thousands of objects.
                self.reaches.retain(|reach| reach.until > now);
                self.reaches.push(Reach {
                    opening,
                    controllers,
                    until: now + REACH_CACHE_TIME,
                });
                Ok(self.reaches.len() - 1)
            }
            Choice::Wait(due) => Err(BindResult::Until(due)),
            Choice::Nowhere(error) => Err(BindResult::Failed(error)),
        }
    }

    /// Connects a queue of a controller for a request, unless the last attempts failed.
    fn connect_for(&mut self, name: &str, controller: &Arc<Controller>, now: Instant) -> BindResult {
        let number = controller.number;
        let mut delays = self.delays.iter();
        let delay = delays.find(|delay| delay.serves == number && delay.until > now);
        let Some(delay) = delay else {
            self.start_connecting(controller);
            return BindResult::Until(now + super::CONTROL_INTERVAL);
        };
        let attempts_max = controller.settings.attempts_max;
        if delay.failures < attempts_max {
            return BindResult::Until(delay.until);
        }
        let why = format!("{}; {} attempts failed", delay.why, delay.failures);
        let error = Error::new(ErrorKind::Transient, "connect a queue for", name, why);
        BindResult::Failed(error.with_hint("check the target and its log, and try again"))
    }

    /// Delays the next attempt to connect a queue of a controller.
    fn delay_connecting(&mut self, controller: &Controller, why: String, now: Instant) {
        let serves = controller.number;
        let known = self.delays.iter().position(|delay| delay.serves == serves);
        let failures = known.map_or(0, |known| self.delays.swap_remove(known).failures) + 1;
        self.delays.push(ConnectDelay {
            serves,
            failures,
            until: now + controller.settings.delay(failures),
            why,
        });
    }

    /// Starts a thread that connects a queue of a controller, unless one is running.
    fn start_connecting(&mut self, controller: &Arc<Controller>) {
        let is_it = |connecting: &ConnectingQueue| connecting.controller.number == controller.number;
        if self.connecting.iter().any(is_it) {
            return;
        }
        let (answer, answered) = mpsc::channel();
        let own = Arc::clone(controller);
        let connect = move || {
            // The engine may have been dropped.
            let _ = answer.send(connect_queue(&own));
        };
        let thread = std::thread::Builder::new().name("straightway-nvme".to_owned());
        match thread.spawn(connect) {
            Ok(_) => self.connecting.push(ConnectingQueue {
                controller: Arc::clone(controller),
                answer: answered,
            }),
            Err(error) => controller.end(format!("no thread: {error}")),
        }
    }

    /// Adds queues that have been connected.
    pub(super) fn add_connected(&mut self, now: Instant) {
        let mut index = 0;
        while index < self.connecting.len() {
            let answer = match self.connecting[index].answer.try_recv() {
                Err(mpsc::TryRecvError::Empty) => {
                    index += 1;
                    continue;
                }
                Ok(answer) => answer,
                Err(mpsc::TryRecvError::Disconnected) => Err(Refusal::transient("the thread that connects it ended")),
            };
            let ConnectingQueue { controller, .. } = self.connecting.swap_remove(index);
            match answer {
                Ok(joined) => {
                    self.delays.retain(|delay| delay.serves != controller.number);
                    let queue = Queue::new(controller.number, joined, now);
                    match self.queues.insert(queue) {
                        Ok(number) => self.queues_end = self.queues_end.max(number + 1),
                        Err(queue) => queue.controller.end("the lane has too many controllers"),
                    }
                }
                // The controller of the path ended when its own queue failed. A further association that fails ends
                // only this attempt.
                Err(refusal) if controller.ended().is_none() => {
                    self.delay_connecting(&controller, refusal.why, now);
                }
                Err(_) => {}
            }
        }
    }

    /// Issues commands for the bound requests until the queue is full.
    pub(super) fn issue(&mut self, number: u32, now: Instant) {
        let Some(queue) = self.queues.get(number) else {
            return;
        };
        if queue.ending.is_some() {
            return;
        }
        while let Some(&request) = self.queues[number].backlog.front() {
            while self.requests[request].issued < self.requests[request].bytes
                && self.requests[request].refused.is_none()
            {
                if !self.command(number, request, now) {
                    return;
                }
            }
            self.queues[number].backlog.pop_front();
        }
    }

    /// Issues the next command of a request. Returns whether there was room.
    fn command(&mut self, number: u32, index: u32, now: Instant) -> bool {
        let queue = &mut self.queues[number];
        let request = &mut self.requests[index];
        if request.io.is_none() && request.is_write() {
            // The ring is sending data of its first commands. In-capsule data can be copied only after that.
            return false;
        }
        let limits = queue.controller.limits;
        let block = 1_usize << request.namespace.opened.print.block_shift;
        let most = (limits.transfer_bytes as usize).min(block << 16) / block * block;
        let start = request.issued;
        let bytes = (request.bytes - start).min(most);
        let command = Command {
            cid: 0,
            request: index,
            start,
            bytes,
            moved: 0,
            is_asked: false,
            answer: None,
            since: now,
        };
        let Some(slot) = queue.add(command) else {
            return false;
        };
        if queue.commands.len() == 1 {
            queue.heard = now;
        }
        request.issued += bytes;
        request.open += 1;
        let range = request.namespace.range(request.offset + start as u64, bytes as u64);
        let length = u32::try_from(bytes).expect("commands are short");
        let cid = queue.commands[slot].cid;
        let nsid = request.namespace.nsid();
        if !request.is_write() {
            queue.long_reads += usize::from(bytes > COPIED_BYTES_MAX);
            let sqe = Nvm::Read(range).sqe(nsid).with_cid(cid);
            let sqe = sqe.with_sgl(Sgl::transport(length));
            queue.framing.encode(&Pdu::Command(sqe), 0, &mut queue.outbox);
            return true;
        }
        let is_durable = false;
        let sqe = Nvm::Write { range, is_durable }.sqe(nsid).with_cid(cid);
        if length > limits.capsule_bytes {
            let sqe = sqe.with_sgl(Sgl::transport(length));
            queue.framing.encode(&Pdu::Command(sqe), 0, &mut queue.outbox);
            return true;
        }
        let sqe = sqe.with_sgl(Sgl::in_capsule(length));
        let outbox = &mut queue.outbox;
        queue.framing.encode(&Pdu::Command(sqe), bytes, outbox);
        let at = outbox.len();
        outbox.resize(at + bytes, 0);
        let io = request.io.as_ref().expect("the ring does not have it");
        io.spill_from(start, &mut outbox[at..]);
        if queue.framing.has_data_digest() {
            let sum = digest(&outbox[at..]);
            outbox.extend(sum.to_le_bytes());
        }
        queue.commands[slot].moved = bytes;
        true
    }
}

/// Connects a queue of a controller.
fn connect_queue(controller: &Arc<Controller>) -> Result<ConnectedQueue, Refusal> {
    let (controller, link, id) = controller.any_queue()?;
    let parts = link.into_parts();
    let parts = parts.map_err(|error| Refusal::transient(error.to_string()))?;
    let (socket, framing, host_data_bytes_max) = parts;
    Ok(ConnectedQueue {
        controller,
        socket,
        framing,
        host_data_bytes_max,
        id,
    })
}
