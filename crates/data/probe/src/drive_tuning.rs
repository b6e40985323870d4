//! The best settings for a drive.

use serde::{Deserialize, Serialize};
use straightway_core::{Alignment, Rate, extent::down};
use straightway_io::Settings;

/// Chunks are whole pages.
const PAGE_BYTES: u64 = Alignment::PAGE_BYTES;

/// The best settings for a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DriveTuning {
    /// The largest I/O.
    pub chunk_bytes: u64,
    /// I/Os in flight.
    pub depth: u32,
    /// Whether the ring is faster than DMA into host memory.
    #[serde(default)]
    pub ring_first: bool,
    /// The rate measured with these settings; shares of it can be reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_bytes_per_s: Option<u64>,
}

impl DriveTuning {
    /// Returns the settings for a drive, or the defaults if it was not measured.
    pub fn settings(known: Option<Self>) -> Settings {
        let plain = Settings::default();
        match known {
            Some(tuning) => tuning.applied_to(plain),
            None => plain,
        }
    }

    /// Returns `settings` with the values for the drive.
    fn applied_to(self, settings: Settings) -> Settings {
        // Each lane's ring must hold at least one chunk.
        let lanes = settings.drive_lanes.max(settings.ring_lanes);
        let room = down(settings.staging_bytes / u64::from(lanes.max(1)), PAGE_BYTES);
        Settings {
            chunk_bytes: self.chunk_bytes.min(room),
            depth: self.depth,
            ring_first: self.ring_first,
            rate_measured: self.rate_bytes_per_s.map(|rate| Rate(rate as f64)),
            ..settings
        }
    }
}
