//! The counts of one lane, and their sum over all lanes.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use straightway_core::{
    Leg, Reason, Route,
    receipt::{Latency, Percentiles, Requests, RouteBytes, Sockets},
};
use straightway_sys::Tries;

use crate::{gauge::SocketTally, gds::Proof};

/// The longest latency that is recorded; a longer one counts as this long.
const LATENCY_NS_MAX: u64 = 1_000_000_000_000;

/// The most distinct warnings of one transfer.
pub const WARNINGS_MAX: usize = 16;

/// A lane's counts.
#[derive(Debug)]
pub struct Tally {
    /// The time from creation to submission of I/Os.
    pub queueing: Histogram<u64>,
    /// The time from submission to completion of I/Os.
    pub storage: Histogram<u64>,
    /// The time of the copies between slots and regions.
    pub copy: Histogram<u64>,
    routes: BTreeMap<(Leg, Route, Reason), u64>,
    /// The number of I/Os that storage completed.
    pub ios: u64,
    /// The bytes that they moved.
    pub storage_bytes: u64,
    /// Retries and hedges of requests over a network.
    tries: Requests,
    /// The measurements of connections.
    sockets: Vec<SocketTally>,
    /// The most ring memory in use at once.
    pub staging_bytes_peak: u64,
    /// The bytes of pinned memory.
    pub pinned_bytes: u64,
    /// The number of lanes.
    pub lanes: u32,
    /// Lane time spent waiting for the drive.
    pub drive: Duration,
    /// Lane time spent in the page cache.
    pub page_cache: Duration,
    /// Lane time spent on copies.
    pub copying: Duration,
    /// Lane time spent on other jobs.
    pub others: Duration,
    /// Lane time spent without work, mostly because of a rate limit.
    pub idle: Duration,
    /// All other lane time.
    pub rest: Duration,
    warnings: Vec<String>,
    engines: Vec<&'static str>,
}

impl Default for Tally {
    fn default() -> Self {
        // Two digits resolve 1 %. A histogram grows with its largest value: at full length each has 35 KB, and to clear
        // those of every lane and job took a load of 2,000 small files longer than its I/Os.
        let histogram = || Histogram::new(2).expect("two digits are in range");
        Self {
            queueing: histogram(),
            storage: histogram(),
            copy: histogram(),
            routes: BTreeMap::new(),
            ios: 0,
            storage_bytes: 0,
            tries: Requests::default(),
            sockets: Vec::new(),
            staging_bytes_peak: 0,
            pinned_bytes: 0,
            lanes: 0,
            drive: Duration::ZERO,
            page_cache: Duration::ZERO,
            copying: Duration::ZERO,
            others: Duration::ZERO,
            idle: Duration::ZERO,
            rest: Duration::ZERO,
            warnings: Vec::new(),
            engines: Vec::new(),
        }
    }
}

impl Tally {
    /// Counts payload bytes that took a route.
    pub fn count(&mut self, leg: Leg, route: Route, reason: Reason, bytes: u64) {
        *self.routes.entry((leg, route, reason)).or_default() += bytes;
    }

    /// Moves the bytes that were planned as direct to the route that is proven.
    pub(crate) fn attribute(&mut self, leg: Leg, proof: Proof) {
        let planned = (leg, Route::Direct, Reason::Aligned);
        if let Some(bytes) = self.routes.remove(&planned) {
            let (route, reason) = proof.route_and_reason();
            self.count(leg, route, reason, bytes);
        }
    }

    /// Counts a completed I/O, with its retries and hedges over a network.
    pub fn complete(&mut self, took: Duration, bytes: u64, tries: Tries) {
        record(&mut self.storage, took);
        self.ios += 1;
        self.storage_bytes += bytes;
        self.tries.retries += u64::from(tries.retries);
        self.tries.hedges_sent += u64::from(tries.hedges_sent);
        self.tries.hedges_won += u64::from(tries.hedges_won);
    }

    /// The retries and hedges, if any bytes came from a socket.
    pub(crate) fn requests(&self) -> Option<Requests> {
        let is_socket = |(_, route, _): &(Leg, Route, Reason)| *route == Route::Socket;
        self.routes.keys().any(is_socket).then_some(self.tries)
    }

    /// Adds the connection measurements of a lane.
    pub(crate) fn watch(&mut self, seen: SocketTally) {
        seen.enter(&mut self.sockets);
    }

    /// The connection measurements, if any bytes came from a socket.
    pub(crate) fn sockets(&self) -> Option<Sockets> {
        self.requests()?;
        SocketTally::sum(&self.sockets)
    }

    /// Records an engine that took part.
    pub fn name(&mut self, engine: &'static str) {
        if !self.engines.contains(&engine) {
            self.engines.push(engine);
        }
    }

    /// The engines that took part.
    pub(crate) fn engines(&self) -> &[&'static str] {
        &self.engines
    }

    /// Adds a warning, once and up to a limit.
    pub fn warn(&mut self, warning: &str) {
        let is_known = self.warnings.iter().any(|known| known == warning);
        if !is_known && self.warnings.len() < WARNINGS_MAX {
            self.warnings.push(warning.to_owned());
        }
    }

    /// Warns of a ring that has fewer slots than wanted. A ring that is not made yet has none.
    pub fn note_ring(&mut self, slots: usize, wanted: usize) {
        if (1..wanted).contains(&slots) {
            self.warn(&format!(
                "only {slots} of {wanted} slots of the ring could be had: let the process lock more memory (`ulimit -l`), \
                 raise the memory limit of its control group, or where the ring is in a BAR, use a smaller --staging"
            ));
        }
    }

    /// The warnings.
    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Sets `rest` to the remainder of the lane's running time.
    pub fn finish(&mut self, ran: Duration) {
        let spent = self.drive + self.page_cache + self.copying + self.others + self.idle;
        self.rest = ran.saturating_sub(spent);
    }

    /// The payload bytes of all routes.
    pub(crate) fn bytes(&self) -> u64 {
        self.routes.values().sum()
    }

    /// Adds another lane's counts.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in [
            (&mut self.queueing, &other.queueing),
            (&mut self.storage, &other.storage),
            (&mut self.copy, &other.copy),
        ] {
            mine.add(theirs).expect("it grows");
        }
        for (key, bytes) in &other.routes {
            *self.routes.entry(*key).or_default() += bytes;
        }
        other.warnings.iter().for_each(|warning| self.warn(warning));
        other.engines.iter().for_each(|engine| self.name(engine));
        for seen in &other.sockets {
            self.watch(seen.clone());
        }
        self.ios += other.ios;
        self.storage_bytes += other.storage_bytes;
        self.tries.retries += other.tries.retries;
        self.tries.hedges_sent += other.tries.hedges_sent;
        self.tries.hedges_won += other.tries.hedges_won;
        self.staging_bytes_peak += other.staging_bytes_peak;
        self.pinned_bytes += other.pinned_bytes;
        self.lanes += other.lanes;
        self.drive += other.drive;
        self.page_cache += other.page_cache;
        self.copying += other.copying;
        self.others += other.others;
        self.idle += other.idle;
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
pub fn record(histogram: &mut Histogram<u64>, latency: Duration) {
    let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    histogram.record(ns.clamp(1, LATENCY_NS_MAX)).expect("it grows");
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
