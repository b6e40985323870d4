//! The configuration of a target: sources, ports and hosts.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::{Nqn, log::AnaState};

use crate::{
    catalog::{GROUPS_MAX, NamespaceSource, group_of},
    host::HostPolicy,
    served_path::Links,
};

/// The maximum number of ports.
const PORTS_MAX: usize = 64;

/// A port to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address; port 0 is any free one.
    pub address: SocketAddr,
    /// The ANA state of namespaces on this port.
    pub state: AnaState,
    /// ANA states of single groups that differ. The namespaces of the first source are group 1, and so on.
    pub groups: BTreeMap<u32, AnaState>,
}

impl Listen {
    /// A port on which all namespaces are optimized.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            state: AnaState::Optimized,
            groups: BTreeMap::new(),
        }
    }

    /// The ANA state of a group on this port.
    pub(crate) fn state_of(&self, group: u32) -> AnaState {
        self.groups.get(&group).copied().unwrap_or(self.state)
    }
}

/// The settings of a target.
#[derive(Clone, Debug)]
pub struct Config {
    /// The NQN of the subsystem.
    pub nqn: Nqn,
    /// The ports. Discovery is served on each of them.
    pub ports: Vec<Listen>,
    /// The files, folders, devices and memory to serve.
    pub sources: Vec<NamespaceSource>,
    /// The block size is 2 to this power: 9 to 12.
    pub block_shift: u8,
    /// Whether hosts may write.
    pub is_writable: bool,
    /// The hosts that may connect.
    pub policy: HostPolicy,
    /// Other discovery controllers to refer hosts to.
    pub referrals: Vec<SocketAddr>,
    /// The links below served folders that are followed.
    pub links: Links,
    /// The maximum number of connections.
    pub connections_max: usize,
    /// The maximum number of connections from one address. All addresses of an IPv6 network (64 bits) count as one.
    pub address_connections_max: usize,
    /// The maximum number of I/O queues per association.
    pub queues_max: u16,
    /// The timeout from the start of a connection to its Connect.
    pub login_timeout: Duration,
    /// The timeout for the rest of a PDU, and for a host that reads nothing although bytes are sent to it.
    pub stall_timeout: Duration,
}

impl Config {
    /// A target for `sources` on one port: read-only, blocks of 512 bytes, all hosts.
    pub fn new(nqn: Nqn, address: SocketAddr, sources: Vec<NamespaceSource>) -> Self {
        Self {
            nqn,
            ports: vec![Listen::new(address)],
            sources,
            block_shift: 9,
            is_writable: false,
            policy: HostPolicy::default(),
            referrals: Vec::new(),
            links: Links::Any,
            connections_max: 1024,
            // Three associations with the most queues.
            address_connections_max: 512,
            queues_max: 128,
            login_timeout: Duration::from_secs(10),
            stall_timeout: Duration::from_secs(30),
        }
    }

    /// The number of ANA groups.
    pub(crate) fn groups(&self) -> u32 {
        group_of(self.sources.len().clamp(1, GROUPS_MAX) - 1)
    }

    /// Fails if the settings are invalid.
    pub fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::Invalid, "serve", &self.nqn, why));
        if self.nqn.is_discovery() {
            return refuse("this is the NQN of discovery subsystems");
        }
        if self.ports.is_empty() || self.ports.len() > PORTS_MAX {
            return refuse("a target has 1 to 64 ports");
        }
        if !(9..=12).contains(&self.block_shift) {
            return refuse("blocks have 512, 1024, 2048 or 4096 bytes");
        }
        if self.sources.is_empty() {
            return refuse("there is nothing to serve");
        }
        if self.queues_max == 0 || self.connections_max == 0 || self.address_connections_max == 0 {
            return refuse("the limits must allow a connection and a queue");
        }
        let groups = self.groups();
        let mut named = self.ports.iter().flat_map(|port| port.groups.keys());
        if named.any(|group| !(1..=groups).contains(group)) {
            let why = "there is no such ANA group: each source has one, numbered from 1";
            return refuse(why);
        }
        for source in &self.sources {
            if let NamespaceSource::Memory { name, bytes } = source
                && (*bytes == 0 || !bytes.is_multiple_of(1 << self.block_shift))
            {
                let why = "the length of memory must be a multiple of the block size, and not 0";
                return Err(Error::new(ErrorKind::Invalid, "serve", name, why));
            }
        }
        Ok(())
    }
}
