//! An association with a controller: its limits, its queue identifiers, and its end.

use std::{
    collections::VecDeque,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use straightway_nvme::{
    Nqn, Sqe, Status, TRANSFER_BYTES_MAX,
    admin::{ALL_NAMESPACES, Admin, EventMask, Feature, Identify, QueueCounts},
    fabrics::{
        CSTS_FATAL, CSTS_READY, Connect, ConnectData, Connected, ControllerCapabilities,
        DYNAMIC_CONTROLLER, Fabrics, Property, config,
    },
    identify::{self, IDENTIFY_BYTES, page},
    log::{self, AnaLog, AnaState},
};

use crate::{
    control::{self, AdminRequest},
    link::{Link, LinkError, get_log},
    login,
    settings::HostSettings,
    verify::Verdicts,
};

/// The number of I/O queues to request: more than a machine has lanes.
const QUEUES_MAX: u16 = 64;

/// The number of entries of the admin queue, as in Linux.
const ADMIN_ENTRIES: u16 = 32;

/// The polling interval while a controller becomes ready.
const READY_INTERVAL: Duration = Duration::from_millis(5);

/// The time that the control thread may take in addition to the timeout of a command.
const CONTROL_SLACK: Duration = Duration::from_secs(1);

/// The cause of a failed connection attempt.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) why: String,
    /// Whether a retry would fail in the same way.
    pub(crate) is_final: bool,
}

impl Refusal {
    pub(crate) fn transient(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_final: false,
        }
    }

    pub(crate) fn permanent(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_final: true,
        }
    }

    fn of(doing: &str, error: &LinkError) -> Self {
        let is_final = matches!(error, LinkError::Refused(status, _) if !status.is_retryable());
        Self {
            why: format!("{doing}: {error}"),
            is_final,
        }
    }
}

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
}

/// An association with a controller.
#[derive(Debug)]
pub(crate) struct Controller {
    /// A number that is unique in this process.
    pub(crate) number: u64,
    pub(crate) limits: Limits,
    pub(crate) settings: Arc<HostSettings>,
    address: SocketAddr,
    subsystem: Nqn,
    id: u16,
    queue_entries: u16,
    queue_ids: Mutex<VecDeque<u16>>,
    ended: OnceLock<String>,
    asks: Mutex<mpsc::Sender<AdminRequest>>,
    /// Increases with use. A controller is idle if it does not change for a while.
    activity: AtomicU64,
    /// Whether it ever had an I/O queue.
    has_served: AtomicBool,
    ana: Mutex<Option<AnaLog>>,
    wants_ana: AtomicBool,
    pub(crate) verdicts: Verdicts,
}

/// The identifier of an I/O queue. It is released on drop.
#[derive(Debug)]
pub(crate) struct QueueId {
    controller: Arc<Controller>,
    id: u16,
}

