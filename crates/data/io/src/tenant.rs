//! Tenants: the users on whose behalf jobs run, with their share, their class and what they have used of it.
//!
//! A tenant outlives its jobs: a limit covers all of them together, consecutive and parallel.

use std::{
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use straightway_core::{
    Class, Error, ErrorKind, Lock, Rate, Result, Share,
    share::{Account, Due, Turn},
};

use crate::rate_limiter::RateLimiter;

/// The most bytes of background jobs in flight while a job of class *now* runs. A flush keeps its speed with two I/Os
/// of 1 MiB on a virtual drive of 2.3 GB/s, and reads at the same time take half as long as with four
/// (`bench/results/qos.json`).
const BACKGROUND_BYTES_MAX: u64 = 2 << 20;

/// How long background jobs stay limited after the last job of class *now*. Otherwise the next of many short ones would
/// find the drive's queue full again.
const LINGER: Duration = Duration::from_millis(250);

/// The start of the clock of shares.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Seconds on the clock of shares.
pub(crate) fn now_s() -> f64 {
    START.elapsed().as_secs_f64()
}

/// A user on whose behalf jobs run.
#[derive(Debug)]
pub(crate) struct Tenant {
    share: Share,
    class: Class,
    used: Lock<Used>,
    /// Its reservation of the executor's rate, released on drop.
    _reserved: Option<Reserved>,
}

/// What it has used of its reservation and its limit.
#[derive(Debug)]
struct Used {
    reservation: Account,
    limiter: Option<RateLimiter>,
}

impl Tenant {
    /// A tenant with a share. Its reservation is taken from `reservations`.
    pub(crate) fn new(share: Share, class: Class, reservations: &Arc<Reservations>) -> Result<Self> {
        share.check()?;
        let reserved = share.reservation.map(|rate| reservations.take(rate));
        Ok(Self {
            share,
            class,
            used: Lock::new(Used {
                reservation: Account::new(Share { limit: None, ..share }),
                limiter: share.limit.map(RateLimiter::new),
            }),
            _reserved: reserved.transpose()?,
        })
    }

    pub(crate) fn share(&self) -> &Share {
        &self.share
    }

    pub(crate) fn class(&self) -> Class {
        self.class
    }

    /// Whether its chunks need no timing.
    pub(crate) fn is_free(&self) -> bool {
        self.share.limit.is_none() && self.share.reservation.is_none()
    }

    /// When its next chunk is due by its reservation and by its limit.
    pub(crate) fn due(&self) -> Due {
        if self.is_free() {
            return Due::FREE;
        }
        let used = self.used.lock();
        let limit_s = used.limiter.as_ref().map(RateLimiter::due_s);
        Due {
            limit_s: limit_s.unwrap_or(f64::NEG_INFINITY),
            ..used.reservation.due()
        }
    }

    /// Records a new job. The reservation does not accumulate without jobs.
    pub(crate) fn arrive(&self, now_s: f64) {
        let mut used = self.used.lock();
        used.reservation.arrive(now_s);
        if let Some(limiter) = &mut used.limiter {
            limiter.arrive(now_s);
        }
    }

    /// Counts a chunk. One that was granted by weight does not count against the reservation.
    pub(crate) fn serve(&self, bytes: u64, turn: Turn) {
        if self.share.reservation.is_some() {
            let mut used = self.used.lock();
            used.reservation.serve(bytes as f64, turn, f64::NEG_INFINITY);
        }
    }

    /// Returns whether the limit admits an I/O now, and counts it if so.
    pub(crate) fn admits(&self, bytes: usize, now_s: impl FnOnce() -> f64) -> bool {
        if self.share.limit.is_none() {
            return true;
        }
        let limiter = &mut self.used.lock().limiter;
        limiter.as_mut().is_none_or(|limiter| limiter.admits(bytes, now_s()))
    }
}

/// The reservations of an executor's tenants out of the measured rate.
#[derive(Debug)]
pub(crate) struct Reservations {
    measured: Option<Rate>,
    taken: Lock<f64>,
}

/// A reserved part of the rate, released on drop.
#[derive(Debug)]
struct Reserved {
    rate: Rate,
    of: Arc<Reservations>,
}

impl Reservations {
    pub(crate) fn new(measured: Option<Rate>) -> Self {
        Self {
            measured,
            taken: Lock::new(0.0),
        }
    }

    fn take(self: &Arc<Self>, rate: Rate) -> Result<Reserved> {
        let refuse = |message: String, hint: &'static str| {
            let error = Error::new(ErrorKind::Invalid, "reserve", rate.to_string(), message);
            Err(error.with_hint(hint))
        };
        let Some(measured) = self.measured else {
            let message = "no rate has been measured to reserve from".to_owned();
            return refuse(message, "measure the drive with `straightway bench`");
        };
        let mut taken = self.taken.lock();
        if *taken + rate.0 > measured.0 {
            let left = Rate(measured.0 - *taken);
            let message = format!("{left} of the measured {measured} are left");
            return refuse(message, "reserve less");
        }
        *taken += rate.0;
        Ok(Reserved {
            rate,
            of: Arc::clone(self),
        })
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut taken = self.of.taken.lock();
        *taken -= self.rate.0;
    }
}

