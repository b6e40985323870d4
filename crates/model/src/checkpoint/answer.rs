//! What a checkpoint comes to: its size and time, and what each way of saving does to the job.

use serde::Serialize;

use super::failures::Played;
use crate::path::Carried;
use straightway_scenario::provenance::Basis;

/// What follows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Answer {
    /// The size of a checkpoint.
    pub size_bytes: f64,
    /// Bytes for each parameter.
    pub bytes_per_parameter: f64,
    /// The size with weights, optimizer and gradients: 16 bytes a parameter.
    pub size_at_16_bytes: f64,
    /// Parameters the size implies at 14 bytes each.
    pub parameters_at_14_bytes: f64,
    /// Nodes in the job.
    pub nodes: u64,
    /// Mean time between failures of the whole job.
    pub mtbf_s: f64,
    /// What one node carries by the standard way.
    pub standard: Carried,
    /// What one node carries by the direct way.
    pub direct: Carried,
    /// How many times faster the direct save is.
    pub gain: f64,
    /// Availability points gained by saving directly, at the given interval or the standard's best.
    pub gain_points: f64,
    /// The longest training interval at which the direct save gains `target_gain`.
    pub interval_for_gain_s: Option<f64>,
    /// The three ways to save.
    pub ways: Ways,
    /// The bandwidth that keeps `target_availability` when saving stops training; none does where
    /// the barrier alone takes too long.
    pub rate_for_target_bytes_per_s: Option<f64>,
    /// The training interval at which the standard save takes a fifth of all time.
    pub interval_for_fifth_s: f64,
    /// Goodput over the interval, for each way.
    pub curve: Vec<Point>,
    /// What all this rests on.
    pub basis: Basis,
}

/// The three ways to save.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ways {
    /// Through host memory, training stopped.
    pub standard: Outcome,
    /// Straight from the GPUs, training stopped.
    pub direct: Outcome,
    /// Copied to host memory, training stopped; flushed while it trains. Absent where it is not planned.
    pub asynchronous: Option<Outcome>,
}

impl Ways {
    /// All that are planned.
    pub fn all(&self) -> impl Iterator<Item = &Outcome> {
        [&self.standard, &self.direct]
            .into_iter()
            .chain(&self.asynchronous)
    }
}

/// What one way of saving does to the job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Outcome {
    /// Until the checkpoint is stored.
    pub durable_s: f64,
    /// What the job writes with, all nodes together.
    pub rate_bytes_per_s: f64,
    /// How long training stands still.
    pub stop_s: f64,
    /// Reading the checkpoint back.
    pub restore_s: f64,
    /// From a failure until training goes on: the restart and the restore.
    pub recovery_s: f64,
    /// Young's interval for that stop.
    pub young_s: f64,
    /// Daly's interval for that stop.
    pub daly_s: f64,
    /// The interval used: the given one, or Daly's.
    pub interval_s: f64,
    /// The shortest interval at which a checkpoint is done before the next is due.
    pub shortest_s: f64,
    /// Whether that is no more than the interval used.
    pub fits: bool,
    /// The share of time that is training when nothing fails.
    pub availability: f64,
    /// The same where the interval counts the save too.
    pub availability_of_cycle: f64,
    /// The share of time that is training and kept, failures included.
    pub goodput: f64,
    /// The same, played out.
    pub played: Option<Played>,
    /// The bandwidth the flush needs to end in time.
    pub rate_needed_bytes_per_s: f64,
    /// Mean power that brings the training nothing: waiting at the idle share of power, and at full
    /// power what failures throw away.
    pub wasted_w: f64,
    /// The same if waiting GPUs drew full power: the upper bound.
    pub wasted_w_max: f64,
    /// GPU hours lost in a day.
    pub lost_gpu_hours_per_day: f64,
    /// Money lost in a day.
    pub lost_cost_per_day: f64,
}

/// Goodput at one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Point {
    /// Training time between saves.
    pub interval_s: f64,
    /// Goodput through host memory.
    pub standard: f64,
    /// Goodput straight from the GPUs.
    pub direct: f64,
    /// Goodput with an asynchronous flush; none where the flush would not end in time.
    pub asynchronous: Option<f64>,
}
