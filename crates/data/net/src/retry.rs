//! The retries of a request: one rule for lanes and for requests on the caller's thread.
//!
//! | judgement | what follows | limit |
//! |---|---|---|
//! | [`Next::Retry`] | a random wait | the number of attempts, and the time without progress |
//! | [`Next::SlowDown`] | fewer requests to the server by everybody, and a wait, at least as long as the server asked for | the number of attempts |
//! | [`Next::Renew`] | new credentials, then the request at once | 2 renewals |
//! | [`Next::Fail`] | the error | |

use std::{
    thread::sleep,
    time::{Duration, Instant},
};

use straightway_core::Result;

use crate::{
    backoff::Backoff,
    origin::Origin,
    pace::Pace,
    service::{Judgement, Next},
};

/// The most renewals of credentials for one request.
const RENEWALS_MAX: u32 = 2;

/// The retries of one request.
#[derive(Debug)]
pub(crate) struct Retries {
    pub(crate) backoff: Backoff,
    renewals: u32,
}

/// What to do after a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryStep {
    /// Send the request again after this time.
    Wait(Duration),
    /// Renew the credentials, and send the request again.
    Renew,
    /// Return the error.
    Fail,
}

impl Retries {
    pub(crate) fn new(backoff: Backoff) -> Self {
        Self { backoff, renewals: 0 }
    }

    /// Decides after a failure at `now`. `pace` is that of the server.
    pub(crate) fn decide(&mut self, next: Next, pace: &Pace, now: Instant) -> RetryStep {
        let wait = match next {
            Next::Renew if self.renewals < RENEWALS_MAX => return RetryStep::Renew,
            Next::Fail | Next::Renew => None,
            Next::Retry => self.backoff.next_wait(now),
            Next::SlowDown(asked) => {
                pace.slow_down(now, asked);
                let wait = self.backoff.next_asked_wait();
                wait.map(|wait| wait.max(asked.unwrap_or_default()))
            }
        };
        wait.map_or(RetryStep::Fail, RetryStep::Wait)
    }

    /// Notes that the credentials were renewed for this request.
    pub(crate) fn note_renewal(&mut self) {
        self.renewals += 1;
    }
}

/// Repeats `attempt` on the caller's thread until it succeeds or must not be repeated. `renew` renews the credentials.
/// Returns the value of the attempt and the number of waits.
pub fn persist<T>(
    origin: &Origin,
    renew: impl Fn() -> Result<()>,
    mut attempt: impl FnMut(&mut Backoff) -> Result<T, Judgement>,
) -> Result<(T, u32)> {
    let mut retries = Retries::new(Backoff::unique(origin.settings()));
    let mut waits = 0;
    loop {
        let since = Instant::now();
        let Judgement { next, error } = match attempt(&mut retries.backoff) {
            Ok(done) => return Ok((done, waits)),
            Err(judgement) => judgement,
        };
        match retries.decide(next, origin.pace(), Instant::now()) {
            RetryStep::Wait(wait) => {
                origin.show_wait(&error, since, wait, &retries.backoff);
                sleep(wait);
                waits += 1;
            }
            RetryStep::Renew => {
                renew()?;
                retries.note_renewal();
            }
            RetryStep::Fail => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use straightway_core::random::Seed;

    use super::*;
    use crate::settings::NetworkSettings;

    fn retries() -> Retries {
        Retries::new(Backoff::new(&NetworkSettings::default(), Seed(7)))
    }

    #[test]
    fn a_wait_is_at_least_as_long_as_the_server_asked_for_and_slows_every_request() {
        let (pace, now) = (Pace::default(), Instant::now());
        assert_eq!(pace.admit(now), Ok(()));
        let asked = Duration::from_secs(30);
        let step = retries().decide(Next::SlowDown(Some(asked)), &pace, now);
        assert_eq!(step, RetryStep::Wait(asked));
        assert!(pace.admit(now + asked / 2).is_err());
        assert_eq!(pace.admit(now + asked), Ok(()));
        assert!(pace.admit(now + asked).is_err(), "requests keep a distance");
        let step = retries().decide(Next::SlowDown(None), &pace, now);
        assert!(
            matches!(step, RetryStep::Wait(wait) if wait < Duration::from_secs(1)),
            "{step:?}"
        );
    }

    #[test]
    fn every_kind_of_retry_ends() {
        let (pace, now) = (Pace::default(), Instant::now());
        let most = NetworkSettings::default().attempts_max;
        for next in [Next::Retry, Next::SlowDown(None), Next::SlowDown(Some(Duration::ZERO))] {
            let mut retries = retries();
            for _ in 0..most {
                assert!(
                    matches!(retries.decide(next, &pace, now), RetryStep::Wait(_)),
                    "{next:?}"
                );
            }
            assert_eq!(retries.decide(next, &pace, now), RetryStep::Fail, "{next:?}");
        }
        let mut retries = retries();
        for _ in 0..RENEWALS_MAX {
            assert_eq!(retries.decide(Next::Renew, &pace, now), RetryStep::Renew);
            retries.note_renewal();
        }
        assert_eq!(retries.decide(Next::Renew, &pace, now), RetryStep::Fail);
        assert_eq!(retries.decide(Next::Fail, &pace, now), RetryStep::Fail);
    }

    #[test]
    fn failures_end_after_a_time_without_progress_but_a_server_may_ask_for_longer() {
        let (pace, start) = (Pace::default(), Instant::now());
        let late = start + NetworkSettings::default().failing_max;
        let mut retries = retries();
        assert!(matches!(retries.decide(Next::Retry, &pace, start), RetryStep::Wait(_)));
        let step = retries.decide(Next::SlowDown(None), &pace, late);
        assert!(matches!(step, RetryStep::Wait(_)), "{step:?}");
        assert_eq!(retries.decide(Next::Retry, &pace, late), RetryStep::Fail);
    }
}
