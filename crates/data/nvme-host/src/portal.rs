//! The address of a target: a host and a port.

use std::{fmt, net::SocketAddr, time::Duration};

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::IO_PORT;
use straightway_sys::lookup::look_up_within;

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

    /// Resolves the host name. Fails if the name server does not answer within `wait_max`.
    pub(crate) fn addresses(&self, wait_max: Duration) -> Result<Vec<SocketAddr>> {
        let mut addresses = look_up_within(&self.host, self.port, wait_max)?;
        addresses.truncate(ADDRESSES_MAX);
        Ok(addresses)
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
}
