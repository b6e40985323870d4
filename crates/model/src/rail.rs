//! Many rails: what several network ports give a node together, and what steering is worth.
//!
//! The rails are the ports of a [`Machine`], the description that the path and `sim pcie` use too, and carry the
//! minimum cut between ports and GPUs. What goes to a GPU on another switch crosses the root complex and keeps
//! about 0.6 of that, as a DGX-2 showed (6.52 GiB/s on the same switch, 3.89 across). So the same ports give 1
//! or 0.6 of their sum, by steering alone.

use serde::{Deserialize, Serialize};
use straightway_core::Rate;

use straightway_pcie::{
    machine::{DGX_H100, Machine, Ports},
    narrowest::Between,
};
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
    /// The node: its ports are the rails.
    pub machine: Machine,
    /// GPUs the rails feed.
    pub gpus: u64,
    /// Share of the traffic that goes to GPUs on other switches than the port.
    pub crossing: f64,
    /// What is left of a rail that crosses switches.
    pub cross_share: f64,
    /// What one node is to read.
    pub wanted: Rate,
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
    /// What the steered rails are bound by.
    pub bound_by: &'static str,
    /// What one node is to read.
    pub wanted_bytes_per_s: f64,
    /// For each GPU, as used.
    pub per_gpu_bytes_per_s: f64,
    /// Rails that would give what is wanted.
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
    text: "minimum cut between ports and GPUs in the machine's tree, port rates counted; × 0.6 for what crosses switches",
    source: DGX2,
};

impl Default for Rails {
    fn default() -> Self {
        Self {
            machine: Machine::default(),
            gpus: 8,
            crossing: 0.0,
            cross_share: 3.89 / 6.52,
            wanted: Rate(200e9),
        }
    }
}

impl Checked for Rails {
    fn check(&self, c: &mut Checker) {
        c.nested("machine", &self.machine);
        if self.machine.ports.is_empty() {
            c.refuse("machine.ports", "none", "at least one kind of port");
        }
        c.count("gpus", self.gpus, 1..=1024);
        c.share("crossing", self.crossing);
        c.range("cross_share", self.cross_share, 0.01..=1.0, "");
        c.rate("wanted", self.wanted, RATE_ANY);
    }
}

impl Rails {
    fn compute(&self) -> Answer {
        let machine = &self.machine;
        let steered = machine
            .cut(Between::PortsAndGpus, self.gpus, true)
            .expect("a checked machine has ports and GPUs");
        let kept = 1.0 - self.crossing * (1.0 - self.cross_share);
        let rate = steered.bytes_per_s * kept;
        let ports: u64 = machine.ports.iter().map(|ports| ports.count).sum();
        let mut basis = Basis::of(&[FORMULA]);
        let rates = machine.ports_bytes_per_s();
        basis.parameter(
            "machine.ports",
            "line rate of all ports",
            rates,
            "B/s",
            DGX_H100,
        );
        basis
            .parameter(
                "cross_share",
                "share left across switches",
                self.cross_share,
                "",
                DGX2,
            )
            .between(0.4, 1.0, CROSSING);
        Answer {
            ports,
            line_bytes_per_s: rates,
            rate_bytes_per_s: rate,
            steered_bytes_per_s: steered.bytes_per_s,
            crossed_bytes_per_s: steered.bytes_per_s * self.cross_share,
            steering_gain: 1.0 / self.cross_share,
            bound_by: steered.what,
            wanted_bytes_per_s: self.wanted.0,
            per_gpu_bytes_per_s: rate / self.gpus as f64,
            rails_for_wanted: (self.wanted.0 / (rate / ports as f64)).ceil(),
            rails: machine
                .ports
                .iter()
                .map(|ports| self.row(ports, kept))
                .collect(),
            basis,
        }
    }

    fn row(&self, ports: &Ports, kept: f64) -> Row {
        let alone = Machine {
            ports: vec![Ports {
                count: 1,
                ..ports.clone()
            }],
            ..self.machine.clone()
        };
        let near = alone
            .cut(Between::PortsAndGpus, 1, true)
            .expect("a checked machine has ports and GPUs");
        Row {
            count: ports.count,
            near_bytes_per_s: near.bytes_per_s,
            used_bytes_per_s: near.bytes_per_s * kept,
            bound_by: near.what,
        }
    }
}

const CROSSING: Source = Source::quoted(
    "root complexes of different makers",
    "peer traffic between root ports",
);

impl Question for Rails {
    const NAME: &'static str = "rail";
    type Answer = Answer;

    fn answer(&self) -> Result<Answer, Refusals> {
        Ok(self.compute())
    }

    fn verdict(answer: &Answer) -> String {
        let enough = answer.rate_bytes_per_s >= answer.wanted_bytes_per_s;
        if enough {
            "what is wanted is reached"
        } else {
            "what is wanted is not reached"
        }
        .to_owned()
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
        assert_eq!(answer.rails[0].bound_by, "network ports");
    }

    #[test]
    fn half_the_traffic_crossing_loses_a_fifth() {
        let asked = Rails {
            crossing: 0.5,
            ..Rails::default()
        };
        near(asked.compute().rate_bytes_per_s, 400e9 * 0.798, 0.001);
    }
}
