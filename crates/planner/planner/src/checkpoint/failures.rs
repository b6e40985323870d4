//! A Monte Carlo simulation of a job with failures, as a check of the segment formula.
//!
//! The times between failures are exponential. A failure during training or saving loses the segment; the restart that
//! follows can fail too. The analytic mean must lie within the confidence interval computed here. The spread, which the
//! formula does not give, shows how much single runs differ.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use straightway_core::random::Seed;
use straightway_scenario::check::{Checkable, Checker};

/// The size of the simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Trials {
    /// The number of runs.
    pub runs: u64,
    /// The number of segments (training, then a save) per run.
    pub segments: u64,
    /// The seed of the random numbers.
    pub seed: Seed,
}

/// The goodput over all simulated runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SimulatedGoodput {
    /// The mean share of wall time spent on training that is kept.
    pub goodput: f64,
    /// Half the width of the 99 % confidence interval of that mean.
    pub goodput_margin: f64,
    /// The 5th percentile of the goodput.
    pub goodput_p5: f64,
    /// The 95th percentile of the goodput.
    pub goodput_p95: f64,
    /// The mean number of failures per run.
    pub failures: f64,
}

/// A job's times in seconds, as in [`super::interval`].
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Mean time between failures of the whole job.
    pub mtbf_s: f64,
    /// The time training stops for a save.
    pub save_s: f64,
    /// The training time between saves.
    pub work_s: f64,
    /// The time from a failure until training resumes.
    pub restart_s: f64,
}

/// A segment that needs more expected tries than this almost never finishes, and is not simulated.
const TRIES_MAX: f64 = 1000.0;

impl Default for Trials {
    fn default() -> Self {
        Self {
            runs: 200,
            segments: 200,
            seed: Seed::default(),
        }
    }
}

impl Checkable for Trials {
    fn check(&self, c: &mut Checker) {
        c.count("runs", self.runs, 2..=100_000);
        c.count("segments", self.segments, 1..=100_000);
        // Counts that were refused above may be as large as `u64::MAX`.
        let segments = self.runs.saturating_mul(self.segments);
        if segments > 100_000_000 {
            let asked = format!("{segments} segments in all");
            c.refuse("runs", asked, "at most 100000000 segments in all runs");
        }
    }
}

/// Simulates the job; `None` if its segments would almost never finish.
pub fn simulate(job: Job, trials: &Trials) -> Option<SimulatedGoodput> {
    let tries = ((job.work_s + job.save_s + job.restart_s) / job.mtbf_s).exp();
    if tries > TRIES_MAX {
        return None;
    }
    let runs: Vec<(f64, u64)> = (0..trials.runs)
        .into_par_iter()
        .map(|run| simulate_run(job, trials.segments, trials.seed.part(run)))
        .collect();
    let kept = trials.segments as f64 * job.work_s;
    let count = runs.len() as f64;
    // The ratio of means is what the formula gives; the mean of ratios would be biased upwards.
    let wall_s = runs.iter().map(|(wall, _)| wall).sum::<f64>() / count;
    let spread = runs.iter().map(|(wall, _)| (wall - wall_s).powi(2)).sum::<f64>() / (count - 1.0);
    let goodput = kept / wall_s;
    let mut each: Vec<f64> = runs.iter().map(|(wall, _)| kept / wall).collect();
    each.sort_by(f64::total_cmp);
    Some(SimulatedGoodput {
        goodput,
        // 2.576: the normal quantile for 99 %.
        goodput_margin: 2.576 * goodput * (spread / count).sqrt() / wall_s,
        goodput_p5: quantile(&each, 0.05),
        goodput_p95: quantile(&each, 0.95),
        failures: runs.iter().map(|(_, failures)| *failures as f64).sum::<f64>() / count,
    })
}

/// The wall time and failures of one run.
fn simulate_run(job: Job, segments: u64, seed: Seed) -> (f64, u64) {
    let mut rng = seed.rng();
    let (mut wall_s, mut failures) = (0.0, 0);
    for _ in 0..segments {
        let mut pending_s = job.work_s + job.save_s;
        loop {
            let until_failure_s = rng.exponential(job.mtbf_s);
            if until_failure_s >= pending_s {
                wall_s += pending_s;
                break;
            }
            failures += 1;
            wall_s += until_failure_s;
            // The restart precedes the segment. A failure during the restart starts it again.
            pending_s = job.restart_s + job.work_s + job.save_s;
        }
    }
    (wall_s, failures)
}

/// The quantile `share` of sorted values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a share of a length is an index"
    )]
    let at = (share * (sorted.len() - 1) as f64).round() as usize;
    sorted[at]
}

#[cfg(test)]
mod tests {
    use super::{super::interval, *};

    fn job() -> Job {
        Job {
            mtbf_s: 11_124.0,
            save_s: 45.0,
            work_s: 1000.0,
            restart_s: 300.0,
        }
    }

    #[test]
    fn the_formula_lies_within_the_confidence_interval() {
        for (seed, mtbf_s) in [(1, 11_124.0), (2, 3_000.0), (3, 100_000.0), (4, 1_500.0)] {
            let job = Job { mtbf_s, ..job() };
            let trials = Trials {
                runs: 400,
                segments: 400,
                seed: Seed(seed),
            };
            let played = simulate(job, &trials).unwrap();
            let formula = interval::goodput(job.mtbf_s, job.save_s, job.work_s, job.restart_s);
            assert!(
                (played.goodput - formula).abs() <= played.goodput_margin,
                "{formula} is outside {} ± {}",
                played.goodput,
                played.goodput_margin
            );
            // The interval is narrow enough for the test to be meaningful.
            assert!(played.goodput_margin < 0.01, "{}", played.goodput_margin);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_result_on_any_number_of_threads() {
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| simulate(job(), &Trials::default()))
        };
        assert_eq!(on(1), on(4));
        assert_eq!(on(1), on(3));
    }

    #[test]
    fn huge_counts_are_refused_without_overflow() {
        let trials = Trials {
            runs: u64::MAX,
            segments: u64::MAX,
            ..Trials::default()
        };
        assert_eq!(straightway_scenario::check::checked(&trials).unwrap_err().0.len(), 3);
    }

    #[test]
    fn a_job_that_never_finishes_a_segment_is_not_simulated() {
        let hopeless = Job { mtbf_s: 10.0, ..job() };
        assert_eq!(simulate(hopeless, &Trials::default()), None);
    }
}
