//! CXL memory, accessed by load and store: the bandwidth of a core at its latency.

use serde::{Deserialize, Serialize};
use straightway_core::Seconds;

use straightway_scenario::check::{Checkable, Checker, TIME_POSITIVE};

/// Memory accessed by load and store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cxl {
    /// The claimed latency before.
    pub claimed_from: Seconds,
    /// The claimed latency after.
    pub claimed_to: Seconds,
    /// The latency of the fastest real device.
    pub latency_min: Seconds,
    /// The latency of the slowest real device.
    pub latency_max: Seconds,
    /// The latency of local memory.
    pub dram: Seconds,
    /// Cache lines in flight per core.
    pub lines: u64,
}

/// The comparison of memory tiers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tiers {
    /// The latency of the fastest real device.
    pub latency_s_min: f64,
    /// The claimed gain: the latency before divided by the latency after.
    pub claimed_gain: f64,
    /// The gain with the fastest real device.
    pub gain_max: f64,
    /// The gain with the slowest real device.
    pub gain_min: f64,
    /// The claimed latency divided by that of local memory. Below one, the claim is faster than local memory.
    pub claimed_over_dram: f64,
    /// The read rate of a core from local memory.
    pub dram_bytes_per_s: f64,
    /// The read rate of a core from the fastest real device.
    pub cxl_bytes_per_s_max: f64,
    /// The read rate of a core from the slowest real device.
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

impl Checkable for Cxl {
    fn check(&self, c: &mut Checker) {
        c.seconds("claimed_from", self.claimed_from, TIME_POSITIVE);
        c.seconds("claimed_to", self.claimed_to, TIME_POSITIVE);
        c.seconds("latency_min", self.latency_min, TIME_POSITIVE);
        c.seconds("latency_max", self.latency_max, TIME_POSITIVE);
        c.seconds("dram", self.dram, TIME_POSITIVE);
        c.count("lines", self.lines, 1..=1024);
    }
}

impl Cxl {
    /// Computes the comparison.
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
