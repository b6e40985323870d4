//! The versions of objects that the server was asked for a short time ago.
//!
//! A load opens an object twice: for its header, and for its data. One request is enough for both.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use straightway_core::Lock;

use crate::entry::Key;

/// How long an answer of the server counts. It is longer than a load needs from the headers to the data, and short
/// enough for a program that keeps a store and opens objects again later.
const FRESH: Duration = Duration::from_mins(1);

/// The most versions that are remembered: 5 MB. If there are more, all are forgotten, and the server is asked again.
const VERSIONS_MAX: usize = 100_000;

/// The versions of objects that the server was asked for, and when.
#[derive(Debug, Default)]
pub(crate) struct AskedVersions(Lock<BTreeMap<Key, Instant>>);

impl AskedVersions {
    /// Whether the server was asked for a version a short time before `now`.
    pub(crate) fn has(&self, key: &Key, now: Instant) -> bool {
        let asked = self.0.lock();
        let at = asked.get(key);
        at.is_some_and(|at| now.saturating_duration_since(*at) < FRESH)
    }

    /// Records that the server was asked for a version.
    pub(crate) fn add(&self, key: Key, now: Instant) {
        let mut asked = self.0.lock();
        if asked.len() >= VERSIONS_MAX {
            asked.clear();
        }
        asked.insert(key, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_counts_for_a_minute() {
        let (asked, now) = (AskedVersions::default(), Instant::now());
        asked.add([1; 32], now);
        assert!(asked.has(&[1; 32], now + FRESH / 2));
        assert!(!asked.has(&[1; 32], now + FRESH));
        assert!(!asked.has(&[2; 32], now));
    }

    #[test]
    fn the_number_of_versions_is_bounded() {
        let (asked, now) = (AskedVersions::default(), Instant::now());
        for number in 0..=VERSIONS_MAX {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            asked.add(key, now);
        }
        assert_eq!(asked.0.lock().len(), 1);
    }
}
