//! User settings and their limits.

use std::time::Duration;

use straightway_core::{Error, ErrorKind, Result};
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

/// The minimum keep-alive timeout. Connect has whole milliseconds, and 0 means no timeout.
const KEEP_ALIVE_MIN: Duration = Duration::from_millis(100);

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
    /// The options of [`HostSettings::set`], with descriptions.
    pub const OPTIONS: [(&'static str, &'static str); 7] = [
        ("nvme_hostnqn", "the NQN of this host"),
        ("nvme_hostid", "the identifier of this host, a UUID"),
        ("nvme_digests", "CRC32C of headers and data: none, header, data or both"),
        (
            "nvme_paths",
            "more addresses of the same subsystems, HOST[:PORT] with commas",
        ),
        ("nvme_keep_alive", "seconds after which a silent target is given up"),
        ("nvme_secret", "this host's DH-HMAC-CHAP secret, DHHC-1:…"),
        ("nvme_ctrl_secret", "the secret that targets have to prove"),
    ];

    /// Sets one option by name. Errors never show a secret.
    pub fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let refuse = |why: &str| Err(Error::new(ErrorKind::Invalid, "use option", name, why));
        match name {
            "nvme_hostnqn" => match Nqn::new(value.trim()) {
                Ok(host) => self.host = host,
                Err(error) => return refuse(&error.to_string()),
            },
            "nvme_hostid" => match uuid(value.trim()) {
                Some(id) => self.host_id = id,
                None => return refuse("it is not a UUID"),
            },
            "nvme_digests" => {
                let (header, data) = match value {
                    "none" => (false, false),
                    "header" => (true, false),
                    "data" => (false, true),
                    "both" => (true, true),
                    _ => return refuse("it is not none, header, data or both"),
                };
                self.digests = Digests { header, data };
            }
            "nvme_paths" => {
                let paths = value.split(',').map(str::trim).filter(|path| !path.is_empty());
                self.paths = paths.map(Portal::parse).collect::<Result<_>>()?;
            }
            "nvme_keep_alive" => {
                let time = value.parse().ok().map(Duration::try_from_secs_f64);
                match time {
                    Some(Ok(time)) if (KEEP_ALIVE_MIN..=KEEP_ALIVE_MAX).contains(&time) => {
                        self.keep_alive = time;
                    }
                    _ => return refuse("it is not a number of seconds from 0.1 to 600"),
                }
            }
            "nvme_secret" => self.secret = Some(value.parse()?),
            "nvme_ctrl_secret" => self.controller_secret = Some(value.parse()?),
            _ => {
                let known: Vec<_> = Self::OPTIONS.iter().map(|(name, _)| *name).collect();
                let why = format!("there is no such option; known are {}", known.join(", "));
                return refuse(&why);
            }
        }
        Ok(())
    }

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

/// Parses a UUID.
fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    if digits.len() != 32 || !digits.is_ascii() {
        return None;
    }
    let mut bytes = [0; 16];
    for (byte, pair) in bytes.iter_mut().zip(0..) {
        *byte = u8::from_str_radix(&digits[2 * pair..2 * pair + 2], 16).ok()?;
    }
    Some(bytes)
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

    #[test]
    fn options_are_checked_and_secrets_stay_out_of_errors() {
        let mut settings = HostSettings::default();
        let secret = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
        for (name, value) in [
            ("nvme_hostnqn", "nqn.2026-11.test:host"),
            ("nvme_hostid", "30313233-3435-3637-3839-616263646566"),
            ("nvme_digests", "both"),
            ("nvme_paths", "10.0.0.2, [::1]:4421"),
            ("nvme_keep_alive", "2.5"),
            ("nvme_secret", secret),
        ] {
            settings.set(name, value).unwrap();
        }
        assert_eq!(&settings.host_id, b"0123456789abcdef");
        assert_eq!(settings.paths.len(), 2);
        assert!(!format!("{settings:?}").contains("AAECAwQF"));
        for (name, value) in [
            ("nvme_hostnqn", ""),
            ("nvme_hostid", "zz"),
            ("nvme_digests", "all"),
            ("nvme_paths", "a:b"),
            ("nvme_keep_alive", "0"),
            ("nvme_keep_alive", "0.0001"),
            ("nvme_secret", "DHHC-1:00:secret:"),
            ("nvme_other", "x"),
        ] {
            let error = settings.set(name, value).unwrap_err().to_string();
            assert!(value.len() < 3 || !error.contains("00:secret"), "{error}");
        }
    }
}
