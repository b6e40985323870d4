//! A controller: the association of one host with this target, over one admin queue and its I/O queues.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{Shutdown, TcpStream},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::event::{EventfdFlags, eventfd};
use straightway_nvme::{
    admin::{AsyncEvent, EventMask},
    fabrics::{CSTS_READY, CSTS_SHUTDOWN_DONE, config},
};

use crate::host::Host;

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
    pub(crate) host_id: [u8; 16],
    pub(crate) port: usize,
    /// Whether the host is authenticated, or need not be.
    pub(crate) is_trusted: AtomicBool,
    pub(crate) keep_alive_ms: AtomicU32,
    /// The property CC.
    config: AtomicU64,
    start: Instant,
    /// The time when the host last sent anything, in ms since the start.
    seen_ms: AtomicU64,
    queues: Mutex<BTreeMap<u16, Arc<TcpStream>>>,
    events: Mutex<Events>,
    wakeup: OwnedFd,
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
    pub(crate) host_id: [u8; 16],
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
            host_id: with.host_id,
            port: with.port,
            is_trusted: AtomicBool::new(is_trusted),
            keep_alive_ms: AtomicU32::new(with.keep_alive_ms),
            config: AtomicU64::new(0),
            start: Instant::now(),
            seen_ms: AtomicU64::new(0),
            queues: Mutex::default(),
            events: Mutex::default(),
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
        let ready = if config & config::ENABLE != 0 {
            CSTS_READY
        } else {
            0
        };
        let is_shut = config & config::SHUTDOWN_MASK != 0;
        ready | if is_shut { CSTS_SHUTDOWN_DONE } else { 0 }
    }

    /// Adds a queue; `false` if its identifier is in use.
    pub(crate) fn add_queue(&self, number: u16, socket: &Arc<TcpStream>) -> bool {
        let mut queues = lock(&self.queues);
        if queues.contains_key(&number) {
            return false;
        }
        queues.insert(number, socket.clone());
        true
    }

    /// Removes a queue that has ended.
    pub(crate) fn remove_queue(&self, number: u16) {
        lock(&self.queues).remove(&number);
    }

    /// Ends all queues from `first` on.
    pub(crate) fn close_queues(&self, first: u16) {
        for socket in lock(&self.queues).range(first..).map(|(_, socket)| socket) {
            let _ = socket.shutdown(Shutdown::Both);
        }
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
        let mut events = lock(&self.events);
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
        lock(&self.events).pending |= EventMask::ANA;
        self.wake();
    }

    /// The enabled events.
    pub(crate) fn event_mask(&self) -> u32 {
        lock(&self.events).mask
    }

    /// Sets the enabled events. Pending ones are then reported.
    pub(crate) fn set_event_mask(&self, mask: u32) {
        lock(&self.events).mask = mask;
        self.wake();
    }

    /// The next event to report, if there is one.
    pub(crate) fn next_event(&self) -> Option<AsyncEvent> {
        let mut events = lock(&self.events);
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
                lock(&self.events).reported &= !bit;
            }
        }
        self.wake();
    }

    /// Takes the list of changed namespaces; `None` if there were too many.
    pub(crate) fn take_changed(&self, is_kept: bool) -> Option<Vec<u32>> {
        let mut events = lock(&self.events);
        let list = (!events.has_too_many).then(|| events.changed.iter().copied().collect());
        if !is_kept {
            events.changed.clear();
            events.has_too_many = false;
        }
        list
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
