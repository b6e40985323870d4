//! The progress of a run.

use straightway_core::Seconds;

/// The progress of a run, reported every half million events.
#[derive(Clone, Copy, Debug)]
pub struct SimulationProgress {
    /// The completed share, by time, by finished flows or by delivered bytes, whichever is largest.
    pub done: f64,
    /// Simulated time.
    pub simulated: Seconds,
    /// Events handled.
    pub events: u64,
    /// Packets sent.
    pub packets: u64,
}
