//! User settings and their limits.

use std::{ops::RangeInclusive, time::Duration};

use straightway_nvme::{Digests, Nqn, auth::Secret};
use straightway_sys::nonce::nonce;

use crate::portal::Portal;

/// Settings of all connections of this host.
#[derive(Clone, Debug)]
pub struct HostSettings {
    /// The NQN of this host.
    pub host: Nqn,
    /// The identifier of this host.
    pub host_id: [u8; 16],
    /// The digests to request.
    pub digests: Digests,
    /// The keep-alive timeout. A target that is silent for this time is considered lost.
    pub keep_alive: Duration,
    /// The timeout for making a connection, and for a controller to become ready.
    pub connect_max: Duration,
    /// The timeout of one command, and of silence from a target that owes completions.
    pub command_max: Duration,
    /// The maximum number of attempts to reconnect before waiting I/Os fail.
    pub attempts_max: u32,
    /// The delay before the second attempt. It doubles up to `delay_max`.
    pub delay_first: Duration,
    /// The maximum delay between attempts.
    pub delay_max: Duration,
    /// The maximum number of retries of one I/O.
    pub retries_max: u32,
    /// The number of entries of an I/O queue.
    pub queue_entries: u16,
    /// The time that an unused controller stays connected.
    pub idle: Duration,
    /// Additional addresses of the same subsystems.
    pub paths: Vec<Portal>,
    /// The secret of this host, for targets that require authentication.
    pub secret: Option<Secret>,
    /// The secret that targets must prove.
    pub controller_secret: Option<Secret>,
}

/// The maximum keep-alive timeout.
const KEEP_ALIVE_MAX: Duration = Duration::from_mins(10);

impl Default for HostSettings {
    /// The defaults of Linux, except that reconnects begin sooner. The host identifier is random.
    fn default() -> Self {
        let mut host_id = [0; 16];
        host_id[..8].copy_from_slice(&nonce().to_le_bytes());
        host_id[8..].copy_from_slice(&nonce().to_le_bytes());
        // A random UUID: sets its version and variant.
        host_id[6] = host_id[6] & 0x0f | 0x40;
        host_id[8] = host_id[8] & 0x3f | 0x80;
        Self {
            host: Nqn::of_host(&host_id),
            host_id,
            digests: Digests::default(),
            keep_alive: Duration::from_secs(5),
            connect_max: Duration::from_secs(10),
            command_max: Duration::from_secs(30),
            attempts_max: 20,
            delay_first: Duration::from_millis(250),
            delay_max: Duration::from_secs(8),
            retries_max: 5,
            queue_entries: 128,
            idle: Duration::from_secs(5),
            paths: Vec::new(),
            secret: None,
            controller_secret: None,
        }
    }
}

impl HostSettings {
    /// The keep-alive timeouts that are allowed. Connect has whole milliseconds, and 0 means no timeout.
    pub const KEEP_ALIVE: RangeInclusive<Duration> = Duration::from_millis(100)..=KEEP_ALIVE_MAX;

    /// The time for which an old controller may still execute commands. Linux needs up to two keep-alive timeouts to
    /// notice that its host is gone. A controller rounds the timeout up to a multiple of `step`: SPDK to 10 s.
    pub(crate) fn quarantine_time(&self, step: Duration) -> Duration {
        let step = step.clamp(Duration::from_millis(1), KEEP_ALIVE_MAX);
        let steps = self.keep_alive.as_nanos().div_ceil(step.as_nanos());
        let timeout = step * u32::try_from(steps).unwrap_or(u32::MAX);
        timeout * 2 + Duration::from_secs(1)
    }

    /// The delay after `attempts` failures in a row; zero after no failure.
    pub(crate) fn delay(&self, attempts: u32) -> Duration {
        let Some(doublings) = attempts.checked_sub(1) else {
            return Duration::ZERO;
        };
        let wait = self.delay_first.saturating_mul(1 << doublings.min(16));
        wait.min(self.delay_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum() {
        let settings = HostSettings::default();
        let waits: Vec<_> = (0..8).map(|n| settings.delay(n).as_millis()).collect();
        assert_eq!(waits, [0, 250, 500, 1000, 2000, 4000, 8000, 8000]);
        assert_ne!(settings.host_id, HostSettings::default().host_id);
    }

    #[test]
    fn lost_writes_are_waited_for_until_the_rounded_timeout_is_over_twice() {
        let settings = HostSettings::default();
        let waits = [0, 1, 5, 7, 10].map(|step| {
            let step = Duration::from_secs(step);
            settings.quarantine_time(step).as_secs()
        });
        assert_eq!(waits, [11, 11, 11, 15, 21]);
        let longest = settings.quarantine_time(Duration::MAX);
        assert_eq!(longest, KEEP_ALIVE_MAX * 2 + Duration::from_secs(1));
    }
}
