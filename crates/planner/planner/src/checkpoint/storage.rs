//! The storage behind all nodes: its rate, the ports of its servers, and the software of its clients.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};
use straightway_scenario::{
    check::{BYTES_ANY, Checkable, Checker, RATE_ANY, TIME_ANY},
    provenance::{Basis, Citation, Confidence},
};

use super::CheckpointCluster;
use crate::{
    capacity::{LLAMA_STORAGE, STORAGE_CAPACITY},
    client::Clients,
    path::{Flow, PathEstimate},
    redundancy::Redundancy,
    servers::Servers,
};

/// The storage behind all nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Storage {
    /// The total write rate, independent of the number of nodes.
    pub rate: Rate,
    /// The total read rate; absent for the same as the write rate.
    pub read_rate: Option<Rate>,
    /// The storage servers.
    pub servers: Servers,
    /// Replication and erasure coding, which the servers' ports carry in a write.
    pub redundancy: Redundancy,
    /// The software of the clients.
    pub clients: Clients,
    /// The capacity.
    pub capacity: Bytes,
    /// The number of checkpoints kept.
    pub kept: u64,
    /// The time of the barrier across all ranks at a save.
    pub sync: Seconds,
}

/// Published barriers: milliseconds for a collective, seconds for the gathering of metadata at many ranks.
const SYNC: Citation = Citation {
    name: "an assumption",
    place: "a collective takes milliseconds, gathering the metadata of thousands of ranks seconds",
    confidence: Confidence::Assumed,
};

impl Default for Storage {
    fn default() -> Self {
        Self {
            rate: Rate(2e12),
            read_rate: None,
            servers: Servers::default(),
            redundancy: Redundancy::default(),
            clients: Clients::default(),
            capacity: STORAGE_CAPACITY,
            kept: 3,
            sync: Seconds(1.0),
        }
    }
}

impl Checkable for Storage {
    fn check(&self, c: &mut Checker) {
        c.rate("rate", self.rate, RATE_ANY);
        if let Some(rate) = self.read_rate {
            c.rate("read_rate", rate, RATE_ANY);
        }
        c.within("servers", |c| self.servers.check(c));
        c.within("redundancy", |c| self.redundancy.check(c));
        c.within("clients", |c| self.clients.check(c));
        c.bytes("capacity", self.capacity, BYTES_ANY);
        c.count("kept", self.kept, 1..=1_000_000);
        c.seconds("sync", self.sync, TIME_ANY);
    }
}

impl Storage {
    /// The rate of all nodes together over `path`, and its bottleneck.
    pub(super) fn together(&self, cluster: &CheckpointCluster, path: &PathEstimate, flow: Flow) -> (f64, String) {
        let nodes = cluster.gpus.div_ceil(cluster.gpus_per_node) as f64;
        let ranks = cluster.gpus as f64;
        let rate = match flow {
            Flow::Write => self.rate,
            Flow::Read => self.read_rate.unwrap_or(self.rate),
        };
        let (stream, streams) = match flow {
            Flow::Write => (self.clients.writer_bytes_per_s(), "the writers' software"),
            Flow::Read => (self.clients.reader_bytes_per_s(), "the readers' software"),
        };
        let limits = [
            Some((nodes * path.rate_bytes_per_s, path.bound_by.as_str())),
            Some((rate.0, "the storage")),
            self.ports_bytes_per_s(flow).map(|ports| (ports, "the servers' ports")),
            stream.map(|one| (ranks * one, streams)),
            self.clients
                .node_bytes_per_s()
                .map(|one| (nodes * one, "the clients of the nodes")),
        ];
        let least = limits.into_iter().flatten().min_by(|a, b| a.0.total_cmp(&b.0));
        let (rate, bound_by) = least.expect("the path is a limit");
        (rate, bound_by.to_owned())
    }

    /// The data rate of the servers' ports, if the servers are given.
    fn ports_bytes_per_s(&self, flow: Flow) -> Option<f64> {
        let crossings = match flow {
            Flow::Write => self.redundancy.ingress(),
            Flow::Read => 1.0,
        };
        Some(self.servers.bytes_per_s()? / crossings)
    }

    /// Adds the constants of the storage to a basis.
    pub(super) fn assume(&self, basis: &mut Basis) {
        let what = "storage, all nodes together";
        basis
            .parameter("storage.rate", what, self.rate.0, "B/s", LLAMA_STORAGE)
            .between(1e12, 7e12, LLAMA_STORAGE);
        if let Some(rate) = self.read_rate {
            let what = "storage, reads of all nodes together";
            basis.parameter("storage.read_rate", what, rate.0, "B/s", Citation::SCENARIO);
        }
        self.servers.assume(basis, "storage.servers");
        if self.servers.count.is_some() {
            let what = "bytes that enter the servers' ports for a byte written";
            let ingress = self.redundancy.ingress();
            basis.parameter("storage.redundancy", what, ingress, "", Citation::SCENARIO);
        }
        self.clients.assume(basis, "storage.clients");
        let what = "barrier across all ranks";
        basis
            .parameter("storage.sync", what, self.sync.0, "s", SYNC)
            .between(0.05, 2.0, SYNC);
    }
}
