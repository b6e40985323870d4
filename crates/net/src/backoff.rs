//! How long to wait before a request is sent again.

use std::time::Duration;

use straightway_sys::nonce::nonce;

/// Waits that double, up to a bound, with full jitter: a wait is anything between nothing and its bound, so that clients
/// that failed together do not come back together.
#[derive(Clone, Debug)]
pub struct Backoff {
    attempts: u32,
    random: u64,
}

/// The bound of the first wait, and of all.
const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

impl Backoff {
    /// Attempts without progress before an error is final. With [`LONGEST`] that is about 15 s on average.
    pub const ATTEMPTS_MAX: u32 = 10;

    /// Waits that follow from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            attempts: 0,
            random: seed | 1,
        }
    }

    /// How long to wait before the next attempt; `None` after [`ATTEMPTS_MAX`](Self::ATTEMPTS_MAX).
    pub fn next_wait(&mut self) -> Option<Duration> {
        if self.attempts == Self::ATTEMPTS_MAX {
            return None;
        }
        let bound = FIRST.saturating_mul(1 << self.attempts).min(LONGEST);
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

impl Default for Backoff {
    /// Waits that nobody else has.
    fn default() -> Self {
        Self::new(nonce())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_bounded_in_length_and_number_and_follow_from_the_seed() {
        let waits = |seed| {
            let mut backoff = Backoff::new(seed);
            std::iter::from_fn(|| backoff.next_wait()).collect::<Vec<_>>()
        };
        let some = waits(7);
        assert_eq!(some.len(), Backoff::ATTEMPTS_MAX as usize);
        assert!(some.iter().all(|wait| *wait <= LONGEST));
        assert!(some[0] <= FIRST);
        assert_eq!(some, waits(7));
        assert_ne!(some, waits(8));
    }

    #[test]
    fn progress_begins_again_with_short_waits() {
        let mut backoff = Backoff::new(3);
        while backoff.next_wait().is_some() {}
        backoff.reset();
        assert!(backoff.next_wait().is_some_and(|wait| wait <= FIRST));
    }
}
