//! Multiple rails: the combined rate of a node's network ports, and the gain of steering.
//!
//! The rails are the ports of a [`MachineSpec`], the description that the path and `sim pcie` use too. Their combined
//! rate is the minimum cut between ports and GPUs. Traffic to a GPU on another switch crosses the root complex and
//! keeps about 0.6 of its rate, as measured on a DGX-2 (6.52 GiB/s on the same switch, 3.89 across). Steering alone
//! therefore decides between 1 and 0.6 of the ports' combined rate.

use serde::{Deserialize, Serialize};
use straightway_core::Rate;

use straightway_pcie::{
    machine::{DGX_H100, MachineSpec, Ports},
    narrowest::Between,
};
use straightway_scenario::check::Refusals;
use straightway_scenario::{
    check::{Checkable, Checker, RATE_ANY},
    provenance::{Basis, Citation, Formula},
};

use crate::question::Question;

/// The input of the topic `rail`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RailQuestion {
    /// The node, whose ports are the rails.
    pub machine: MachineSpec,
    /// The number of GPUs that the rails feed.
    pub gpus: u64,
    /// The share of the traffic that goes to GPUs on a switch other than the port's.
    pub crossing: f64,
    /// The share of its rate that a rail keeps across switches.
    pub cross_share: f64,
    /// The required rate of one node.
    pub wanted: Rate,
}

/// The answer of the topic `rail`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RailAnswer {
    /// The number of ports.
    pub ports: u64,
    /// The combined line rate of all ports, of which each port's efficiency carries data.
    pub line_bytes_per_s: f64,
    /// The rate with the given share of crossing traffic.
    pub rate_bytes_per_s: f64,
    /// The rate with every rail steered to GPUs on its own switch.
    pub steered_bytes_per_s: f64,
    /// The rate with all traffic crossing switches.
    pub crossed_bytes_per_s: f64,
    /// The steered rate divided by the crossing rate.
    pub steering_gain: f64,
    /// The bottleneck of the steered rails.
    pub bound_by: &'static str,
    /// The required rate of one node.
    pub wanted_bytes_per_s: f64,
    /// The rate per GPU, with the given share of crossing traffic.
    pub per_gpu_bytes_per_s: f64,
    /// The number of rails needed for the required rate.
    pub rails_for_wanted: f64,
    /// Each kind of rail.
    pub rails: Vec<RailRow>,
    /// The number of GPUs, fewer than requested, with the highest steered rate, if that rate is higher: every GPU gets
    /// an equal share, so a GPU behind a narrow link lowers the share of all.
    pub fewer_gpus: Option<FewerGpus>,
    /// The formulas and constants behind the answer.
    pub basis: Basis,
}

/// A smaller number of GPUs with a higher rate.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FewerGpus {
    /// The number of GPUs.
    pub gpus: u64,
    /// The steered rate of the node with them.
    pub steered_bytes_per_s: f64,
}

/// One kind of rail.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RailRow {
    /// The number of such rails.
    pub count: u64,
    /// The rate of one rail without crossing traffic.
    pub near_bytes_per_s: f64,
    /// The rate of one rail with the given share of crossing traffic.
    pub used_bytes_per_s: f64,
    /// The bottleneck.
    pub bound_by: &'static str,
}

const DGX2: Citation = Citation::read("GDS guide, DGX-2", "same switch 6.52 GiB/s, other switch 3.89: 0.597");

const FORMULA: Formula = Formula {
    gives: "bandwidth of many rails",
    text: "minimum cut between ports and GPUs in the machine's tree, each port at line rate × efficiency; × 0.6 for what crosses switches",
    source: DGX2,
};

impl Default for RailQuestion {
    fn default() -> Self {
        Self {
            machine: MachineSpec::default(),
            gpus: 8,
            crossing: 0.0,
            cross_share: 3.89 / 6.52,
            wanted: Rate(200e9),
        }
    }
}

