//! How far a run has come.

use straightway_core::Seconds;

/// How far a run has come; handed out every half million events.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The share done, by time or by flows finished, whichever is further.
    pub done: f64,
    /// Simulated time.
    pub simulated: Seconds,
    /// Events handled.
    pub events: u64,
    /// Packets sent.
    pub packets: u64,
}
