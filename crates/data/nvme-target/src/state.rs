//! The state shared by all connections of a target.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use straightway_core::{Lock, Result, SharedLock};
use straightway_nvme::{Nqn, log::AnaState};
use straightway_sys::nonce::nonce;

use crate::{
    catalog::Catalog,
    config::Config,
    connections::Connections,
    controller::{Association, Controller},
    host::Hosts,
    identity,
    refresh::Refresh,
    scans::Scans,
    table::Table,
};

/// The largest controller identifier. The smallest is 1.
const CONTROLLER_MAX: u32 = 0xffef;

/// A listening port.
#[derive(Debug)]
pub(crate) struct Port {
    /// Its port identifier in discovery, from 1.
    pub(crate) id: u16,
    pub(crate) address: SocketAddr,
    /// The ANA state of each group on this port, from group 1 on.
    states: Lock<Vec<AnaState>>,
}

impl Port {
    /// The ANA state of a group on this port.
    pub(crate) fn state(&self, group: u32) -> AnaState {
        self.states.lock()[group as usize - 1]
    }
}

/// The state of the target.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) nqn: Nqn,
    pub(crate) serial: String,
    pub(crate) hosts: Hosts,
    pub(crate) ports: Vec<Port>,
    /// The number of ANA groups.
    pub(crate) groups: u32,
    pub(crate) referrals: Vec<SocketAddr>,
    pub(crate) queues_max: u16,
    pub(crate) is_writable: bool,
    /// The timeout of a login, and the timeout inside a PDU.
    pub(crate) login_timeout: Duration,
    pub(crate) stall_timeout: Duration,
    pub(crate) connections: Arc<Connections>,
    pub(crate) is_over: AtomicBool,
    catalog: Lock<Catalog>,
    table: SharedLock<Arc<Table>>,
    revision: AtomicU64,
    pub(crate) refresh: Refresh,
    scans: Scans,
    /// This state, for threads that scan.
    own: Weak<Self>,
    controllers: Lock<BTreeMap<u16, Arc<Controller>>>,
    /// The last controller identifier. The first one is random: an I/O queue that reaches another target of this NQN
    /// must not find a controller with its identifier there.
    last_controller: AtomicU32,
    ana_changes: AtomicU64,
}

impl Shared {
    pub(crate) fn new(config: &Config, addresses: &[SocketAddr]) -> Result<Arc<Self>> {
        let nqn = config.nqn.as_str();
        let sources = config.sources.clone();
        let mut catalog = Catalog::new(nqn, sources, config.block_shift, config.is_writable, config.links);
        catalog.scan()?;
        let table = catalog.table()?;
        let ports = config.ports.iter().zip(addresses).zip(1..);
        let groups = config.groups();
        let ports = ports.map(|((listen, address), id)| Port {
            id,
            address: *address,
            states: Lock::new((1..=groups).map(|group| listen.state_of(group)).collect()),
        });
        Ok(Arc::new_cyclic(|own| Self {
            groups,
            serial: identity::serial(nqn),
            hosts: Hosts::new(&config.policy),
            ports: ports.collect(),
            referrals: config.referrals.clone(),
            queues_max: config.queues_max,
            is_writable: config.is_writable,
            login_timeout: config.login_timeout,
            stall_timeout: config.stall_timeout,
            connections: Connections::new(config.connections_max, config.address_connections_max),
            is_over: AtomicBool::new(false),
            revision: AtomicU64::new(table.revision),
            refresh: Refresh::default(),
            scans: Scans::default(),
            own: Weak::clone(own),
            catalog: Lock::new(catalog),
            table: SharedLock::new(Arc::new(table)),
            controllers: Lock::default(),
            last_controller: AtomicU32::new(u32::from_le_bytes(
                *nonce().to_le_bytes().first_chunk().expect("8 bytes"),
            )),
            ana_changes: AtomicU64::new(1),
            nqn: config.nqn.clone(),
        }))
    }

    /// The current namespaces.
    pub(crate) fn table(&self) -> Arc<Table> {
        self.table.read().clone()
    }

    /// Whether `table` is the current one.
    pub(crate) fn is_newest(&self, table: &Table) -> bool {
        self.revision.load(Ordering::Acquire) == table.revision
    }

