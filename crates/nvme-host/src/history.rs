//! The addresses that confirmed one opening of a namespace.
//!
//! A verification result ends with its controller, but two facts must outlive it. A transfer that used an address is
//! not reported as good if the address later shows another version. And a writable file has another version after its
//! target was restarted, because writes change its modification time: only an address that confirmed the namespace
//! before may show one.
//!
//! Each opening has its own history: a mismatch fails the transfers of the handles that were open, and no later ones.
//! Its handles and the threads that verify it share the history. The last of them removes the verification results.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::verdicts::Verdicts;

/// The addresses that confirmed one opening of a namespace.
#[derive(Debug)]
pub(crate) struct History {
    /// The number of the opening, which no other in this process has.
    pub(crate) opening: u64,
    /// The addresses of controllers, and whether each later showed another namespace or version.
    addresses: Mutex<BTreeMap<SocketAddr, bool>>,
    /// The tables of connected controllers that may have a result for this opening.
    tables: Mutex<Vec<Weak<Verdicts>>>,
    /// The process that opened it.
    process: u32,
}

impl History {
    pub(crate) fn new() -> Arc<Self> {
        static OPENINGS: AtomicU64 = AtomicU64::new(1);
        Arc::new(Self {
            opening: OPENINGS.fetch_add(1, Ordering::Relaxed),
            addresses: Mutex::default(),
            tables: Mutex::default(),
            process: std::process::id(),
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

    /// Records that a table has a result for this opening.
    pub(crate) fn note_table(&self, table: &Arc<Verdicts>) {
        let mut tables = self.tables.lock().unwrap_or_else(PoisonError::into_inner);
        // Each reconnect brings a new table.
        tables.retain(|known| known.strong_count() > 0);
        if !tables
            .iter()
            .any(|known| known.as_ptr() == Arc::as_ptr(table))
        {
            tables.push(Arc::downgrade(table));
        }
    }
}

impl Drop for History {
    /// Removes the results for this opening.
    fn drop(&mut self) {
        let tables = self
            .tables
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // In a forked child, a table may be locked for ever: by a thread that only its parent has.
        if tables.is_empty() || self.process != std::process::id() {
            return;
        }
        for table in tables.iter().filter_map(Weak::upgrade) {
            table.remove(self.opening);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdicts::Verdict;

    #[test]
    fn a_closed_handle_removes_its_results_and_no_others() {
        let tables = [Arc::new(Verdicts::default()), Arc::new(Verdicts::default())];
        let verify = |history: &History| {
            for table in &tables {
                let changes = table.get(history.opening).unwrap_err();
                history.note_table(table);
                table.set(history.opening, Verdict::Same, changes);
            }
        };
        // Two openings of the same namespace.
        let (closed, open) = (History::new(), History::new());
        verify(&closed);
        verify(&open);
        let opening = closed.opening;
        drop(closed);
        for table in &tables {
            assert_eq!(table.get(open.opening), Ok(Verdict::Same));
            assert!(table.get(opening).is_err(), "it is still known");
        }
    }

    #[test]
    fn a_handle_that_is_closed_while_it_is_verified_leaves_no_result() {
        let table = Arc::new(Verdicts::default());
        let handle = History::new();
        let opening = handle.opening;
        let changes = table.get(opening).unwrap_err();
        handle.note_table(&table);
        // The thread that verifies it has its own reference.
        let verifying = Arc::clone(&handle);
        drop(handle);
        assert_eq!(table.get(opening), Ok(Verdict::Pending));
        table.set(opening, Verdict::Same, changes);
        drop(verifying);
        assert!(table.get(opening).is_err(), "it is still known");
    }

    #[test]
    fn tables_of_ended_controllers_are_forgotten() {
        let (history, last) = (History::new(), Arc::new(Verdicts::default()));
        for _ in 0..100 {
            history.note_table(&Arc::new(Verdicts::default()));
        }
        history.note_table(&last);
        history.note_table(&last);
        assert_eq!(history.tables.lock().unwrap().len(), 1);
    }

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
