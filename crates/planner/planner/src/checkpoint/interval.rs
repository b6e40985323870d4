//! The checkpoint interval by Young and Daly, and the goodput that follows.
//!
//! Times are in seconds. `mtbf` is the mean time between failures of the whole job, `save` the time training stops for
//! a checkpoint, `work` the training time between two checkpoints, `restart` the time from a failure until training
//! resumes.

use straightway_scenario::provenance::{Citation, Formula};

/// The formulas of this file.
pub const FORMULAS: [Formula; 6] = [
    Formula {
        gives: "interval (Young)",
        text: "W = √(2μC)",
        source: Citation::quoted(
            "Young 1974",
            "a first order approximation to the optimum checkpoint interval",
        ),
    },
    Formula {
        gives: "interval (Daly)",
        text: "W = √(2μC)·[1 + ⅓√(C/2μ) + (C/2μ)/9] − C for C < 2μ, else μ",
        source: Citation::quoted(
            "Daly 2006",
            "a higher order estimate of the optimum checkpoint interval",
        ),
    },
    Formula {
        gives: "time of a segment under failures",
        text: "μ·e^(R/μ)·(e^((W+C)/μ) − 1); goodput = W / segment",
        source: Citation::quoted("Daly 2006", "complete cost function"),
    },
    Formula {
        gives: "share of time spent training, kept or lost",
        text: "e^(−R/μ)·(1 − e^(−W/μ))/(1 − e^(−(W+C)/μ)); the rest waits: for saves and for restarts",
        source: Citation::computed(
            "a failure every μ of wall time, each followed by a restart that can fail",
            "",
        ),
    },
    Formula {
        gives: "availability",
        text: "W/(W+C) where W is training time, (W−C)/W where W is the cycle",
        source: Citation::computed("definition", ""),
    },
    Formula {
        gives: "rate for a target availability A",
        text: "S/(C − T_sync), C = W·(1−A)/A at a given W; at Daly's W for that C, x = (1−A)·(1 + x/3 + x²/9) with x = √(C/2μ)",
        source: Citation::computed("W/(W+C) = A, solved for C", ""),
    },
];

/// Young's interval.
pub fn young_s(mtbf_s: f64, save_s: f64) -> f64 {
    (2.0 * mtbf_s * save_s).sqrt()
}

/// Daly's interval.
pub fn daly_s(mtbf_s: f64, save_s: f64) -> f64 {
    if save_s >= 2.0 * mtbf_s {
        return mtbf_s;
    }
    let share = save_s / (2.0 * mtbf_s);
    young_s(mtbf_s, save_s) * (1.0 + share.sqrt() / 3.0 + share / 9.0) - save_s
}

/// The mean time until `work_s` of training is done and saved, including failures and restarts.
pub fn segment_s(mtbf_s: f64, save_s: f64, work_s: f64, restart_s: f64) -> f64 {
    mtbf_s * (restart_s / mtbf_s).exp() * ((work_s + save_s) / mtbf_s).exp_m1()
}

/// The share of wall time spent on training that is kept.
pub fn goodput(mtbf_s: f64, save_s: f64, work_s: f64, restart_s: f64) -> f64 {
    let segment = segment_s(mtbf_s, save_s, work_s, restart_s);
    if segment.is_finite() { work_s / segment } else { 0.0 }
}

/// The share of wall time spent on training, whether it is kept or lost to a failure.
pub fn training(mtbf_s: f64, save_s: f64, work_s: f64, restart_s: f64) -> f64 {
    let within = |seconds: f64| -(-seconds / mtbf_s).exp_m1();
    (-restart_s / mtbf_s).exp() * within(work_s) / within(work_s + save_s)
}

/// The share of time spent training without failures, with `work_s` of training between saves.
pub fn availability(save_s: f64, work_s: f64) -> f64 {
    work_s / (work_s + save_s)
}

/// The same if `cycle_s` includes training and saving.
pub fn availability_of_cycle(save_s: f64, cycle_s: f64) -> f64 {
    ((cycle_s - save_s) / cycle_s).max(0.0)
}

