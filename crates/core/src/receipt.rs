//! What happened: which way every byte went, how long it took, what bound the speed.
//!
//! A receipt is a value with a documented JSON form (`docs/receipt.md`); field names are part of
//! the interface. Its [`Display`](fmt::Display) is the short form for people.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{
    quantity::{Bytes, Rate, Seconds},
    route::{Leg, Reason, Route},
    text::shown,
};

/// The name and version of the JSON form.
pub const SCHEMA: &str = "straightway.receipt/2";

/// What a transfer did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Receipt {
    /// [`SCHEMA`].
    pub schema: String,
    /// Payload bytes that arrived, and those that are pages of files.
    pub bytes: u64,
    /// From the start of planning to the last byte in place, and synced where it was written.
    pub seconds: f64,
    /// The bytes that moved over `seconds`: 0 where all are pages of files.
    pub rate_bytes_per_s: f64,
    /// Bytes by leg, route and reason. For each leg they add up to `bytes`.
    pub routes: Vec<RouteBytes>,
    /// Latency by stage.
    pub latency: Latency,
    /// User CPU seconds of the process while the transfer ran.
    pub cpu_user_s: f64,
    /// System CPU seconds of the process while the transfer ran.
    pub cpu_system_s: f64,
    /// Both, for each 10^9 bytes.
    pub cpu_s_per_gb: f64,
    /// Whether other transfers of the process ran meanwhile: the CPU seconds are then theirs too.
    #[serde(default)]
    pub cpu_shared: bool,
    /// The most ring memory in use at once.
    pub staging_bytes_peak: u64,
    /// The most memory pinned or registered at once.
    pub pinned_bytes_peak: u64,
    /// I/Os that storage completed.
    pub ios: u64,
    /// Bytes that storage moved: more than `bytes` where supersets were read.
    pub storage_bytes: u64,
    /// The part of `seconds` that went into syncing what was written.
    pub sync_s: f64,
    /// The part of `seconds` in which its lanes worked for other transfers.
    #[serde(default)]
    pub waiting_s: f64,
    /// What ran it: the engine and the number of lanes.
    pub engine: String,
    /// How many lanes took part.
    pub lanes: u32,
    /// What registering regions with cuFile cost; `None` where none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registration: Option<Registration>,
    /// What requests over a network took beyond one each; `None` where nothing came from a socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Requests>,
    /// What its connections saw; `None` where nothing came from a socket, or the kernel does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sockets: Option<Sockets>,
    /// What bound the speed.
    pub bound_by: Bound,
    /// What went another way than it should have, a sentence each. Bounded.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// What registering regions with cuFile cost.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    /// How many regions were registered for this transfer. One that still was needed none.
    pub count: u64,
    /// How long that took, before the transfer began.
    pub seconds: f64,
    /// The transfer's share of both times together: `seconds / (registration + seconds)`.
    pub efficiency: f64,
}

impl Registration {
    /// Registrations that took `seconds`, for a transfer that took `transfer_s`.
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

/// What requests over a network took beyond one each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Requests that were sent again after a failure.
    pub retries: u64,
    /// Requests that were sent a second time because the first one was slow.
    pub hedges_sent: u64,
    /// Those of them that were answered first.
    pub hedges_won: u64,
}

/// What the connections of a transfer saw. They are looked at every 10 ms while it runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sockets {
    /// Connections that were open.
    pub connections: u64,
    /// Looks at one connection.
    pub samples: u64,
    /// Segments that this side sent again.
    pub retransmits: u64,
    /// Packets that came out of order: what the other side sent before them was lost or late.
    pub out_of_order: u64,
    /// The shortest round-trip time that was seen.
    pub rtt_us_min: f64,
    /// The mean of those that were seen.
    pub rtt_us_mean: f64,
    /// The longest.
    pub rtt_us_max: f64,
    /// How often a connection that owed bytes moved none from one look to the next.
    pub stalls: u64,
    /// How long that was, added up over all connections.
    pub stalled_s: f64,
    /// The longest stall.
    pub stall_s_max: f64,
    /// The highest rate between two looks, of the connections of one lane together.
    pub burst_bytes_per_s: f64,
    /// What the machine's interfaces moved meanwhile, other programs included. Those that moved little are left out.
    pub interfaces: Vec<Interface>,
}

/// What an interface moved during a transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Bytes that came.
    pub received_bytes: u64,
    /// Bytes that left.
    pub sent_bytes: u64,
    /// Packets that it dropped, in both directions.
    pub dropped: u64,
    /// Packets with errors, in both directions.
    pub errors: u64,
}

