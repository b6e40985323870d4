//! A server: where it is, how to connect to it, and what all lanes know of it together.

use std::{fmt, sync::Arc};

use rustls_pki_types::ServerName;
use straightway_core::{Error, Kind, Reason, Result, Survey};

use crate::{lookup::Lookup, network::Network, pace::Pace, proxy::ProxyUrl};

/// A scheme, a host and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// Whether connections are encrypted.
    pub is_tls: bool,
    /// The host: a name or an address, the latter in brackets where it is IPv6.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Site {
    /// What the planner should know of its objects.
    pub fn survey(&self) -> Survey {
        Survey::socket(if self.is_tls {
            Reason::Tls
        } else {
            Reason::Tcp
        })
    }

    /// The site of an absolute `http:` or `https:` URL.
    pub fn of(url: &http::Uri) -> Result<Self> {
        let refuse = |why: &str| {
            let host = url.host().unwrap_or_default();
            Error::new(Kind::Invalid, "connect to", format!("{host:?}"), why)
        };
        let is_tls = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(refuse("a URL begins with https:// or http://")),
        };
        let authority = url.authority().ok_or_else(|| refuse("there is no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("credentials are not taken from a URL"));
        }
        if authority.host().is_empty() {
            return Err(refuse("there is no host"));
        }
        let default = if is_tls { 443 } else { 80 };
        Ok(Self {
            is_tls,
            host: authority.host().to_ascii_lowercase(),
            port: authority.port_u16().unwrap_or(default),
        })
    }

    /// The site of an authority, `HOST[:PORT]`.
    pub fn new(is_tls: bool, authority: &str) -> Result<Self> {
        let scheme = if is_tls { "https" } else { "http" };
        let url = format!("{scheme}://{authority}/").parse();
        let url = url.map_err(|_| {
            let why = "a site is HOST[:PORT]";
            Error::new(Kind::Invalid, "connect to", format!("{authority:?}"), why)
        })?;
        Self::of(&url)
    }

    /// The host as a `Host` header has it: with its port, unless that is the scheme's own.
    pub fn authority(&self) -> String {
        let default = if self.is_tls { 443 } else { 80 };
        if self.port == default {
            self.host.clone()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// The scheme.
    pub fn scheme(&self) -> &'static str {
        if self.is_tls { "https" } else { "http" }
    }

    /// The host without the brackets of an IPv6 address.
    pub(crate) fn bare_host(&self) -> &str {
        self.host.trim_matches(['[', ']'])
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", self.scheme(), self.authority())
    }
}

/// A server that lanes connect to.
pub struct Origin {
    site: Site,
    network: Arc<Network>,
    proxy: Option<ProxyUrl>,
    /// What the server's certificate must be for; `None` without TLS.
    server_name: Option<ServerName<'static>>,
    /// The addresses of the server, or of its proxy.
    lookup: Lookup,
    pace: Pace,
}

impl Origin {
    pub(crate) fn new(network: &Arc<Network>, site: Site) -> Result<Self> {
        let proxy = network.settings().proxies.of(&site).cloned();
        let server_name = if site.is_tls {
            // Trusted certificates that cannot be read are an error here, before anything is asked for.
            network.tls()?;
            let name = ServerName::try_from(site.bare_host().to_owned());
            let name = name.map_err(|_| {
                Error::new(
                    Kind::Invalid,
                    "connect to",
                    &site,
                    "that is no name of a host",
                )
            })?;
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
            network: Arc::clone(network),
            proxy,
            server_name,
            lookup,
            pace: Pace::default(),
        })
    }

    /// Where it is.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// The network that it is in.
    pub fn network(&self) -> &Arc<Network> {
        &self.network
    }

    /// The request that opens a tunnel to it, where there is a proxy.
    pub(crate) fn tunnel_head(&self) -> Option<Vec<u8>> {
        let proxy = self.proxy.as_ref()?;
        Some(proxy.connect_head(&self.site))
    }

    /// What its certificate must be for, where it has TLS.
    pub(crate) fn server_name(&self) -> Option<&ServerName<'static>> {
        self.server_name.as_ref()
    }

    /// The addresses to connect to.
    pub(crate) fn lookup(&self) -> &Lookup {
        &self.lookup
    }

    /// How fast it may be asked, and how fast it answers.
    pub fn pace(&self) -> &Pace {
        &self.pace
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_read_from_a_url_and_named_as_a_host_header_has_it() {
        for (url, authority, shown) in [
            ("https://S3.Example/x?y", "s3.example", "https://s3.example"),
            ("http://h:8333/", "h:8333", "http://h:8333"),
            ("https://[::1]:443/", "[::1]", "https://[::1]"),
        ] {
            let site = Site::of(&url.parse().unwrap()).unwrap();
            assert_eq!(site.authority(), authority);
            assert_eq!(site.to_string(), shown);
        }
    }

    #[test]
    fn a_url_with_credentials_or_without_a_host_is_refused_and_not_repeated() {
        for url in ["https://user:secret@host/", "/path", "ftp://host/"] {
            let error = Site::of(&url.parse().unwrap()).unwrap_err();
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }
}
