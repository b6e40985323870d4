//! The versions of objects that the server was asked for a short time ago.
//!
//! A load opens an object twice: for its header, and for its data. One request is enough for both.

use std::time::{Duration, Instant};

use straightway_core::{Lock, lru::Lru};

use crate::entry_name::Key;

/// How long an answer of the server counts. It is longer than a load needs from the headers to the data, and short
/// enough for a program that keeps a store and opens objects again later.
const FRESH: Duration = Duration::from_mins(1);

/// The most versions that are remembered: 9 MB. If there are more, the oldest are forgotten, and the server is asked
/// again.
const VERSIONS_MAX: u64 = 100_000;

/// The versions of objects that the server was asked for, and when.
#[derive(Debug)]
pub(crate) struct AskedVersions(Lock<Lru<Key, Instant>>);

impl Default for AskedVersions {
    fn default() -> Self {
        Self(Lock::new(Lru::new(VERSIONS_MAX)))
    }
}

impl AskedVersions {
    /// Whether the server was asked for a version a short time before `now`.
    pub(crate) fn has(&self, key: &Key, now: Instant) -> bool {
        let asked = self.0.lock();
        let at = asked.peek(key);
        at.is_some_and(|at| now.saturating_duration_since(*at) < FRESH)
    }

    /// Records that the server was asked for a version.
    pub(crate) fn add(&self, key: Key, now: Instant) {
        let mut asked = self.0.lock();
        asked.insert(key, now, 1, |_, _| {});
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
    fn the_number_of_versions_is_bounded_and_the_oldest_is_forgotten() {
        let (asked, now) = (AskedVersions::default(), Instant::now());
        let key = |number: u64| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            key
        };
        for number in 0..=VERSIONS_MAX {
            asked.add(key(number), now);
        }
        assert!(!asked.has(&key(0), now));
        assert!(asked.has(&key(1), now) && asked.has(&key(VERSIONS_MAX), now));
    }
}
