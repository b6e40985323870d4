//! An association with a controller: its limits, its queue identifiers, and its end.

use std::{
    collections::{BTreeMap, VecDeque},
    net::SocketAddr,
    sync::{
        Arc, OnceLock,
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
    log::{AnaLog, AnaState},
};

use crate::{
    control::{self, AdminRequest},
    index::IndexCache,
    link::{Link, LinkError},
    login,
    opening::{Opening, connect_data, read_ana},
    refusal::Refusal,
    settings::HostSettings,
    verdicts::Verdicts,
};

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
    transition: Duration,
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
    pub(crate) settings: Arc<HostSettings>,
    pub(crate) address: SocketAddr,
    /// Whether it was made for one queue, because the path's controller grants no more.
    pub(crate) is_further: bool,
    subsystem: Nqn,
    id: u16,
    queue_ids: Lock<VecDeque<u16>>,
    ended: OnceLock<String>,
    asks: Lock<mpsc::Sender<AdminRequest>>,
    /// Increases with use. A controller is idle if it does not change for a while.
    activity: AtomicU64,
    /// Whether it ever had an I/O queue.
    has_served: AtomicBool,
    ana: Lock<Option<AnaLog>>,
    wants_ana: AtomicBool,
    /// The times since which I/O has waited for inaccessible namespaces.
    waits: Lock<BTreeMap<u32, Instant>>,
    pub(crate) verdicts: Arc<Verdicts>,
    pub(crate) index: IndexCache,
    /// The boot of the target's machine, as of the last verification; 0 if it is not known. Lanes read it, and must not
    /// wait for the index.
    boot: AtomicU64,
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
        let ana = if page.has_ana() {
            Some(read_ana(&mut admin.link, &page, admin.deadline)?)
        } else {
            None
        };
        let queues = admin.ask_for_queues()?;
        admin.ask_for_events(page.events)?;
        let entries = u32::from(admin.capabilities.size_max()) + 1;
        let (asks, asked) = mpsc::channel();
        let controller = Arc::new(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            limits: Limits::new(&page, entries, settings),
            settings: Arc::clone(settings),
            address,
            is_further,
            subsystem: subsystem.clone(),
            id: admin.id,
            queue_ids: Lock::new((1..=queues).collect()),
            ended: OnceLock::new(),
            asks: Lock::new(asks),
            activity: AtomicU64::new(0),
            has_served: AtomicBool::new(false),
            ana: Lock::new(ana),
            wants_ana: AtomicBool::new(false),
            waits: Lock::default(),
            verdicts: Arc::default(),
            index: IndexCache::default(),
            boot: AtomicU64::new(0),
        });
        let started = control::start(&controller, admin.link, page, asked);
        started.map_err(|error| Refusal::transient(format!("no control thread: {error}")))?;
        Ok(controller)
    }

    /// The cause of its end; `None` while it is usable.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// Ends the association. Only the first cause is kept.
    pub(crate) fn end(&self, why: impl Into<String>) {
        let _ = self.ended.set(why.into());
    }

    /// The time for which it may still execute commands after its connections were lost.
    pub(crate) fn quarantine_time(&self) -> Duration {
        self.settings.quarantine_time(self.limits.keep_alive_step)
    }

    /// Whether it ever had an I/O queue. A controller that ends before that counts as a failed connection attempt.
    pub(crate) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
    }

    /// The boot of the target's machine; 0 if it is not known.
    pub(crate) fn boot(&self) -> u64 {
        self.boot.load(Ordering::Acquire)
    }

    pub(crate) fn set_boot(&self, boot: u64) {
        self.boot.store(boot, Ordering::Release);
    }

    /// Marks it as in use.
    pub(crate) fn touch(&self) {
        self.activity.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }

    /// The ANA state of a namespace; optimized if the controller does not report ANA states.
    pub(crate) fn state_of(&self, nsid: u32) -> AnaState {
        let ana = self.ana.lock();
        ana.as_ref().map_or(AnaState::Optimized, |log| {
            log.state_of(nsid).unwrap_or(AnaState::Inaccessible)
        })
    }

    /// Requests that the control thread reads the ANA log again.
    pub(crate) fn request_ana_refresh(&self) {
        self.wants_ana.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take_ana_request(&self) -> bool {
        self.wants_ana.swap(false, Ordering::Relaxed)
    }

    /// Takes over new ANA states. A namespace that is or was accessible is waited for from the start next time.
    pub(crate) fn set_ana(&self, log: AnaLog) {
        let mut ana = self.ana.lock();
        let is_usable = |log: &AnaLog, nsid: u32| log.state_of(nsid).is_some_and(AnaState::is_usable);
        self.waits.lock().retain(|nsid, _| {
            let was_usable = ana.as_ref().is_some_and(|before| is_usable(before, *nsid));
            !was_usable && !is_usable(&log, *nsid)
        });
        *ana = Some(log);
    }

    /// Whether an inaccessible namespace has been waited for longer than a change of its state may take.
    pub(crate) fn is_overdue(&self, nsid: u32, now: Instant) -> bool {
        let since = *self.waits.lock().entry(nsid).or_insert(now);
        now.saturating_duration_since(since) > self.limits.transition
    }

    /// Lets inaccessible namespaces be waited for again.
    pub(crate) fn restart_waits(&self) {
        self.waits.lock().clear();
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
    pub(crate) fn retry<T>(&self, run: impl Fn(&Self) -> Result<T, LinkError>) -> Result<T, LinkError> {
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
