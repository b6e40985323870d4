//! Proxies, and the hosts that are reached without one.
//!
//! A proxy is always used as a tunnel (`CONNECT`), for `http:` too. So the data path is the same with and without one,
//! and with TLS a proxy sees no request.

use std::{borrow::Cow, fmt, net::IpAddr};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use percent_encoding::percent_decode_str;
use straightway_core::{Error, ErrorKind, Result};

use crate::site::Site;

/// The proxies, by scheme, and their exceptions.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    /// The proxy for `http:`.
    pub http: Option<ProxyUrl>,
    /// The proxy for `https:`.
    pub https: Option<ProxyUrl>,
    /// The hosts that are reached without a proxy.
    pub except: NoProxy,
}

impl Proxies {
    /// Reads the usual variables: `http_proxy`, `https_proxy`, `all_proxy` and `no_proxy`, in lower or upper case.
    /// `variable` looks one up. With `no_proxy=*` the proxies are not read.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let value = |name: &str| {
            let found = variable(name).or_else(|| variable(&name.to_ascii_uppercase()));
            found.filter(|value| !value.is_empty())
        };
        let proxy = |name: &str| {
            let found = value(name).or_else(|| value("all_proxy"));
            let parsed = found.map(|url| ProxyUrl::parse(&url)).transpose();
            let hint = format!("{FORM}: check {name} and all_proxy, or set no_proxy");
            parsed.map_err(|error| error.with_hint(hint))
        };
        let except = NoProxy::parse(&value("no_proxy").unwrap_or_default());
        if except.0.contains(&Entry::All) {
            return Ok(Self {
                except,
                ..Self::default()
            });
        }
        Ok(Self {
            http: proxy("http_proxy")?,
            https: proxy("https_proxy")?,
            except,
        })
    }

    /// The proxy for a site.
    pub(crate) fn of(&self, site: &Site) -> Option<&ProxyUrl> {
        let proxy = if site.is_tls { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !self.except.has(site))
    }
}

/// The form of a proxy, for hints.
const FORM: &str = "a proxy is http://[USER:PASSWORD@]HOST[:PORT]";

/// A proxy. Its password is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct ProxyUrl {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// `user:password`, percent-decoded.
    pub(crate) credentials: Option<String>,
}

impl ProxyUrl {
    /// Parses `[http://][USER:PASSWORD@]HOST[:PORT]`.
    pub fn parse(url: &str) -> Result<Self> {
        // The URL may hold a password, so no error repeats it.
        let refuse = |why: &str| Error::new(ErrorKind::Invalid, "use", "the proxy", why).with_hint(FORM);
        let rest = match url.split_once("://") {
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some(_) => return Err(refuse("only HTTP proxies are supported")),
            None => url,
        };
        let rest = rest.trim_end_matches('/');
        let (credentials, authority) = match rest.rsplit_once('@') {
            Some((credentials, authority)) => (Some(credentials), authority),
            None => (None, rest),
        };
        let authority: http::uri::Authority = authority
            .parse()
            .map_err(|_| refuse("its host or port cannot be read"))?;
        let decoded = credentials
            .map(|text| percent_decode_str(text).decode_utf8())
            .transpose();
        let credentials = decoded.map_err(|_| refuse("its user or password is not UTF-8"))?;
        Ok(Self {
            host: authority.host().to_owned(),
            port: authority.port_u16().unwrap_or(8080),
            credentials: credentials.map(Cow::into_owned),
        })
    }

    /// The request that opens a tunnel to a site.
    pub(crate) fn connect_head(&self, site: &Site) -> Vec<u8> {
        let target = format!("{}:{}", site.host, site.port);
        let mut head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some(credentials) = &self.credentials {
            let encoded = BASE64_STANDARD.encode(credentials);
            head.push_str("Proxy-Authorization: Basic ");
            head.push_str(&encoded);
            head.push_str("\r\n");
        }
        head.push_str("\r\n");
        head.into_bytes()
    }
}

impl fmt::Debug for ProxyUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

/// Hosts that are reached without a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NoProxy(Vec<Entry>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    /// Every host.
    All,
    /// A domain and its subdomains, with a port if only that one is excepted.
    Domain(String, Option<u16>),
    /// The addresses that share this many leading bits with this one.
    Network(IpAddr, u32),
}

