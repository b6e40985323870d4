//! A network: the settings that all its connections share, and the servers in use.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, Weak},
};

use straightway_core::{Lock, Result};

use crate::{facilities::Facilities, origin::Origin, settings::NetworkSettings, site::Site};

/// The settings, the trusted certificates, and the origins in use.
pub struct Network {
    facilities: Arc<Facilities>,
    origins: Lock<BTreeMap<Site, Weak<Origin>>>,
}

impl Network {
    /// A network with these settings.
    pub fn new(settings: NetworkSettings) -> Arc<Self> {
        Arc::new(Self {
            facilities: Arc::new(Facilities::new(settings)),
            origins: Lock::default(),
        })
    }

    /// Its settings.
    pub fn settings(&self) -> &NetworkSettings {
        self.facilities.settings()
    }

    /// Its settings and certificates.
    pub(crate) fn facilities(&self) -> &Facilities {
        &self.facilities
    }

    /// The origin of a site. All callers share one origin per site, and so its pace.
    pub fn origin(&self, site: &Site) -> Result<Arc<Origin>> {
        let mut origins = self.origins.lock();
        if let Some(origin) = origins.get(site).and_then(Weak::upgrade) {
            return Ok(origin);
        }
        let origin = Arc::new(Origin::new(&self.facilities, site.clone())?);
        origins.retain(|_, origin| origin.strong_count() > 0);
        origins.insert(site.clone(), Arc::downgrade(&origin));
        Ok(origin)
    }
}

impl fmt::Debug for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.facilities.fmt(f)
    }
}
