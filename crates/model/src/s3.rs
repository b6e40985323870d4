//! Object storage at speed: hiding a hundred milliseconds behind thousands of requests.
//!
//! By Little's law the requests in flight are `rate × time / size`. The time of a GET is the wait for its first
//! byte and then what the range takes on one connection. What decides is how many one client can hold, how many the store allows for a
//! prefix, and the memory the flight takes. A cache of flash in the node hides the latency for what
//! it holds, down to the flash's own, and never below it.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Rate, Seconds};

use straightway_scenario::check::Refusals;
use straightway_scenario::{
    check::{BYTES_ANY, Checked, Checker, RATE_ANY, TIME_SOME},
    provenance::{Basis, Formula, Source},
};

use crate::question::Question;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct S3 {
    /// The bandwidth wanted.
    pub rate: Rate,
    /// The range one GET asks for.
    pub range: Bytes,
    /// Until a GET's first byte, at best.
    pub latency_min: Seconds,
    /// Until a GET's first byte, at worst.
    pub latency_max: Seconds,
    /// What one connection carries.
    pub connection_rate: Rate,
    /// Nodes that share the work.
    pub nodes: u64,
    /// Memory of one node.
    pub node_memory: Bytes,
    /// GETs a second the store allows for one prefix.
    pub gets_per_prefix: f64,
    /// PUTs a second it allows for one prefix.
    pub puts_per_prefix: f64,
    /// Flash in the node before the store.
    pub cache: Cache,
}

/// A cache of flash.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cache {
    /// Share of reads it holds.
    pub hits: f64,
    /// A read of it.
    pub latency: Seconds,
    /// What it carries, for all nodes.
    pub rate: Rate,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// GETs a second.
    pub gets_per_s: f64,
    /// GETs in flight at the best latency.
    pub in_flight_min: f64,
    /// GETs in flight at the worst.
    pub in_flight_max: f64,
    /// Connections by what one carries.
    pub connections: f64,
    /// In flight for each node, at the worst latency.
    pub in_flight_per_node: f64,
    /// Memory the flight takes, at the worst latency.
    pub memory_bytes: f64,
    /// Prefixes the reads must be spread over.
    pub prefixes_to_read: f64,
    /// Prefixes writing at this rate would need.
    pub prefixes_to_write: f64,
    /// One request at a time would give.
    pub serial_bytes_per_s: f64,
    /// Mean latency behind the cache.
    pub cached_latency_s: f64,
    /// What cache and store give together.
    pub cached_bytes_per_s: f64,
    /// Bandwidth over requests in flight.
    pub curve: Vec<Point>,
    /// What all this rests on.
    pub basis: Basis,
}

/// Bandwidth at a number in flight.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// GETs in flight.
    pub in_flight: u64,
    /// At the best latency.
    pub rate_min_latency_bytes_per_s: f64,
    /// At the worst.
    pub rate_max_latency_bytes_per_s: f64,
}

const S3_PRACTICE: Source = Source::quoted(
    "Amazon S3 performance guidelines",
    "5,500 GET and 3,500 PUT a second for a prefix; ranges of 8 to 16 MB; 85 to 90 MB/s a connection",
);

const FORMULAS: [Formula; 2] = [
    Formula {
        gives: "requests in flight",
        text: "N = rate · T / range, T = first byte + range / rate of a connection",
        source: Source::computed("Little's law", ""),
    },
    Formula {
        gives: "latency behind a cache",
        text: "h·T_cache + (1−h)·T_store",
        source: Source::computed("expectation", ""),
    },
];

impl Default for S3 {
    fn default() -> Self {
        Self {
            rate: Rate(200e9),
            range: Bytes::mib(8),
            latency_min: Seconds(0.1),
            latency_max: Seconds(0.2),
            connection_rate: Rate(87.5e6),
            nodes: 128,
            node_memory: Bytes(2_000_000_000_000),
            gets_per_prefix: 5500.0,
            puts_per_prefix: 3500.0,
            cache: Cache::default(),
        }
    }
}

impl Default for Cache {
    fn default() -> Self {
        // 150 µs: DGX-2 saw 135 to 163 µs for 4 KB reads of NVMe.
        Self {
            hits: 0.9,
            latency: Seconds(150e-6),
            rate: Rate(6.4e12),
        }
    }
}

