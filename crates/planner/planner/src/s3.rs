//! Object storage: the requests in flight that hide a latency of a hundred milliseconds.
//!
//! By Little's law the requests in flight are `rate × time / size`. The time of a GET is the time to its first byte
//! plus the transfer of its range on one connection. The limits are the requests per second that the store allows per
//! prefix, and the memory of the requests in flight. A flash cache in the node reduces the latency of hits to that of
//! the flash, never below it.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use straightway_scenario::check::Refusals;
use straightway_scenario::{
    check::{BYTES_ANY, Checkable, Checker, RATE_ANY, TIME_POSITIVE},
    provenance::{Basis, Citation, Formula},
};

use straightway_pcie::machine::LINK_EFFICIENCY;

use crate::{
    client::{ClientKind, Clients},
    question::Question,
    servers::assume_efficiency,
};

/// The input of the topic `s3`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct S3Question {
    /// The required bandwidth.
    pub rate: Rate,
    /// The range size of a GET.
    pub range: Bytes,
    /// The shortest time to the first byte of a GET.
    pub latency_min: Seconds,
    /// The longest time to the first byte of a GET.
    pub latency_max: Seconds,
    /// The rate of one connection.
    pub connection_rate: Rate,
    /// The number of nodes.
    pub nodes: u64,
    /// The line rate of one node's ports.
    pub node_port: Rate,
    /// The share of that line rate that carries data.
    pub efficiency: f64,
    /// Processes of one node that read or write.
    pub processes: u64,
    /// The software of the clients.
    pub clients: Clients,
    /// The memory of one node.
    pub node_memory: Bytes,
    /// GETs per second that the store allows per prefix.
    pub gets_per_prefix: f64,
    /// PUTs per second that the store allows per prefix.
    pub puts_per_prefix: f64,
    /// The flash cache in the nodes.
    pub cache: FlashCache,
}

/// A flash cache in front of the store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FlashCache {
    /// The hit rate.
    pub hits: f64,
    /// The latency of a hit.
    pub latency: Seconds,
    /// The combined rate over all nodes.
    pub rate: Rate,
}

/// The answer of the topic `s3`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct S3Answer {
    /// GETs per second.
    pub gets_per_s: f64,
    /// GETs in flight at the shortest latency.
    pub in_flight_min: f64,
    /// GETs in flight at the longest latency.
    pub in_flight_max: f64,
    /// The number of connections needed by their rate.
    pub connections: f64,
    /// GETs in flight per node at the longest latency.
    pub in_flight_per_node: f64,
    /// The read rate that the nodes reach: their ports, their processes, or the required rate.
    pub reached_bytes_per_s: f64,
    /// The bottleneck of that rate.
    pub reached_bound_by: &'static str,
    /// The rate at which the nodes write: their ports or their processes, however high the required rate.
    pub written_bytes_per_s: f64,
    /// The number of nodes that reach the required rate.
    pub nodes_for_rate: f64,
    /// The memory of the GETs in flight at the longest latency.
    pub memory_bytes: f64,
    /// The number of prefixes needed to read at this rate.
    pub prefixes_to_read: f64,
    /// The number of prefixes needed to write at this rate.
    pub prefixes_to_write: f64,
    /// The rate with one request at a time.
    pub serial_bytes_per_s: f64,
    /// The mean latency with the cache.
    pub cached_latency_s: f64,
    /// The combined rate of cache and store.
    pub cached_bytes_per_s: f64,
    /// Bandwidth by requests in flight.
    pub curve: Vec<InFlightPoint>,
    /// The formulas and constants behind the answer.
    pub basis: Basis,
}

/// The bandwidth at a number of requests in flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct InFlightPoint {
    /// GETs in flight.
    pub in_flight: u64,
    /// The rate at the shortest latency.
    pub rate_min_latency_bytes_per_s: f64,
    /// The rate at the longest latency.
    pub rate_max_latency_bytes_per_s: f64,
}

