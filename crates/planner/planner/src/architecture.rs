//! Storage architectures under three loads: a checkpoint, an ingest, a metadata storm.
//!
//! Lustre, Weka, VAST and FlashBlade differ in structure, and only the structure is compared: the number of targets per
//! file, the number of servers per directory, the overhead of data protection, and the limits of a client's protocol.
//! Unless a scenario says otherwise, all systems get the *same* servers, drives, ports and operations per second, so a
//! difference in the answer is a difference in structure. This is a model with stated assumptions, not a ranking of
//! products.

mod basis;
mod system;

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

pub use self::system::System;
use straightway_pcie::machine::LINK_EFFICIENCY;

use crate::capacity::shown_bytes;
use crate::question::Question;
use crate::queue::{self, Wait};
use straightway_scenario::check::Refusals;
use straightway_scenario::{
    check::{BYTES_ANY, Checkable, Checker, RATE_ANY, TIME_ANY},
    provenance::{Basis, Citation, Formula},
};

/// The input of the topic `architecture`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ArchitectureQuestion {
    /// The number of client nodes.
    pub clients: u64,
    /// The line rate of one client's ports.
    pub client_rate: Rate,
    /// The round trip between client and server.
    pub hop: Seconds,
    /// The hardware of every system.
    pub hardware: Hardware,
    /// The systems compared.
    pub systems: Vec<System>,
    /// The load of a checkpoint written by all clients.
    pub checkpoint: Write,
    /// The load of small files read at random.
    pub ingest: Reads,
    /// The load of a metadata storm.
    pub storm: Storm,
}

/// The hardware of a system.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hardware {
    /// The number of storage servers.
    pub servers: u64,
    /// The line rate of one server's ports.
    pub server_rate: Rate,
    /// The share of the line rates of servers and clients that carries data.
    pub efficiency: f64,
    /// The number of targets (drives, or groups that act as one drive) per server.
    pub targets_per_server: u64,
    /// The read rate of one target.
    pub target_read: Rate,
    /// The write rate of one target.
    pub target_write: Rate,
    /// The capacity of one target.
    pub target_capacity: Bytes,
    /// Creates per second of one metadata server.
    pub creates_per_s: f64,
    /// Lookups per second of one metadata server.
    pub stats_per_s: f64,
}

/// A checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Write {
    /// The size.
    pub size: Bytes,
    /// The number of files.
    pub files: u64,
    /// The number of checkpoints kept.
    pub kept: u64,
}

/// An ingest of small files.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reads {
    /// The size of a file.
    pub file: Bytes,
    /// Metadata lookups before the first byte of a file.
    pub lookups: f64,
    /// Readers of one client.
    pub readers: u64,
}

/// A metadata storm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Storm {
    /// The arrival rate, in operations per second.
    pub operations_per_s: f64,
    /// The total number of operations. The storm ends when the last one has arrived and been served.
    pub operations: f64,
    /// Whether the operations are creates; otherwise they are lookups.
    pub creates: bool,
    /// Whether all operations go to one directory.
    pub one_directory: bool,
}

/// The answer of the topic `architecture`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArchitectureAnswer {
    /// One row for each system.
    pub systems: Vec<ArchitectureRow>,
    /// The shortest time of a remote metadata operation: the round trip and one service.
    pub metadata_floor_s: f64,
    /// The formulas and constants behind the answer.
    pub basis: Basis,
}

/// One system under the three loads.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ArchitectureRow {
    /// Its name.
    pub name: String,
    /// The write rate of the checkpoint.
    pub write_bytes_per_s: f64,
    /// The time to write the checkpoint.
    pub write_s: f64,
    /// The bottleneck.
    pub write_bound_by: &'static str,
    /// Small files read per second.
    pub files_per_s: f64,
    /// The read rate of small files.
    pub read_bytes_per_s: f64,
    /// The bottleneck.
    pub read_bound_by: &'static str,
    /// The number of servers that answer the storm.
    pub storm_servers: u64,
    /// The queueing of the storm.
    pub storm: Wait,
    /// The time from the first arrival until all operations are done.
    pub storm_s: f64,
}

const FORMULAS: [Formula; 4] = [
    Formula {
        gives: "bandwidth",
        text: "B = min(Σ clients, Σ streams, Σ over stripes of targets · share that is data, Σ server ports · share that is data), ports at line rate · efficiency; with pieces sent on by the server, ports / (1 + 1 / share)",
        source: Citation::read("Lustre manual", "striping: default 1 stripe of 4 MiB"),
    },
    queue::MMC,
    Formula {
        gives: "wait in a storm",
        text: "one M/M/c queue for servers that share all names; else c M/M/1 queues, each with λ/c",
        source: Citation::computed("each shard has its own queue", ""),
    },
    Formula {
        gives: "end of a storm",
        text: "max(N/λ, N/(c·μ))",
        source: Citation::computed("ends when all have arrived and been served", ""),
    },
];

