//! The settings and state that all connections of a program share.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock, Weak},
    time::Duration,
};

use straightway_core::{Lock, Result};

use crate::{
    origin::{Origin, Site},
    proxy::Proxies,
    roots::{Roots, Tls},
    waits::Waits,
};

/// The settings of connections. The caller reads the environment.
#[derive(Clone, Debug)]
pub struct NetworkSettings {
    /// Trusted certificates.
    pub roots: Roots,
    /// Proxies.
    pub proxies: Proxies,
    /// The longest time without progress before a request counts as failed.
    pub stall_max: Duration,
    /// The fewest bytes of a body within `stall_max` that count as progress, unless fewer are missing.
    pub progress_bytes_min: usize,
    /// The timeout of a connection and its TLS handshake.
    pub connect_max: Duration,
    /// The most connections of one lane.
    pub connections_max: u32,
    /// Attempts without progress before an error is final.
    pub attempts_max: u32,
    /// How long a request without progress is retried. Waits that the server asked for do not count.
    pub failing_max: Duration,
    /// Whether slow requests are sent a second time, on another connection.
    pub hedges: bool,
}

impl Default for NetworkSettings {
    fn default() -> Self {
        Self {
            roots: Roots::default(),
            proxies: Proxies::default(),
            stall_max: Duration::from_secs(20),
            // A request of 8 MiB takes at most 43 minutes then. 64 connections need 1.7 Mbit/s together.
            progress_bytes_min: 64 << 10,
            connect_max: Duration::from_secs(10),
            connections_max: 64,
            attempts_max: 10,
            failing_max: Duration::from_mins(1),
            hedges: true,
        }
    }
}

impl NetworkSettings {
    /// The longest wait for the response to a part. It is longer than that for other responses: a busy service has
    /// received the part quickly, but responds only after its drives have written it.
    pub(crate) fn stored_max(&self) -> Duration {
        3 * self.stall_max
    }
}

/// The settings, the trusted certificates, and the origins in use.
pub struct Network {
    settings: NetworkSettings,
    tls: OnceLock<Tls>,
    origins: Lock<BTreeMap<Site, Weak<Origin>>>,
    waits: Waits,
}

impl Network {
    /// A network with these settings.
    pub fn new(settings: NetworkSettings) -> Arc<Self> {
        Arc::new(Self {
            settings,
            tls: OnceLock::new(),
            origins: Lock::default(),
            waits: Waits::default(),
        })
    }

    /// Its settings.
    pub fn settings(&self) -> &NetworkSettings {
        &self.settings
    }

    /// Shows the waits before retries.
    pub fn waits(&self) -> &Waits {
        &self.waits
    }

    /// The origin of a site. All callers share one origin per site, and so its pace.
    pub fn origin(self: &Arc<Self>, site: &Site) -> Result<Arc<Origin>> {
        let mut origins = self.origins.lock();
        if let Some(origin) = origins.get(site).and_then(Weak::upgrade) {
            return Ok(origin);
        }
        let origin = Arc::new(Origin::new(self, site.clone())?);
        origins.retain(|_, origin| origin.strong_count() > 0);
        origins.insert(site.clone(), Arc::downgrade(&origin));
        Ok(origin)
    }

    /// The trusted certificates, if they were loaded already.
    pub(crate) fn known_tls(&self) -> Option<&Tls> {
        self.tls.get()
    }

    /// The trusted certificates, loaded on first use.
    pub(crate) fn tls(&self) -> Result<&Tls> {
        if let Some(tls) = self.tls.get() {
            return Ok(tls);
        }
        let tls = Tls::new(&self.settings.roots)?;
        Ok(self.tls.get_or_init(|| tls))
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}
