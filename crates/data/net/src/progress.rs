//! The least progress of a body.
//!
//! A body that comes byte by byte would keep a request alive for years. So at least `progress_bytes_min` must arrive
//! within each window of `stall_max`, or all missing bytes if these are fewer.

use std::time::Instant;

use straightway_core::Bytes;

use crate::settings::NetworkSettings;

/// The current window of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// The end of the window.
    until: Instant,
    /// The number of bytes of the body that must have arrived by then.
    goal: usize,
}

impl Progress {
    /// Begins a window of a body. `got` of its `end` bytes have arrived.
    pub(crate) fn begin(settings: &NetworkSettings, got: usize, end: usize, now: Instant) -> Self {
        Self {
            until: now + settings.stall_max,
            goal: got.saturating_add(settings.progress_bytes_min).min(end),
        }
    }

    /// Notes that `got` of `end` bytes have arrived, and begins the next window if these are enough. Returns whether
    /// the window is over and they are not.
    pub(crate) fn is_too_slow(&mut self, settings: &NetworkSettings, got: usize, end: usize, now: Instant) -> bool {
        if got >= self.goal {
            *self = Self::begin(settings, got, end, now);
            return false;
        }
        now >= self.until
    }

    /// The end of the window.
    pub(crate) fn until(&self) -> Instant {
        self.until
    }
}

/// The reason for the failure of a body that came too slowly.
pub(crate) fn too_slow(settings: &NetworkSettings) -> String {
    let least = Bytes(settings.progress_bytes_min as u64);
    format!("less than {least} came within {:?}", settings.stall_max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_ends_early_with_enough_bytes_and_fails_without_them() {
        let settings = NetworkSettings {
            progress_bytes_min: 1000,
            ..NetworkSettings::default()
        };
        let (start, window) = (Instant::now(), settings.stall_max);
        let mut progress = Progress::begin(&settings, 100, 5000, start);
        assert!(!progress.is_too_slow(&settings, 1099, 5000, start + window / 2));
        assert!(!progress.is_too_slow(&settings, 1100, 5000, start + window));
        assert_eq!(progress.until(), start + 2 * window);
        assert!(!progress.is_too_slow(&settings, 2099, 5000, start + window * 3 / 2));
        assert!(progress.is_too_slow(&settings, 2099, 5000, start + 2 * window));
        // The last window needs only the missing bytes.
        let mut last = Progress::begin(&settings, 4500, 5000, start);
        assert!(last.is_too_slow(&settings, 4999, 5000, start + window));
        assert!(!last.is_too_slow(&settings, 5000, 5000, start + window));
    }
}