impl Drop for QueueId {
    fn drop(&mut self) {
        lock(&self.controller.queue_ids).push_back(self.id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Controller {
    /// Connects to a subsystem at an address and starts the control thread.
    pub(crate) fn connect(
        address: SocketAddr,
        subsystem: &Nqn,
        settings: &Arc<HostSettings>,
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
        let most = match page.commands_max {
            0 => u16::MAX,
            commands => commands,
        };
        let queue_entries = u16::try_from(entries.min(u32::from(most))).unwrap_or(u16::MAX);
        let queue_entries = queue_entries.min(settings.queue_entries).max(2);
        let transfer = page
            .transfer_bytes_max()
            .unwrap_or(u64::from(TRANSFER_BYTES_MAX));
        let transfer = transfer.min(u64::from(TRANSFER_BYTES_MAX));
        let (asks, asked) = mpsc::channel();
        let controller = Arc::new(Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            limits: Limits {
                transfer_bytes: u32::try_from(transfer).expect("at most 4 MiB"),
                capsule_bytes: page.capsule_bytes_max().min(TRANSFER_BYTES_MAX),
                commands: queue_entries - 1,
                retry_delays: page.retry_delays,
            },
            settings: Arc::clone(settings),
            address,
            subsystem: subsystem.clone(),
            id: admin.id,
            queue_entries,
            queue_ids: Mutex::new((1..=queues).collect()),
            ended: OnceLock::new(),
            asks: Mutex::new(asks),
            activity: AtomicU64::new(0),
            has_served: AtomicBool::new(false),
            ana: Mutex::new(ana),
            wants_ana: AtomicBool::new(false),
            verdicts: Verdicts::default(),
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

    /// Whether it ever had an I/O queue. A controller that ends before that counts as a failed connection attempt.
    pub(crate) fn has_served(&self) -> bool {
        self.has_served.load(Ordering::Relaxed)
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
        let ana = lock(&self.ana);
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

    pub(crate) fn set_ana(&self, log: AnaLog) {
        *lock(&self.ana) = Some(log);
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
        lock(&self.asks).send(ask).map_err(|_| gone())?;
        match answered.recv_timeout(wait_max + CONTROL_SLACK) {
            Ok(answer) => answer,
            Err(_) => Err(gone()),
        }
    }

    /// Makes another association with the same subsystem at the same address.
    pub(crate) fn another(&self) -> Result<Arc<Self>, Refusal> {
        Self::connect(self.address, &self.subsystem, &self.settings)
    }

    /// Connects an I/O queue; `None` if all granted queues are in use.
    pub(crate) fn queue(self: &Arc<Self>) -> Result<Option<(Link, QueueId)>, Refusal> {
        self.touch();
        let id = lock(&self.queue_ids).pop_front();
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
        let mut link = Link::open(self.address, settings.digests, settings.connect_max);
        let connect = Connect {
            queue: id,
            size: self.queue_entries - 1,
            is_uncontrolled: true,
            keep_alive_ms: 0,
        };
        let data = connect_data(settings, &self.subsystem, self.id);
        let open = link.as_mut();
        let open = open.map_err(|error| Refusal::transient(error.to_string()))?;
        let result = open.connect(connect, &data, deadline).map_err(failed)?;
        // Linux requires authentication on the admin queue only.
        if Connected::from_result(result).needs_auth {
            let connected = Connected::from_result(result);
            login::authenticate(open, connected, &self.subsystem, settings, deadline)?;
        }
        self.has_served.store(true, Ordering::Relaxed);
        link.map(|link| Some((link, lease))).map_err(failed)
    }
}

fn connect_data(settings: &HostSettings, subsystem: &Nqn, controller: u16) -> ConnectData {
    ConnectData {
        host_id: settings.host_id,
        controller,
        subsystem: subsystem.clone(),
        host: settings.host.clone(),
    }
}

/// A controller during the setup of its admin queue.
#[derive(Debug)]
pub(crate) struct Opening {
    pub(crate) link: Link,
    pub(crate) deadline: Instant,
    id: u16,
    capabilities: ControllerCapabilities,
}

impl Opening {
    /// Connects the admin queue and enables the controller.
    pub(crate) fn new(
        address: SocketAddr,
        subsystem: &Nqn,
        settings: &HostSettings,
    ) -> Result<Self, Refusal> {
        let deadline = Instant::now() + settings.connect_max;
        let link = Link::open(address, settings.digests, settings.connect_max);
        let mut link = link.map_err(|error| Refusal::transient(error.to_string()))?;
        let keep_alive = u32::try_from(settings.keep_alive.as_millis()).unwrap_or(u32::MAX);
        let connect = Connect {
            queue: 0,
            size: ADMIN_ENTRIES - 1,
            is_uncontrolled: true,
            keep_alive_ms: keep_alive,
        };
        let data = connect_data(settings, subsystem, DYNAMIC_CONTROLLER);
        let result = link
            .connect(connect, &data, deadline)
            .map_err(|error| refused(&error, subsystem, settings))?;
        let connected = Connected::from_result(result);
        login::authenticate(&mut link, connected, subsystem, settings, deadline)?;
        let mut opening = Self {
            link,
            deadline,
            id: connected.controller,
            capabilities: ControllerCapabilities(0),
        };
        opening.enable()?;
        Ok(opening)
    }

    fn enable(&mut self) -> Result<(), Refusal> {
        self.capabilities = ControllerCapabilities(self.property(Property::CAP)?);
        let value = config::ENTRIES | config::ENABLE;
        let set = Fabrics::PropertySet {
            property: Property::CC,
            value,
        };
        let enabled = self.link.run(set.sqe(), &[], &mut [], self.deadline);
        enabled.map_err(|error| Refusal::of("enable the controller", &error))?;
        loop {
            let status = self.property(Property::CSTS)?;
            if status & CSTS_FATAL != 0 {
                return Err(Refusal::transient("the controller reports a fatal error"));
            }
            if status & CSTS_READY != 0 {
                return Ok(());
            }
            if Instant::now() >= self.deadline {
                return Err(Refusal::transient("the controller does not become ready"));
            }
            std::thread::sleep(READY_INTERVAL);
        }
    }

    fn property(&mut self, property: Property) -> Result<u64, Refusal> {
        let get = Fabrics::PropertyGet { property }.sqe();
        let got = self.link.run(get, &[], &mut [], self.deadline);
        let got = got.map_err(|error| Refusal::of("read a property", &error))?;
        Ok(got.result)
    }

    /// Reads Identify Controller.
    pub(crate) fn identify(&mut self) -> Result<identify::Controller, Refusal> {
        let failed = |error: &dyn std::fmt::Display| {
            Refusal::transient(format!("identify the controller: {error}"))
        };
        let mut bytes = vec![0; IDENTIFY_BYTES];
        let sqe = Admin::Identify(Identify {
            page: page::CONTROLLER,
            nsid: 0,
            controller: 0,
            command_set: 0,
        });
        let run = self.link.run(sqe.sqe(), &[], &mut bytes, self.deadline);
        run.map_err(|error| failed(&error))?;
        identify::Controller::decode(&bytes).map_err(|error| failed(&error))
    }

    /// Refuses the same invalid controllers as Linux.
    fn check(&self, page: &identify::Controller) -> Result<(), Refusal> {
        let rules = [
            (
                page.id == self.id,
                "its identifier is not the one that Connect returned",
            ),
            (
                page.command_capsule_16 >= 4,
                "its capsules are shorter than a command",
            ),
            (
                page.response_capsule_16 >= 1,
                "its capsules are shorter than a completion",
            ),
            (
                page.capsule_offset_16 == 0,
                "its in-capsule data is at an offset",
            ),
            (page.sgl & 3 != 0, "it does not support SGLs"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            None => Ok(()),
            Some((_, why)) => Err(Refusal::permanent(format!(
                "the controller is unusable: {why}"
            ))),
        }
    }

    fn ask_for_queues(&mut self) -> Result<u16, Refusal> {
        let set = Admin::SetFeatures {
            feature: Feature::QUEUES,
            is_saved: false,
            value: QueueCounts::both(QUEUES_MAX).to_value(),
            nsid: 0,
        };
        let set = self.link.run(set.sqe(), &[], &mut [], self.deadline);
        let set = set.map_err(|error| Refusal::of("ask for I/O queues", &error))?;
        let granted = u32::try_from(set.result & 0xffff_ffff).expect("32 bits");
        Ok(QueueCounts::from_value(granted).pairs().min(QUEUES_MAX))
    }

    fn ask_for_events(&mut self, offered: u32) -> Result<(), Refusal> {
        let wanted = offered & (EventMask::NAMESPACES | EventMask::ANA);
        if wanted == 0 {
            return Ok(());
        }
        let set = Admin::SetFeatures {
            feature: Feature::EVENTS,
            is_saved: false,
            value: wanted,
            nsid: 0,
        };
        let failed = |error: LinkError| Refusal::of("ask for events", &error);
        match self.link.run(set.sqe(), &[], &mut [], self.deadline) {
            Ok(_) => {}
            // Some targets do not let hosts choose events.
            Err(LinkError::Refused(..)) => return Ok(()),
            Err(error) => return Err(failed(error)),
        }
        self.link.request_event(self.deadline).map_err(failed)
    }
}

/// Explains a refused Connect.
fn refused(error: &LinkError, subsystem: &Nqn, settings: &HostSettings) -> Refusal {
    let LinkError::Refused(status, result) = error else {
        return Refusal::of("connect", error);
    };
    let host = &settings.host;
    let why = match (status.code(), result & 0x1_ffff) {
        (code, 0x1_0100) if code == Status::CONNECT_INVALID_PARAM.code() => {
            format!("there is no subsystem {subsystem} there ({status})")
        }
        (code, _) if code == Status::CONNECT_INVALID_HOST.code() => {
            format!("the target does not allow the host {host} ({status})")
        }
        _ => format!("the target refuses the connection to {subsystem}: {status}"),
    };
    let is_busy = status.code() == Status::CONNECT_BUSY.code();
    Refusal {
        why,
        is_final: !status.is_retryable() || !is_busy,
    }
}

/// Reads the ANA log.
pub(crate) fn read_ana(
    link: &mut Link,
    page: &identify::Controller,
    deadline: Instant,
) -> Result<AnaLog, Refusal> {
    let failed = |why: String| Refusal::transient(format!("read the ANA log: {why}"));
    let namespaces = match page.namespaces_max {
        0 => page.namespaces,
        most => most.min(page.namespaces),
    };
    // A controller may allow billions of namespaces. The log itself is shorter and contains its length.
    let groups = page.ana_groups.clamp(1, 4096);
    let bytes = AnaLog::bytes_for(groups, namespaces.min(1 << 16)).expect("within the limits");
    let mut log = vec![0; bytes.next_multiple_of(4)];
    let sqe = get_log(log::page::ANA, log.len(), ALL_NAMESPACES);
    let run = link.run(sqe, &[], &mut log, deadline);
    run.map_err(|error| failed(error.to_string()))?;
    AnaLog::decode(&log).map_err(|error| failed(error.to_string()))
}
