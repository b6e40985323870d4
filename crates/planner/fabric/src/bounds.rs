//! The limits of the fabric simulator, each with its reason.

use straightway_core::{Bytes, Rate, Seconds};

/// Hosts in one fabric: the largest clusters announced so far.
pub const HOSTS_MAX: u64 = 262_144;

/// Switches in one tier or one graph.
pub const SWITCHES_MAX: u64 = 16_384;

/// Cables in one fabric; each is two directed links of about 200 bytes of state.
pub const LINKS_MAX: usize = 1 << 20;

/// Flows in one run; each is about 200 bytes of state.
pub const FLOWS_MAX: u64 = 1 << 22;

/// Packets in one run: at 2 µs each, half an hour.
pub const PACKETS_MAX: u64 = 1_000_000_000;

/// The longest run, in simulated time.
pub const DURATION_MAX: Seconds = Seconds(100.0);

/// The slowest link.
pub const RATE_MIN: Rate = Rate(1.25e6);
/// The fastest link, 10 Tb/s: six times the fastest existing port.
pub const RATE_MAX: Rate = Rate(1.25e12);

/// The longest cable: between two cities.
pub const CABLE_M_MAX: f64 = 100_000.0;

/// The largest buffer of one switch.
pub const BUFFER_MAX: Bytes = Bytes::gib(4);

/// Links whose queue is recorded over time.
pub const WATCHED_MAX: usize = 64;

/// Points kept of each recorded queue.
pub const SERIES_POINTS: usize = 2048;

/// Traffic entries of one scenario.
pub const TRAFFIC_MAX: usize = 4096;

/// The most switches a path may cross.
pub const HOPS_MAX: usize = 64;

/// Packets examined at the end of a pause, to find the flows that it delayed. The packets at the head waited for all
/// of it; a queue of thousands would otherwise be searched at every pause.
pub const HELD_LOOKED_AT_MAX: usize = 64;