impl Default for ArchitectureQuestion {
    fn default() -> Self {
        Self {
            clients: 128,
            client_rate: Rate::gbit(400.0),
            hop: Seconds(10e-6),
            hardware: Hardware::default(),
            systems: system::systems(),
            checkpoint: Write::default(),
            ingest: Reads::default(),
            storm: Storm::default(),
        }
    }
}

impl Default for Hardware {
    fn default() -> Self {
        Self {
            servers: 16,
            server_rate: Rate::gbit(400.0),
            efficiency: LINK_EFFICIENCY[1],
            targets_per_server: 8,
            target_read: Rate(12e9),
            target_write: Rate(6e9),
            target_capacity: Bytes(15_360_000_000_000),
            creates_per_s: 35e3,
            stats_per_s: 100e3,
        }
    }
}

impl Default for Write {
    fn default() -> Self {
        Self {
            size: Bytes(14_000_000_000_000),
            files: 1024,
            // The old checkpoint is deleted only after the new one is complete.
            kept: 2,
        }
    }
}

impl Default for Reads {
    fn default() -> Self {
        Self {
            file: Bytes::kib(110),
            lookups: 2.0,
            readers: 64,
        }
    }
}

impl Default for Storm {
    fn default() -> Self {
        Self {
            operations_per_s: 200e3,
            operations: 10e6,
            creates: false,
            one_directory: true,
        }
    }
}

impl Checkable for ArchitectureQuestion {
    fn check(&self, c: &mut Checker) {
        c.count("clients", self.clients, 1..=10_000_000);
        c.rate("client_rate", self.client_rate, RATE_ANY);
        c.seconds("hop", self.hop, TIME_ANY);
        c.within("hardware", |c| {
            let hardware = &self.hardware;
            c.count("servers", hardware.servers, 1..=100_000);
            c.rate("server_rate", hardware.server_rate, RATE_ANY);
            c.range("efficiency", hardware.efficiency, 0.01..=1.0, "");
            c.count("targets_per_server", hardware.targets_per_server, 1..=10_000);
            c.rate("target_read", hardware.target_read, RATE_ANY);
            c.rate("target_write", hardware.target_write, RATE_ANY);
            c.bytes("target_capacity", hardware.target_capacity, BYTES_ANY);
            c.range("creates_per_s", hardware.creates_per_s, 1.0..=1e12, "per s");
            c.range("stats_per_s", hardware.stats_per_s, 1.0..=1e12, "per s");
        });
        c.each("systems", &self.systems, 1..=64);
        c.within("checkpoint", |c| {
            c.bytes("size", self.checkpoint.size, BYTES_ANY);
            c.count("files", self.checkpoint.files, 1..=1_000_000_000);
            c.count("kept", self.checkpoint.kept, 1..=1_000_000);
        });
        c.within("ingest", |c| {
            c.bytes("file", self.ingest.file, BYTES_ANY);
            c.range("lookups", self.ingest.lookups, 0.0..=1000.0, "");
            c.count("readers", self.ingest.readers, 1..=1_000_000);
        });
        c.within("storm", |c| {
            c.range("operations_per_s", self.storm.operations_per_s, 0.001..=1e15, "per s");
            c.range("operations", self.storm.operations, 0.0..=1e18, "");
        });
        if c.is_clean() {
            self.check_capacities(c);
        }
    }
}

impl ArchitectureQuestion {
    /// Refuses a checkpoint that does not fit its targets, and says what would be enough.
    fn check_capacities(&self, c: &mut Checker) {
        let (hardware, checkpoint) = (&self.hardware, &self.checkpoint);
        let target = hardware.target_capacity;
        let kept = checkpoint.size.0 as f64 * checkpoint.kept as f64;
        let (count, size) = (checkpoint.kept, checkpoint.size);
        for (i, system) in self.systems.iter().enumerate() {
            let server = (hardware.targets_per_server * target.0) as f64 * system.write_share;
            let servers = (kept / server).ceil();
            if servers > hardware.servers as f64 {
                let name = &system.name;
                let allowed =
                    format!("at least {servers:.0} for {count} checkpoints of {size} on {name} (targets of {target})");
                c.refuse("hardware.servers", hardware.servers, allowed);
                return;
            }
            let Some(stripe) = system.stripe else {
                continue;
            };
            let file = size.0 as f64 / checkpoint.files as f64;
            let stripes = (file / (target.0 as f64 * system.write_share)).ceil();
            if stripes > stripe as f64 {
                let file = shown_bytes(file);
                let allowed = format!("at least {stripes:.0} for a file of {file} (targets of {target})");
                c.refuse(&format!("systems[{i}].stripe"), stripe, allowed);
                return;
            }
        }
    }

