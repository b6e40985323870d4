//! An adapter's translation cache: full speed while the working set fits, misses beyond that.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Seconds};

use straightway_scenario::check::{BYTES_ANY, Checkable, Checker, TIME_ANY, TIME_POSITIVE};

/// The parameters of a translation cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Translation {
    /// The number of entries.
    pub entries: u64,
    /// The time between operations if every operation hits.
    pub hit: Seconds,
    /// The cost of a miss.
    pub miss: Seconds,
    /// The memory that operations access at random.
    pub working_set: Bytes,
    /// Workers that share the adapter, each with its own buffer.
    pub workers: u64,
    /// The least time to reload an evicted context.
    pub reload_min: Seconds,
    /// The longest time to reload an evicted context.
    pub reload_max: Seconds,
}

/// The performance of the translation cache.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TranslationOutcome {
    /// The hit rate.
    pub hits: f64,
    /// Operations per second.
    pub operations_per_s: f64,
    /// Operations per second as a share of the rate with only hits.
    pub share_of_best: f64,
    /// The largest working set that fits the cache.
    pub reach_bytes: f64,
    /// The least time to reload the contexts of all workers.
    pub reload_s_min: f64,
    /// The longest time to reload the contexts of all workers.
    pub reload_s_max: f64,
    /// Operations per second by working set, from 64 KiB to 1 GiB.
    pub curve: Vec<CachePoint>,
}

/// The cache's performance at one working set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CachePoint {
    /// The memory accessed at random.
    pub working_set_bytes: u64,
    /// Operations per second.
    pub operations_per_s: f64,
}

impl Default for Translation {
    fn default() -> Self {
        Self {
            entries: 64,
            // 53.9 M/s at 256 KB, where 64 entries of 4 KiB still hold everything.
            hit: Seconds(1.0 / 53.9e6),
            miss: Seconds(52e-9),
            working_set: Bytes::mib(1),
            workers: 64,
            reload_min: Seconds(2e-6),
            reload_max: Seconds(5e-6),
        }
    }
}

impl Checkable for Translation {
    fn check(&self, c: &mut Checker) {
        c.count("entries", self.entries, 1..=1_000_000_000);
        c.seconds("hit", self.hit, TIME_POSITIVE);
        c.seconds("miss", self.miss, TIME_POSITIVE);
        c.bytes("working_set", self.working_set, BYTES_ANY);
        c.count("workers", self.workers, 1..=1_000_000);
        c.seconds("reload_min", self.reload_min, TIME_ANY);
        c.seconds("reload_max", self.reload_max, TIME_ANY);
        if self.reload_min > self.reload_max {
            c.refuse(
                "reload_min",
                self.reload_min,
                format!("at most reload_max, {}", self.reload_max),
            );
        }
    }
}

/// Operations per second through a translation cache.
pub fn translated_per_s(cache: &Translation, page: Bytes, working_set: Bytes) -> f64 {
    let misses = 1.0 - cache.hits(page, working_set);
    let best = 1.0 / cache.hit.0;
    if misses > 0.0 {
        best.min(1.0 / (misses * cache.miss.0))
    } else {
        best
    }
}

impl Translation {
    /// The hit rate.
    pub(super) fn hits(&self, page: Bytes, working_set: Bytes) -> f64 {
        (self.entries as f64 * page.0 as f64 / working_set.0 as f64).min(1.0)
    }
}
