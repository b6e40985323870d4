//! What a user can choose, and the limits.

use std::time::Duration;

use straightway_nvme::{Digests, Nqn};
use straightway_sys::nonce::nonce;

use crate::portal::Portal;

/// Settings of all connections of a host.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of this host.
    pub host: Nqn,
    /// Its identifier.
    pub host_id: [u8; 16],
    /// The digests to ask for.
    pub digests: Digests,
    /// The keep-alive time-out: a target that is silent for so long is given up.
    pub keep_alive: Duration,
    /// The longest time to make a connection, and to become ready.
    pub connect_max: Duration,
    /// The longest time without a byte from a target that owes answers, and for one command.
    pub command_max: Duration,
    /// Attempts to reconnect before waiting I/Os fail.
    pub attempts_max: u32,
    /// The wait before the second attempt; it doubles up to `delay_max`.
    pub delay_first: Duration,
    /// The longest wait between attempts.
    pub delay_max: Duration,
    /// How often one I/O is sent again after failures.
    pub retries_max: u32,
    /// Entries of an I/O queue.
    pub queue_entries: u16,
    /// How long an unused controller stays connected.
    pub idle: Duration,
    /// More addresses of the same subsystems.
    pub paths: Vec<Portal>,
}

impl Default for Settings {
    /// Those of Linux, but for reconnects, which begin sooner. The host is a new one.
    fn default() -> Self {
        let mut host_id = [0; 16];
        host_id[..8].copy_from_slice(&nonce().to_le_bytes());
        host_id[8..].copy_from_slice(&nonce().to_le_bytes());
        // A random UUID, by its version and variant.
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
        }
    }
}

impl Settings {
    /// How long an old controller may still execute commands: Linux takes up to two periods to notice that its host is
    /// gone.
    pub(crate) fn afterlife(&self) -> Duration {
        self.keep_alive * 2 + Duration::from_secs(1)
    }

    /// The wait after `attempts` failed in a row: nothing after none.
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
    fn waits_double_up_to_their_bound() {
        let settings = Settings::default();
        let waits: Vec<_> = (0..8).map(|n| settings.delay(n).as_millis()).collect();
        assert_eq!(waits, [0, 250, 500, 1000, 2000, 4000, 8000, 8000]);
        assert_ne!(settings.host_id, Settings::default().host_id);
    }
}
