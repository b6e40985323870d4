//! The answer of the topic `checkpoint`: size, time, and the effect of each way of saving on the job.

use serde::Serialize;

use super::failures::SimulatedGoodput;
use crate::path::PathEstimate;
use straightway_scenario::provenance::Basis;

/// The answer of the topic `checkpoint`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckpointAnswer {
    /// The size of a checkpoint.
    pub size_bytes: f64,
    /// Bytes per parameter.
    pub bytes_per_parameter: f64,
    /// The size with weights, optimizer and gradients: 16 bytes per parameter.
    pub size_at_16_bytes: f64,
    /// The number of parameters that the size implies at 14 bytes each.
    pub parameters_at_14_bytes: f64,
    /// The number of nodes in the job.
    pub nodes: u64,
    /// Mean time between failures of the whole job.
    pub mtbf_s: f64,
    /// The standard path of one node.
    pub standard: PathEstimate,
    /// The direct path of one node.
    pub direct: PathEstimate,
    /// The standard save time divided by the direct save time.
    pub gain: f64,
    /// The availability gained by saving directly, at the given interval or the standard path's best interval.
    pub gain_points: f64,
    /// The longest training interval at which the direct save gains `target_gain`.
    pub interval_for_gain_s: Option<f64>,
    /// The three ways to save.
    pub ways: Ways,
    /// The bandwidth that keeps `target_availability` if saving stops training; `None` if the barrier alone takes too
    /// long.
    pub rate_for_target_bytes_per_s: Option<f64>,
    /// The training interval at which the standard save takes a fifth of all time.
    pub interval_for_fifth_s: f64,
    /// Goodput by interval, for each way.
    pub curve: Vec<GoodputPoint>,
    /// The formulas and constants behind the answer.
    pub basis: Basis,
}

/// The three ways to save.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Ways {
    /// Through host memory, training stopped.
    pub standard: CheckpointOutcome,
    /// Directly from the GPUs, training stopped.
    pub direct: CheckpointOutcome,
    /// Copied to host memory with training stopped, then flushed while training runs. Absent if not planned.
    pub asynchronous: Option<CheckpointOutcome>,
}

impl Ways {
    /// The planned ways.
    pub fn all(&self) -> impl Iterator<Item = &CheckpointOutcome> {
        [&self.standard, &self.direct].into_iter().chain(&self.asynchronous)
    }
}

/// The effect of one way of saving on the job.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckpointOutcome {
    /// The time until the checkpoint is durable.
    pub durable_s: f64,
    /// The combined write rate of all nodes.
    pub rate_bytes_per_s: f64,
    /// The bottleneck of that rate.
    pub bound_by: String,
    /// The time training stops.
    pub stop_s: f64,
    /// The time to read the checkpoint back, by every replica.
    pub restore_s: f64,
    /// The time from a failure until training resumes: the restart and the restore.
    pub recovery_s: f64,
    /// Young's interval for that stop.
    pub young_s: f64,
    /// Daly's interval for that stop.
    pub daly_s: f64,
    /// The interval used: the given one, or Daly's, lengthened if the flush needs it.
    pub interval_s: f64,
    /// The shortest interval at which a checkpoint completes before the next starts.
    pub shortest_s: f64,
    /// Whether the interval used is at least that long.
    pub fits: bool,
    /// The share of time spent training without failures.
    pub availability: f64,
    /// The same if the interval includes the save.
    pub availability_of_cycle: f64,
    /// The share of time spent on training that is kept, with failures.
    pub goodput: f64,
    /// The simulated goodput; `None` if the job would almost never finish a segment.
    pub played: Option<SimulatedGoodput>,
    /// The bandwidth that the flush needs to complete in time.
    pub rate_needed_bytes_per_s: f64,
    /// The mean wasted power: waiting at the idle share of power, and training lost to failures at full power.
    pub wasted_w: f64,
    /// The wasted power if waiting GPUs drew full power: the upper bound.
    pub wasted_w_max: f64,
    /// GPU hours lost per day.
    pub lost_gpu_hours_per_day: f64,
    /// Cost of the lost time per day.
    pub lost_cost_per_day: f64,
}

/// Goodput at one interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct GoodputPoint {
    /// Training time between saves.
    pub interval_s: f64,
    /// Goodput through host memory.
    pub standard: f64,
    /// Goodput directly from the GPUs.
    pub direct: f64,
    /// Goodput with an asynchronous flush; `None` if the flush would not complete in time.
    pub asynchronous: Option<f64>,
}
