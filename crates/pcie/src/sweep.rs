//! How many streams give the most.
//!
//! The scenario's streams are switched on one after another, in the order it lists them, and each
//! number is simulated by itself. The best is the smallest number within a percent of the most:
//! beyond it, another stream only waits.

use std::ops::ControlFlow;

use rayon::prelude::*;
use serde::Serialize;
use straightway_core::{Rate, Result};

use super::{Scenario, Topology, bottleneck::Limit, run};

/// The most numbers of streams that are tried; between them steps are skipped.
const POINTS_MAX: usize = 32;

/// Within this share of the most, fewer streams are as good.
const AS_GOOD: f64 = 0.99;

/// What each number of streams gives.
#[derive(Clone, Debug, Serialize)]
pub struct Sweep {
    /// From one stream to all.
    pub points: Vec<SweepPoint>,
    /// The number that gives the most.
    pub best_streams: usize,
}

/// What one number of streams gives.
#[derive(Clone, Debug, Serialize)]
pub struct SweepPoint {
    /// How many streams.
    pub streams: usize,
    /// All together.
    pub total_bytes_per_s: Rate,
    /// The average of them.
    pub mean_bytes_per_s: Rate,
    /// What holds most of them back.
    pub bottleneck: Limit,
}

/// Simulates the first one, two, … all streams of a checked scenario.
pub fn sweep(scenario: &Scenario, look: impl Fn(f64) -> ControlFlow<()> + Sync) -> Result<Sweep> {
    let topology = Topology::new(scenario);
    let all = topology.streams.len();
    let numbers: Vec<usize> = if all <= POINTS_MAX {
        (1..=all).collect()
    } else {
        (1..=POINTS_MAX)
            .map(|k| (all * k).div_ceil(POINTS_MAX))
            .collect()
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
    let most = points
        .iter()
        .map(|p| p.total_bytes_per_s.0)
        .fold(0.0, f64::max);
    let good = points
        .iter()
        .find(|p| p.total_bytes_per_s.0 >= AS_GOOD * most);
    Ok(Sweep {
        best_streams: good.expect("the most is among them").streams,
        points,
    })
}
