//! The request rate limit and the latency of a server, shared by all lanes without a lock.
//!
//! When a server responds *slow down* (503, 429), all lanes send fewer requests: the shortest interval between two
//! requests doubles with each such response, and shrinks with each good one until the limit is gone.
//!
//! A request whose first byte takes longer than the 95th percentile may be sent a second time, on another connection.
//! Such hedges are at most 5 % of all requests: if the whole server is slow, more would make it worse.

use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

/// The interval between two requests after the first *slow down*, and the longest interval.
const INTERVAL_FIRST_NS: u64 = 1_000_000;
const INTERVAL_MAX_NS: u64 = 1_000_000_000;

/// A shorter interval counts as no limit.
const INTERVAL_MIN_NS: u64 = 50_000;

/// A good response shortens the interval by 1/16.
const RECOVERY_SHIFT: u32 = 4;

/// Within this time only one *slow down* counts, however many lanes receive it.
const SLOW_DOWN_ONCE: Duration = Duration::from_millis(100);

/// One hedge for this many requests.
const REQUESTS_PER_HEDGE: u64 = 20;

/// The most requests that count towards future hedges. Without a limit, a long period without hedges would allow a
/// burst.
const CREDIT_MAX: u64 = 4 * REQUESTS_PER_HEDGE;

/// The samples needed before the 95th percentile is used.
const SAMPLES_MIN: u64 = 20;

/// The shortest delay before a hedge, however fast the server is.
const HEDGE_DELAY_MIN: Duration = Duration::from_millis(10);

/// Histogram buckets of first-byte latencies: four per doubling from 16 us. The last begins at 18 minutes.
const BUCKETS: usize = 104;
const BUCKET_FIRST_NS: u64 = 1 << 14;

/// After this many samples all counts are halved, so that old samples lose weight.
const SAMPLES_MAX: u64 = 4096;

/// The pace of one server.
#[derive(Debug)]
pub struct Pace {
    /// The origin of all `_ns` times.
    start: Instant,
    interval_ns: AtomicU64,
    /// The time of the next permitted request.
    next_ns: AtomicU64,
    /// The time of the last *slow down* that counted.
    slowed_ns: AtomicU64,
    /// Requests that count towards the next hedges.
    credit: AtomicU64,
    samples: AtomicU64,
    buckets: [AtomicU32; BUCKETS],
    hedge_delay_ns: AtomicU64,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            interval_ns: AtomicU64::new(0),
            next_ns: AtomicU64::new(0),
            slowed_ns: AtomicU64::new(0),
            credit: AtomicU64::new(0),
            samples: AtomicU64::new(0),
            buckets: [const { AtomicU32::new(0) }; BUCKETS],
            hedge_delay_ns: AtomicU64::new(u64::MAX),
        }
    }
}

impl Pace {
    /// Asks to send a request now. `Err` has the time when it may be sent; the request is not counted then.
    pub fn admit(&self, now: Instant) -> Result<(), Instant> {
        let interval = self.interval_ns.load(Relaxed);
        if interval > 0 {
            let now_ns = self.ns(now);
            let next = self.next_ns.load(Relaxed);
            if now_ns < next {
                return Err(self.start + Duration::from_nanos(next));
            }
            let claim = self.next_ns.compare_exchange(next, now_ns + interval, Relaxed, Relaxed);
            if claim.is_err() {
                // Another lane claimed this slot; wait one interval.
                return Err(now + Duration::from_nanos(interval));
            }
        }
        let more = |credit: u64| (credit < CREDIT_MAX).then_some(credit + 1);
        // At the maximum the credit stays unchanged.
        let _ = self.credit.fetch_update(Relaxed, Relaxed, more);
        Ok(())
    }

    /// Counts a good response: it shortens the interval.
    pub fn note_good(&self) {
        let interval = self.interval_ns.load(Relaxed);
        if interval > 0 {
            let less = interval - (interval >> RECOVERY_SHIFT).max(1);
            let less = if less < INTERVAL_MIN_NS { 0 } else { less };
            // If the exchange fails, another response has changed the interval.
            let _ = self.interval_ns.compare_exchange(interval, less, Relaxed, Relaxed);
        }
    }

