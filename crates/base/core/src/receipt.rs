//! The result of a transfer: the route of every byte, the times, and the bottleneck.
//!
//! A receipt is a value with a documented JSON form (`docs/receipt.md`); field names are part of
//! the interface. Its [`Display`](fmt::Display) is the short form for people.

mod sum;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    quantity::{Bytes, Rate, Seconds},
    route::{Leg, Reason, Route},
    text::{counted, shown},
};

/// The name and version of the JSON form.
pub const SCHEMA: &str = "straightway.receipt/2";

/// The result of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// [`SCHEMA`].
    pub schema: String,
    /// Payload bytes that were moved or mapped.
    pub bytes: u64,
    /// From the start of planning until the last byte is in place, and synced if it was written.
    pub seconds: f64,
    /// Moved bytes divided by `seconds`; 0 if all bytes are mapped.
    pub rate_bytes_per_s: f64,
    /// Bytes by leg, route and reason. For each leg they add up to `bytes`.
    pub routes: Vec<RouteBytes>,
    /// Latency by stage.
    pub latency: Latency,
    /// User CPU seconds of the process while the transfer ran.
    pub cpu_user_s: f64,
    /// System CPU seconds of the process while the transfer ran.
    pub cpu_system_s: f64,
    /// User and system CPU seconds per 10^9 bytes.
    pub cpu_s_per_gb: f64,
    /// Whether other transfers of the process ran at the same time. The CPU seconds then include theirs.
    #[serde(default)]
    pub cpu_shared: bool,
    /// The peak of ring memory in use.
    pub staging_bytes_peak: u64,
    /// The peak of pinned or registered memory.
    pub pinned_bytes_peak: u64,
    /// I/Os that storage completed.
    pub ios: u64,
    /// Bytes that storage moved: more than `bytes` if aligned supersets were read.
    pub storage_bytes: u64,
    /// The part of `seconds` spent on syncing written data.
    pub sync_s: f64,
    /// The part of `seconds` in which its lanes worked for other transfers.
    #[serde(default)]
    pub waiting_s: f64,
    /// The engine that ran it.
    pub engine: String,
    /// The number of lanes that took part.
    pub lanes: u32,
    /// The cost of registering regions with cuFile; `None` if none was registered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration: Option<Registration>,
    /// Retries and hedges of network requests; `None` if no socket was used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Requests>,
    /// Statistics of its connections; `None` if no socket was used, or if the kernel does not provide them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Sockets>,
    /// The comparison that followed the transfer, if one was requested. `seconds` does not contain its time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verified: Option<Verified>,
    /// The bottleneck.
    pub bound_by: Bound,
    /// The origins of settings that are not the defaults: this machine's profile, and what transfers have learned.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings_from: Vec<String>,
    /// Unexpected events, such as a slower route, one sentence each. The number is bounded.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// The cost of registering regions with cuFile.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    /// The number of regions registered for this transfer. Regions that were already registered do not count.
    pub count: u64,
    /// The time that took, before the transfer began.
    pub seconds: f64,
    /// The transfer's share of both times together: `seconds / (registration + seconds)`.
    pub efficiency: f64,
}

impl Registration {
    /// `count` registrations that took `seconds`, for a transfer that took `transfer_s`.
    pub fn new(count: u64, seconds: f64, transfer_s: f64) -> Self {
        let both = seconds + transfer_s;
        let efficiency = if both > 0.0 { transfer_s / both } else { 1.0 };
        Self {
            count,
            seconds,
            efficiency,
        }
    }
}

/// A comparison of all bytes after a transfer. They were equal: a difference is an error, and then there is no receipt.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verified {
    /// How they were compared.
    pub method: VerifyMethod,
    /// The number of files or objects.
    pub objects: u64,
    /// The bytes that were compared.
    pub bytes: u64,
    /// The time that it took.
    pub seconds: f64,
}

/// How bytes were compared after a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VerifyMethod {
    /// The copies were read back, and the originals again.
    ReadBack,
    /// The bytes in memory were compared with the objects, which were read again, by another route if there is one.
    ReadAgain,
}

