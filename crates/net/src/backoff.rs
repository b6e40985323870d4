//! How long to wait before a request is sent again.

use std::time::Duration;

use straightway_sys::nonce::nonce;

/// Waits that double, up to a bound, with full jitter: a wait is anything between nothing and its bound, so that
/// clients that failed together do not come back together.
#[derive(Clone, Debug)]
pub struct Backoff {
    attempts: u32,
    attempts_max: u32,
    random: u64,
}

/// The bound of the first wait, and of all.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

impl Backoff {
    /// Up to `attempts_max` waits that follow from `seed`. Ten take about 15 s on average.
    pub fn new(attempts_max: u32, seed: u64) -> Self {
        Self {
            attempts: 0,
            attempts_max,
            random: seed | 1,
        }
    }

    /// Up to `attempts_max` waits that nobody else has.
    pub fn unique(attempts_max: u32) -> Self {
        Self::new(attempts_max, nonce())
    }

    /// How long to wait before the next attempt; `None` where there were too many.
    pub fn next_wait(&mut self) -> Option<Duration> {
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_bounded_in_length_and_number_and_follow_from_the_seed() {
        let waits = |seed| {
            let mut backoff = Backoff::new(10, seed);
            std::iter::from_fn(|| backoff.next_wait()).collect::<Vec<_>>()
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
        let mut backoff = Backoff::new(10, 3);
        while backoff.next_wait().is_some() {}
        backoff.reset();
        assert!(backoff.next_wait().is_some_and(|wait| wait <= FIRST));
    }
}
