//! Memory reached by load and store: what its latency leaves of a core's bandwidth.

use serde::{Deserialize, Serialize};
use straightway_core::Seconds;

use straightway_scenario::check::{Checked, Checker, TIME_SOME};

/// Memory reached by load and store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cxl {
    /// The latency a claim starts from.
    pub claimed_from: Seconds,
    /// The latency it ends at.
    pub claimed_to: Seconds,
    /// The fastest real device.
    pub latency_min: Seconds,
    /// The slowest real device.
    pub latency_max: Seconds,
    /// Local memory.
    pub dram: Seconds,
    /// Cache lines a core keeps in flight.
    pub lines: u64,
}

/// Memory tiers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tiers {
    /// The fastest real device.
    pub latency_s_min: f64,
    /// What the claimed latencies come to.
    pub claimed_gain: f64,
    /// The same against the fastest real device.
    pub gain_max: f64,
    /// And against the slowest.
    pub gain_min: f64,
    /// The claimed latency over local memory's: below one is faster than memory in the socket.
    pub claimed_over_dram: f64,
    /// What a core reads from local memory.
    pub dram_bytes_per_s: f64,
    /// What a core reads from the fastest real device.
    pub cxl_bytes_per_s_max: f64,
    /// What a core reads from the slowest.
    pub cxl_bytes_per_s_min: f64,
}

impl Default for Cxl {
    fn default() -> Self {
        Self {
            claimed_from: Seconds(1.5e-6),
            claimed_to: Seconds(100e-9),
            latency_min: Seconds(140e-9),
            latency_max: Seconds(410e-9),
            dram: Seconds(110e-9),
            lines: 16,
        }
    }
}

impl Checked for Cxl {
    fn check(&self, c: &mut Checker) {
        c.seconds("claimed_from", self.claimed_from, TIME_SOME);
        c.seconds("claimed_to", self.claimed_to, TIME_SOME);
        c.seconds("latency_min", self.latency_min, TIME_SOME);
        c.seconds("latency_max", self.latency_max, TIME_SOME);
        c.seconds("dram", self.dram, TIME_SOME);
        c.count("lines", self.lines, 1..=1024);
    }
}

impl Cxl {
    /// What the latencies come to.
    pub(super) fn tiers(&self) -> Tiers {
        let core = |latency: Seconds| self.lines as f64 * 64.0 / latency.0;
        Tiers {
            latency_s_min: self.latency_min.0,
            claimed_gain: self.claimed_from.0 / self.claimed_to.0,
            gain_max: self.claimed_from.0 / self.latency_min.0,
            gain_min: self.claimed_from.0 / self.latency_max.0,
            claimed_over_dram: self.claimed_to.0 / self.dram.0,
            dram_bytes_per_s: core(self.dram),
            cxl_bytes_per_s_max: core(self.latency_min),
            cxl_bytes_per_s_min: core(self.latency_max),
        }
    }
}