    /// Scans the sources again and notifies hosts of changes.
    pub(crate) fn rescan(&self) -> Result<BTreeSet<u32>> {
        let mut catalog = self.catalog.lock();
        let changed = catalog.scan()?;
        let revision = catalog.revision;
        if revision != self.revision.load(Ordering::Acquire) {
            let table = Arc::new(catalog.table()?);
            *self.table.write() = table;
            self.revision.store(revision, Ordering::Release);
        }
        drop(catalog);
        if !changed.is_empty() {
            for controller in self.controllers().iter().filter(|c| !c.is_discovery) {
                controller.notify_namespaces(&changed);
            }
        }
        Ok(changed)
    }

    /// Scans the sources again, unless a scan began at `since` or later. Returns whether it has ended at the deadline.
    pub(crate) fn rescan_since(&self, since: Instant, deadline: Instant) -> bool {
        self.scans.wait(since, deadline, || {
            let own = Weak::clone(&self.own);
            let thread = thread::Builder::new().name("nvme-scan".to_owned());
            let scan = move || {
                if let Some(shared) = own.upgrade() {
                    shared.scans.run(|| {
                        if let Err(error) = shared.rescan() {
                            tracing::warn!("cannot scan for changes: {error}");
                        }
                    });
                }
            };
            thread.spawn(scan).map(drop)
        })
    }

    /// The number of ANA changes.
    pub(crate) fn ana_changes(&self) -> u64 {
        self.ana_changes.load(Ordering::Relaxed)
    }

    /// Sets the ANA state of a group, or of all groups, on a port, and notifies the hosts that use it.
    pub(crate) fn set_state(&self, port: usize, group: Option<u32>, state: AnaState) {
        for (number, known) in (1..).zip(self.ports[port].states.lock().iter_mut()) {
            if group.is_none_or(|group| group == number) {
                *known = state;
            }
        }
        self.ana_changes.fetch_add(1, Ordering::Relaxed);
        for controller in self.controllers().iter().filter(|c| c.port == port) {
            controller.notify_ana();
        }
    }

    /// All controllers.
    pub(crate) fn controllers(&self) -> Vec<Arc<Controller>> {
        self.controllers.lock().values().cloned().collect()
    }

    /// The controller with this identifier.
    pub(crate) fn controller(&self, id: u16) -> Option<Arc<Controller>> {
        self.controllers.lock().get(&id).cloned()
    }

    /// Makes a controller; `None` if no identifier is left.
    pub(crate) fn associate(&self, with: Association) -> io::Result<Option<Arc<Controller>>> {
        let mut controllers = self.controllers.lock();
        let last = self.last_controller.load(Ordering::Relaxed);
        let Some(id) = next_id(last, |id| controllers.contains_key(&id)) else {
            return Ok(None);
        };
        self.last_controller.store(id.into(), Ordering::Relaxed);
        let controller = Arc::new(Controller::new(id, with)?);
        controllers.insert(id, controller.clone());
        Ok(Some(controller))
    }

    /// Ends a controller and its queues.
    pub(crate) fn end_controller(&self, controller: &Controller) {
        self.controllers.lock().remove(&controller.id);
        controller.end();
    }
}

/// The next controller identifier that is not in use.
fn next_id(last: u32, is_used: impl Fn(u16) -> bool) -> Option<u16> {
    let last = last % CONTROLLER_MAX;
    let ids = (0..CONTROLLER_MAX).map(|step| (last + step) % CONTROLLER_MAX + 1);
    let mut ids = ids.map(|id| u16::try_from(id).expect("it is at most 0xffef"));
    ids.find(|id| !is_used(*id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controller_identifiers_go_on_from_the_last_one_within_their_range() {
        let free = |_: u16| false;
        assert_eq!(next_id(0, free), Some(1));
        assert_eq!(next_id(7, free), Some(8));
        assert_eq!(next_id(7, |id| id == 8), Some(9));
        assert_eq!(next_id(CONTROLLER_MAX - 1, free), Some(0xffef));
        assert_eq!(next_id(CONTROLLER_MAX, free), Some(1));
        assert_eq!(next_id(0xffef, |id| id < 3), Some(3));
        for last in [CONTROLLER_MAX + 1, u32::MAX - 1, u32::MAX] {
            let id = u32::from(next_id(last, free).expect("all are free"));
            assert!((1..=CONTROLLER_MAX).contains(&id));
        }
        assert_eq!(next_id(u32::MAX, |id| id != 5), Some(5));
        assert_eq!(next_id(u32::MAX, |_| true), None);
    }
}
