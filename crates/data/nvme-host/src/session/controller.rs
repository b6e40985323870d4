//! An association with a controller: its limits, its queue identifiers, and its admin commands.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use straightway_core::Lock;
use straightway_nvme::{
    Nqn, Sqe, TRANSFER_BYTES_MAX,
    admin::Admin,
    fabrics::{Connect, Connected},
    identify,
};

use super::{
    association::Association,
    control::{self, AdminRequest},
    failure::{LinkError, Refusal},
    link::Link,
    login,
    opening::{Opening, connect_data, read_ana},
};
use crate::settings::HostSettings;

/// The time that the control thread may take in addition to the timeout of a command.
const CONTROL_SLACK: Duration = Duration::from_secs(1);

/// The time that an inaccessible namespace is waited for if the controller reports no ANATT. Linux reports this value.
const TRANSITION_DEFAULT: Duration = Duration::from_secs(10);

/// The maximum of that time: about as long as a lost connection is retried by default.
const TRANSITION_MAX: Duration = Duration::from_mins(2);

/// The limits of a controller.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The longest transfer of one command.
    pub(crate) transfer_bytes: u32,
    /// The maximum in-capsule data size of an I/O command.
    pub(crate) capsule_bytes: u32,
    /// The maximum number of outstanding commands on one queue.
    pub(crate) commands: u16,
    /// Command retry delays 1 to 3, in units of 100 ms.
    pub(crate) retry_delays: [u16; 3],
    /// The time that a namespace may stay inaccessible before its I/O fails: ANATT.
    pub(crate) transition: Duration,
    /// The granularity of the keep-alive timeout: KAS.
    keep_alive_step: Duration,
}

impl Limits {
    /// The limits of a controller whose queues have up to `entries` entries.
    fn new(page: &identify::Controller, entries: u32, settings: &HostSettings) -> Self {
        let most = match page.commands_max {
            0 => u16::MAX,
            commands => commands,
        };
        let entries = u16::try_from(entries.min(u32::from(most))).unwrap_or(u16::MAX);
        let entries = entries.min(settings.queue_entries).max(2);
        let transfer = page.transfer_bytes_max().unwrap_or(u64::from(TRANSFER_BYTES_MAX));
        let transfer = transfer.min(u64::from(TRANSFER_BYTES_MAX));
        let transition = match page.ana_transition_s {
            0 => TRANSITION_DEFAULT,
            seconds => Duration::from_secs(seconds.into()).min(TRANSITION_MAX),
        };
        Self {
            transfer_bytes: u32::try_from(transfer).expect("at most 4 MiB"),
            capsule_bytes: page.capsule_bytes_max().min(TRANSFER_BYTES_MAX),
            commands: entries - 1,
            retry_delays: page.retry_delays,
            transition,
            keep_alive_step: Duration::from_millis(100) * u32::from(page.keep_alive_100ms),
        }
    }
}

/// An association with a controller.
#[derive(Debug)]
pub(crate) struct Controller {
    /// A number that is unique in this process.
    pub(crate) number: u64,
    pub(crate) limits: Limits,
    /// The state that its control thread and its queues share.
    pub(crate) association: Arc<Association>,
    pub(crate) settings: Arc<HostSettings>,
    pub(crate) address: SocketAddr,
    /// Whether it was made for one queue, because the path's controller grants no more.
    pub(crate) is_further: bool,
    subsystem: Nqn,
    id: u16,
    queue_ids: Lock<VecDeque<u16>>,
    asks: Lock<mpsc::Sender<AdminRequest>>,
    /// Whether it ever had an I/O queue.
    has_served: AtomicBool,
}

/// The identifier of an I/O queue. It is released on drop.
#[derive(Debug)]
pub(crate) struct QueueId {
    controller: Arc<Controller>,
    id: u16,
}

impl Drop for QueueId {
    fn drop(&mut self) {
        self.controller.queue_ids.lock().push_back(self.id);
    }
}

