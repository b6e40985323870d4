//! A DPU in front of the host: the host cores it frees, and its own rate.
//!
//! Protocol, encryption, erasure coding and checksums take CPU time per byte. A DPU takes over that work and becomes a
//! stage of the path itself: its engines and its own slow cores have rates, and "no penalty" holds only below them.

use serde::{Deserialize, Serialize};
use straightway_core::Rate;

use straightway_scenario::check::Refusals;
use straightway_scenario::{
    check::{Checkable, Checker, RATE_ANY},
    provenance::{Basis, Citation, Formula},
};

use crate::question::Question;

/// The input of the topic `dpu`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DpuQuestion {
    /// The required rate of the node.
    pub rate: Rate,
    /// The number of host cores.
    pub host_cores: u64,
    /// The rate of the card's port.
    pub port: Rate,
    /// The work done on every byte.
    pub work: Vec<DpuWork>,
}

/// One kind of work done on every byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DpuWork {
    /// Its name.
    pub name: String,
    /// The rate of one host core.
    pub per_core: Rate,
    /// The rate of the card; absent if the work stays on the host.
    #[serde(default)]
    pub on_card: Option<Rate>,
}

/// The answer of the topic `dpu`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DpuAnswer {
    /// The required rate of the node.
    pub wanted_bytes_per_s: f64,
    /// The rate at which cores are compared: the required rate, limited by host and card.
    pub moved_bytes_per_s: f64,
    /// Cores needed on the host alone; may exceed the cores it has.
    pub cores_without: f64,
    /// Host cores needed with the card.
    pub cores_with: f64,
    /// Host cores freed.
    pub cores_freed: f64,
    /// The share of the host's cores that is freed.
    pub share_freed: f64,
    /// The highest rate of the host alone.
    pub rate_without_bytes_per_s: f64,
    /// The bottleneck.
    pub bound_without: String,
    /// The highest rate of host and card.
    pub rate_with_bytes_per_s: f64,
    /// The bottleneck.
    pub bound_with: String,
    /// The result for each kind of work.
    pub work: Vec<DpuRow>,
    /// The formulas and constants behind the answer.
    pub basis: Basis,
}

/// The result for one kind of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DpuRow {
    /// Its name.
    pub name: String,
    /// Host cores needed at the compared rate.
    pub cores: f64,
    /// The rate of the card.
    pub card_bytes_per_s: Option<f64>,
    /// The load of the card's engine.
    pub card_load: Option<f64>,
}

const PRACTICE: Citation = Citation::quoted(
    "OpenSSL speed, ISA-L and vendor data sheets",
    "order of magnitude for one core with vector instructions",
);

const FORMULA: Formula = Formula {
    gives: "cores freed",
    text: "min(Σ over all work of moved / rate of a core, host cores) − the same over the work the host keeps; moved = min(asked, slowest engine, port, host cores)",
    source: Citation::computed("definition", ""),
};

impl Default for DpuQuestion {
    fn default() -> Self {
        Self {
            rate: Rate(50e9),
            host_cores: 128,
            port: Rate::gbit(400.0),
            work: work(),
        }
    }
}

fn work() -> Vec<DpuWork> {
    let work = |name: &str, per_core, on_card| DpuWork {
        name: name.to_owned(),
        per_core: Rate(per_core),
        on_card: Some(Rate(on_card)),
    };
    vec![
        // 42 Gb/s for a core is the best of SIGCOMM'21; the card terminates NVMe-oF in hardware.
        work("nvme/tcp", 42e9 / 8.0, 50e9),
        work("aes-xts", 5e9, 50e9),
        work("erasure coding", 10e9, 25e9),
    ]
}

impl Checkable for DpuQuestion {
    fn check(&self, c: &mut Checker) {
        c.rate("rate", self.rate, RATE_ANY);
        c.count("host_cores", self.host_cores, 1..=100_000);
        c.rate("port", self.port, RATE_ANY);
        c.each("work", &self.work, 1..=64);
    }
}

impl Checkable for DpuWork {
    fn check(&self, c: &mut Checker) {
        c.rate("per_core", self.per_core, RATE_ANY);
        if let Some(rate) = self.on_card {
            c.rate("on_card", rate, RATE_ANY);
        }
    }
}

