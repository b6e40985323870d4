//! Executor settings for transfers with web servers.

use straightway_io::Settings;

use crate::engine::TUNING;

/// Adapts executor settings to transfers with web servers.
#[must_use]
pub fn suited(usual: Settings) -> Settings {
    TUNING.applied_to(usual, [])
}
