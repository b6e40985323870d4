//! The setup of a controller's admin queue: Connect, authentication, enabling, and the first admin commands.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use straightway_nvme::{
    Nqn, Status,
    admin::{ALL_NAMESPACES, Admin, EventMask, Feature, Identify, QueueCounts},
    fabrics::{
        CSTS_FATAL, CSTS_READY, Connect, ConnectData, Connected, ControllerCapabilities, DYNAMIC_CONTROLLER, Fabrics,
        Property, config,
    },
    identify::{self, IDENTIFY_BYTES, page},
    log::{self, AnaLog},
};

use super::{
    failure::{LinkError, Refusal},
    link::{Link, get_log},
    login,
};
use crate::settings::HostSettings;

/// The number of I/O queues to request: more than a machine has lanes.
const QUEUES_MAX: u16 = 64;

/// The number of entries of the admin queue, as in Linux.
const ADMIN_ENTRIES: u16 = 32;

/// The polling interval while a controller becomes ready.
const READY_INTERVAL: Duration = Duration::from_millis(5);

/// The data of Connect.
pub(crate) fn connect_data(settings: &HostSettings, subsystem: &Nqn, controller: u16) -> ConnectData {
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
    /// The identifier of the controller.
    pub(crate) id: u16,
    pub(crate) capabilities: ControllerCapabilities,
}

impl Opening {
    /// Connects the admin queue and enables the controller.
    pub(crate) fn new(address: SocketAddr, subsystem: &Nqn, settings: &HostSettings) -> Result<Self, Refusal> {
        let deadline = Instant::now() + settings.connect_max;
        let mut link = Link::open(address, settings.digests, settings.connect_max)?;
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
        let failed = |error: &dyn std::fmt::Display| Refusal::transient(format!("identify the controller: {error}"));
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
    pub(crate) fn check(&self, page: &identify::Controller) -> Result<(), Refusal> {
        let rules = [
            (
                page.id == self.id,
                "its identifier is not the one that Connect returned",
            ),
            (page.command_capsule_16 >= 4, "its capsules are shorter than a command"),
            (
                page.response_capsule_16 >= 1,
                "its capsules are shorter than a completion",
            ),
            (page.capsule_offset_16 == 0, "its in-capsule data is at an offset"),
            (page.sgl & 3 != 0, "it does not support SGLs"),
        ];
        match rules.iter().find(|(holds, _)| !holds) {
            None => Ok(()),
            Some((_, why)) => Err(Refusal::permanent(format!("the controller is unusable: {why}"))),
        }
    }

    pub(crate) fn ask_for_queues(&mut self) -> Result<u16, Refusal> {
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

    pub(crate) fn ask_for_events(&mut self, offered: u32) -> Result<(), Refusal> {
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
    if is_busy && status.is_retryable() {
        Refusal::transient(why)
    } else {
        Refusal::permanent(why)
    }
}

/// Reads the ANA log.
pub(crate) fn read_ana(link: &mut Link, page: &identify::Controller, deadline: Instant) -> Result<AnaLog, Refusal> {
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
