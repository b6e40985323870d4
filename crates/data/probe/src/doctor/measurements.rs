//! Measurements on the live machine, for the checks to judge.

use std::path::Path;

use serde::Serialize;
use straightway_sys::{Uring, root::Root};

use super::{host_read::HostRead, live_probe::LiveProbe};

/// Measurements on the live machine; empty for a capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Measurements {
    /// Whether an io_uring ring could be created, or why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub io_uring: Option<std::result::Result<(), String>>,
    /// The read into host memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostRead>,
    /// The transfer into GPU memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<LiveProbe>,
    /// The pause frames that the drivers of network interfaces have counted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pauses: Vec<PauseCount>,
}

/// A counter of pause frames.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PauseCount {
    /// The interface, such as `eth2`.
    pub interface: String,
    /// The driver's name for the counter, such as `rx_prio3_pause`.
    pub counter: String,
    /// The number of frames since boot.
    pub frames: u64,
}

impl Measurements {
    /// Measures this machine.
    pub fn here(path: &Path) -> Self {
        // No file shows whether a container forbids the system call: only an attempt to create a ring does.
        let ring = Uring::new(1).map(drop);
        Self {
            io_uring: Some(ring.map_err(|e| e.to_string())),
            host: Some(HostRead::measure(path)),
            gpu: LiveProbe::measure(path),
            pauses: count_pauses(),
        }
    }
}

fn count_pauses() -> Vec<PauseCount> {
    let mut pauses = Vec::new();
    for interface in Root::machine().list("/sys/class/net") {
        let counters = straightway_sys::ethtool::counters(&interface).unwrap_or_default();
        // Drivers also count the duration of pauses and their beginnings.
        let is_frames =
            |name: &str| name.contains("pause") && !name.contains("duration") && !name.contains("transition");
        for (counter, frames) in counters.into_iter().filter(|(name, _)| is_frames(name)) {
            let interface = interface.clone();
            pauses.push(PauseCount {
                interface,
                counter,
                frames,
            });
        }
    }
    pauses
}