impl DpuQuestion {
    /// Computes the answer.
    fn compute(&self) -> DpuAnswer {
        // Core seconds per byte. The fold starts from zero because an empty sum would be minus zero.
        let core_s = |work: &mut dyn Iterator<Item = &DpuWork>| -> f64 {
            work.fold(0.0, |seconds, work| seconds + 1.0 / work.per_core.0)
        };
        let all_s = core_s(&mut self.work.iter());
        let kept_s = core_s(&mut self.work.iter().filter(|work| work.on_card.is_none()));
        let host = self.host_cores as f64;
        let by_cores = |core_s: f64| {
            if core_s > 0.0 { host / core_s } else { f64::MAX }
        };
        let mut without = vec![(self.port.0, "port"), (by_cores(all_s), "host cores")];
        let mut with = vec![(self.port.0, "port"), (by_cores(kept_s), "host cores")];
        with.extend(
            self.work
                .iter()
                .filter_map(|work| Some((work.on_card?.0, work.name.as_str()))),
        );
        let least = |limits: &mut Vec<(f64, &str)>| {
            limits.sort_by(|a, b| a.0.total_cmp(&b.0));
            (limits[0].0, limits[0].1.to_owned())
        };
        let (rate_without, bound_without) = least(&mut without);
        let (rate_with, bound_with) = least(&mut with);
        // Bytes that do not pass free no cores, and the host cannot free more cores than it has.
        let moved = self.rate.0.min(rate_with);
        let (cores_without, cores_with) = (moved * all_s, moved * kept_s);
        let cores_freed = (cores_without.min(host) - cores_with).max(0.0);
        DpuAnswer {
            wanted_bytes_per_s: self.rate.0,
            moved_bytes_per_s: moved,
            cores_without,
            cores_with,
            cores_freed,
            share_freed: cores_freed / host,
            rate_without_bytes_per_s: rate_without,
            bound_without,
            rate_with_bytes_per_s: rate_with,
            bound_with,
            work: self.work.iter().map(|work| row(work, moved)).collect(),
            basis: self.basis(),
        }
    }

    fn basis(&self) -> Basis {
        let mut basis = Basis::of(&[FORMULA]);
        let known = work();
        for (i, work) in self.work.iter().enumerate() {
            let source = if known.contains(work) {
                PRACTICE
            } else {
                Citation::SCENARIO
            };
            let what = format!("{}: a core does", work.name);
            let per_core = basis.parameter(format!("work[{i}].per_core"), what, work.per_core.0, "B/s", source);
            per_core.between(work.per_core.0 / 2.0, work.per_core.0 * 2.0, FACTOR_2);
            if let Some(rate) = work.on_card {
                let what = format!("{}: the card does", work.name);
                basis.parameter(format!("work[{i}].on_card"), what, rate.0, "B/s", source);
            }
        }
        basis
    }
}

const FACTOR_2: Citation = Citation::quoted("reports of software on one core", "within a factor of two");

/// The result for one kind of work at the rate `moved`.
fn row(work: &DpuWork, moved: f64) -> DpuRow {
    DpuRow {
        name: work.name.clone(),
        cores: moved / work.per_core.0,
        card_bytes_per_s: work.on_card.map(|rate| rate.0),
        card_load: work.on_card.map(|rate| moved / rate.0),
    }
}

impl Question for DpuQuestion {
    const NAME: &'static str = "dpu";
    type Answer = DpuAnswer;

    fn answer(&self) -> Result<DpuAnswer, Refusals> {
        Ok(self.compute())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use straightway_scenario::near::near;

    #[test]
    fn the_card_frees_the_cores_of_its_work() {
        let answer = DpuQuestion::default().compute();
        // The 25 GB/s of the card's erasure coding, divided by 5.25, 5 and 10 GB/s per core.
        near(answer.moved_bytes_per_s, 25e9, 1e-9);
        near(answer.cores_without, 25.0 / 5.25 + 5.0 + 2.5, 1e-9);
        assert!(answer.cores_with.abs() < f64::EPSILON);
        near(answer.share_freed, answer.cores_without / 128.0, 1e-9);
    }

    #[test]
    fn freed_cores_are_limited_by_the_host_and_the_port() {
        let small = DpuQuestion {
            host_cores: 8,
            ..DpuQuestion::default()
        };
        near(small.compute().cores_freed, 8.0, 1e-9);
        near(small.compute().share_freed, 1.0, 1e-9);
        let mut asked = DpuQuestion {
            rate: Rate(500e9),
            ..DpuQuestion::default()
        };
        asked.work[2].on_card = Some(Rate(1e12));
        let answer = asked.compute();
        near(answer.moved_bytes_per_s, 50e9, 1e-9);
        near(answer.cores_freed, 50.0 / 5.25 + 10.0 + 5.0, 1e-9);
    }

    #[test]
    fn the_slowest_engine_limits_the_card() {
        let answer = DpuQuestion::default().compute();
        assert_eq!(answer.bound_with, "erasure coding");
        near(answer.rate_with_bytes_per_s, 25e9, 1e-9);
    }

    #[test]
    fn work_the_card_cannot_do_stays_on_the_host() {
        let mut asked = DpuQuestion::default();
        asked.work[2].on_card = None;
        let answer = asked.compute();
        near(answer.cores_with, 5.0, 1e-9);
        near(answer.rate_with_bytes_per_s, 50e9, 1e-9);
    }
}
