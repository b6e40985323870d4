//! The sizes that suit reads over a network.

use straightway_io::Settings;

use crate::engine::TUNING;

/// Memory of the rings, where bytes do not go straight into a region: 16 requests.
const STAGING_BYTES: u64 = 128 << 20;

/// Threads that receive. One takes some 3 GB/s without TLS, and less than half of that with it.
const LANES_MAX: u32 = 4;

/// The settings of an executor that reads over a network.
#[must_use]
pub fn suited(usual: Settings) -> Settings {
    let lanes = usual.cached_lanes.clamp(1, LANES_MAX);
    Settings {
        chunk_bytes: TUNING.chunk_bytes,
        depth: TUNING.depth,
        drive_lanes: lanes,
        ring_lanes: lanes,
        staging_bytes: usual.staging_bytes.max(STAGING_BYTES),
        // A GPU's drive lanes have a quarter of it.
        pinned_bytes: usual.pinned_bytes.max(4 * STAGING_BYTES),
        ..usual
    }
}
