//! The open connections: how many there are in all, and from each address.
//!
//! Each connection has a thread and buffers. Without a limit for each address, one machine could use all of them.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, MutexGuard},
};

use straightway_core::Lock;

/// The open connections.
#[derive(Debug)]
pub(crate) struct Connections {
    total_max: usize,
    address_max: usize,
    open: Lock<BTreeMap<IpAddr, usize>>,
}

/// The limit that refuses a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// That of all connections.
    Total(usize),
    /// That of the connections from one address.
    Address(usize),
}

/// A connection that counts until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    all: Arc<Connections>,
    address: IpAddr,
}

impl Connections {
    /// No connections yet, and at most `total_max`, of which one address has at most `address_max`.
    pub(crate) fn new(total_max: usize, address_max: usize) -> Arc<Self> {
        Arc::new(Self {
            total_max,
            address_max,
            open: Lock::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        self.open.lock()
    }

    /// Counts a connection from an address, unless a limit is reached.
    pub(crate) fn add(self: &Arc<Self>, address: IpAddr) -> Result<Counted, Limit> {
        let address = counted_as(address);
        let mut open = self.lock();
        if open.values().sum::<usize>() >= self.total_max {
            return Err(Limit::Total(self.total_max));
        }
        let own = open.entry(address).or_default();
        if *own >= self.address_max {
            return Err(Limit::Address(self.address_max));
        }
        *own += 1;
        Ok(Counted {
            all: Arc::clone(self),
            address,
        })
    }

    /// The number of connections.
    pub(crate) fn count(&self) -> usize {
        self.lock().values().sum()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut open = self.all.lock();
        if let Some(own) = open.get_mut(&self.address) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.address);
            }
        }
    }
}

/// The address under which the connections of a machine are counted. A machine may choose any address of its IPv6 network
/// (64 bits), so all of these count as one.
fn counted_as(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        address @ IpAddr::V4(_) => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_in_all_and_for_each_address() {
        let all = Connections::new(4, 2);
        let add = |address: &str| all.add(address.parse().expect("an address"));
        let [first, _second] = [add("192.0.2.1"), add("::ffff:192.0.2.1")].map(|added| added.expect("there is room"));
        assert_eq!(add("192.0.2.1").unwrap_err(), Limit::Address(2));
        let _others = [add("2001:db8::1"), add("2001:db8::ffff:2")].map(|added| added.expect("another address"));
        assert_eq!(all.count(), 4);
        assert_eq!(add("192.0.2.2").unwrap_err(), Limit::Total(4));
        drop(first);
        assert_eq!(add("2001:db8::3").unwrap_err(), Limit::Address(2), "one network");
        let last = add("2001:db8:0:1::1").expect("another network");
        drop(last);
        assert!(add("192.0.2.1").is_ok());
        assert_eq!(all.count(), 3);
    }
}
