//! Looks up the addresses of a host without blocking lanes.
//!
//! A short-lived thread looks up a name ([`straightway_sys::lookup`]), at most one per host. Meanwhile lanes use the
//! addresses already known. All addresses of a host are used in turn, which spreads connections over the servers behind
//! a name.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Error, Lock};
use straightway_sys::{
    Process,
    lookup::{look_up, start_lookup},
};

/// How long addresses are used before they are looked up again. S3 changes its own every few seconds.
const FRESH: Duration = Duration::from_secs(30);

/// How long addresses are used if a newer lookup has not succeeded.
const STALE: Duration = Duration::from_mins(10);

/// The known addresses of a host.
#[derive(Debug)]
pub(crate) struct Lookup {
    host: String,
    port: u16,
    known: Arc<Lock<Known>>,
}

#[derive(Debug, Default)]
struct Known {
    addresses: Vec<SocketAddr>,
    /// When they were found.
    found: Option<Instant>,
    next: usize,
    /// The process whose thread runs a lookup.
    asked_by: Option<Process>,
    error: Option<Error>,
}

/// The result of a lookup.
#[derive(Debug)]
pub(crate) enum Resolution {
    /// An address to connect to.
    Address(SocketAddr),
    /// The lookup is in progress.
    Pending,
    /// The lookup failed.
    Failed(Error),
}

impl Lookup {
    /// A lookup for a host, which may be an IP address.
    pub(crate) fn new(host: &str, port: u16) -> Self {
        let literal: Option<IpAddr> = host.parse().ok();
        let known = Known {
            addresses: literal.map(|ip| SocketAddr::new(ip, port)).into_iter().collect(),
            ..Known::default()
        };
        Self {
            host: host.to_owned(),
            port,
            known: Arc::new(Lock::new(known)),
        }
    }

    /// The next address.
    pub(crate) fn next(&self, now: Instant) -> Resolution {
        let Some(mut known) = self.known.try_lock() else {
            // Another thread holds it briefly, or held it when this process was forked.
            return self.look_up_here();
        };
        if self.host.parse::<IpAddr>().is_ok() {
            return Resolution::Address(known.addresses[0]);
        }
        let age = known.found.map(|found| now.saturating_duration_since(found));
        if age.is_none_or(|age| age > FRESH) && known.asked_by != Some(Process::this()) {
            if let Some(error) = known.error.take() {
                return Resolution::Failed(error);
            }
            known.asked_by = Some(Process::this());
            if !self.start() {
                known.asked_by = None;
                drop(known);
                return self.look_up_here();
            }
        }
        if age.is_none_or(|age| age > STALE) || known.addresses.is_empty() {
            return Resolution::Pending;
        }
        known.next = known.next.wrapping_add(1);
        let at = known.next % known.addresses.len();
        Resolution::Address(known.addresses[at])
    }

    /// Marks the addresses as old after a failed connection, so that they are looked up again.
    pub(crate) fn expire(&self) {
        if let Some(mut known) = self.known.try_lock() {
            let long_ago = Instant::now().checked_sub(FRESH * 2);
            known.found = known.found.and(long_ago);
        }
    }

    /// Starts a lookup on a thread. Returns whether the thread could be started.
    fn start(&self) -> bool {
        let known = Arc::clone(&self.known);
        let done = move |found: Result<Vec<SocketAddr>, Error>| {
            let mut known = known.lock();
            known.asked_by = None;
            match found {
                Ok(addresses) => {
                    known.addresses = addresses;
                    known.found = Some(Instant::now());
                    known.error = None;
                }
                Err(error) => known.error = Some(error),
            }
        };
        start_lookup(&self.host, self.port, done).is_ok()
    }

    fn look_up_here(&self) -> Resolution {
        match look_up(&self.host, self.port) {
            Ok(addresses) => Resolution::Address(addresses[0]),
            Err(error) => Resolution::Failed(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_for(lookup: &Lookup) -> Resolution {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            match lookup.next(Instant::now()) {
                Resolution::Pending if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                known => return known,
            }
        }
    }

    #[test]
    fn an_address_needs_no_lookup_and_a_name_is_looked_up_on_a_thread() {
        let lookup = Lookup::new("::1", 80);
        assert!(matches!(lookup.next(Instant::now()), Resolution::Address(at) if at.is_ipv6()));
        let lookup = Lookup::new("localhost", 80);
        assert!(matches!(lookup.next(Instant::now()), Resolution::Pending));
        assert!(matches!(wait_for(&lookup), Resolution::Address(at) if at.ip().is_loopback()));
        lookup.expire();
        assert!(
            matches!(wait_for(&lookup), Resolution::Address(_)),
            "old addresses are used meanwhile"
        );
    }

    #[test]
    fn a_name_without_an_address_is_an_error_each_time() {
        let lookup = Lookup::new("no-such-host.invalid", 80);
        for _ in 0..2 {
            let Resolution::Failed(error) = wait_for(&lookup) else {
                panic!("there is no such host")
            };
            assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
        }
    }
}