/// The stop per save that leaves `share` of the time for training, if the job saves at Daly's interval for that stop. A
/// shorter save is made more often.
pub fn save_for_availability_s(mtbf_s: f64, share: f64) -> f64 {
    // C/(W+C) = l with Daly's W is x = l·(1 + x/3 + x²/9), x = √(C/2μ), as long as x is below one.
    let lost = 1.0 - share;
    let linear = 1.0 - lost / 3.0;
    let root = linear * linear - 4.0 * lost * lost / 9.0;
    if root >= 0.0 {
        // The smaller root, in a form without cancellation for a small loss.
        let x = 2.0 * lost / (linear + root.sqrt());
        if x < 1.0 {
            return 2.0 * mtbf_s * x * x;
        }
    }
    // Beyond that, Daly's interval is the mean time between failures.
    mtbf_s * lost / share
}

/// The longest interval at which shortening a save from `slow_s` to `fast_s` gains `points` of availability; `None` if
/// no interval does.
pub fn interval_for_gain_s(slow_s: f64, fast_s: f64, points: f64) -> Option<f64> {
    // W/(W+f) − W/(W+s) = g  ⇔  W² + (s + f − (s − f)/g)·W + s·f = 0
    let linear = slow_s + fast_s - (slow_s - fast_s) / points;
    let root = linear * linear - 4.0 * slow_s * fast_s;
    let interval = (root >= 0.0).then(|| f64::midpoint(-linear, root.sqrt()))?;
    (interval > 0.0).then_some(interval)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use straightway_scenario::near::near;

    /// 16,384 GPUs failing every 3.09 h: 50,677 h for one GPU, 49.5 h for 1,024.
    const MTBF_S: f64 = 50_677.0 / 1024.0 * 3600.0;

    #[test]
    fn young_and_daly_give_the_published_intervals() {
        // models.md (a): Daly with that MTBF, 1,024 GPUs, ±0.5 %.
        near(young_s(MTBF_S, 45.0), 4004.0, 0.005);
        near(daly_s(MTBF_S, 45.0), 3974.0, 0.005);
        near(young_s(MTBF_S, 300.0), 10_339.0, 0.005);
        near(daly_s(MTBF_S, 300.0), 10_140.0, 0.005);
    }

    #[test]
    fn a_save_longer_than_two_mtbf_makes_daly_fall_back_to_the_mtbf() {
        near(daly_s(100.0, 200.0), 100.0, 1e-12);
    }

    #[test]
    fn training_is_kept_training_plus_lost_training() {
        // Without failures all training is kept. More failures lose more.
        near(training(1e12, 45.0, 1000.0, 300.0), availability(45.0, 1000.0), 1e-6);
        let thrown = |mtbf| training(mtbf, 45.0, 1000.0, 300.0) - goodput(mtbf, 45.0, 1000.0, 300.0);
        assert!(thrown(1e5) > 0.0 && thrown(1e4) > thrown(1e5));
        // With few failures, each loses half of a segment.
        near(thrown(1e6), 1000.0 / 2.0 / 1e6, 0.1);
    }

    #[test]
    fn a_half_hour_save_every_two_hours_is_80_or_75_percent() {
        // Seed article: "1800 s every 2 hours: availability drops to 80 %".
        near(availability(1800.0, 7200.0), 0.80, 1e-12);
        near(availability_of_cycle(1800.0, 7200.0), 0.75, 1e-12);
    }

    #[test]
    fn ten_points_from_300_to_45_seconds_need_an_interval_of_2199_seconds() {
        near(interval_for_gain_s(300.0, 45.0, 0.10).unwrap(), 2199.0, 0.001);
        assert_eq!(interval_for_gain_s(300.0, 45.0, 0.9), None);
        let gain = |work| availability(45.0, work) - availability(300.0, work);
        near(gain(3600.0), 0.065, 0.01);
        near(gain(7200.0), 0.034, 0.01);
    }

    proptest! {
        #[test]
        fn the_stop_for_an_availability_gives_that_availability(mtbf in 1e3f64..1e7, share in 0.32f64..0.999_999) {
            let save = save_for_availability_s(mtbf, share);
            prop_assert!((availability(save, daly_s(mtbf, save)) - share).abs() < 1e-9);
        }

        #[test]
        fn daly_is_close_to_the_true_optimum(mtbf in 1e4f64..1e6, save in 1.0f64..300.0) {
            let best = daly_s(mtbf, save);
            let at = |work| goodput(mtbf, save, work, 0.0);
            prop_assert!(at(best) >= at(best * 1.3) - 1e-6);
            prop_assert!(at(best) >= at(best * 0.7) - 1e-6);
            prop_assert!(at(best) < 1.0);
        }
    }
}
