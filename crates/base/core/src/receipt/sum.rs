//! The sum of several receipts.

use super::{Bound, Latency, Percentiles, Receipt, Requests, RouteBytes, SCHEMA};

/// The most distinct warnings, and origins of settings, of a sum.
const WARNINGS_MAX: usize = 16;

impl Receipt {
    /// The receipt of a block of `seconds` in which these transfers ran, one after another or side by side.
    ///
    /// Bytes, I/Os and CPU seconds are sums. Peaks are the highest of one transfer. Of each percentile it has the worst,
    /// because percentiles do not add up. The bottleneck is that of the transfers that took most of the time.
    pub fn sum<'a>(receipts: impl IntoIterator<Item = &'a Self>, seconds: f64) -> Self {
        let mut sum = Self::empty(seconds);
        let mut engines: Vec<&str> = Vec::new();
        let mut bounds: Vec<(Bound, f64)> = Vec::new();
        let mut moved_bytes = 0.0;
        for one in receipts {
            sum.bytes += one.bytes;
            moved_bytes += one.rate_bytes_per_s * one.seconds;
            one.routes.iter().for_each(|row| add_route(&mut sum.routes, row));
            sum.latency.add(&one.latency);
            sum.cpu_user_s += one.cpu_user_s;
            sum.cpu_system_s += one.cpu_system_s;
            sum.cpu_shared |= one.cpu_shared;
            sum.staging_bytes_peak = sum.staging_bytes_peak.max(one.staging_bytes_peak);
            sum.pinned_bytes_peak = sum.pinned_bytes_peak.max(one.pinned_bytes_peak);
            sum.ios += one.ios;
            sum.storage_bytes += one.storage_bytes;
            sum.sync_s += one.sync_s;
            sum.waiting_s += one.waiting_s;
            sum.lanes = sum.lanes.max(one.lanes);
            sum.requests = add_requests(sum.requests, one.requests);
            let names = one.engine.split(" + ").filter(|name| *name != "none");
            for name in names {
                if !engines.contains(&name) {
                    engines.push(name);
                }
            }
            match bounds.iter_mut().find(|(bound, _)| *bound == one.bound_by) {
                Some((_, known_s)) => *known_s += one.seconds,
                None => bounds.push((one.bound_by, one.seconds)),
            }
            for origin in &one.settings_from {
                if sum.settings_from.len() < WARNINGS_MAX && !sum.settings_from.contains(origin) {
                    sum.settings_from.push(origin.clone());
                }
            }
            for warning in &one.warnings {
                if sum.warnings.len() < WARNINGS_MAX && !sum.warnings.contains(warning) {
                    sum.warnings.push(warning.clone());
                }
            }
        }
        if !engines.is_empty() {
            sum.engine = engines.join(" + ");
        }
        let longest = bounds.into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
        sum.bound_by = longest.map_or(Bound::Nothing, |(bound, _)| bound);
        sum.rate_bytes_per_s = moved_bytes / seconds.max(1e-9);
        if moved_bytes > 0.0 {
            sum.cpu_s_per_gb = (sum.cpu_user_s + sum.cpu_system_s) / (moved_bytes / 1e9);
        }
        sum
    }

    /// The receipt of a block without a transfer.
    fn empty(seconds: f64) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            bytes: 0,
            seconds,
            rate_bytes_per_s: 0.0,
            routes: Vec::new(),
            latency: Latency::default(),
            cpu_user_s: 0.0,
            cpu_system_s: 0.0,
            cpu_s_per_gb: 0.0,
            cpu_shared: false,
            staging_bytes_peak: 0,
            pinned_bytes_peak: 0,
            ios: 0,
            storage_bytes: 0,
            sync_s: 0.0,
            waiting_s: 0.0,
            engine: "none".to_owned(),
            lanes: 0,
            registration: None,
            requests: None,
            sockets: None,
            verified: None,
            bound_by: Bound::Nothing,
            settings_from: Vec::new(),
            warnings: Vec::new(),
        }
    }
}

fn add_route(rows: &mut Vec<RouteBytes>, row: &RouteBytes) {
    let is_same = |known: &&mut RouteBytes| (known.leg, known.route, known.reason) == (row.leg, row.route, row.reason);
    match rows.iter_mut().find(is_same) {
        Some(known) => known.bytes += row.bytes,
        None => rows.push(*row),
    }
}

fn add_requests(known: Option<Requests>, more: Option<Requests>) -> Option<Requests> {
    let (Some(mut sum), Some(more)) = (known, more) else {
        return known.or(more);
    };
    sum.retries += more.retries;
    sum.hedges_sent += more.hedges_sent;
    sum.hedges_won += more.hedges_won;
    Some(sum)
}

impl Latency {
    fn add(&mut self, more: &Self) {
        self.queueing.add(&more.queueing);
        self.storage.add(&more.storage);
        self.copy.add(&more.copy);
    }
}

impl Percentiles {
    fn add(&mut self, more: &Self) {
        self.count += more.count;
        self.p50_us = self.p50_us.max(more.p50_us);
        self.p99_us = self.p99_us.max(more.p99_us);
        self.p99_9_us = self.p99_9_us.max(more.p99_9_us);
        self.max_us = self.max_us.max(more.max_us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{Leg, Reason, Route};

    fn read(bytes: u64, reason: Reason, seconds: f64) -> Receipt {
        Receipt {
            bytes,
            rate_bytes_per_s: bytes as f64 / seconds,
            routes: vec![RouteBytes {
                leg: Leg::Read,
                route: Route::Buffered,
                reason,
                bytes,
            }],
            ios: 2,
            engine: "pread + io_uring".to_owned(),
            bound_by: if reason == Reason::Resident {
                Bound::PageCache
            } else {
                Bound::Storage
            },
            ..Receipt::empty(seconds)
        }
    }

    #[test]
    fn bytes_add_up_by_route_and_the_longest_bottleneck_counts() {
        let parts = [
            read(100, Reason::Resident, 1.0),
            read(20, Reason::Demanded, 3.0),
            read(5, Reason::Resident, 1.0),
        ];
        let sum = Receipt::sum(&parts, 2.5);
        assert_eq!((sum.bytes, sum.ios, sum.bound_by), (125, 6, Bound::Storage));
        let rows: Vec<_> = sum.routes.iter().map(|row| (row.reason, row.bytes)).collect();
        assert_eq!(rows, [(Reason::Resident, 105), (Reason::Demanded, 20)]);
        assert_eq!(sum.engine, "pread + io_uring");
        assert!((sum.rate_bytes_per_s - 50.0).abs() < 1e-9);
    }

    #[test]
    fn a_block_without_transfers_moved_nothing() {
        let sum = Receipt::sum([], 1.0);
        assert_eq!(
            (sum.bytes, sum.bound_by, sum.engine.as_str()),
            (0, Bound::Nothing, "none")
        );
    }
}