const S3_PRACTICE: Citation = Citation::quoted(
    "Amazon S3 performance guidelines",
    "5,500 GET and 3,500 PUT a second for a prefix; ranges of 8 to 16 MB; 85 to 90 MB/s a connection",
);

const FORMULAS: [Formula; 3] = [
    Formula {
        gives: "requests in flight",
        text: "N = rate · T / range, T = first byte + range / rate of a connection",
        source: Citation::computed("Little's law", ""),
    },
    Formula {
        gives: "rate of the nodes",
        text: "nodes · min(port · efficiency, processes · stream, client)",
        source: Citation::computed("the narrowest part of a node", ""),
    },
    Formula {
        gives: "latency behind a cache",
        text: "h·T_cache + (1−h)·T_store",
        source: Citation::computed("expectation", ""),
    },
];

impl Default for S3Question {
    fn default() -> Self {
        Self {
            rate: Rate(200e9),
            range: Bytes::mib(8),
            latency_min: Seconds(0.1),
            latency_max: Seconds(0.2),
            connection_rate: Rate(87.5e6),
            nodes: 128,
            node_port: Rate::gbit(100.0),
            efficiency: LINK_EFFICIENCY[1],
            processes: 8,
            clients: Clients {
                kind: ClientKind::S3,
                ..Clients::default()
            },
            node_memory: Bytes(2_000_000_000_000),
            gets_per_prefix: 5500.0,
            puts_per_prefix: 3500.0,
            cache: FlashCache::default(),
        }
    }
}

impl Default for FlashCache {
    fn default() -> Self {
        // 150 µs: DGX-2 saw 135 to 163 µs for 4 KB reads of NVMe.
        Self {
            hits: 0.9,
            latency: Seconds(150e-6),
            rate: Rate(6.4e12),
        }
    }
}

impl Checkable for S3Question {
    fn check(&self, c: &mut Checker) {
        c.rate("rate", self.rate, RATE_ANY);
        c.bytes("range", self.range, BYTES_ANY);
        c.seconds("latency_min", self.latency_min, TIME_POSITIVE);
        c.seconds("latency_max", self.latency_max, TIME_POSITIVE);
        if self.latency_min > self.latency_max {
            c.refuse(
                "latency_min",
                self.latency_min,
                format!("at most latency_max, {}", self.latency_max),
            );
        }
        c.rate("connection_rate", self.connection_rate, RATE_ANY);
        c.count("nodes", self.nodes, 1..=10_000_000);
        c.rate("node_port", self.node_port, RATE_ANY);
        c.range("efficiency", self.efficiency, 0.01..=1.0, "");
        c.count("processes", self.processes, 1..=4096);
        c.within("clients", |c| self.clients.check(c));
        c.range("gets_per_prefix", self.gets_per_prefix, 1.0..=1e12, "per s");
        c.range("puts_per_prefix", self.puts_per_prefix, 1.0..=1e12, "per s");
        c.within("cache", |c| {
            c.share("hits", self.cache.hits);
            c.seconds("latency", self.cache.latency, TIME_POSITIVE);
            c.rate("rate", self.cache.rate, RATE_ANY);
        });
        c.bytes("node_memory", self.node_memory, BYTES_ANY);
        if c.is_clean() {
            let in_flight = self.rate.0 * self.get_s(self.latency_max);
            let nodes = (in_flight / self.node_memory.0 as f64).ceil();
            if nodes > self.nodes as f64 {
                let allowed = format!(
                    "at least {nodes:.0}, whose memory of {} holds the requests in flight",
                    self.node_memory
                );
                c.refuse("nodes", self.nodes, allowed);
            }
        }
    }
}

