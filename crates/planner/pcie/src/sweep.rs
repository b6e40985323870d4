//! The number of streams with the highest total rate.
//!
//! The scenario's streams are added one after another, in the order it lists them, and each number of streams is
//! simulated. The best is the smallest number within a percent of the highest rate: further streams only wait.

use std::ops::ControlFlow;

use rayon::prelude::*;
use serde::Serialize;
use straightway_core::{Rate, Result};

use super::{PcieScenario, PcieTopology, bottleneck::Bottleneck, run};

/// The maximum number of simulations; larger scenarios skip some numbers of streams.
const POINTS_MAX: usize = 32;

/// From this share of the best rate on, fewer streams are as good.
const AS_GOOD: f64 = 0.99;

/// The total rate by number of streams.
#[derive(Clone, Debug, Serialize)]
pub struct StreamSweep {
    /// From one stream to all.
    pub points: Vec<SweepPoint>,
    /// The best number; absent if no number has a total rate.
    pub best_streams: Option<usize>,
}

/// The result for one number of streams.
#[derive(Clone, Debug, Serialize)]
pub struct SweepPoint {
    /// The number of streams.
    pub streams: usize,
    /// The total rate; absent if the streams were never steady at the same time.
    pub total_bytes_per_s: Option<Rate>,
    /// The average rate of a stream; absent if there is no total.
    pub mean_bytes_per_s: Option<Rate>,
    /// The bottleneck.
    pub bottleneck: Bottleneck,
}

/// Simulates the first one, two, … all streams of a checked scenario.
pub fn sweep(scenario: &PcieScenario, look: impl Fn(f64) -> ControlFlow<()> + Sync) -> Result<StreamSweep> {
    let topology = PcieTopology::new(scenario);
    let all = topology.streams.len();
    let numbers: Vec<usize> = if all <= POINTS_MAX {
        (1..=all).collect()
    } else {
        (1..=POINTS_MAX).map(|k| (all * k).div_ceil(POINTS_MAX)).collect()
    };
    let points: Vec<SweepPoint> = numbers
        .into_par_iter()
        .map(|streams| {
            let mut part = topology.clone();
            part.streams.truncate(streams);
            let outcome = run(scenario, &part, &look)?;
            Ok(SweepPoint {
                streams,
                total_bytes_per_s: outcome.total_bytes_per_s,
                mean_bytes_per_s: outcome.mean_bytes_per_s,
                bottleneck: outcome.bottleneck,
            })
        })
        .collect::<Result<_>>()?;
    let total = |p: &SweepPoint| p.total_bytes_per_s.map(|rate| rate.0);
    let most = points.iter().filter_map(total).fold(0.0, f64::max);
    let good = points
        .iter()
        .find(|p| total(p).is_some_and(|rate| rate >= AS_GOOD * most));
    Ok(StreamSweep {
        best_streams: good.map(|point| point.streams),
        points,
    })
}
