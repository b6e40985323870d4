//! A server: its site, how to connect to it, and its state that all lanes share.

use std::{
    fmt,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};

use rustls_pki_types::ServerName;
use straightway_core::{Error, ErrorKind, Result};

use crate::{
    backoff::Backoff, facilities::Facilities, lookup::Lookup, pace::Pace, proxy::ProxyUrl, settings::NetworkSettings,
    site::Site, waits::Retry,
};

/// A server that lanes connect to.
pub struct Origin {
    site: Site,
    facilities: Arc<Facilities>,
    proxy: Option<ProxyUrl>,
    /// The name that the server's certificate must have; `None` without TLS.
    server_name: Option<ServerName<'static>>,
    /// The addresses of the server, or of its proxy.
    lookup: Lookup,
    pace: Pace,
}

impl Origin {
    pub(crate) fn new(facilities: &Arc<Facilities>, site: Site) -> Result<Self> {
        let proxy = facilities.settings().proxies.of(&site).cloned();
        let server_name = if site.is_tls {
            // Fails here, before any request, if the trusted certificates cannot be loaded.
            facilities.tls()?;
            let name = ServerName::try_from(site.bare_host().to_owned());
            let name =
                name.map_err(|_| Error::new(ErrorKind::Invalid, "connect to", &site, "it is not a valid host name"))?;
            Some(name)
        } else {
            None
        };
        let lookup = match &proxy {
            Some(proxy) => Lookup::new(proxy.host.trim_matches(['[', ']']), proxy.port),
            None => Lookup::new(site.bare_host(), site.port),
        };
        Ok(Self {
            site,
            facilities: Arc::clone(facilities),
            proxy,
            server_name,
            lookup,
            pace: Pace::default(),
        })
    }

    /// Its scheme, host and port.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// The settings of its network.
    pub fn settings(&self) -> &NetworkSettings {
        self.facilities.settings()
    }

    /// The settings and certificates of its network.
    pub(crate) fn facilities(&self) -> &Facilities {
        &self.facilities
    }

    /// The request that opens a tunnel to it, if there is a proxy.
    pub(crate) fn tunnel_head(&self) -> Option<Vec<u8>> {
        let proxy = self.proxy.as_ref()?;
        Some(proxy.connect_head(&self.site))
    }

    /// The name that its certificate must have; `None` without TLS.
    pub(crate) fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }

    /// The addresses to connect to.
    pub(crate) fn lookup(&self) -> &Lookup {
        &self.lookup
    }

    /// Its request rate limit and its observed latency.
    pub fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Waits on the caller's thread until its pace permits a request.
    pub fn wait_turn(&self) {
        while let Err(at) = self.pace.admit(Instant::now()) {
            sleep(at.saturating_duration_since(Instant::now()));
        }
    }

    /// Shows the wait before a request to it is sent again, if the wait is long. The last attempt began at `since`.
    pub(crate) fn show_wait(&self, error: &Error, since: Instant, wait: Duration, backoff: &Backoff) {
        self.facilities.waits().show(&Retry {
            server: &self.site.to_string(),
            error,
            since,
            wait,
            backoff,
        });
    }
}

impl fmt::Debug for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { site, proxy, .. } = self;
        f.debug_struct("Origin")
            .field("site", &format_args!("{site}"))
            .field("proxy", proxy)
            .finish_non_exhaustive()
    }
}
