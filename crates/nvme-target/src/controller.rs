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
    admin::{Event, EventMask},
    fabrics::{CSTS_READY, CSTS_SHUTDOWN_DONE, config},
};

use crate::host::Host;

/// The most namespaces that the log of changed ones can list.
const CHANGED_MAX: usize = 1024;

/// The kinds of events, with their bit in the host's mask.
const EVENTS: [(Event, u32); 3] = [
    (Event::NAMESPACES, EventMask::NAMESPACES),
    (Event::ANA, EventMask::ANA),
    (Event::DISCOVERY, EventMask::DISCOVERY),
];

/// What is shared by the queues of an association.
#[derive(Debug)]
pub(crate) struct Controller {
    pub(crate) id: u16,
    pub(crate) is_discovery: bool,
    pub(crate) host: Arc<Host>,
    pub(crate) host_id: [u8; 16],
    pub(crate) port: usize,
    /// Whether the host has proved its secret, or need not.
    pub(crate) is_trusted: AtomicBool,
    pub(crate) keep_alive_ms: AtomicU32,
    /// The property CC.
    config: AtomicU64,
    start: Instant,
    /// When the host last sent anything, in ms since the start.
    seen_ms: AtomicU64,
    queues: Mutex<BTreeMap<u16, Arc<TcpStream>>>,
    events: Mutex<Events>,
    bell: OwnedFd,
}

/// Events that the host is to be told of.
#[derive(Debug, Default)]
struct Events {
    /// Those that it wants to hear of.
    mask: u32,
    /// Those that happened.
    pending: u32,
    /// Those that it was told of, and whose log page it has not read since.
    told: u32,
    changed: BTreeSet<u32>,
    has_too_many: bool,
}

/// What makes a controller.
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
            bell: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        })
    }

    /// The host has sent something.
    pub(crate) fn see(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.seen_ms.store(now, Ordering::Relaxed);
    }

    /// Whether the host has been silent for twice its keep-alive time.
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

    /// Sets the property CC. A controller that is disabled or shut down has no I/O queues.
    pub(crate) fn configure(&self, value: u64) {
        self.config.store(value, Ordering::Relaxed);
        if !self.is_ready() {
            self.close_queues(1);
        }
    }

    /// Whether I/O queues can be made.
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

    /// Makes a connection a queue; `false` where that number is taken.
    pub(crate) fn add_queue(&self, number: u16, socket: &Arc<TcpStream>) -> bool {
        let mut queues = lock(&self.queues);
        if queues.contains_key(&number) {
            return false;
        }
        queues.insert(number, socket.clone());
        true
    }

    /// A queue has ended.
    pub(crate) fn remove_queue(&self, number: u16) {
        lock(&self.queues).remove(&number);
    }

    /// Ends all queues from `first` on.
    pub(crate) fn close_queues(&self, first: u16) {
        for socket in lock(&self.queues).range(first..).map(|(_, socket)| socket) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// What rings when an event has come.
    pub(crate) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Empties the bell.
    pub(crate) fn hear(&self) {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Namespaces were added, removed or changed.
    pub(crate) fn tell_namespaces(&self, changed: &BTreeSet<u32>) {
        let mut events = lock(&self.events);
        events.changed.extend(changed);
        if events.changed.len() > CHANGED_MAX {
            events.changed.clear();
            events.has_too_many = true;
        }
        events.pending |= EventMask::NAMESPACES;
        drop(events);
        self.ring();
    }

    /// The state of a path has changed.
    pub(crate) fn tell_ana(&self) {
        lock(&self.events).pending |= EventMask::ANA;
        self.ring();
    }

    /// Which events the host wants to hear of.
    pub(crate) fn event_mask(&self) -> u32 {
        lock(&self.events).mask
    }

    /// Sets which events the host wants to hear of. What happened before is told now.
    pub(crate) fn set_event_mask(&self, mask: u32) {
        lock(&self.events).mask = mask;
        self.ring();
    }

    /// The next event to tell, if there is one.
    pub(crate) fn next_event(&self) -> Option<Event> {
        let mut events = lock(&self.events);
        let due = events.pending & events.mask & !events.told;
        let (event, bit) = EVENTS.into_iter().find(|(_, bit)| due & bit != 0)?;
        events.pending &= !bit;
        events.told |= bit;
        Some(event)
    }

    /// The log page of an event was read: it can be told again.
    pub(crate) fn rearm(&self, page: u8) {
        for (event, bit) in EVENTS {
            if event.log == page {
                lock(&self.events).told &= !bit;
            }
        }
        self.ring();
    }

    /// Takes the list of changed namespaces; `None` where they were too many.
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