    /// Compares the systems.
    fn compute(&self) -> ArchitectureAnswer {
        ArchitectureAnswer {
            systems: self.systems.iter().map(|system| self.row(system)).collect(),
            metadata_floor_s: self.hop.0 + 1.0 / self.hardware.stats_per_s,
            basis: self.basis(),
        }
    }

    fn row(&self, system: &System) -> ArchitectureRow {
        let hardware = &self.hardware;
        let (write, write_bound_by) = self.write(system);
        let ports = self.ports_bytes_per_s();
        let targets = (hardware.servers * hardware.targets_per_server) as f64;
        let file = self.ingest.file.0 as f64;
        let lookups = self.metadata_servers(system) as f64 * hardware.stats_per_s;
        let (files_per_s, read_bound_by) = least([
            (self.clients_rate(system) / file, "clients"),
            (self.readers_rate(system) / file, "streams"),
            (targets * hardware.target_read.0 / file, "targets"),
            (ports / file, "server ports"),
            (lookups / self.ingest.lookups.max(1e-9), "metadata"),
        ]);
        let storm = &self.storm;
        let storm_servers = self.storm_servers(system);
        let each = if storm.creates {
            hardware.creates_per_s
        } else {
            hardware.stats_per_s
        };
        ArchitectureRow {
            name: system.name.clone(),
            write_bytes_per_s: write,
            write_s: self.checkpoint.size.0 as f64 / write,
            write_bound_by,
            files_per_s,
            read_bytes_per_s: files_per_s * file,
            read_bound_by,
            storm_servers,
            storm: if system.metadata_shared {
                queue::mmc(storm_servers, each, storm.operations_per_s)
            } else {
                queue::mmc(1, each, storm.operations_per_s / storm_servers as f64)
            },
            // More servers do not help beyond the arrival rate.
            storm_s: storm.operations / storm.operations_per_s.min(storm_servers as f64 * each),
        }
    }

    /// The write rate of the checkpoint, and its bottleneck.
    fn write(&self, system: &System) -> (f64, &'static str) {
        let hardware = &self.hardware;
        let all = hardware.servers * hardware.targets_per_server;
        let reached = system
            .stripe
            .map_or(all, |stripe| all.min(stripe.saturating_mul(self.checkpoint.files)));
        // A server that makes the parity receives the data first, and then the others receive the pieces.
        let carried = if system.forwards {
            1.0 / (1.0 + 1.0 / system.write_share)
        } else {
            system.write_share
        };
        let writers = system
            .stream_rate
            .map_or(f64::MAX, |rate| rate.0 * self.checkpoint.files as f64);
        least([
            (self.clients_rate(system), "clients"),
            (reached as f64 * hardware.target_write.0 * system.write_share, "targets"),
            (self.ports_bytes_per_s() * carried, "server ports"),
            (writers, "streams"),
        ])
    }

    /// The data rate of all servers' ports.
    fn ports_bytes_per_s(&self) -> f64 {
        let hardware = &self.hardware;
        hardware.servers as f64 * hardware.server_rate.0 * hardware.efficiency
    }

    fn clients_rate(&self, system: &System) -> f64 {
        let port = self.client_rate.0 * self.hardware.efficiency;
        let one = system.client_limit.map_or(port, |limit| limit.0.min(port));
        one * self.clients as f64
    }

    /// The rate of all readers of all clients.
    fn readers_rate(&self, system: &System) -> f64 {
        let readers = (self.clients * self.ingest.readers) as f64;
        system.stream_rate.map_or(f64::MAX, |rate| rate.0 * readers)
    }

    fn metadata_servers(&self, system: &System) -> u64 {
        system.metadata_servers.unwrap_or(self.hardware.servers)
    }

    fn storm_servers(&self, system: &System) -> u64 {
        let all = self.metadata_servers(system);
        match system.directory_servers {
            Some(few) if self.storm.one_directory => few.min(all),
            _ => all,
        }
    }
}

