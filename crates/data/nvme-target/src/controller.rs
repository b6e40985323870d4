//! A controller: the association of one host with this target, over one admin queue and its I/O queues.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::TcpStream,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, eventfd};
use straightway_core::Lock;
use straightway_nvme::{
    Status,
    admin::{AsyncEvent, EventMask},
    fabrics::{CSTS_READY, CSTS_SHUTDOWN_DONE, config},
};

use crate::{
    connect_refusal::{QUEUE_AT, Refusal, in_command},
    fence::Fence,
    host::{Host, HostIdentity},
};

/// The maximum number of namespaces in the Changed Namespace List.
const CHANGED_MAX: usize = 1024;

/// The event types, with their bit in the host's mask.
const EVENTS: [(AsyncEvent, u32); 3] = [
    (AsyncEvent::NAMESPACES, EventMask::NAMESPACES),
    (AsyncEvent::ANA, EventMask::ANA),
    (AsyncEvent::DISCOVERY, EventMask::DISCOVERY),
];

/// The state shared by the queues of an association.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) id: u16,
    pub(crate) is_discovery: bool,
    pub(crate) host: Arc<Host>,
    /// The host as it gave its name. Several hosts may share `host`.
    pub(crate) identity: HostIdentity,
    pub(crate) port: usize,
    /// Whether the admin queue is authenticated, or need not be.
    is_trusted: AtomicBool,
    pub(crate) keep_alive_ms: AtomicU32,
    /// The property CC.
    config: AtomicU64,
    start: Instant,
    /// The time when the host last sent anything, in ms since the start.
    seen_ms: AtomicU64,
    queues: Lock<Queues>,
    events: Lock<Events>,
    wakeup: OwnedFd,
}

/// The queues of a controller.
#[derive(Debug, Default)]
struct Queues {
    /// Whether the controller has ended. A queue that is added later would never be closed.
    is_ended: bool,
    open: BTreeMap<u16, Arc<Fence>>,
}

/// The asynchronous events of a host.
#[derive(Debug, Default)]
struct Events {
    /// Enabled events.
    mask: u32,
    /// Events that occurred.
    pending: u32,
    /// Events that were reported and whose log page has not been read since.
    reported: u32,
    changed: BTreeSet<u32>,
    has_too_many: bool,
}

/// The parameters of a new controller.
#[derive(Debug)]
pub(crate) struct Association {
    pub(crate) is_discovery: bool,
    pub(crate) host: Arc<Host>,
    pub(crate) identity: HostIdentity,
    pub(crate) port: usize,
    pub(crate) keep_alive_ms: u32,
}