impl Controller {
    /// Connects to a subsystem at an address and starts the control thread.
    pub(crate) fn connect(
        address: SocketAddr,
        subsystem: &Nqn,
        settings: &Arc<HostSettings>,
        is_further: bool,
    ) -> Result<Arc<Self>, Refusal> {
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let mut admin = Opening::new(address, subsystem, settings)?;
        let page = admin.identify()?;
        admin.check(&page)?;
        let association = Arc::new(Association::default());
        if page.has_ana() {
            association.set_ana(read_ana(&mut admin.link, &page, admin.deadline)?);
        }
        let queues = admin.ask_for_queues()?;
        admin.ask_for_events(page.events)?;
        let entries = u32::from(admin.capabilities.size_max()) + 1;
        let (asks, asked) = mpsc::channel();
        let limits = Limits::new(&page, entries, settings);
        let started = control::start(&association, settings, admin.link, page, asked);
        started.map_err(|error| Refusal::transient(format!("no control thread: {error}")))?;
        Ok(Arc::new(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            limits,
            association,
            settings: Arc::clone(settings),
            address,
            is_further,
            subsystem: subsystem.clone(),
            id: admin.id,
            queue_ids: Lock::new((1..=queues).collect()),
            asks: Lock::new(asks),
            has_served: AtomicBool::new(false),
        }))
    }

    /// The cause of its end; `None` while it is usable.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.association.ended()
    }

    /// Ends the association. Only the first cause is kept.
    pub(crate) fn end(&self, why: impl Into<String>) {
        self.association.end(why);
    }

    /// The time for which it may still execute commands after its connections were lost.
    pub(crate) fn quarantine_time(&self) -> Duration {
        self.settings.quarantine_time(self.limits.keep_alive_step)
    }

    /// Whether it ever had an I/O queue. A controller that ends before that counts as a failed connection attempt.
    pub(crate) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }

    /// Marks it as in use.
    pub(crate) fn touch(&self) {
        self.association.touch();
    }

    /// Runs an admin command on the control thread and returns its data.
    pub(crate) fn ask(&self, sqe: Sqe, bytes: usize) -> Result<Vec<u8>, LinkError> {
        self.touch();
        let (answer, answered) = mpsc::channel();
        let wait_max = self.settings.command_max;
        let ask = AdminRequest {
            sqe,
            bytes,
            wait_max,
            answer,
        };
        let gone = || LinkError::Broken(self.ended().unwrap_or("its thread ended").to_owned());
        self.asks.lock().send(ask).map_err(|_| gone())?;
        match answered.recv_timeout(wait_max + CONTROL_SLACK) {
            Ok(answer) => answer,
            Err(_) => Err(gone()),
        }
    }

    /// Runs admin commands. Runs them again if the target refuses one and permits a retry, as often as an I/O.
    pub(crate) fn retry<T>(self: &Arc<Self>, run: impl Fn(&Arc<Self>) -> Result<T, LinkError>) -> Result<T, LinkError> {
        let mut tries = 0;
        loop {
            match run(self) {
                Err(LinkError::Refused(status, _)) if status.is_retryable() && tries < self.settings.retries_max => {
                    tries += 1;
                    std::thread::sleep(self.settings.delay(tries));
                }
                result => return result,
            }
        }
    }

    /// Connects an I/O queue. If all granted queues are in use, makes another association for this queue.
    pub(crate) fn any_queue(self: &Arc<Self>) -> Result<(Arc<Self>, Link, QueueId), Refusal> {
        // A controller that fails to connect a queue is unusable.
        let queue = self.queue();
        let queue = queue.inspect_err(|refusal| self.end(refusal.why.as_str()))?;
        if let Some((link, id)) = queue {
            return Ok((Arc::clone(self), link, id));
        }
        let own = Self::connect(self.address, &self.subsystem, &self.settings, true)?;
        if own.limits.transfer_bytes < self.limits.transfer_bytes {
            let why = "another association permits only shorter transfers";
            return Err(Refusal::transient(why));
        }
        let queue = own.queue()?;
        let (link, id) = queue.ok_or_else(|| Refusal::transient("the target grants no I/O queue"))?;
        Ok((own, link, id))
    }

    /// Connects an I/O queue; `None` if all granted queues are in use.
    fn queue(self: &Arc<Self>) -> Result<Option<(Link, QueueId)>, Refusal> {
        self.touch();
        let id = self.queue_ids.lock().pop_front();
        let Some(id) = id else {
            return Ok(None);
        };
        let lease = QueueId {
            controller: Arc::clone(self),
            id,
        };
        let settings = &self.settings;
        let deadline = Instant::now() + settings.connect_max;
        let failed = |error: LinkError| Refusal::of("connect an I/O queue", &error);
        let mut link = Link::open(self.address, settings.digests, settings.connect_max)?;
        let connect = Connect {
            queue: id,
            size: self.limits.commands,
            is_uncontrolled: true,
            keep_alive_ms: 0,
        };
        let data = connect_data(settings, &self.subsystem, self.id);
        let result = link.connect(connect, &data, deadline).map_err(failed)?;
        // Linux requires authentication on the admin queue only.
        if Connected::from_result(result).needs_auth {
            let connected = Connected::from_result(result);
            login::authenticate(&mut link, connected, &self.subsystem, settings, deadline)?;
        }
        // A target that was restarted may know another association of this host by the same identifier. A response on
        // the admin queue shows that this queue is with the target whose namespaces were verified.
        match self.ask(Admin::KeepAlive.sqe(), 0) {
            Ok(_) | Err(LinkError::Refused(..)) => {}
            Err(error) => return Err(failed(error)),
        }
        self.has_served.store(true, Ordering::Relaxed);
        Ok(Some((link, lease)))
    }
}