/// Shared counts of the jobs of one executor.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    /// The number of jobs of class *now*.
    urgent: AtomicUsize,
    /// When the last of them ended, in microseconds.
    calm_since_us: AtomicU64,
    background_bytes: AtomicU64,
}

/// Guard of a job of class *now*.
#[derive(Debug)]
pub(crate) struct Urgent(Arc<Traffic>);

impl Traffic {
    /// Counts a job of class *now* until the guard is dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Urgent {
        self.urgent.fetch_add(1, Ordering::Relaxed);
        Urgent(Arc::clone(self))
    }

    /// Whether background jobs are limited, and have reached their limit.
    pub(crate) fn holds_back(&self, now_s: f64) -> bool {
        let in_flight = self.background_bytes.load(Ordering::Relaxed);
        in_flight >= BACKGROUND_BYTES_MAX && self.is_urgent(now_s)
    }

    fn is_urgent(&self, now_s: f64) -> bool {
        let calm_since_s = self.calm_since_us.load(Ordering::Relaxed) as f64 * 1e-6;
        self.urgent.load(Ordering::Relaxed) > 0 || (calm_since_s > 0.0 && now_s - calm_since_s < LINGER.as_secs_f64())
    }

    /// Adds bytes of a background job that are now in flight.
    pub(crate) fn begin(&self, bytes: u64) {
        self.background_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes of a background job that are no longer in flight.
    pub(crate) fn end(&self, bytes: u64) {
        self.background_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        let now_us = START.elapsed().as_micros();
        let now_us = u64::try_from(now_us).unwrap_or(u64::MAX);
        self.0.calm_since_us.fetch_max(now_us, Ordering::Relaxed);
        self.0.urgent.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reservations_are_limited_by_the_measured_rate_and_released_on_drop() {
        let reserve = |rate, of: &Arc<Reservations>| {
            let share = Share {
                reservation: Some(Rate(rate)),
                ..Share::default()
            };
            Tenant::new(share, Class::Soon, of)
        };
        let unknown = Arc::new(Reservations::new(None));
        assert!(reserve(1e6, &unknown).unwrap_err().hint().is_some());
        let measured = Arc::new(Reservations::new(Some(Rate(2e9))));
        let first = reserve(1.5e9, &measured).unwrap();
        let error = reserve(1e9, &measured).unwrap_err();
        assert!(error.to_string().contains("are left"), "{error}");
        drop(first);
        reserve(2e9, &measured).unwrap();
    }

    #[test]
    fn background_jobs_are_limited_while_a_job_is_urgent_and_a_while_after() {
        let traffic = Arc::new(Traffic::default());
        traffic.begin(BACKGROUND_BYTES_MAX);
        assert!(!traffic.holds_back(now_s()));
        let urgent = traffic.enter();
        assert!(traffic.holds_back(now_s()));
        drop(urgent);
        let now = now_s();
        assert!(traffic.holds_back(now));
        assert!(!traffic.holds_back(now + 2.0 * LINGER.as_secs_f64()));
        let _urgent = traffic.enter();
        traffic.end(1);
        assert!(!traffic.holds_back(now_s()));
    }
}
