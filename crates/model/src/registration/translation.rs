//! An adapter's cache of translations: full speed within its reach, a miss for all beyond.

use serde::{Deserialize, Serialize};
use straightway_core::{Bytes, Seconds};

use straightway_scenario::check::{BYTES_ANY, Checked, Checker, TIME_ANY, TIME_SOME};

/// A cache of translations.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Translation {
    /// Its entries.
    pub entries: u64,
    /// The time between operations when every one hits.
    pub hit: Seconds,
    /// What a miss costs.
    pub miss: Seconds,
    /// The memory that operations touch at random.
    pub working_set: Bytes,
    /// Workers that each bring their own buffer to one adapter.
    pub workers: u64,
    /// Reloading an evicted context, at least.
    pub reload_min: Seconds,
    /// Reloading an evicted context, at most.
    pub reload_max: Seconds,
}

/// The translation cache at work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cache {
    /// Share of operations that hit.
    pub hits: f64,
    /// Operations a second.
    pub operations_per_s: f64,
    /// Over what a full hit rate gives.
    pub share_of_best: f64,
    /// The working set up to which all hits.
    pub reach_bytes: f64,
    /// Reloads when every worker brings its own buffer, at least.
    pub reload_s_min: f64,
    /// The same at most.
    pub reload_s_max: f64,
    /// Operations a second over working sets from 64 KiB to 1 GiB.
    pub curve: Vec<CachePoint>,
}

/// The cache at one working set.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CachePoint {
    /// Memory touched at random.
    pub working_set_bytes: u64,
    /// Operations a second.
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

impl Checked for Translation {
    fn check(&self, c: &mut Checker) {
        c.count("entries", self.entries, 1..=1_000_000_000);
        c.seconds("hit", self.hit, TIME_SOME);
        c.seconds("miss", self.miss, TIME_SOME);
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

/// Operations a second through a translation cache.
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
    /// Share of operations that hit.
    pub(super) fn hits(&self, page: Bytes, working_set: Bytes) -> f64 {
        (self.entries as f64 * page.0 as f64 / working_set.0 as f64).min(1.0)
    }
}
