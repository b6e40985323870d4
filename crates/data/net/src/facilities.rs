//! What all connections of a network share: its settings, its trusted certificates, and the waits that were shown.

use std::{fmt, sync::OnceLock};

use straightway_core::Result;

use crate::{roots::Tls, settings::NetworkSettings, waits::Waits};

/// The shared parts of a network.
pub(crate) struct Facilities {
    settings: NetworkSettings,
    tls: OnceLock<Tls>,
    waits: Waits,
}

impl Facilities {
    pub(crate) fn new(settings: NetworkSettings) -> Self {
        Self {
            settings,
            tls: OnceLock::new(),
            waits: Waits::default(),
        }
    }

    pub(crate) fn settings(&self) -> &NetworkSettings {
        &self.settings
    }

    /// Shows the waits before retries.
    pub(crate) fn waits(&self) -> &Waits {
        &self.waits
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

impl fmt::Debug for Facilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}