impl fmt::Display for Verified {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let noun = if self.objects == 1 { "object" } else { "objects" };
        let method = match self.method {
            VerifyMethod::ReadBack => "read back",
            VerifyMethod::ReadAgain => "read again",
        };
        let (objects, bytes, took) = (self.objects, Bytes(self.bytes), Seconds(self.seconds));
        write!(
            f,
            "verified: {bytes} in {objects} {noun} {method} in {took}, every byte is equal"
        )
    }
}

/// Retries and hedges of network requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Requests that were retried after a failure.
    pub retries: u64,
    /// Hedges: requests that were sent a second time because the first attempt was slow.
    pub hedges_sent: u64,
    /// Hedges that were answered before the first attempt.
    pub hedges_won: u64,
}

/// Statistics of a transfer's connections, which are sampled while it runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sockets {
    /// Connections that were open.
    pub connections: u64,
    /// Samples taken, each of one connection.
    pub samples: u64,
    /// Segments that this side retransmitted.
    pub retransmits: u64,
    /// Packets that arrived out of order, because earlier ones were lost or late.
    pub out_of_order: u64,
    /// The minimum of the sampled round-trip times.
    pub rtt_us_min: f64,
    /// The mean of the sampled round-trip times.
    pub rtt_us_mean: f64,
    /// The maximum of the sampled round-trip times.
    pub rtt_us_max: f64,
    /// The number of stalls: a connection with bytes outstanding moved none between two samples.
    pub stalls: u64,
    /// The total time of all stalls, summed over all connections.
    pub stalled_s: f64,
    /// The longest stall.
    pub stall_s_max: f64,
    /// The highest rate between two samples, summed over the connections of one lane.
    pub burst_bytes_per_s: f64,
    /// Traffic of the machine's interfaces during the transfer, including other programs. Interfaces with little
    /// traffic are omitted.
    pub interfaces: Vec<Interface>,
}

/// The traffic of a network interface during a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Bytes received.
    pub received_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Packets dropped, in both directions.
    pub dropped: u64,
    /// Packets with errors, in both directions.
    pub errors: u64,
}

impl fmt::Display for Sockets {
    /// One line for the connections, and one for each interface.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |value: f64| Seconds(value * 1e-6);
        let (mean, least, most) = (us(self.rtt_us_mean), us(self.rtt_us_min), us(self.rtt_us_max));
        // A transfer that ends before the first sample has no statistics.
        if self.samples == 0 {
            write!(f, "  {}, too short to sample", counted(self.connections, "connection"))?;
        } else {
            let connections = counted(self.connections, "connection");
            write!(f, "  {connections}: RTT {mean} ({least} to {most})")?;
        }
        let (sent, came) = (self.retransmits, self.out_of_order);
        if self.samples > 0 || sent + came + self.stalls > 0 {
            write!(
                f,
                ", {}, {} out of order, ",
                counted(sent, "retransmit"),
                counted(came, "packet")
            )?;
            match self.stalls {
                0 => write!(f, "no stalls")?,
                stalls => {
                    let (all, longest) = (Seconds(self.stalled_s), Seconds(self.stall_s_max));
                    let stalls = counted(stalls, "stall");
                    write!(f, "{stalls} ({all} in all, at most {longest})")?;
                }
            }
        }
        if self.burst_bytes_per_s > 0.0 {
            write!(f, ", bursts of {}", Rate(self.burst_bytes_per_s))?;
        }
        writeln!(f)?;
        for interface in &self.interfaces {
            let (dropped, errors) = (interface.dropped, interface.errors);
            let (came, left) = (Bytes(interface.received_bytes), Bytes(interface.sent_bytes));
            let name = shown(&interface.name);
            let errors = counted(errors, "error");
            writeln!(f, "  {name}: {came} in, {left} out, {dropped} dropped, {errors}")?;
        }
        Ok(())
    }
}

/// Bytes that took one route for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteBytes {
    /// The leg: read or write.
    pub leg: Leg,
    /// Their route.
    pub route: Route,
    /// The reason for the route.
    pub reason: Reason,
    /// The number of bytes.
    pub bytes: u64,
}

