//! Many rails: what several network ports give a node together, and what steering is worth.
//!
//! A rail carries the least of its port, its PCIe link and its share of the switch above it. One
//! whose GPU hangs on another switch crosses the root complex and keeps about 0.6 of that, as a
//! DGX-2 showed (6.52 GiB/s on the same switch, 3.89 across). So the same ports give 1 or 0.6 of
//! their sum, by steering alone.

use serde::{Deserialize, Serialize};
use straightway_core::Rate;

use straightway_scenario::check::Refusals;
use straightway_scenario::{
    check::{Checked, Checker, RATE_ANY},
    provenance::{Basis, Formula, Source},
};

use crate::question::Question;

/// What is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rails {
    /// The rails of one node.
    pub rails: Vec<Rail>,
    /// GPUs the rails feed.
    pub gpus: u64,
    /// What is left of a rail that crosses switches.
    pub cross_share: f64,
    /// What one node is to read.
    pub wanted: Rate,
}

/// Several rails of one kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rail {
    /// How many of them.
    #[serde(default = "one")]
    pub count: u64,
    /// The network port.
    pub port: Rate,
    /// Its PCIe link, one direction, payload.
    pub pcie: Rate,
    /// Its share of the PCIe switch's uplink; absent where it has no switch above, or peers below it.
    #[serde(default)]
    pub switch_share: Option<Rate>,
    /// Share of its traffic that goes to GPUs on other switches.
    #[serde(default)]
    pub crossing: f64,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// Ports in all.
    pub ports: u64,
    /// All ports' line rate.
    pub line_bytes_per_s: f64,
    /// As the rails are used.
    pub rate_bytes_per_s: f64,
    /// With every rail steered to GPUs on its own switch.
    pub steered_bytes_per_s: f64,
    /// With every rail crossing.
    pub crossed_bytes_per_s: f64,
    /// Steered over crossing.
    pub steering_gain: f64,
    /// For each GPU, as used.
    pub per_gpu_bytes_per_s: f64,
    /// Rails of the first kind that would give what is wanted.
    pub rails_for_wanted: f64,
    /// Each kind of rail.
    pub rails: Vec<Row>,
    /// What all this rests on.
    pub basis: Basis,
}

/// One kind of rail.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// How many.
    pub count: u64,
    /// What one carries when it does not cross.
    pub near_bytes_per_s: f64,
    /// What one carries as used.
    pub used_bytes_per_s: f64,
    /// What bound it.
    pub bound_by: &'static str,
}

const DGX2: Source = Source::read(
    "GDS guide, DGX-2",
    "same switch 6.52 GiB/s, other switch 3.89: 0.597",
);

const FORMULA: Formula = Formula {
    gives: "bandwidth of many rails",
    text: "Σ over rails of min(port, PCIe, switch share), × 0.6 across switches",
    source: DGX2,
};

const fn one() -> u64 {
    1
}

impl Default for Rails {
    fn default() -> Self {
        let rail = Rail {
            count: 8,
            port: Rate::gbit(400.0),
            // Gen5 x16 with 256 B payloads.
            pcie: Rate(51.98e9),
            switch_share: None,
            crossing: 0.0,
        };
        Self {
            rails: vec![rail],
            gpus: 8,
            cross_share: 3.89 / 6.52,
            wanted: Rate(200e9),
        }
    }
}

impl Checked for Rails {
    fn check(&self, c: &mut Checker) {
        c.each("rails", &self.rails, 1..=64);
        c.count("gpus", self.gpus, 1..=1024);
        c.range("cross_share", self.cross_share, 0.01..=1.0, "");
        c.rate("wanted", self.wanted, RATE_ANY);
    }
}

impl Checked for Rail {
    fn check(&self, c: &mut Checker) {
        c.count("count", self.count, 1..=1024);
        c.rate("port", self.port, RATE_ANY);
        c.rate("pcie", self.pcie, RATE_ANY);
        if let Some(share) = self.switch_share {
            c.rate("switch_share", share, RATE_ANY);
        }
        c.share("crossing", self.crossing);
    }
}

impl Rails {
    /// Adds the rails up.
    fn compute(&self) -> Answer {
        let rows: Vec<Row> = self.rails.iter().map(|rail| self.row(rail)).collect();
        let sum = |each: &dyn Fn(&Row) -> f64| {
            rows.iter()
                .map(|row| row.count as f64 * each(row))
                .sum::<f64>()
        };
        let steered = sum(&|row| row.near_bytes_per_s);
        let crossed = steered * self.cross_share;
        let rate = sum(&|row| row.used_bytes_per_s);
        let mut basis = Basis::of(&[FORMULA]);
        basis.assume_or(
            "share left across switches",
            (self.cross_share, 3.89 / 6.52),
            "",
            DGX2,
        );
        Answer {
            ports: self.rails.iter().map(|rail| rail.count).sum(),
            line_bytes_per_s: self.rails.iter().map(|r| r.count as f64 * r.port.0).sum(),
            rate_bytes_per_s: rate,
            steered_bytes_per_s: steered,
            crossed_bytes_per_s: crossed,
            steering_gain: steered / crossed,
            per_gpu_bytes_per_s: rate / self.gpus as f64,
            rails_for_wanted: (self.wanted.0 / rows[0].used_bytes_per_s).ceil(),
            rails: rows,
            basis,
        }
    }

    fn row(&self, rail: &Rail) -> Row {
        let share = rail.switch_share.map_or(f64::MAX, |share| share.0);
        let limits = [
            (rail.port.0, "port"),
            (rail.pcie.0, "pcie"),
            (share, "switch share"),
        ];
        let (near, bound_by) = limits
            .into_iter()
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .expect("there are three limits");
        let kept = 1.0 - rail.crossing * (1.0 - self.cross_share);
        Row {
            count: rail.count,
            near_bytes_per_s: near,
            used_bytes_per_s: near * kept,
            bound_by,
        }
    }
}

impl Question for Rails {
    const NAME: &'static str = "rail";
    type Answer = Answer;

    fn answer(&self) -> Result<Answer, Refusals> {
        Ok(self.compute())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    #[test]
    fn crossing_switches_costs_40_percent_as_on_the_dgx2() {
        // GDS guide: −40 %.
        near(Rails::default().cross_share, 0.6, 0.01);
        near(Rails::default().compute().steering_gain, 1.0 / 0.6, 0.01);
    }

    #[test]
    fn eight_ports_of_400_gbit_carry_400_gb_and_four_carry_the_200_asked() {
        let answer = Rails::default().compute();
        near(answer.rate_bytes_per_s, 400e9, 1e-9);
        assert!((answer.rails_for_wanted - 4.0).abs() < f64::EPSILON);
        assert_eq!(answer.rails[0].bound_by, "port");
    }

    #[test]
    fn half_the_traffic_crossing_loses_a_fifth() {
        let mut asked = Rails::default();
        asked.rails[0].crossing = 0.5;
        near(asked.compute().rate_bytes_per_s, 400e9 * 0.798, 0.001);
    }
}