    /// Counts a good response whose first byte arrived `first_byte` after the request.
    pub fn note_response(&self, first_byte: Duration) {
        self.note_good();
        let ns = u64::try_from(first_byte.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)].fetch_add(1, Relaxed);
        let samples = self.samples.fetch_add(1, Relaxed) + 1;
        if samples >= SAMPLES_MIN && samples.is_multiple_of(16) {
            self.estimate(samples);
        }
    }

    /// Computes the 95th percentile, and halves the counts after `SAMPLES_MAX` samples.
    fn estimate(&self, samples: u64) {
        let counts: [u32; BUCKETS] = std::array::from_fn(|at| self.buckets[at].load(Relaxed));
        let total: u64 = counts.iter().map(|count| u64::from(*count)).sum();
        let wanted = total - total / 20;
        let mut below = 0;
        let slow = counts.iter().position(|count| {
            below += u64::from(*count);
            below >= wanted
        });
        let p95_ns = bucket_end_ns(slow.unwrap_or(BUCKETS - 1));
        self.hedge_delay_ns.store(p95_ns, Relaxed);
        if samples >= SAMPLES_MAX {
            self.samples.store(samples / 2, Relaxed);
            for count in &self.buckets {
                let _ = count.fetch_update(Relaxed, Relaxed, |count| Some(count / 2));
            }
        }
    }

    /// Notes that the server responded *slow down*. `wait` is the wait it asked for, if any.
    pub fn slow_down(&self, now: Instant, wait: Option<Duration>) {
        let now_ns = self.ns(now);
        let until_ns = now_ns + wait.map_or(0, |wait| self.duration_ns(wait));
        self.next_ns.fetch_max(until_ns, Relaxed);
        let last = self.slowed_ns.load(Relaxed);
        let once = self.duration_ns(SLOW_DOWN_ONCE);
        if last > 0 && now_ns < last.saturating_add(once) {
            return;
        }
        let claimed = self.slowed_ns.compare_exchange(last, now_ns.max(1), Relaxed, Relaxed);
        if claimed.is_ok() {
            let _ = self.interval_ns.fetch_update(Relaxed, Relaxed, |interval| {
                Some((interval * 2).clamp(INTERVAL_FIRST_NS, INTERVAL_MAX_NS))
            });
        }
    }

    /// The time when a request sent at `sent` may be hedged; `None` before there are enough samples.
    pub fn hedge_at(&self, sent: Instant) -> Option<Instant> {
        let delay = match self.hedge_delay_ns.load(Relaxed) {
            u64::MAX => return None,
            ns => Duration::from_nanos(ns),
        };
        Some(sent + delay.max(HEDGE_DELAY_MIN))
    }

    /// Whether the budget allows a hedge. A rate-limited server gets none.
    pub fn has_hedge(&self) -> bool {
        self.interval_ns.load(Relaxed) == 0 && self.credit.load(Relaxed) >= REQUESTS_PER_HEDGE
    }

    /// Takes a hedge from the budget. Returns whether there was one.
    pub fn take_hedge(&self) -> bool {
        let less = |credit: u64| credit.checked_sub(REQUESTS_PER_HEDGE);
        self.has_hedge() && self.credit.fetch_update(Relaxed, Relaxed, less).is_ok()
    }

    /// The current shortest interval between two requests.
    pub fn interval(&self) -> Duration {
        Duration::from_nanos(self.interval_ns.load(Relaxed))
    }

    fn ns(&self, now: Instant) -> u64 {
        self.duration_ns(now.saturating_duration_since(self.start))
    }

    #[expect(clippy::unused_self, reason = "reads as a conversion of this clock")]
    fn duration_ns(&self, duration: Duration) -> u64 {
        u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX / 4)
    }
}

/// The bucket of a latency.
fn bucket(ns: u64) -> usize {
    let steps = (ns / (BUCKET_FIRST_NS / 4)).max(4);
    let doublings = steps.ilog2() - 2;
    let quarter = (steps >> doublings) - 4;
    let at = u64::from(doublings) * 4 + quarter;
    usize::try_from(at).unwrap_or(BUCKETS).min(BUCKETS - 1)
}

/// The end of a bucket.
fn bucket_end_ns(bucket: usize) -> u64 {
    let (doublings, quarter) = (bucket / 4, bucket as u64 % 4);
    ((quarter + 5) * (BUCKET_FIRST_NS / 4)) << doublings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_is_within_its_bucket() {
        for ns in [
            0,
            1,
            16_383,
            16_384,
            20_480,
            99_999,
            1_000_000,
            123_456_789,
            3_000_000_000,
        ] {
            let at = bucket(ns);
            assert!(ns < bucket_end_ns(at), "{ns}");
            assert!(at == 0 || ns >= bucket_end_ns(at - 1), "{ns}");
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn a_slow_down_spaces_requests_until_good_responses_end_it() {
        let pace = Pace::default();
        let now = Instant::now();
        assert!(pace.admit(now).is_ok() && pace.admit(now).is_ok());
        pace.slow_down(now, None);
        pace.slow_down(now, None);
        assert_eq!(pace.interval(), Duration::from_millis(1), "two at once count once");
        assert!(pace.admit(now).is_ok());
        let due = pace.admit(now).unwrap_err();
        assert!(due > now && pace.admit(due).is_ok());
        for number in 1..20 {
            pace.slow_down(now + number * Duration::from_millis(200), None);
        }
        assert_eq!(pace.interval(), Duration::from_secs(1), "the interval is bounded");
        assert!(!pace.take_hedge(), "an overloaded server gets no hedge");
        for _ in 0..1000 {
            pace.note_response(Duration::from_millis(1));
        }
        assert_eq!(pace.interval(), Duration::ZERO);
    }

    #[test]
    fn a_wait_that_the_server_asks_for_is_honoured() {
        let pace = Pace::default();
        let now = Instant::now();
        pace.slow_down(now, Some(Duration::from_secs(2)));
        let due = pace.admit(now + Duration::from_secs(1)).unwrap_err();
        assert!(due >= now + Duration::from_secs(2));
    }

    #[test]
    fn hedges_wait_for_the_95th_percentile_and_are_one_in_twenty() {
        let pace = Pace::default();
        let now = Instant::now();
        assert_eq!(pace.hedge_at(now), None);
        let mut sent = 0;
        for number in 0..1000 {
            pace.admit(now).unwrap();
            sent += u32::from(pace.take_hedge());
            let slow = number % 10 == 9;
            pace.note_response(Duration::from_millis(if slow { 100 } else { 20 }));
        }
        let delay = pace.hedge_at(now).unwrap() - now;
        assert!((100..126).contains(&delay.as_millis()), "{delay:?}");
        assert_eq!(sent, 50);
        (0..1000).for_each(|_| pace.admit(now).unwrap());
        let sent = (0..1000).filter(|_| pace.take_hedge()).count();
        assert_eq!(sent, 4, "unused credit is bounded");
    }
}
