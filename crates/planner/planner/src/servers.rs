//! Storage servers: the data rate of their ports.

use serde::{Deserialize, Serialize};
use straightway_core::Rate;
use straightway_pcie::machine::{LINK_EFFICIENCY, LINK_EFFICIENCY_SOURCE};
use straightway_scenario::{
    check::{Checker, RATE_ANY},
    provenance::{Basis, Citation},
};

/// The storage servers, if their ports are to limit the rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Servers {
    /// Their number; absent for no such limit.
    pub count: Option<u64>,
    /// The line rate of one server's ports.
    pub rate: Rate,
    /// The share of the line rate that carries data.
    pub efficiency: f64,
}

impl Default for Servers {
    fn default() -> Self {
        Self {
            count: None,
            rate: Rate::gbit(100.0),
            efficiency: LINK_EFFICIENCY[1],
        }
    }
}

impl Servers {
    /// Checks the ranges.
    pub(crate) fn check(&self, c: &mut Checker) {
        if let Some(count) = self.count {
            c.count("count", count, 1..=1_000_000);
        }
        c.rate("rate", self.rate, RATE_ANY);
        c.range("efficiency", self.efficiency, 0.01..=1.0, "");
    }

    /// The data rate of all ports, in one direction; `None` without servers.
    pub(crate) fn bytes_per_s(&self) -> Option<f64> {
        Some(self.count? as f64 * self.rate.0 * self.efficiency)
    }

    /// Adds the servers to a basis. `root` is the path of this table.
    pub(crate) fn assume(&self, basis: &mut Basis, root: &str) {
        let Some(count) = self.count else { return };
        let path = |field: &str| format!("{root}.{field}");
        basis.parameter(path("count"), "storage servers", count as f64, "", Citation::SCENARIO);
        let what = "line rate of one server";
        basis.parameter(path("rate"), what, self.rate.0, "B/s", Citation::ASSUMED);
        assume_efficiency(
            basis,
            path("efficiency"),
            "share of the servers' line rate that carries data",
            self.efficiency,
        );
    }
}

/// Adds the efficiency of links to a basis, with its published range.
pub(crate) fn assume_efficiency(basis: &mut Basis, path: impl Into<String>, what: &str, efficiency: f64) {
    let [low, _, high] = LINK_EFFICIENCY;
    basis
        .parameter(path, what, efficiency, "", LINK_EFFICIENCY_SOURCE)
        .between(low, high, LINK_EFFICIENCY_SOURCE);
}