impl NoProxy {
    /// Parses a comma-separated list: `*`, hosts, domains (`example.com` and `.example.com` both include subdomains),
    /// addresses and networks (`10.0.0.0/8`). A port may follow a host. Malformed entries are ignored.
    pub fn parse(list: &str) -> Self {
        let entry = |text: &str| -> Option<Entry> {
            let text = text.trim().to_ascii_lowercase();
            if text == "*" {
                return Some(Entry::All);
            }
            if let Some((address, bits)) = text.split_once('/') {
                return Some(Entry::Network(address.parse().ok()?, bits.parse().ok()?));
            }
            if let Ok(address) = text.trim_matches(['[', ']']).parse() {
                return Some(Entry::Network(address, 128));
            }
            let (host, port) = match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port.parse().ok()?)),
                None => (&*text, None),
            };
            let domain = host.trim_start_matches('*').trim_matches('.');
            (!domain.is_empty()).then(|| Entry::Domain(domain.to_owned(), port))
        };
        Self(list.split(',').filter_map(entry).collect())
    }

    fn has(&self, site: &Site) -> bool {
        let host = site.host.to_ascii_lowercase();
        let address: Option<IpAddr> = host.trim_matches(['[', ']']).parse().ok();
        self.0.iter().any(|entry| match entry {
            Entry::All => true,
            Entry::Domain(domain, port) => {
                let below = host.strip_suffix(domain);
                port.is_none_or(|port| port == site.port)
                    && below.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            Entry::Network(network, bits) => address.is_some_and(|address| shares_bits(*network, address, *bits)),
        })
    }
}

/// Whether two addresses of the same family share their first `bits`.
fn shares_bits(one: IpAddr, other: IpAddr, bits: u32) -> bool {
    let differ = match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => return false,
    };
    differ >= bits.min(if one.is_ipv4() { 32 } else { 128 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(url: &str) -> Site {
        Site::of(&url.parse().unwrap()).unwrap()
    }

    #[test]
    fn the_usual_variables_choose_the_proxy() {
        let variables = |name: &str| match name {
            "HTTPS_PROXY" => Some("http://u%41:p%40w@proxy.example:3128/".to_owned()),
            "no_proxy" => Some("localhost, .corp.example,10.0.0.0/8,[::1],svc:8443".to_owned()),
            _ => None,
        };
        let proxies = Proxies::from_variables(variables).unwrap();
        let proxy = proxies.of(&site("https://s3.example/x")).unwrap();
        assert_eq!((proxy.host.as_str(), proxy.port), ("proxy.example", 3128));
        assert_eq!(proxy.credentials.as_deref(), Some("uA:p@w"));
        for without in [
            "http://s3.example/",
            "https://localhost:9000/",
            "https://a.corp.example/",
            "https://corp.example/",
            "https://10.1.2.3/",
            "https://[::1]:9/",
            "https://svc:8443/",
        ] {
            assert_eq!(proxies.of(&site(without)), None, "{without}");
        }
        for with in [
            "https://xcorp.example/",
            "https://11.1.2.3/",
            "https://svc/",
            "https://[::2]/",
        ] {
            assert!(proxies.of(&site(with)).is_some(), "{with}");
        }
    }

    #[test]
    fn an_unusable_proxy_is_an_error_unless_no_host_needs_one() {
        let read = |exceptions: &'static str| {
            Proxies::from_variables(move |name| match name {
                "ALL_PROXY" => Some("socks5h://127.0.0.1:1080".to_owned()),
                "no_proxy" => Some(exceptions.to_owned()),
                _ => None,
            })
        };
        let error = read("localhost").unwrap_err();
        assert!(error.hint().is_some_and(|hint| hint.contains("all_proxy")));
        let proxies = read("localhost, *").unwrap();
        assert_eq!(proxies.of(&site("https://s3.example/")), None);
    }

    #[test]
    fn neither_debug_nor_an_error_shows_the_password_of_a_proxy() {
        let proxy = ProxyUrl::parse("http://user:secret@host:1").unwrap();
        assert!(!format!("{proxy:?}").contains("secret"));
        for url in [
            "socks5://user:secret@host:1",
            "http://user:secret@ho st",
            "http://%ff:secret@h",
        ] {
            let error = ProxyUrl::parse(url).unwrap_err();
            assert!(!format!("{error:?}").contains("secret"));
        }
    }

    #[test]
    fn a_tunnel_request_carries_the_credentials() {
        let proxy = ProxyUrl::parse("user:pw@host:1").unwrap();
        let head = proxy.connect_head(&site("https://s3.example/"));
        let head = String::from_utf8(head).unwrap();
        assert_eq!(
            head,
            "CONNECT s3.example:443 HTTP/1.1\r\nHost: s3.example:443\r\nProxy-Authorization: Basic dXNlcjpwdw==\r\n\r\n"
        );
    }
}