impl Checkable for RailQuestion {
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

impl RailQuestion {
    fn compute(&self) -> RailAnswer {
        let machine = &self.machine;
        let steered = machine
            .cut(Between::PortsAndGpus, self.gpus, true)
            .expect("a checked machine has ports and GPUs");
        let kept = 1.0 - self.crossing * (1.0 - self.cross_share);
        let rate = steered.bytes_per_s * kept;
        let ports: u64 = machine.ports.iter().map(|ports| ports.count).sum();
        let mut basis = Basis::of(&[FORMULA]);
        let rates = machine.line_bytes_per_s();
        basis.parameter("machine.ports", "line rate of all ports", rates, "B/s", DGX_H100);
        machine.assume_efficiency(&mut basis, "machine");
        basis
            .parameter("cross_share", "share left across switches", self.cross_share, "", DGX2)
            .between(0.4, 1.0, CROSSING);
        RailAnswer {
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
            rails: machine.ports.iter().map(|ports| self.row(ports, kept)).collect(),
            fewer_gpus: self.fewer_gpus(steered.bytes_per_s),
            basis,
        }
    }

    /// The best of the smaller numbers of GPUs, if it is better than `steered`.
    fn fewer_gpus(&self, steered: f64) -> Option<FewerGpus> {
        // A node has few GPUs; larger numbers are not searched.
        let fewer = (1..self.gpus).take_while(|gpus| *gpus < FEWER_GPUS_MAX);
        let carried = fewer.filter_map(|gpus| {
            let cut = self.machine.cut(Between::PortsAndGpus, gpus, true)?;
            Some(FewerGpus {
                gpus,
                steered_bytes_per_s: cut.bytes_per_s,
            })
        });
        let best = carried.max_by(|a, b| a.steered_bytes_per_s.total_cmp(&b.steered_bytes_per_s))?;
        (best.steered_bytes_per_s > steered * 1.001).then_some(best)
    }

    fn row(&self, ports: &Ports, kept: f64) -> RailRow {
        let alone = MachineSpec {
            ports: vec![Ports {
                count: 1,
                ..ports.clone()
            }],
            ..self.machine.clone()
        };
        let near = alone
            .cut(Between::PortsAndGpus, 1, true)
            .expect("a checked machine has ports and GPUs");
        RailRow {
            count: ports.count,
            near_bytes_per_s: near.bytes_per_s,
            used_bytes_per_s: near.bytes_per_s * kept,
            bound_by: near.what,
        }
    }
}

/// The largest number of GPUs that is tried in place of the requested one.
const FEWER_GPUS_MAX: u64 = 32;

const CROSSING: Citation = Citation::quoted("root complexes of different makers", "peer traffic between root ports");

impl Question for RailQuestion {
    const NAME: &'static str = "rail";
    type Answer = RailAnswer;

    fn answer(&self) -> Result<RailAnswer, Refusals> {
        Ok(self.compute())
    }

    fn verdict(answer: &RailAnswer) -> String {
        let enough = answer.rate_bytes_per_s >= answer.wanted_bytes_per_s;
        if enough {
            "wanted rate reached"
        } else {
            "wanted rate not reached"
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
        let asked = RailQuestion {
            crossing: 1.0,
            ..RailQuestion::default()
        };
        let answer = asked.compute();
        near(answer.rate_bytes_per_s, 0.6 * answer.steered_bytes_per_s, 0.01);
        near(answer.crossed_bytes_per_s, answer.rate_bytes_per_s, 1e-9);
        near(
            answer.steering_gain,
            answer.steered_bytes_per_s / answer.rate_bytes_per_s,
            1e-9,
        );
    }

    #[test]
    fn eight_ports_of_400_gbit_carry_360_gb_and_five_carry_the_200_asked() {
        let answer = RailQuestion::default().compute();
        near(answer.line_bytes_per_s, 400e9, 1e-9);
        near(answer.rate_bytes_per_s, 0.9 * 400e9, 1e-9);
        assert!((answer.rails_for_wanted - 5.0).abs() < f64::EPSILON);
        assert_eq!(answer.rails[0].bound_by, "network ports");
    }

    #[test]
    fn half_the_traffic_crossing_loses_a_fifth() {
        let asked = RailQuestion {
            crossing: 0.5,
            ..RailQuestion::default()
        };
        near(asked.compute().rate_bytes_per_s, 360e9 * 0.798, 0.001);
    }
}
