//! A job that fails, played out: the Monte Carlo twin of the segment formula.
//!
//! Failures come after exponential waits. One during training or saving throws the segment away;
//! the restart that follows can fail too. The analytic mean must lie within the confidence interval
//! drawn here, and the spread, which no formula for the mean gives, tells what one real run may see.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use straightway_scenario::{
    check::{Checked, Checker},
    seed::Seed,
};

/// How much to play.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Trials {
    /// How many runs are played.
    pub runs: u64,
    /// How many segments (training, then a save) a run has.
    pub segments: u64,
    /// Where the randomness starts.
    pub seed: Seed,
}

/// What the runs showed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Played {
    /// The mean share of wall time that was training and kept.
    pub goodput: f64,
    /// Half the width of the 99 % confidence interval of that mean.
    pub goodput_margin: f64,
    /// The goodput that 5 % of the runs stayed below.
    pub goodput_p5: f64,
    /// The goodput that 5 % of the runs exceeded.
    pub goodput_p95: f64,
    /// Failures in a mean run.
    pub failures: f64,
}

/// A job's times in seconds, as in [`super::interval`].
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Mean time between failures of the whole job.
    pub mtbf_s: f64,
    /// The stop for a save.
    pub save_s: f64,
    /// Training between saves.
    pub work_s: f64,
    /// From a failure to training again.
    pub restart_s: f64,
}

/// Beyond this many expected tries a segment is as good as never finished, and is not played.
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

impl Checked for Trials {
    fn check(&self, c: &mut Checker) {
        c.count("runs", self.runs, 2..=100_000);
        c.count("segments", self.segments, 1..=100_000);
        // What was refused above may be as large as a number can be.
        let segments = self.runs.saturating_mul(self.segments);
        if segments > 100_000_000 {
            let asked = format!("{segments} segments in all");
            c.refuse("runs", asked, "at most 100000000 segments in all runs");
        }
    }
}

/// Plays the job; none where its segments would as good as never finish.
pub fn play(job: Job, trials: &Trials) -> Option<Played> {
    let tries = ((job.work_s + job.save_s + job.restart_s) / job.mtbf_s).exp();
    if tries > TRIES_MAX {
        return None;
    }
    let runs: Vec<(f64, u64)> = (0..trials.runs)
        .into_par_iter()
        .map(|run| play_run(job, trials.segments, trials.seed.part(run)))
        .collect();
    let kept = trials.segments as f64 * job.work_s;
    let count = runs.len() as f64;
    // The ratio of means is what the formula gives; the mean of ratios would be biased upwards.
    let wall_s = runs.iter().map(|(wall, _)| wall).sum::<f64>() / count;
    let spread = runs
        .iter()
        .map(|(wall, _)| (wall - wall_s).powi(2))
        .sum::<f64>()
        / (count - 1.0);
    let goodput = kept / wall_s;
    let mut each: Vec<f64> = runs.iter().map(|(wall, _)| kept / wall).collect();
    each.sort_by(f64::total_cmp);
    Some(Played {
        goodput,
        // 2.576: the normal quantile for 99 %.
        goodput_margin: 2.576 * goodput * (spread / count).sqrt() / wall_s,
        goodput_p5: quantile(&each, 0.05),
        goodput_p95: quantile(&each, 0.95),
        failures: runs
            .iter()
            .map(|(_, failures)| *failures as f64)
            .sum::<f64>()
            / count,
    })
}

/// The wall time and failures of one run.
fn play_run(job: Job, segments: u64, seed: Seed) -> (f64, u64) {
    let mut dice = seed.dice();
    let (mut wall_s, mut failures) = (0.0, 0);
    for _ in 0..segments {
        let mut pending_s = job.work_s + job.save_s;
        loop {
            let until_failure_s = dice.exponential(job.mtbf_s);
            if until_failure_s >= pending_s {
                wall_s += pending_s;
                break;
            }
            failures += 1;
            wall_s += until_failure_s;
            // The restart stands before the segment; a failure inside it starts it again.
            pending_s = job.restart_s + job.work_s + job.save_s;
        }
    }
    (wall_s, failures)
}

/// The value below which a share of the sorted values lies.
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
    fn the_formula_lies_within_what_is_played() {
        for (seed, mtbf_s) in [(1, 11_124.0), (2, 3_000.0), (3, 100_000.0), (4, 1_500.0)] {
            let job = Job { mtbf_s, ..job() };
            let trials = Trials {
                runs: 400,
                segments: 400,
                seed: Seed(seed),
            };
            let played = play(job, &trials).unwrap();
            let formula = interval::goodput(job.mtbf_s, job.save_s, job.work_s, job.restart_s);
            assert!(
                (played.goodput - formula).abs() <= played.goodput_margin,
                "{formula} is outside {} ± {}",
                played.goodput,
                played.goodput_margin
            );
            // The interval is narrow enough for the test to mean something.
            assert!(played.goodput_margin < 0.01, "{}", played.goodput_margin);
        }
    }

    #[test]
    fn the_same_seed_plays_the_same_on_any_number_of_threads() {
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| play(job(), &Trials::default()))
        };
        assert_eq!(on(1), on(4));
        assert_eq!(on(1), on(3));
    }

    #[test]
    fn counts_beyond_all_sense_are_refused_and_not_multiplied() {
        let trials = Trials {
            runs: u64::MAX,
            segments: u64::MAX,
            ..Trials::default()
        };
        assert_eq!(
            straightway_scenario::check::checked(&trials)
                .unwrap_err()
                .0
                .len(),
            3
        );
    }

    #[test]
    fn a_job_that_never_gets_through_is_not_played_for_ever() {
        let hopeless = Job {
            mtbf_s: 10.0,
            ..job()
        };
        assert_eq!(play(hopeless, &Trials::default()), None);
    }
}
