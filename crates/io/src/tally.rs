//! What one lane counts while it runs, and what all lanes' counts add up to.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use straightway_core::{
    Leg, Reason, Route,
    receipt::{Latency, Percentiles, RouteBytes},
};

use crate::gds::Proof;

/// Latencies up to this are told apart; a longer one counts as this long.
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;

/// A lane's counts.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) queueing: Histogram<u64>,
    pub(crate) storage: Histogram<u64>,
    pub(crate) copy: Histogram<u64>,
    routes: BTreeMap<(Leg, Route, Reason), u64>,
    pub(crate) ios: u64,
    pub(crate) storage_bytes: u64,
    pub(crate) staging_bytes_peak: u64,
    pub(crate) pinned_bytes: u64,
    pub(crate) lanes: u32,
    /// Where the lanes' time went.
    pub(crate) drive: Duration,
    pub(crate) page_cache: Duration,
    pub(crate) copying: Duration,
    pub(crate) rest: Duration,
}

impl Tally {
    pub(crate) fn new() -> Self {
        // Two digits tell 1 % apart, and keep a histogram small enough to stay in cache.
        let histogram =
            || Histogram::new_with_bounds(1, LATENCY_NS_MAX, 2).expect("the bounds are in range");
        Self {
            queueing: histogram(),
            storage: histogram(),
            copy: histogram(),
            routes: BTreeMap::new(),
            ios: 0,
            storage_bytes: 0,
            staging_bytes_peak: 0,
            pinned_bytes: 0,
            lanes: 0,
            drive: Duration::ZERO,
            page_cache: Duration::ZERO,
            copying: Duration::ZERO,
            rest: Duration::ZERO,
        }
    }

    /// Counts payload bytes that took a route.
    pub(crate) fn count(&mut self, leg: Leg, route: Route, reason: Reason, bytes: u64) {
        *self.routes.entry((leg, route, reason)).or_default() += bytes;
    }

    /// Books what went by cuFile as what its counters prove that it was.
    pub(crate) fn attribute(&mut self, leg: Leg, proof: Proof) {
        let planned = (leg, Route::Direct, Reason::Aligned);
        if let Some(bytes) = self.routes.remove(&planned) {
            let (route, reason) = proof.route_and_reason();
            self.count(leg, route, reason, bytes);
        }
    }

    /// Adds another lane's counts.
    pub(crate) fn add(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.queueing, &other.queueing),
            (&mut self.storage, &other.storage),
            (&mut self.copy, &other.copy),
        ] {
            mine.add(theirs).expect("all have the same bounds");
        }
        for (key, bytes) in &other.routes {
            *self.routes.entry(*key).or_default() += bytes;
        }
        self.ios += other.ios;
        self.storage_bytes += other.storage_bytes;
        self.staging_bytes_peak += other.staging_bytes_peak;
        self.pinned_bytes += other.pinned_bytes;
        self.lanes += other.lanes;
        self.drive += other.drive;
        self.page_cache += other.page_cache;
        self.copying += other.copying;
        self.rest += other.rest;
    }

    pub(crate) fn routes(&self) -> Vec<RouteBytes> {
        let row = |(&(leg, route, reason), &bytes)| RouteBytes {
            leg,
            route,
            reason,
            bytes,
        };
        self.routes.iter().map(row).collect()
    }

    pub(crate) fn latency(&self) -> Latency {
        Latency {
            queueing: percentiles(&self.queueing),
            storage: percentiles(&self.storage),
            copy: percentiles(&self.copy),
        }
    }
}

/// Adds a latency to a histogram.
pub(crate) fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    histogram.saturating_record(ns.max(1));
}

fn percentiles(histogram: &Histogram<u64>) -> Percentiles {
    let us = |ns: u64| ns as f64 / 1000.0;
    if histogram.is_empty() {
        return Percentiles::default();
    }
    Percentiles {
        count: histogram.len(),
        p50_us: us(histogram.value_at_quantile(0.5)),
        p99_us: us(histogram.value_at_quantile(0.99)),
        p99_9_us: us(histogram.value_at_quantile(0.999)),
        max_us: us(histogram.max()),
    }
}