impl Controller {
    pub(crate) fn new(id: u16, with: Association) -> std::io::Result<Self> {
        let is_trusted = with.host.keys.is_none();
        Ok(Self {
            id,
            is_discovery: with.is_discovery,
            host: with.host,
            identity: with.identity,
            port: with.port,
            is_trusted: AtomicBool::new(is_trusted),
            keep_alive_ms: AtomicU32::new(with.keep_alive_ms),
            config: AtomicU64::new(0),
            start: Instant::now(),
            seen_ms: AtomicU64::new(0),
            queues: Lock::default(),
            events: Lock::default(),
            wakeup: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// Restarts the keep-alive timer.
    pub(crate) fn mark_alive(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.seen_ms.store(now, Ordering::Relaxed);
    }

    /// Whether the host has been silent for twice its keep-alive timeout.
    pub(crate) fn is_expired(&self) -> bool {
        let limit = self.keep_alive_ms.load(Ordering::Relaxed);
        let seen = Duration::from_millis(self.seen_ms.load(Ordering::Relaxed));
        let silence = self.start.elapsed().saturating_sub(seen);
        limit > 0 && silence > Duration::from_millis(u64::from(limit) * 2)
    }

    /// The property CC.
    pub(crate) fn config(&self) -> u64 {
        self.config.load(Ordering::Relaxed)
    }

    /// Sets the property CC. Disabling or shutting down the controller ends its I/O queues.
    pub(crate) fn configure(&self, value: u64) {
        self.config.store(value, Ordering::Relaxed);
        if !self.is_ready() {
            self.close_queues(1);
        }
    }

    /// Whether I/O queues can be created.
    pub(crate) fn is_ready(&self) -> bool {
        let config = self.config();
        config & config::ENABLE != 0 && config & config::SHUTDOWN_MASK == 0
    }

    /// The property CSTS.
    pub(crate) fn status(&self) -> u64 {
        let config = self.config();
        let ready = if config & config::ENABLE != 0 { CSTS_READY } else { 0 };
        let is_shut = config & config::SHUTDOWN_MASK != 0;
        ready | if is_shut { CSTS_SHUTDOWN_DONE } else { 0 }
    }

    /// Whether the admin queue is authenticated, or need not be.
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_trusted.load(Ordering::Relaxed)
    }

    /// Sets whether the admin queue is authenticated. If it is not, the I/O queues end.
    pub(crate) fn set_trusted(&self, is_trusted: bool) {
        self.is_trusted.store(is_trusted, Ordering::Relaxed);
        if !is_trusted {
            self.close_queues(1);
        }
    }

    /// Adds a queue. An I/O queue is refused unless the admin queue is authenticated and the controller is enabled.
    /// Both are checked under the lock: a queue is added before [`Controller::close_queues`], which closes it, or not
    /// at all.
    pub(crate) fn add_queue(&self, number: u16, socket: &Arc<TcpStream>) -> Result<Arc<Fence>, Refusal> {
        let mut queues = self.queues.lock();
        if number > 0 && !self.is_trusted() {
            return Err((Status::AUTH_REQUIRED.dnr(), 0));
        }
        if queues.is_ended || (number > 0 && !self.is_ready()) {
            return Err((Status::COMMAND_SEQUENCE.dnr(), 0));
        }
        if queues.open.contains_key(&number) {
            return Err(in_command(QUEUE_AT));
        }
        let fence = Arc::new(Fence::new(Arc::clone(socket)));
        queues.open.insert(number, Arc::clone(&fence));
        Ok(fence)
    }

    /// Removes a queue that has ended. Its number may belong to another queue already.
    pub(crate) fn remove_queue(&self, number: u16, fence: &Arc<Fence>) {
        let mut queues = self.queues.lock();
        let known = queues.open.get(&number);
        if known.is_some_and(|known| Arc::ptr_eq(known, fence)) {
            queues.open.remove(&number);
        }
    }

    /// Ends all queues from `first` on. When it returns, none of them changes data any more.
    pub(crate) fn close_queues(&self, first: u16) {
        let closed = self.queues.lock().open.split_off(&first);
        // All sockets are closed before the first wait.
        for fence in closed.values() {
            fence.shut_down();
        }
        for fence in closed.values() {
            fence.close();
        }
    }

    /// Ends the controller and its queues.
    pub(crate) fn end(&self) {
        self.queues.lock().is_ended = true;
        self.close_queues(0);
    }

    /// The descriptor that becomes readable when an event occurs.
    pub(crate) fn wakeup_fd(&self) -> BorrowedFd<'_> {
        self.wakeup.as_fd()
    }

    /// Resets the descriptor.
    pub(crate) fn clear_wakeup(&self) {
        let _ = rustix::io::read(&self.wakeup, &mut [0; 8]);
    }

    fn wake(&self) {
        let _ = rustix::io::write(&self.wakeup, &1_u64.to_ne_bytes());
    }

    /// Reports that namespaces were added, removed or changed.
    pub(crate) fn notify_namespaces(&self, changed: &BTreeSet<u32>) {
        let mut events = self.events.lock();
        events.changed.extend(changed);
        if events.changed.len() > CHANGED_MAX {
            events.changed.clear();
            events.has_too_many = true;
        }
        events.pending |= EventMask::NAMESPACES;
        drop(events);
        self.wake();
    }

    /// Reports that ANA states changed.
    pub(crate) fn notify_ana(&self) {
        self.events.lock().pending |= EventMask::ANA;
        self.wake();
    }

    /// The enabled events.
    pub(crate) fn event_mask(&self) -> u32 {
        self.events.lock().mask
    }

    /// Sets the enabled events. Pending ones are then reported.
    pub(crate) fn set_event_mask(&self, mask: u32) {
        self.events.lock().mask = mask;
        self.wake();
    }

    /// The next event to report, if there is one.
    pub(crate) fn next_event(&self) -> Option<AsyncEvent> {
        let mut events = self.events.lock();
        let due = events.pending & events.mask & !events.reported;
        let (event, bit) = EVENTS.into_iter().find(|(_, bit)| due & bit != 0)?;
        events.pending &= !bit;
        events.reported |= bit;
        Some(event)
    }

    /// Re-enables an event after its log page was read.
    pub(crate) fn rearm(&self, page: u8) {
        for (event, bit) in EVENTS {
            if event.log == page {
                self.events.lock().reported &= !bit;
            }
        }
        self.wake();
    }

    /// Takes the list of changed namespaces; `None` if there were too many.
    pub(crate) fn take_changed(&self, is_kept: bool) -> Option<Vec<u32>> {
        let mut events = self.events.lock();
        let list = (!events.has_too_many).then(|| events.changed.iter().copied().collect());
        if !is_kept {
            events.changed.clear();
            events.has_too_many = false;
        }
        list
    }
}
