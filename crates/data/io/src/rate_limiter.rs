//! A rate limit that holds in every window of 100 ms and is reached on average.
//!
//! An I/O that could not go when it was due, because the drive or its lane was busy, is caught up later. Otherwise each
//! delay would lower the rate. To avoid bursts, the limiter records the I/Os of the last [`WINDOW_S`], and admits none
//! while they exceed what the limit allows for that time.

use std::collections::VecDeque;

use straightway_core::{Rate, share::after};

/// In any window of this length, at most the limit's bytes and one I/O are admitted.
const WINDOW_S: f64 = 0.1;

/// I/Os within this time of the first are recorded as one, to keep the record short.
const TOGETHER_S: f64 = 1e-4;

/// The most unused time that can be caught up.
const CREDIT_S: f64 = 0.05;

/// Limits the rate of I/Os.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    rate: Rate,
    /// When the next I/O is due by the rate.
    due_s: f64,
    /// When the window has room for the next I/O.
    open_s: f64,
    /// The I/Os in the window.
    went: VecDeque<Group>,
}

/// I/Os that went at nearly the same time.
#[derive(Debug)]
struct Group {
    first_s: f64,
    last_s: f64,
    bytes: f64,
}

impl RateLimiter {
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            rate,
            due_s: 0.0,
            open_s: 0.0,
            went: VecDeque::new(),
        }
    }

    /// When the next I/O may go.
    pub(crate) fn due_s(&self) -> f64 {
        self.due_s.max(self.open_s)
    }

    /// Records a new job. Time before it cannot be caught up.
    pub(crate) fn arrive(&mut self, now_s: f64) {
        self.due_s = self.due_s.max(now_s);
    }

    /// Returns whether an I/O may go now, and counts it if so.
    pub(crate) fn admits(&mut self, bytes: usize, now_s: f64) -> bool {
        if self.due_s() > now_s {
            return false;
        }
        let bytes = bytes as f64;
        self.due_s = after(self.due_s.max(now_s - CREDIT_S), bytes, self.rate.0, 0.0);
        self.went.retain(|group| group.last_s + WINDOW_S >= now_s);
        match self.went.back_mut() {
            Some(group) if now_s - group.first_s < TOGETHER_S => {
                group.bytes += bytes;
                group.last_s = now_s;
            }
            _ => self.went.push_back(Group {
                first_s: now_s,
                last_s: now_s,
                bytes,
            }),
        }
        // The window has room again when enough of its oldest I/Os have left it.
        let sum: f64 = self.went.iter().map(|group| group.bytes).sum();
        let mut above = sum - self.rate.0 * WINDOW_S * (1.0 + 1e-9);
        for group in &self.went {
            if above <= 0.0 {
                break;
            }
            above -= group.bytes;
            self.open_s = group.last_s + WINDOW_S;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The times among `times` at which I/Os of `bytes` are admitted.
    fn go(limiter: &mut RateLimiter, bytes: usize, times: impl Iterator<Item = f64>) -> Vec<f64> {
        times.filter(|now_s| limiter.admits(bytes, *now_s)).collect()
    }

    #[test]
    fn delays_are_caught_up_and_no_window_exceeds_its_bytes_plus_one_io() {
        let mut limiter = RateLimiter::new(Rate(1e6));
        limiter.arrive(0.0);
        // One I/O is due every millisecond, but none is requested in 30 ms out of every 200.
        let asked = (0..200_000).map(|i| f64::from(i) * 1e-5);
        let times = go(&mut limiter, 1000, asked.filter(|now_s| now_s % 0.2 > 0.03));
        assert!((1970..=2001).contains(&times.len()), "{}", times.len());
        for (first, start) in times.iter().enumerate() {
            let within = times[first..].iter().take_while(|at| **at - start <= 0.1);
            assert!(within.count() <= 101, "from {start} on");
        }
    }

    #[test]
    fn short_ios_in_quick_succession_reach_the_limit() {
        let mut limiter = RateLimiter::new(Rate(1e9));
        limiter.arrive(0.0);
        // One I/O is due every 65 µs, which is less than the time that is recorded as one.
        let times = go(&mut limiter, 64 << 10, (0..200_000).map(|i| f64::from(i) * 1e-5));
        let rate = times.len() as f64 * f64::from(64 << 10) / 2.0;
        assert!((0.97e9..=1.06e9).contains(&rate), "{rate}");
    }

    #[test]
    fn an_idle_hour_is_not_caught_up() {
        let mut limiter = RateLimiter::new(Rate(1e6));
        limiter.arrive(0.0);
        assert!(limiter.admits(1000, 0.0));
        limiter.arrive(3600.0);
        let times = go(&mut limiter, 1000, (0..1000).map(|i| 3600.0 + f64::from(i) * 1e-5));
        assert!((10..=11).contains(&times.len()), "{}", times.len());
    }
}
