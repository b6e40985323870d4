//! The back-off of retries.

use std::time::{Duration, Instant};

use straightway_core::random::{Rng, Seed};
use straightway_sys::nonce::nonce;

use crate::settings::NetworkSettings;

/// Exponential back-off with full jitter: a wait is random between zero and a bound that doubles up to a maximum, so
/// that clients that failed together do not retry together.
#[derive(Clone, Debug)]
pub struct Backoff {
    attempts: u32,
    attempts_max: u32,
    /// The time of the first failure without progress since.
    failing_since: Option<Instant>,
    /// The longest time without progress.
    failing_max: Duration,
    /// The bytes that arrived since the last progress, and the number that counts as progress.
    progress_bytes: usize,
    progress_bytes_min: usize,
    rng: Rng,
}

/// The bound of the first wait, and of every wait.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

impl Backoff {
    /// A back-off with the limits of `settings` and random waits from `seed`. Ten waits take about 15 s on average.
    pub fn new(settings: &NetworkSettings, seed: Seed) -> Self {
        Self {
            attempts: 0,
            attempts_max: settings.attempts_max,
            failing_since: None,
            failing_max: settings.failing_max,
            progress_bytes: 0,
            progress_bytes_min: settings.progress_bytes_min,
            rng: seed.rng(),
        }
    }

    /// The same with a random seed.
    pub fn unique(settings: &NetworkSettings) -> Self {
        Self::new(settings, Seed(nonce()))
    }

    /// The wait before the next attempt, after a failure at `now`; `None` after too many failures or too long a time.
    pub fn next_wait(&mut self, now: Instant) -> Option<Duration> {
        let since = *self.failing_since.get_or_insert(now);
        if now.saturating_duration_since(since) >= self.failing_max {
            return None;
        }
        self.next_asked_wait()
    }

    /// The same if the server asked to retry later: only the number of attempts is limited, not the time.
    pub fn next_asked_wait(&mut self) -> Option<Duration> {
        if self.attempts >= self.attempts_max {
            return None;
        }
        let bound = FIRST.saturating_mul(1 << self.attempts.min(10)).min(LONGEST);
        self.attempts += 1;
        Some(bound.mul_f64(self.rng.unit()))
    }

    /// The number of retries since the last progress.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The most retries without progress.
    pub fn attempts_max(&self) -> u32 {
        self.attempts_max
    }

    /// The time since the first failure without progress since.
    pub(crate) fn failing_time(&self, now: Instant) -> Duration {
        let since = self.failing_since.map(|since| now.saturating_duration_since(since));
        since.unwrap_or_default()
    }

    /// Notes that bytes arrived. Once they count as progress, it starts again with short waits. Fewer bytes do not
    /// count: a server that sends one byte and closes the connection would be asked millions of times.
    pub fn note_bytes(&mut self, bytes: usize) {
        self.progress_bytes = self.progress_bytes.saturating_add(bytes);
        if self.progress_bytes >= self.progress_bytes_min {
            self.start_again();
        }
    }

    /// Notes that an attempt for `asked` bytes failed after `got` of them. A quarter counts as progress, however few bytes
    /// it is: the missing bytes get fewer by that share, so the number of attempts is bounded.
    pub(crate) fn note_attempt(&mut self, got: usize, asked: usize) {
        if got > 0 && got >= asked / 4 {
            self.start_again();
        }
    }

    fn start_again(&mut self) {
        self.attempts = 0;
        self.failing_since = None;
        self.progress_bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_bounded_in_length_and_number_and_follow_from_the_seed() {
        let now = Instant::now();
        let waits = |seed| {
            let mut backoff = Backoff::new(&NetworkSettings::default(), Seed(seed));
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
    fn enough_bytes_start_again_with_short_waits() {
        let settings = NetworkSettings::default();
        let (mut backoff, now) = (Backoff::new(&settings, Seed(3)), Instant::now());
        while backoff.next_wait(now).is_some() {}
        backoff.note_bytes(settings.progress_bytes_min - 1);
        assert_eq!(backoff.next_wait(now), None);
        backoff.note_bytes(1);
        assert!(backoff.next_wait(now).is_some_and(|wait| wait <= FIRST));
        // A quarter of the missing bytes is enough.
        while backoff.next_wait(now).is_some() {}
        backoff.note_attempt(249, 1000);
        backoff.note_attempt(0, 1);
        assert_eq!(backoff.next_wait(now), None);
        backoff.note_attempt(250, 1000);
        assert!(backoff.next_wait(now).is_some_and(|wait| wait <= FIRST));
    }

    #[test]
    fn slow_failures_end_after_the_time_limit() {
        let settings = NetworkSettings::default();
        let (mut backoff, mut now) = (Backoff::new(&settings, Seed(3)), Instant::now());
        let start = now;
        let mut failures = 0;
        while backoff.next_wait(now).is_some() {
            failures += 1;
            now += Duration::from_secs(25);
        }
        assert_eq!((failures, now - start), (3, Duration::from_secs(75)));
        assert!(backoff.next_asked_wait().is_some());
        backoff.note_bytes(settings.progress_bytes_min);
        assert!(backoff.next_wait(now).is_some());
    }
}
