//! What a target serves, where and to whom.

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use straightway_core::{Error, Kind, Result};
use straightway_nvme::{Nqn, log::AnaState};

use crate::{
    catalog::{GROUPS_MAX, Source, group_of},
    host::Policy,
};

/// The most ports.
const PORTS_MAX: usize = 64;

/// A port to listen on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// The address; port 0 is any free one.
    pub address: SocketAddr,
    /// How well namespaces are reached through it.
    pub state: AnaState,
    /// The states of single ANA groups, where they differ. What the first source serves is group 1, and so on.
    pub groups: BTreeMap<u32, AnaState>,
}

impl Listen {
    /// A port on which all namespaces are reached as well as can be.
    pub fn new(address: SocketAddr) -> Self {
        Self {
            address,
            state: AnaState::Optimized,
            groups: BTreeMap::new(),
        }
    }

    /// How a group is reached through it.
    pub(crate) fn state_of(&self, group: u32) -> AnaState {
        self.groups.get(&group).copied().unwrap_or(self.state)
    }
}

/// The settings of a target.
#[derive(Clone, Debug)]
pub struct Config {
    /// The name of the subsystem.
    pub nqn: Nqn,
    /// Where to listen. Discovery is answered on each port.
    pub ports: Vec<Listen>,
    /// What to serve.
    pub sources: Vec<Source>,
    /// Blocks are 2 to this power: 9 to 12.
    pub block_shift: u8,
    /// Whether hosts may write.
    pub is_writable: bool,
    /// Who may connect.
    pub policy: Policy,
    /// Other discovery controllers that hosts are told of.
    pub referrals: Vec<SocketAddr>,
    /// The most connections at a time.
    pub connections_max: usize,
    /// I/O queues of one host association at most.
    pub queues_max: u16,
    /// How long a host may take from its first byte to its Connect.
    pub login_time: Duration,
    /// How long a host may be silent inside of a message, or leave answers unread.
    pub patience: Duration,
}

impl Config {
    /// A target of `sources` on one port: read-only, blocks of 512 bytes, all hosts.
    pub fn new(nqn: Nqn, address: SocketAddr, sources: Vec<Source>) -> Self {
        Self {
            nqn,
            ports: vec![Listen::new(address)],
            sources,
            block_shift: 9,
            is_writable: false,
            policy: Policy::default(),
            referrals: Vec::new(),
            connections_max: 1024,
            queues_max: 128,
            login_time: Duration::from_secs(10),
            patience: Duration::from_secs(30),
        }
    }

    /// How many ANA groups there are.
    pub(crate) fn groups(&self) -> u32 {
        group_of(self.sources.len().clamp(1, GROUPS_MAX) - 1)
    }

    /// An error where settings cannot be.
    pub fn check(&self) -> Result<()> {
        let refuse = |why: &str| Err(Error::new(Kind::Invalid, "serve", &self.nqn, why));
        if self.nqn.is_discovery() {
            return refuse("this name belongs to discovery");
        }
        if self.ports.is_empty() || self.ports.len() > PORTS_MAX {
            return refuse("a target has 1 to 64 ports");
        }
        if !(9..=12).contains(&self.block_shift) {
            return refuse("blocks have 512, 1024, 2048 or 4096 bytes");
        }
        if self.sources.is_empty() {
            return refuse("nothing to serve was named");
        }
        if self.queues_max == 0 || self.connections_max == 0 {
            return refuse("there must be room for a connection and a queue");
        }
        let groups = self.groups();
        let mut named = self.ports.iter().flat_map(|port| port.groups.keys());
        if named.any(|group| !(1..=groups).contains(group)) {
            let why = "there is an ANA group for each thing to serve, from 1 on, and no other";
            return refuse(why);
        }
        for source in &self.sources {
            if let Source::Memory { name, bytes } = source
                && (*bytes == 0 || !bytes.is_multiple_of(1 << self.block_shift))
            {
                let why = "the length of memory is a multiple of the block, and not 0";
                return Err(Error::new(Kind::Invalid, "serve", name, why));
            }
        }
        Ok(())
    }
}