/// Latency of one I/O by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// From the time a lane takes a chunk to the submission of its I/O.
    pub queueing: Percentiles,
    /// From submission to completion.
    pub storage: Percentiles,
    /// From completion until the bytes are in place.
    pub copy: Percentiles,
}

/// A latency distribution in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// The number of samples.
    pub count: u64,
    /// The median.
    pub p50_us: f64,
    /// The 99th percentile.
    pub p99_us: f64,
    /// The 99.9th percentile.
    pub p99_9_us: f64,
    /// The maximum.
    pub max_us: f64,
}

/// The bottleneck of a transfer: the work on which its lanes spent most of their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Waiting for the drive.
    Storage,
    /// Waiting for sockets and receiving from them.
    Network,
    /// Copying from or to the page cache.
    PageCache,
    /// Copying between the ring and the region.
    Copy,
    /// Preparing and submitting I/Os, and checking or decompressing data.
    Cpu,
    /// Waiting for the sync at the end.
    Sync,
    /// Waiting for other transfers on the same lanes.
    OtherJobs,
    /// A requested rate limit.
    Throttle,
    /// There was nothing to move.
    Nothing,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Storage => "storage",
            Self::Network => "network",
            Self::PageCache => "page cache",
            Self::Copy => "copy",
            Self::Cpu => "cpu",
            Self::Sync => "sync",
            Self::OtherJobs => "other transfers",
            Self::Throttle => "throttle",
            Self::Nothing => "nothing",
        })
    }
}

/// The size from which the printed receipt has rates. Of a smaller transfer the time is mostly that of its start.
const RATE_BYTES_MIN: u64 = 1 << 20;

impl Receipt {
    /// Whether a rate says something about this transfer.
    fn has_rates(&self) -> bool {
        self.bytes >= RATE_BYTES_MIN
    }

    /// Whether all its bytes are mapped and none was moved. It then has no rate.
    pub fn is_mapped(&self) -> bool {
        let is_mapped = |row: &RouteBytes| row.route == Route::Mapped;
        !self.routes.is_empty() && self.routes.iter().all(is_mapped)
    }

    /// The number of bytes that took `route` on `leg`, for any reason.
    pub fn bytes_by(&self, leg: Leg, route: Route) -> u64 {
        let takes = |r: &&RouteBytes| r.leg == leg && r.route == route;
        self.routes.iter().filter(takes).map(|r| r.bytes).sum()
    }
}

impl fmt::Display for Latency {
    /// One line for each stage that has samples.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, p) in [
            ("queueing", self.queueing),
            ("storage", self.storage),
            ("copy", self.copy),
        ] {
            if p.count > 0 {
                let us = |v: f64| Seconds(v * 1e-6).to_string();
                let (p50, p99, p999, max) = (us(p.p50_us), us(p.p99_us), us(p.p99_9_us), us(p.max_us));
                writeln!(f, "  {name:<9}p50 {p50:<9}p99 {p99:<9}p99.9 {p999:<9}max {max}")?;
            }
        }
        Ok(())
    }
}