impl S3Question {
    /// Computes the answer.
    fn compute(&self) -> S3Answer {
        let range = self.range.0 as f64;
        let gets_per_s = self.rate.0 / range;
        let (best_s, worst_s) = (self.get_s(self.latency_min), self.get_s(self.latency_max));
        let in_flight_max = gets_per_s * worst_s;
        let (one_node, one_bound_by) = self.node_bytes_per_s(self.clients.reader_bytes_per_s());
        let nodes = self.nodes as f64;
        let (written, _) = self.node_bytes_per_s(self.clients.writer_bytes_per_s());
        let reached = (nodes * one_node).min(self.rate.0);
        let (hits, middle) = (self.cache.hits, f64::midpoint(best_s, worst_s));
        // The store serves the misses at the required rate, the cache the hits at its own rate.
        let by_store = if hits < 1.0 {
            self.rate.0 / (1.0 - hits)
        } else {
            f64::MAX
        };
        let by_cache = if hits > 0.0 { self.cache.rate.0 / hits } else { f64::MAX };
        S3Answer {
            gets_per_s,
            in_flight_min: gets_per_s * best_s,
            in_flight_max,
            connections: self.rate.0 / self.connection_rate.0,
            in_flight_per_node: in_flight_max / self.nodes as f64,
            reached_bytes_per_s: reached,
            reached_bound_by: if reached < self.rate.0 {
                one_bound_by
            } else {
                "the required rate"
            },
            written_bytes_per_s: nodes * written,
            nodes_for_rate: (self.rate.0 / one_node).ceil(),
            memory_bytes: in_flight_max * range,
            prefixes_to_read: (gets_per_s / self.gets_per_prefix).ceil(),
            prefixes_to_write: (gets_per_s / self.puts_per_prefix).ceil(),
            serial_bytes_per_s: range / middle,
            cached_latency_s: hits * self.cache.latency.0 + (1.0 - hits) * middle,
            cached_bytes_per_s: by_store.min(by_cache),
            curve: (0..=16).map(|power| self.point(1 << power)).collect(),
            basis: self.basis(),
        }
    }

    /// The rate of one node, whose processes move `stream` each, and its bottleneck.
    fn node_bytes_per_s(&self, stream: Option<f64>) -> (f64, &'static str) {
        let limits = [
            Some((self.node_port.0 * self.efficiency, "the ports of the nodes")),
            stream.map(|one| (one * self.processes as f64, "the processes' software")),
            self.clients
                .node_bytes_per_s()
                .map(|rate| (rate, "the clients of the nodes")),
        ];
        let least = limits.into_iter().flatten().min_by(|a, b| a.0.total_cmp(&b.0));
        least.expect("a port is a limit")
    }

    /// The time of one GET: the time to its first byte, then its range on one connection.
    fn get_s(&self, first_byte: Seconds) -> f64 {
        first_byte.0 + self.range.0 as f64 / self.connection_rate.0
    }

    fn point(&self, in_flight: u64) -> InFlightPoint {
        let rate = |latency| in_flight as f64 * self.range.0 as f64 / self.get_s(latency);
        InFlightPoint {
            in_flight,
            rate_min_latency_bytes_per_s: rate(self.latency_min),
            rate_max_latency_bytes_per_s: rate(self.latency_max),
        }
    }

    fn basis(&self) -> Basis {
        let mut basis = Basis::of(&FORMULAS);
        basis
            .parameter(
                "latency_min",
                "first byte of a GET, best",
                self.latency_min.0,
                "s",
                S3_PRACTICE,
            )
            .between(0.02, 0.1, S3_SMALL);
        basis
            .parameter(
                "latency_max",
                "first byte of a GET, worst",
                self.latency_max.0,
                "s",
                S3_PRACTICE,
            )
            .between(0.1, 0.2, S3_PRACTICE);
        basis
            .parameter(
                "connection_rate",
                "rate of a connection",
                self.connection_rate.0,
                "B/s",
                S3_PRACTICE,
            )
            .between(85e6, 93e6, S3_PRACTICE);
        basis.parameter(
            "gets_per_prefix",
            "GETs for a prefix",
            self.gets_per_prefix,
            "per s",
            S3_PRACTICE,
        );
        basis.parameter(
            "puts_per_prefix",
            "PUTs for a prefix",
            self.puts_per_prefix,
            "per s",
            S3_PRACTICE,
        );
        assume_efficiency(
            &mut basis,
            "efficiency",
            "share of a node's line rate that carries data",
            self.efficiency,
        );
        self.clients.assume(&mut basis, "clients");
        let dgx2 = Citation::read("GDS guide, DGX-2", "4 KB NVMe reads took 135 to 163 µs");
        basis
            .parameter("cache.latency", "cache latency", self.cache.latency.0, "s", dgx2)
            .between(135e-6, 163e-6, dgx2);
        basis
    }
}