/// The least of several limits, and its name.
fn least<const N: usize>(limits: [(f64, &'static str); N]) -> (f64, &'static str) {
    limits
        .into_iter()
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .expect("there is a limit")
}

impl Question for ArchitectureQuestion {
    const NAME: &'static str = "architecture";
    type Answer = ArchitectureAnswer;

    fn answer(&self) -> Result<ArchitectureAnswer, Refusals> {
        Ok(self.compute())
    }

    fn verdict(answer: &ArchitectureAnswer) -> String {
        let mut rows: Vec<&ArchitectureRow> = answer.systems.iter().collect();
        rows.sort_by(|a, b| a.write_s.total_cmp(&b.write_s));
        let names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
        format!("write order {}", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    fn row(asked: &ArchitectureQuestion, name: &str) -> ArchitectureRow {
        asked
            .compute()
            .systems
            .into_iter()
            .find(|row| row.name == name)
            .unwrap()
    }

    #[test]
    fn one_file_of_lustre_reaches_one_target_and_of_the_others_all() {
        let asked = ArchitectureQuestion {
            checkpoint: Write {
                files: 1,
                ..Write::default()
            },
            ..ArchitectureQuestion::default()
        };
        near(row(&asked, "lustre").write_bytes_per_s, 6e9 * 0.8, 1e-9);
        assert_eq!(row(&asked, "weka").write_bound_by, "server ports");
        assert!(row(&asked, "weka").write_bytes_per_s > 100.0 * 6e9 * 0.8);
    }

    #[test]
    fn a_server_that_sends_the_pieces_on_halves_its_ports_and_streams_have_a_rate() {
        let mut asked = ArchitectureQuestion::default();
        let ports = 16.0 * 50e9 * 0.9;
        asked.systems[1].forwards = true;
        near(row(&asked, "weka").write_bytes_per_s, ports / (1.0 + 18.0 / 16.0), 1e-9);
        asked.systems[1].stream_rate = Some(Rate(0.4e9));
        asked.checkpoint.files = 64;
        near(row(&asked, "weka").write_bytes_per_s, 64.0 * 0.4e9, 1e-9);
        assert_eq!(row(&asked, "weka").write_bound_by, "streams");
    }

    #[test]
    fn a_hot_directory_is_one_server_of_lustre_and_its_queue_grows() {
        let asked = ArchitectureQuestion::default();
        let (lustre, weka) = (row(&asked, "lustre"), row(&asked, "weka"));
        assert_eq!((lustre.storm_servers, weka.storm_servers), (1, 16));
        assert!(!lustre.storm.stable && weka.storm.stable);
        // 10 M lookups at 100 k a second.
        near(lustre.storm_s, 100.0, 1e-9);
        // Sixteen servers would do them in 6.25 s, but they arrive at 200 k a second.
        near(weka.storm_s, 50.0, 1e-9);
        let mut burst = asked;
        burst.storm.operations_per_s = 1e12;
        near(row(&burst, "weka").storm_s, 6.25, 1e-9);
    }

    #[test]
    fn one_shared_queue_waits_less_than_one_queue_per_server() {
        let mut asked = ArchitectureQuestion::default();
        asked.storm.operations_per_s = 1.44e6;
        let (weka, vast) = (row(&asked, "weka"), row(&asked, "vast"));
        near(weka.storm.load, vast.storm.load, 1e-12);
        // M/M/1 at 90 %: nine services.
        near(weka.storm.mean_s.unwrap(), 9.0 / 100e3, 1e-9);
        assert!(vast.storm.mean_s.unwrap() < weka.storm.mean_s.unwrap() / 10.0);
    }

    #[test]
    fn spread_over_directories_lustre_uses_all_its_metadata_servers() {
        let mut asked = ArchitectureQuestion::default();
        asked.storm.one_directory = false;
        assert_eq!(row(&asked, "lustre").storm_servers, 2);
    }

    #[test]
    fn a_remote_metadata_operation_takes_more_than_a_microsecond() {
        let floor = ArchitectureQuestion::default().compute().metadata_floor_s;
        assert!(floor > 1e-6, "{floor}");
    }

    #[test]
    fn dgx2_reads_of_4_kb_took_135_to_163_microseconds() {
        // GDS guide: threads and IOPS; by Little's law the latency of each.
        for (threads, iops) in [
            (4.0, 24_468.0),
            (8.0, 49_255.0),
            (16.0, 100_928.0),
            (32.0, 238_245.0),
            (64.0, 484_612.0),
            (128.0, 850_240.0),
        ] {
            let latency_us = threads / iops * 1e6;
            assert!((132.0..=163.6).contains(&latency_us), "{latency_us}");
        }
    }
}