impl fmt::Display for Sockets {
    /// A line for the connections, and one for each interface.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let us = |value: f64| Seconds(value * 1e-6);
        let (mean, least, most) = (
            us(self.rtt_us_mean),
            us(self.rtt_us_min),
            us(self.rtt_us_max),
        );
        let count = self.connections;
        let noun = if count == 1 {
            "connection"
        } else {
            "connections"
        };
        write!(f, "  {count} {noun}: RTT {mean} ({least} to {most})")?;
        let (sent, came) = (self.retransmits, self.out_of_order);
        write!(f, ", {sent} retransmits, {came} packets out of order, ")?;
        match self.stalls {
            0 => write!(f, "no stalls")?,
            stalls => {
                let (all, longest) = (Seconds(self.stalled_s), Seconds(self.stall_s_max));
                write!(f, "{stalls} stalls ({all} in all, at most {longest})")?;
            }
        }
        writeln!(f, ", bursts of {}", Rate(self.burst_bytes_per_s))?;
        for interface in &self.interfaces {
            let (dropped, errors) = (interface.dropped, interface.errors);
            let (came, left) = (Bytes(interface.received_bytes), Bytes(interface.sent_bytes));
            let name = shown(&interface.name);
            writeln!(
                f,
                "  {name}: {came} in, {left} out, {dropped} dropped, {errors} errors"
            )?;
        }
        Ok(())
    }
}

/// Bytes that took one route for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteBytes {
    /// Out of an object or into one.
    pub leg: Leg,
    /// How they travelled.
    pub route: Route,
    /// Why that way.
    pub reason: Reason,
    /// How many.
    pub bytes: u64,
}

/// Latency of one I/O by stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// From being taken up by a lane to being handed to storage.
    pub queueing: Percentiles,
    /// From being handed to storage to its completion.
    pub storage: Percentiles,
    /// From the completion to the bytes being in place.
    pub copy: Percentiles,
}

/// A latency distribution in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    /// How many were measured.
    pub count: u64,
    /// Half were at most this long.
    pub p50_us: f64,
    /// 99 in 100.
    pub p99_us: f64,
    /// 999 in 1000.
    pub p99_9_us: f64,
    /// The longest.
    pub max_us: f64,
}

/// What bound the speed of a transfer: where its lanes spent most of their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// Waiting for the drive.
    Storage,
    /// Waiting for sockets, and receiving from them.
    Network,
    /// Copying out of, or into, the page cache.
    PageCache,
    /// Copying between the ring and the region.
    Copy,
    /// Preparing and submitting I/Os, and checking or unpacking what they brought.
    Cpu,
    /// Waiting for the sync at the end.
    Sync,
    /// Waiting for other transfers on the same lanes.
    OtherJobs,
    /// A limit that was asked for.
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

impl Receipt {
    /// Whether all its bytes are pages of files, and none moved: there is no rate then.
    pub fn is_mapped(&self) -> bool {
        let is_mapped = |row: &RouteBytes| row.route == Route::Mapped;
        !self.routes.is_empty() && self.routes.iter().all(is_mapped)
    }

    /// Bytes that took `route` on `leg`, whatever the reason.
    pub fn bytes_by(&self, leg: Leg, route: Route) -> u64 {
        let takes = |r: &&RouteBytes| r.leg == leg && r.route == route;
        self.routes.iter().filter(takes).map(|r| r.bytes).sum()
    }
}

impl fmt::Display for Latency {
    /// A line for each stage that took any time.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, p) in [
            ("queueing", self.queueing),
            ("storage", self.storage),
            ("copy", self.copy),
        ] {
            if p.count > 0 {
                let us = |v: f64| Seconds(v * 1e-6).to_string();
                let (p50, p99, p999, max) =
                    (us(p.p50_us), us(p.p99_us), us(p.p99_9_us), us(p.max_us));
                writeln!(
                    f,
                    "  {name:<9}p50 {p50:<9}p99 {p99:<9}p99.9 {p999:<9}max {max}"
                )?;
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
            "  {} by {} lane{} of {}; cpu {} user + {} system{}, {:.3} s per GB; ring {}",
            if self.ios == 1 {
                "1 I/O".to_owned()
            } else {
                format!("{} I/Os", self.ios)
            },
            self.lanes,
            if self.lanes == 1 { "" } else { "s" },
            self.engine,
            Seconds(self.cpu_user_s),
            Seconds(self.cpu_system_s),
            if self.cpu_shared {
                " (with other transfers)"
            } else {
                ""
            },
            self.cpu_s_per_gb,
            Bytes(self.staging_bytes_peak),
        )
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, seconds) = (Bytes(self.bytes), Seconds(self.seconds));
        if self.is_mapped() {
            writeln!(f, "{bytes} mapped in {seconds}, nothing moved")?;
        } else {
            let rate = Rate(self.rate_bytes_per_s);
            writeln!(
                f,
                "{bytes} in {seconds} at {rate}, bound by {}",
                self.bound_by
            )?;
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
        // Less than this is the time that it takes to look whether there is another.
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
                "  {} requests repeated, {} sent twice, {} answered first the second time",
                r.retries, r.hedges_sent, r.hedges_won
            )?;
        }
        if let Some(sockets) = &self.sockets {
            write!(f, "{sockets}")?;
        }
        self.fmt_cost(f)?;
        for warning in &self.warnings {
            write!(f, "\n  warning: {}", shown(warning))?;
        }
        Ok(())
    }
}
