//! Shows waits before retries: a program that waits for a server without a word looks like one that hangs.
//!
//! A wait is a log record of level `warn`. The command prints the records of this module without `-v`. Short retries are
//! not shown. Requests that wait for one server at the same time are shown once.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use straightway_core::{Error, Lock};

use crate::backoff::Backoff;

/// A wait of at least this length is shown.
const WAIT_SHOWN_MIN: Duration = Duration::from_secs(2);

/// A shorter wait is shown too if the request has made no progress for this long.
const FAILING_SHOWN_MIN: Duration = Duration::from_secs(5);

/// The shortest interval between two records about one server.
const INTERVAL: Duration = Duration::from_secs(5);

/// A request that is about to be sent again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retry<'a> {
    /// The server, for example `https://host`.
    pub(crate) server: &'a str,
    /// The failure of the last attempt.
    pub(crate) error: &'a Error,
    /// When the last attempt began.
    pub(crate) since: Instant,
    /// The wait before the next attempt.
    pub(crate) wait: Duration,
    /// The retries so far.
    pub(crate) backoff: &'a Backoff,
}

/// The servers whose waits were shown, each with the time until which no other wait for it is shown.
#[derive(Debug, Default)]
pub(crate) struct Waits(Lock<BTreeMap<String, Instant>>);

impl Waits {
    /// Shows a wait that begins now, if it is long enough.
    pub(crate) fn show(&self, retry: &Retry<'_>) {
        let now = Instant::now();
        if self.is_shown(retry, now) {
            let Retry { error, wait, .. } = retry;
            let (number, most) = (retry.backoff.attempts(), retry.backoff.attempts_max());
            tracing::warn!("{error}; retry {number} of {most} in {:.1} s", wait.as_secs_f64());
        }
    }

    /// Whether a wait that begins at `now` is shown. It then counts as shown.
    fn is_shown(&self, retry: &Retry<'_>, now: Instant) -> bool {
        let lasted = now.saturating_duration_since(retry.since);
        let failing = retry.backoff.failing_time(now).max(lasted);
        if retry.wait < WAIT_SHOWN_MIN && failing < FAILING_SHOWN_MIN {
            return false;
        }
        let mut shown = self.0.lock();
        shown.retain(|_, until| *until > now);
        if shown.contains_key(retry.server) {
            return false;
        }
        shown.insert(retry.server.to_owned(), now + retry.wait.max(INTERVAL));
        true
    }
}

#[cfg(test)]
mod tests {
    use straightway_core::{ErrorKind, random::Seed};

    use super::*;
    use crate::settings::NetworkSettings;

    #[test]
    fn long_waits_and_lasting_failures_are_shown_once_for_each_server() {
        let error = Error::new(ErrorKind::Transient, "read", "s3://b/k", "the server is overloaded");
        let mut backoff = Backoff::new(&NetworkSettings::default(), Seed(1));
        let (waits, now) = (Waits::default(), Instant::now());
        backoff.next_wait(now).expect("the first retry");
        let retry = |server, wait_s: u64, backoff: &Backoff, at: Instant| {
            let retry = Retry {
                server,
                error: &error,
                since: at,
                wait: Duration::from_secs(wait_s),
                backoff,
            };
            waits.is_shown(&retry, at)
        };
        assert!(!retry("a", 1, &backoff, now), "a short wait");
        assert!(retry("a", 30, &backoff, now));
        assert!(
            !retry("a", 30, &backoff, now + Duration::from_secs(1)),
            "a second request that waits"
        );
        assert!(retry("b", 3, &backoff, now), "another server");
        assert!(retry("a", 30, &backoff, now + Duration::from_secs(30)), "the next wait");
        assert!(!retry("c", 1, &backoff, now + Duration::from_secs(4)));
        assert!(
            retry("c", 1, &backoff, now + Duration::from_secs(5)),
            "it fails for 5 s"
        );
        let stalled = Retry {
            server: "d",
            error: &error,
            since: now,
            wait: Duration::ZERO,
            backoff: &Backoff::new(&NetworkSettings::default(), Seed(2)),
        };
        assert!(
            waits.is_shown(&stalled, now + Duration::from_secs(20)),
            "the attempt took 20 s"
        );
    }
}