impl Receipt {
    /// The line about lanes, CPU time and the ring.
    fn fmt_cost(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "  {} by {} of {}; cpu {} user + {} system{}",
            counted(self.ios, "I/O"),
            counted(u64::from(self.lanes), "lane"),
            self.engine,
            Seconds(self.cpu_user_s),
            Seconds(self.cpu_system_s),
            if self.cpu_shared { " (with other transfers)" } else { "" },
        )?;
        if self.has_rates() {
            write!(f, ", {:.3} s per GB", self.cpu_s_per_gb)?;
        }
        if self.staging_bytes_peak > 0 {
            write!(f, "; ring {}", Bytes(self.staging_bytes_peak))?;
        }
        Ok(())
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, seconds) = (Bytes(self.bytes), Seconds(self.seconds));
        if self.is_mapped() {
            writeln!(f, "{bytes} mapped in {seconds}, nothing moved")?;
        } else if self.bytes == 0 {
            writeln!(f, "{bytes} in {seconds}, nothing to move")?;
        } else if self.has_rates() {
            let rate = Rate(self.rate_bytes_per_s);
            writeln!(f, "{bytes} in {seconds} at {rate}, bound by {}", self.bound_by)?;
        } else {
            writeln!(f, "{bytes} in {seconds}, too small for a rate")?;
        }
        for r in &self.routes {
            let share = 100.0 * r.bytes as f64 / (self.bytes.max(1)) as f64;
            let (leg, route) = (r.leg, r.route);
            writeln!(
                f,
                "  {leg:<6}{route:<9}{:>10} {share:>5.1} %  {}",
                Bytes(r.bytes),
                r.reason
            )?;
        }
        write!(f, "{}", self.latency)?;
        // A shorter time is only the check for other transfers.
        if self.waiting_s > 1e-4 {
            let waited = Seconds(self.waiting_s);
            writeln!(f, "  waited {waited} for other transfers")?;
        }
        if let Some(r) = self.registration {
            writeln!(
                f,
                "  {} registered with cuFile in {}, efficiency {:.3}",
                r.count,
                Seconds(r.seconds),
                r.efficiency
            )?;
        }
        if let Some(r) = self.requests {
            writeln!(
                f,
                "  {} retried, {} hedged, {} answered first by the hedge",
                counted(r.retries, "request"),
                r.hedges_sent,
                r.hedges_won
            )?;
        }
        if let Some(sockets) = &self.sockets {
            write!(f, "{sockets}")?;
        }
        self.fmt_cost(f)?;
        if let Some(verified) = &self.verified {
            write!(f, "\n  {verified}")?;
        }
        for origin in &self.settings_from {
            write!(f, "\n  settings from {}", shown(origin))?;
        }
        for warning in &self.warnings {
            write!(f, "\n  warning: {}", shown(warning))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receipt(bytes: u64) -> Receipt {
        serde_json::from_value(serde_json::json!({
            "schema": SCHEMA, "bytes": bytes, "seconds": 0.0321, "rate_bytes_per_s": bytes as f64 / 0.0321,
            "routes": [], "latency": Latency::default(), "cpu_user_s": 0.004, "cpu_system_s": 0.001,
            "cpu_s_per_gb": 200_250.0, "staging_bytes_peak": 0, "pinned_bytes_peak": 0, "ios": 1,
            "storage_bytes": bytes, "sync_s": 0.0, "engine": "io_uring", "lanes": 1, "bound_by": "cpu",
        }))
        .expect("the fields without a default are here")
    }

    #[test]
    fn a_small_transfer_has_no_rates() {
        assert_eq!(
            receipt(24).to_string(),
            "24 B in 32.1 ms, too small for a rate\n  1 I/O by 1 lane of io_uring; cpu 4 ms user + 1 ms system"
        );
        let large = receipt(1 << 30).to_string();
        assert!(
            large.contains(" at 33.4 GB/s, bound by cpu\n") && large.contains(" s per GB"),
            "{large}"
        );
        assert!(receipt(0).to_string().starts_with("0 B in 32.1 ms, nothing to move\n"));
    }

    #[test]
    fn connections_without_samples_have_no_round_trips_and_one_is_one() {
        let mut sockets = Sockets {
            connections: 1,
            ..Sockets::default()
        };
        assert_eq!(sockets.to_string(), "  1 connection, too short to sample\n");
        (sockets.samples, sockets.out_of_order, sockets.stalls) = (3, 1, 1);
        let text = sockets.to_string();
        assert!(
            text.contains("0 retransmits, 1 packet out of order, 1 stall ("),
            "{text}"
        );
        assert!(!text.contains("bursts"), "{text}");
    }

    #[test]
    fn the_origin_of_settings_is_a_line() {
        let mut receipt = receipt(1 << 30);
        receipt.settings_from = vec!["learned: ring".to_owned()];
        assert!(
            receipt.to_string().ends_with("\n  settings from learned: ring"),
            "{receipt}"
        );
    }
}
