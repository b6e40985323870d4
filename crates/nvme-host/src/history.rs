//! The namespaces that the controllers of one path confirmed.
//!
//! A verification result ends with its controller, but two facts must outlive it. A transfer that used a path is not
//! reported as good if the path later shows another version. And a writable file has another version after its target
//! was restarted, because writes change its modification time: only an address that confirmed the namespace before may
//! show one.

use std::{
    net::SocketAddr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use crate::verify::Fingerprint;

/// The maximum number of namespaces that are remembered. Beyond it, the oldest is forgotten.
const RECORDS_MAX: usize = 4096;

/// The namespaces that the controllers of one path confirmed.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<Vec<Record>>);

#[derive(Debug)]
struct Record {
    /// The address of the controller. The name of a host may have several.
    address: SocketAddr,
    print: Fingerprint,
    /// Whether the address later showed another namespace or version.
    has_changed: bool,
}

impl History {
    fn lock(&self) -> MutexGuard<'_, Vec<Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that an address confirmed a namespace. It may then be used for I/O.
    pub(crate) fn confirm(&self, address: SocketAddr, print: &Fingerprint) {
        let mut records = self.lock();
        let is_it = |record: &Record| record.address == address && record.print == *print;
        if records.iter().any(is_it) {
            return;
        }
        if records.len() >= RECORDS_MAX {
            records.remove(0);
        }
        records.push(Record {
            address,
            print: print.clone(),
            has_changed: false,
        });
    }

    /// Records that an address shows another namespace or version. This matters only if it was used before.
    pub(crate) fn note_change(&self, address: SocketAddr, print: &Fingerprint) {
        for record in self.lock().iter_mut() {
            if record.address == address && record.print == *print {
                record.has_changed = true;
            }
        }
    }

    /// Whether an address confirmed a namespace and showed no other since.
    pub(crate) fn is_confirmed(&self, address: SocketAddr, print: &Fingerprint) -> bool {
        let records = self.lock();
        let mut own = records.iter().filter(|record| record.address == address);
        own.any(|record| record.print == *print && !record.has_changed)
    }

    /// An address that confirmed a namespace and later showed another one.
    pub(crate) fn changed(&self, print: &Fingerprint) -> Option<SocketAddr> {
        let records = self.lock();
        let mut own = records.iter().filter(|record| record.print == *print);
        let changed = own.find(|record| record.has_changed)?;
        Some(changed.address)
    }
}

#[cfg(test)]
mod tests {
    use straightway_nvme::identify::NamespaceId;

    use super::*;

    #[test]
    fn a_change_is_remembered_where_the_namespace_was_confirmed() {
        let address = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let print = Fingerprint {
            nsid: 1,
            bytes: 4096,
            block_shift: 9,
            id: NamespaceId::default(),
            entry: None,
            address: address(1),
        };
        let history = History::default();
        history.note_change(address(1), &print);
        assert_eq!(history.changed(&print), None, "it was never used");
        history.confirm(address(1), &print);
        assert!(history.is_confirmed(address(1), &print));
        assert!(!history.is_confirmed(address(2), &print));
        history.note_change(address(1), &print);
        assert!(!history.is_confirmed(address(1), &print));
        history.confirm(address(1), &print);
        assert_eq!(history.changed(&print), Some(address(1)));
    }
}
