//! Name lookups on a thread of their own. `getaddrinfo` blocks, for seconds if a name server is down.

use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    sync::mpsc,
    thread,
    time::Duration,
};

use straightway_core::{Error, ErrorKind, Result};

/// The most addresses of one name that are used.
const ADDRESSES_MAX: usize = 64;

/// Looks up the addresses of a host: at least one.
pub fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>> {
    let found = (host, port).to_socket_addrs();
    let found = found.map_err(|error| failed(host, error.to_string()))?;
    let addresses: Vec<_> = found.take(ADDRESSES_MAX).collect();
    if addresses.is_empty() {
        return Err(failed(host, "it has no address"));
    }
    Ok(addresses)
}

/// Looks up a host on a short-lived thread, which runs `done` with the result. Fails if there is no thread.
pub fn start_lookup(
    host: &str,
    port: u16,
    done: impl FnOnce(Result<Vec<SocketAddr>>) + Send + 'static,
) -> io::Result<()> {
    let thread = thread::Builder::new().name("straightway-dns".to_owned());
    let host = host.to_owned();
    thread.spawn(move || done(look_up(&host, port)))?;
    Ok(())
}

/// Looks up a host, which may be an IP address. Fails if the name server does not answer within `wait_max`. The thread
/// is then detached and ends with the answer.
pub fn look_up_within(host: &str, port: u16, wait_max: Duration) -> Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (answer, answered) = mpsc::channel();
    let started = start_lookup(host, port, move |found| {
        // The caller may have given up.
        let _ = answer.send(found);
    });
    started.map_err(|error| failed(host, error.to_string()))?;
    let timeout = |_| Err(failed(host, format!("no answer within {wait_max:?}")));
    answered.recv_timeout(wait_max).unwrap_or_else(timeout)
}

fn failed(host: &str, why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Transient, "find", format!("the host {host}"), why)
        .with_hint("check the host's name, and the name servers of this machine")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unresolvable_name_fails_quickly_and_an_address_needs_no_lookup() {
        let error = look_up_within("no-such-host.invalid", 1, Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains("no-such-host.invalid"), "{error}");
        let found = look_up_within("::1", 7, Duration::ZERO).unwrap();
        assert_eq!(found, ["[::1]:7".parse().unwrap()]);
    }
}
