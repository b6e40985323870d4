//! The addresses that confirmed one opening of a namespace.
//!
//! A verification result ends with its controller, but two facts must outlive it. A transfer that used an address is
//! not reported as good if the address later shows another version. And a writable file has another version after its
//! target was restarted, because writes change its modification time: only an address that confirmed the namespace
//! before may show one.
//!
//! Each opening has its own history: a mismatch fails the transfers of the handles that were open, and no later ones.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// The addresses that confirmed one opening of a namespace.
#[derive(Debug)]
pub(crate) struct History {
    /// The number of the opening, which no other in this process has.
    pub(crate) opening: u64,
    /// The addresses of controllers, and whether each later showed another namespace or version.
    addresses: Mutex<BTreeMap<SocketAddr, bool>>,
}

impl History {
    pub(crate) fn new() -> Arc<Self> {
        static OPENINGS: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            opening: OPENINGS.fetch_add(1, Ordering::Relaxed),
            addresses: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, bool>> {
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that an address confirmed the namespace. It may then be used for I/O.
    pub(crate) fn confirm(&self, address: SocketAddr) {
        self.lock().entry(address).or_insert(false);
    }

    /// Records that an address shows another namespace or version. This matters only if it was used before.
    pub(crate) fn note_change(&self, address: SocketAddr) {
        if let Some(has_changed) = self.lock().get_mut(&address) {
            *has_changed = true;
        }
    }

    /// Whether an address confirmed the namespace and showed no other since.
    pub(crate) fn is_confirmed(&self, address: SocketAddr) -> bool {
        self.lock().get(&address) == Some(&false)
    }

    /// An address that confirmed the namespace and later showed another one.
    pub(crate) fn changed(&self) -> Option<SocketAddr> {
        let addresses = self.lock();
        let changed = addresses.iter().find(|(_, has_changed)| **has_changed);
        changed.map(|(address, _)| *address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_remembered_where_the_namespace_was_confirmed_and_only_for_that_opening() {
        let address = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let history = History::new();
        history.note_change(address(1));
        assert_eq!(history.changed(), None, "it was never used");
        history.confirm(address(1));
        assert!(history.is_confirmed(address(1)));
        assert!(!history.is_confirmed(address(2)));
        history.note_change(address(1));
        assert!(!history.is_confirmed(address(1)));
        history.confirm(address(1));
        assert_eq!(history.changed(), Some(address(1)));
        let later = History::new();
        assert_ne!(later.opening, history.opening);
        later.confirm(address(1));
        assert!(later.is_confirmed(address(1)));
    }
}
