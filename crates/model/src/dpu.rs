//! A DPU before the host: which of its cores come back, and what the card itself carries.
//!
//! Protocol, encryption, erasure coding and checksums take cores by the byte. A card takes that work
//! over, and is then itself a stage of the path: its engines and its own slow cores have rates, and
//! "no penalty" holds only below them.

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
pub struct Dpu {
    /// What the node is to move.
    pub rate: Rate,
    /// The host's cores.
    pub host_cores: u64,
    /// The card's port.
    pub port: Rate,
    /// What a byte goes through.
    pub work: Vec<Work>,
}

/// One thing done to every byte.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// What it is.
    pub name: String,
    /// What one host core does.
    pub per_core: Rate,
    /// What the card does in all; absent where the host must keep doing it.
    #[serde(default)]
    pub on_card: Option<Rate>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The rate at which cores are compared: what is asked, or what host and card carry of it.
    pub moved_bytes_per_s: f64,
    /// Cores the work would take on the host alone, which may have fewer.
    pub cores_without: f64,
    /// Cores it takes with the card.
    pub cores_with: f64,
    /// Cores that come back, of those the host has.
    pub cores_freed: f64,
    /// The same as a share of the host.
    pub share_freed: f64,
    /// What the host alone can move.
    pub rate_without_bytes_per_s: f64,
    /// What bound it.
    pub bound_without: String,
    /// What host and card can move.
    pub rate_with_bytes_per_s: f64,
    /// What bound it.
    pub bound_with: String,
    /// Each kind of work.
    pub work: Vec<Row>,
    /// What all this rests on.
    pub basis: Basis,
}

/// One kind of work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// What it is.
    pub name: String,
    /// Host cores it takes at the rate moved.
    pub cores: f64,
    /// What the card does of it in all.
    pub card_bytes_per_s: Option<f64>,
    /// Share of the card's engine it takes.
    pub card_load: Option<f64>,
}

const PRACTICE: Source = Source::quoted(
    "OpenSSL speed, ISA-L and vendor data sheets",
    "order of magnitude for one core with vector instructions",
);

const FORMULA: Formula = Formula {
    gives: "cores freed",
    text: "min(Σ over all work of moved / rate of a core, host cores) − the same over the work the host keeps; moved = min(asked, slowest engine, port, host cores)",
    source: Source::computed("definition", ""),
};

impl Default for Dpu {
    fn default() -> Self {
        Self {
            rate: Rate(50e9),
            host_cores: 128,
            port: Rate::gbit(400.0),
            work: work(),
        }
    }
}

fn work() -> Vec<Work> {
    let work = |name: &str, per_core, on_card| Work {
        name: name.to_owned(),
        per_core: Rate(per_core),
        on_card: Some(Rate(on_card)),
    };
    vec![
        // 42 Gb/s for a core is the best of SIGCOMM'21; the card ends NVMe-oF in hardware.
        work("nvme/tcp", 42e9 / 8.0, 50e9),
        work("aes-xts", 5e9, 50e9),
        work("erasure coding", 10e9, 25e9),
    ]
}

impl Checked for Dpu {
    fn check(&self, c: &mut Checker) {
        c.rate("rate", self.rate, RATE_ANY);
        c.count("host_cores", self.host_cores, 1..=100_000);
        c.rate("port", self.port, RATE_ANY);
        c.each("work", &self.work, 1..=64);
    }
}

impl Checked for Work {
    fn check(&self, c: &mut Checker) {
        c.rate("per_core", self.per_core, RATE_ANY);
        if let Some(rate) = self.on_card {
            c.rate("on_card", rate, RATE_ANY);
        }
    }
}

impl Dpu {
    /// Weighs host against card.
    fn compute(&self) -> Answer {
        // Core seconds a byte takes; from zero, as the sum of nothing would be minus zero.
        let core_s = |work: &mut dyn Iterator<Item = &Work>| -> f64 {
            work.fold(0.0, |seconds, work| seconds + 1.0 / work.per_core.0)
        };
        let all_s = core_s(&mut self.work.iter());
        let kept_s = core_s(&mut self.work.iter().filter(|work| work.on_card.is_none()));
        let host = self.host_cores as f64;
        let by_cores = |core_s: f64| {
            if core_s > 0.0 {
                host / core_s
            } else {
                f64::MAX
            }
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
        // No core comes back for bytes that do not pass, and none that the host does not have.
        let moved = self.rate.0.min(rate_with);
        let (cores_without, cores_with) = (moved * all_s, moved * kept_s);
        let cores_freed = (cores_without.min(host) - cores_with).max(0.0);
        Answer {
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
                Source::SCENARIO
            };
            let what = format!("{}: a core does", work.name);
            let per_core = basis.parameter(
                format!("work[{i}].per_core"),
                what,
                work.per_core.0,
                "B/s",
                source,
            );
            per_core.between(work.per_core.0 / 2.0, work.per_core.0 * 2.0, FACTOR_2);
            if let Some(rate) = work.on_card {
                let what = format!("{}: the card does", work.name);
                basis.parameter(format!("work[{i}].on_card"), what, rate.0, "B/s", source);
            }
        }
        basis
    }
}

const FACTOR_2: Source =
    Source::quoted("reports of software on one core", "within a factor of two");

/// One kind of work at the rate moved.
fn row(work: &Work, moved: f64) -> Row {
    Row {
        name: work.name.clone(),
        cores: moved / work.per_core.0,
        card_bytes_per_s: work.on_card.map(|rate| rate.0),
        card_load: work.on_card.map(|rate| moved / rate.0),
    }
}

impl Question for Dpu {
    const NAME: &'static str = "dpu";
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
    fn the_card_gives_back_the_cores_its_work_took() {
        let answer = Dpu::default().compute();
        // The 25 GB/s that the card's coder carries, over 5.25, 5 and 10 GB/s a core.
        near(answer.moved_bytes_per_s, 25e9, 1e-9);
        near(answer.cores_without, 25.0 / 5.25 + 5.0 + 2.5, 1e-9);
        assert!(answer.cores_with.abs() < f64::EPSILON);
        near(answer.share_freed, answer.cores_without / 128.0, 1e-9);
    }

    #[test]
    fn no_more_comes_back_than_the_host_has_or_the_port_passes() {
        let small = Dpu {
            host_cores: 8,
            ..Dpu::default()
        };
        near(small.compute().cores_freed, 8.0, 1e-9);
        near(small.compute().share_freed, 1.0, 1e-9);
        let mut asked = Dpu {
            rate: Rate(500e9),
            ..Dpu::default()
        };
        asked.work[2].on_card = Some(Rate(1e12));
        let answer = asked.compute();
        near(answer.moved_bytes_per_s, 50e9, 1e-9);
        near(answer.cores_freed, 50.0 / 5.25 + 10.0 + 5.0, 1e-9);
    }

    #[test]
    fn no_penalty_ends_where_an_engine_does() {
        let answer = Dpu::default().compute();
        assert_eq!(answer.bound_with, "erasure coding");
        near(answer.rate_with_bytes_per_s, 25e9, 1e-9);
    }

    #[test]
    fn work_the_card_cannot_do_stays_on_the_host() {
        let mut asked = Dpu::default();
        asked.work[2].on_card = None;
        let answer = asked.compute();
        near(answer.cores_with, 5.0, 1e-9);
        near(answer.rate_with_bytes_per_s, 50e9, 1e-9);
    }
}