impl Checked for S3 {
    fn check(&self, c: &mut Checker) {
        c.rate("rate", self.rate, RATE_ANY);
        c.bytes("range", self.range, BYTES_ANY);
        c.seconds("latency_min", self.latency_min, TIME_SOME);
        c.seconds("latency_max", self.latency_max, TIME_SOME);
        if self.latency_min > self.latency_max {
            c.refuse(
                "latency_min",
                self.latency_min,
                format!("at most latency_max, {}", self.latency_max),
            );
        }
        c.rate("connection_rate", self.connection_rate, RATE_ANY);
        c.count("nodes", self.nodes, 1..=10_000_000);
        c.range("gets_per_prefix", self.gets_per_prefix, 1.0..=1e12, "per s");
        c.range("puts_per_prefix", self.puts_per_prefix, 1.0..=1e12, "per s");
        c.within("cache", |c| {
            c.share("hits", self.cache.hits);
            c.seconds("latency", self.cache.latency, TIME_SOME);
            c.rate("rate", self.cache.rate, RATE_ANY);
        });
        c.bytes("node_memory", self.node_memory, BYTES_ANY);
        if c.is_clean() {
            let in_flight = self.rate.0 * self.get_s(self.latency_max);
            let nodes = (in_flight / self.node_memory.0 as f64).ceil();
            if nodes > self.nodes as f64 {
                let allowed = format!(
                    "at least {nodes:.0}, whose memory of {} holds the flight",
                    self.node_memory
                );
                c.refuse("nodes", self.nodes, allowed);
            }
        }
    }
}

impl S3 {
    /// Computes the flight.
    fn compute(&self) -> Answer {
        let range = self.range.0 as f64;
        let gets_per_s = self.rate.0 / range;
        let (best_s, worst_s) = (self.get_s(self.latency_min), self.get_s(self.latency_max));
        let in_flight_max = gets_per_s * worst_s;
        let (hits, middle) = (self.cache.hits, f64::midpoint(best_s, worst_s));
        // The store carries the misses at the rate asked; the cache, the hits at its own.
        let by_store = if hits < 1.0 {
            self.rate.0 / (1.0 - hits)
        } else {
            f64::MAX
        };
        let by_cache = if hits > 0.0 {
            self.cache.rate.0 / hits
        } else {
            f64::MAX
        };
        Answer {
            gets_per_s,
            in_flight_min: gets_per_s * best_s,
            in_flight_max,
            connections: self.rate.0 / self.connection_rate.0,
            in_flight_per_node: in_flight_max / self.nodes as f64,
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

    /// How long one GET takes: the wait for its first byte, then its range on one connection.
    fn get_s(&self, first_byte: Seconds) -> f64 {
        first_byte.0 + self.range.0 as f64 / self.connection_rate.0
    }

    fn point(&self, in_flight: u64) -> Point {
        let rate = |latency| in_flight as f64 * self.range.0 as f64 / self.get_s(latency);
        Point {
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
        let dgx2 = Source::read("GDS guide, DGX-2", "4 KB NVMe reads took 135 to 163 µs");
        basis
            .parameter(
                "cache.latency",
                "cache latency",
                self.cache.latency.0,
                "s",
                dgx2,
            )
            .between(135e-6, 163e-6, dgx2);
        basis
    }
}

const S3_SMALL: Source =
    Source::quoted("public measurements of S3", "small reads: p90 about 20 ms");

impl Question for S3 {
    const NAME: &'static str = "s3";
    type Answer = Answer;

    fn answer(&self) -> Result<Answer, Refusals> {
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
        let answer = S3::default().compute();
        let gets_per_s = 200e9 / 8_388_608.0;
        near(answer.in_flight_min, gets_per_s * (0.1 + 0.095_87), 0.001);
        near(answer.in_flight_max, gets_per_s * (0.2 + 0.095_87), 0.001);
        assert!((answer.prefixes_to_read - 5.0).abs() < f64::EPSILON);
        near(answer.memory_bytes, 200e9 * 0.295_87, 0.001);
    }

    #[test]
    fn no_get_is_faster_than_its_connection() {
        let long = S3 {
            range: Bytes::gib(1),
            ..S3::default()
        };
        let answer = long.compute();
        // 200 GB/s at 87.5 MB/s a connection, and a little for the first bytes.
        near(answer.in_flight_min, 200e9 / 87.5e6, 0.01);
        near(answer.serial_bytes_per_s, 87.5e6, 0.015);
        for asked in [long, S3::default()] {
            for point in asked.compute().curve {
                let most = point.in_flight as f64 * 87.5e6 * (1.0 + 1e-9);
                assert!(point.rate_min_latency_bytes_per_s <= most, "{point:?}");
            }
        }
    }

    #[test]
    fn a_cache_never_makes_reads_faster_than_itself() {
        let all = S3 {
            cache: Cache {
                hits: 1.0,
                ..Cache::default()
            },
            ..S3::default()
        };
        near(all.compute().cached_latency_s, 150e-6, 1e-9);
        near(all.compute().cached_bytes_per_s, 6.4e12, 1e-9);
        let none = S3 {
            cache: Cache {
                hits: 0.0,
                ..Cache::default()
            },
            ..S3::default()
        };
        near(none.compute().cached_bytes_per_s, 200e9, 1e-9);
    }
}
