//! A limit that is kept to in every tenth of a second, and reached over a longer time.
//!
//! An I/O that could not go when it was due, because the drive or its lane was busy, is caught up with: else each would
//! cost a limited job a part of its rate. So that this makes no burst, what went within the last [`WINDOW_S`] is known,
//! and no I/O goes while that is more than the limit allows for this time.

use std::collections::VecDeque;

use straightway_core::{Rate, share::after};

/// In any time as long as this, no more goes than the limit allows for it, and one I/O.
const WINDOW_S: f64 = 0.1;

/// I/Os that go within this time are remembered as one, so that there are few to remember.
const TOGETHER_S: f64 = 1e-4;

/// Time that was not used is caught up with, but no more than this much of it.
const CREDIT_S: f64 = 0.05;

/// How fast I/Os may follow each other.
#[derive(Debug)]
pub(crate) struct Pace {
    rate: Rate,
    /// When the next is due by the rate.
    due_s: f64,
    /// When the next may go by what went within the window.
    open_s: f64,
    /// What went within the window, and when.
    went: VecDeque<(f64, f64)>,
}

impl Pace {
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

    /// Takes note of a job that comes: there was nothing to catch up with before.
    pub(crate) fn arrive(&mut self, now_s: f64) {
        self.due_s = self.due_s.max(now_s);
    }

    /// Books an I/O that is about to go. Answers whether it may.
    pub(crate) fn admits(&mut self, bytes: usize, now_s: f64) -> bool {
        if self.due_s() > now_s {
            return false;
        }
        let bytes = bytes as f64;
        self.due_s = after(self.due_s.max(now_s - CREDIT_S), bytes, self.rate.0, 0.0);
        self.went.retain(|(at_s, _)| at_s + WINDOW_S >= now_s);
        match self.went.back_mut() {
            Some((at_s, sum)) if now_s - *at_s < TOGETHER_S => {
                *sum += bytes;
                *at_s = now_s;
            }
            _ => self.went.push_back((now_s, bytes)),
        }
        // The window opens again when enough of it is over, the oldest first.
        let sum: f64 = self.went.iter().map(|(_, bytes)| bytes).sum();
        let mut above = sum - self.rate.0 * WINDOW_S * (1.0 + 1e-9);
        for (at_s, bytes) in &self.went {
            if above <= 0.0 {
                break;
            }
            above -= bytes;
            self.open_s = at_s + WINDOW_S;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When I/Os of `bytes` go that are asked for at each of `times`, again and again until they may.
    fn go(pace: &mut Pace, bytes: usize, times: impl Iterator<Item = f64>) -> Vec<f64> {
        times.filter(|now_s| pace.admits(bytes, *now_s)).collect()
    }

    #[test]
    fn what_comes_late_is_caught_up_with_and_no_window_has_more_than_its_bytes_and_one() {
        let mut pace = Pace::new(Rate(1e6));
        pace.arrive(0.0);
        // Due every millisecond, but nobody asks for 30 ms out of every 200.
        let asked = (0..200_000).map(|i| f64::from(i) * 1e-5);
        let times = go(&mut pace, 1000, asked.filter(|now_s| now_s % 0.2 > 0.03));
        assert!((1970..=2001).contains(&times.len()), "{}", times.len());
        for (first, start) in times.iter().enumerate() {
            let within = times[first..].iter().take_while(|at| **at - start <= 0.1);
            assert!(within.count() <= 101, "from {start} on");
        }
    }

    #[test]
    fn an_hour_without_work_is_not_caught_up_with() {
        let mut pace = Pace::new(Rate(1e6));
        pace.arrive(0.0);
        assert!(pace.admits(1000, 0.0));
        pace.arrive(3600.0);
        let times = go(
            &mut pace,
            1000,
            (0..1000).map(|i| 3600.0 + f64::from(i) * 1e-5),
        );
        assert!((10..=11).contains(&times.len()), "{}", times.len());
    }
}
