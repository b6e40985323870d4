//! How long to wait before a request is sent again.

use std::time::{Duration, Instant};

use straightway_sys::nonce::nonce;

use crate::network::Settings;

/// Waits that double, up to a bound, with full jitter: a wait is anything between nothing and its bound, so that
/// clients that failed together do not come back together.
#[derive(Clone, Debug)]
pub struct Backoff {
    attempts: u32,
    attempts_max: u32,
    /// Since when there was no progress, and how long that may last.
    failing_since: Option<Instant>,
    failing_max: Duration,
    random: u64,
}

/// The bound of the first wait, and of all.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

impl Backoff {
    /// Waits as the settings allow them, which follow from `seed`. Ten take about 15 s on average.
    pub fn new(settings: &Settings, seed: u64) -> Self {
        Self {
            attempts: 0,
            attempts_max: settings.attempts_max,
            failing_since: None,
            failing_max: settings.failing_max,
            random: seed | 1,
        }
    }

    /// The same with waits that nobody else has.
    pub fn unique(settings: &Settings) -> Self {
        Self::new(settings, nonce())
    }

    /// How long to wait before the next attempt, after one failed `now`; `None` where there were too many, or for too long.
    pub fn next_wait(&mut self, now: Instant) -> Option<Duration> {
        let since = *self.failing_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= self.failing_max {
            return None;
        }
        self.next_asked_wait()
    }

    /// The same where the server asked to come back later: that may take long.
    pub fn next_asked_wait(&mut self) -> Option<Duration> {
        if self.attempts >= self.attempts_max {
            return None;
        }
        let bound = FIRST
            .saturating_mul(1 << self.attempts.min(10))
            .min(LONGEST);
        self.attempts += 1;
        // xorshift64: enough to keep clients apart.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let share = (self.random >> 11) as f64 / (1_u64 << 53) as f64;
        Some(bound.mul_f64(share))
    }

    /// Begins again with short waits: there was progress.
    pub fn reset(&mut self) {
        self.attempts = 0;
        self.failing_since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_bounded_in_length_and_number_and_follow_from_the_seed() {
        let now = Instant::now();
        let waits = |seed| {
            let mut backoff = Backoff::new(&Settings::default(), seed);
            std::iter::from_fn(|| backoff.next_wait(now)).collect::<Vec<_>>()
        };
        let some = waits(7);
        assert_eq!(some.len(), 10);
        assert!(some.iter().all(|wait| *wait <= LONGEST));
        assert!(some[0] <= FIRST);
        assert_eq!(some, waits(7));
        assert_ne!(some, waits(8));
    }

    #[test]
    fn progress_begins_again_with_short_waits() {
        let (mut backoff, now) = (Backoff::new(&Settings::default(), 3), Instant::now());
        while backoff.next_wait(now).is_some() {}
        backoff.reset();
        assert!(backoff.next_wait(now).is_some_and(|wait| wait <= FIRST));
    }

    #[test]
    fn slow_failures_end_after_a_time_and_not_after_as_many_as_quick_ones() {
        let settings = Settings::default();
        let (mut backoff, mut now) = (Backoff::new(&settings, 3), Instant::now());
        let start = now;
        let mut failures = 0;
        while backoff.next_wait(now).is_some() {
            failures += 1;
            now += Duration::from_secs(25);
        }
        assert_eq!((failures, now - start), (3, Duration::from_secs(75)));
        assert!(backoff.next_asked_wait().is_some());
        backoff.reset();
        assert!(backoff.next_wait(now).is_some());
    }
}
