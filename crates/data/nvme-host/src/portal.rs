//! The address of a target: a host and a port.

use std::{
    fmt,
    net::{SocketAddr, ToSocketAddrs},
    sync::mpsc,
    time::Duration,
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::IO_PORT;

/// The maximum number of addresses of one name that are used.
const ADDRESSES_MAX: usize = 16;

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Portal {
    host: String,
    port: u16,
}

impl Portal {
    /// Parses `HOST[:PORT]`. An IPv6 address needs brackets. The default port is 4420.
    pub fn parse(text: &str) -> Result<Self> {
        let refuse = || {
            let why = "it is not HOST[:PORT]";
            // It may have a password.
            let shown = text
                .rfind('@')
                .map_or(text.to_owned(), |at| format!("…{}", &text[at..]));
            Error::new(ErrorKind::Invalid, "use address", shown, why)
        };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(refuse)?;
                (host, port.strip_prefix(':'))
            }
            None => match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port {
            Some(port) => port.parse().map_err(|_| refuse())?,
            None => IO_PORT,
        };
        if host.is_empty() || port == 0 || host.contains(|c: char| c == '@' || c.is_whitespace()) {
            return Err(refuse());
        }
        Ok(Self::new(host, port))
    }

    /// A host and a port.
    pub fn new(host: &str, port: u16) -> Self {
        Self {
            host: host.to_owned(),
            port,
        }
    }

    /// Resolves the host name. Fails if the name server does not answer within `wait_max`. The resolving thread is then
    /// detached and ends with the answer.
    pub(crate) fn addresses(&self, wait_max: Duration) -> Result<Vec<SocketAddr>> {
        let failed = |why: String| {
            let target = format!("the host {}", self.host);
            Error::new(ErrorKind::Transient, "find", target, why)
                .with_hint("check the host's name, and the name servers of this machine")
        };
        if let Ok(address) = self.host.parse() {
            return Ok(vec![SocketAddr::new(address, self.port)]);
        }
        let (answer, answered) = mpsc::channel();
        let (host, port) = (self.host.clone(), self.port);
        let ask = move || {
            let found = (host.as_str(), port).to_socket_addrs();
            let _ = answer.send(found.map(|all| all.take(ADDRESSES_MAX).collect::<Vec<_>>()));
        };
        let thread = std::thread::Builder::new().name("straightway-dns".to_owned());
        let started = thread.spawn(ask);
        started.map_err(|error| failed(error.to_string()))?;
        match answered.recv_timeout(wait_max) {
            Ok(Ok(addresses)) if !addresses.is_empty() => Ok(addresses),
            Ok(Ok(_)) => Err(failed("it has no address".to_owned())),
            Ok(Err(error)) => Err(failed(error.to_string())),
            Err(_) => Err(failed(format!("no answer within {wait_max:?}"))),
        }
    }
}

impl fmt::Display for Portal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') {
            write!(f, "[{host}]:{port}")
        } else {
            write!(f, "{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portals_are_parsed_and_displayed() {
        for (text, shown) in [
            ("10.0.0.1", "10.0.0.1:4420"),
            ("node:8009", "node:8009"),
            ("[fe80::1]", "[fe80::1]:4420"),
            ("[fe80::1]:1", "[fe80::1]:1"),
        ] {
            assert_eq!(Portal::parse(text).unwrap().to_string(), shown);
        }
        for text in ["", ":1", "a:", "a:0", "a:70000", "[::1", "a b"] {
            assert!(Portal::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_error_shows_no_password() {
        for text in ["user:hunter2@node", "user:hunter2@node:4420", "user:hunter2@[::1]:1"] {
            let error = Portal::parse(text).unwrap_err().to_string();
            assert!(error.contains("…@") && !error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn an_unresolvable_name_fails_quickly() {
        let portal = Portal::new("no-such-host.invalid", 1);
        let error = portal.addresses(Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
    }
}
