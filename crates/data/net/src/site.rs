//! The address of a server: a scheme, a host and a port.

use std::fmt;

use straightway_core::{Error, ErrorKind, Reason, Result, Survey};

/// A scheme, a host and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Site {
    /// Whether connections are encrypted.
    pub is_tls: bool,
    /// The host: a name or an address. An IPv6 address is in brackets.
    pub host: String,
    /// The port.
    pub port: u16,
}

impl Site {
    /// The facts about its objects that the transfer planner needs.
    pub fn survey(&self) -> Survey {
        Survey::socket(if self.is_tls { Reason::Tls } else { Reason::Tcp })
    }

    /// The site of an absolute `http:` or `https:` URL.
    pub fn of(url: &http::Uri) -> Result<Self> {
        let refuse = |why: &str| {
            let host = url.host().unwrap_or_default();
            Error::new(ErrorKind::Invalid, "connect to", format!("{host:?}"), why)
        };
        let is_tls = match url.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(refuse("a URL begins with https:// or http://")),
        };
        let authority = url.authority().ok_or_else(|| refuse("there is no host"))?;
        if authority.as_str().contains('@') {
            return Err(refuse("credentials are not accepted in a URL"));
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
            Error::new(ErrorKind::Invalid, "connect to", format!("{authority:?}"), why)
        })?;
        Self::of(&url)
    }

    /// The host in the form of a `Host` header: with its port, unless that is the scheme's default.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_is_parsed_from_a_url_and_omits_the_default_port() {
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