const S3_SMALL: Citation = Citation::quoted("public measurements of S3", "small reads: p90 about 20 ms");

impl Question for S3Question {
    const NAME: &'static str = "s3";
    type Answer = S3Answer;

    fn answer(&self) -> Result<S3Answer, Refusals> {
        Ok(self.compute())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    #[test]
    fn a_get_takes_its_first_byte_and_then_its_range() {
        // 8 MiB at 87.5 MB/s: 95.9 ms after the first byte at 100 or 200 ms.
        let answer = S3Question::default().compute();
        let gets_per_s = 200e9 / 8_388_608.0;
        near(answer.in_flight_min, gets_per_s * (0.1 + 0.095_87), 0.001);
        near(answer.in_flight_max, gets_per_s * (0.2 + 0.095_87), 0.001);
        assert!((answer.prefixes_to_read - 5.0).abs() < f64::EPSILON);
        near(answer.memory_bytes, 200e9 * 0.295_87, 0.001);
    }

    #[test]
    fn nodes_reach_what_their_ports_and_processes_carry() {
        let mut asked = S3Question::default();
        near(asked.compute().reached_bytes_per_s, 200e9, 1e-9);
        near(asked.compute().written_bytes_per_s, 128.0 * 8.0 * 0.42e9, 1e-9);
        (asked.nodes, asked.processes) = (16, 4);
        let answer = asked.compute();
        near(answer.reached_bytes_per_s, 16.0 * 4.0 * 1.2e9, 1e-9);
        assert_eq!(answer.reached_bound_by, "the processes' software");
        asked.processes = 64;
        let answer = asked.compute();
        near(answer.reached_bytes_per_s, 16.0 * 12.5e9 * 0.9, 1e-9);
        assert_eq!(answer.reached_bound_by, "the ports of the nodes");
        near(answer.nodes_for_rate, 18.0, 1e-9);
    }

    #[test]
    fn no_get_is_faster_than_its_connection() {
        let long = S3Question {
            range: Bytes::gib(1),
            ..S3Question::default()
        };
        let answer = long.compute();
        // 200 GB/s at 87.5 MB/s a connection, and a little for the first bytes.
        near(answer.in_flight_min, 200e9 / 87.5e6, 0.01);
        near(answer.serial_bytes_per_s, 87.5e6, 0.015);
        for asked in [long, S3Question::default()] {
            for point in asked.compute().curve {
                let most = point.in_flight as f64 * 87.5e6 * (1.0 + 1e-9);
                assert!(point.rate_min_latency_bytes_per_s <= most, "{point:?}");
            }
        }
    }

    #[test]
    fn a_cache_never_makes_reads_faster_than_itself() {
        let all = S3Question {
            cache: FlashCache {
                hits: 1.0,
                ..FlashCache::default()
            },
            ..S3Question::default()
        };
        near(all.compute().cached_latency_s, 150e-6, 1e-9);
        near(all.compute().cached_bytes_per_s, 6.4e12, 1e-9);
        let none = S3Question {
            cache: FlashCache {
                hits: 0.0,
                ..FlashCache::default()
            },
            ..S3Question::default()
        };
        near(none.compute().cached_bytes_per_s, 200e9, 1e-9);
    }
}
