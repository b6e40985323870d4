//! The addresses that confirmed one opening of a namespace.
//!
//! A verification result ends with its controller, but two facts must outlive it. A transfer that used an address is
//! not reported as good if the address later shows another version. And a writable file has another version after its
//! target was restarted, because writes change its modification time: only an address that confirmed the namespace
//! before may show one. A further association with an address must show exactly the version that the path's controller
//! showed: it may be with another target behind the same address.
//!
//! A machine that is restarted loses writes that were not flushed, and a flush makes only the writes of its own machine
//! durable: two machines may serve one file of a shared file system, even behind one address. The index of a Straightway
//! target has a number for the boot of its machine. While writes are not flushed, all commands go to the machine that has
//! them.
//!
//! Each opening has its own history: a mismatch fails the transfers of the handles that were open, and no later ones.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, MutexGuard, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use straightway_core::Lock;

use super::verdicts::Verdicts;
use crate::session::{association::Association, controller::Controller};

/// The addresses that confirmed one opening of a namespace.
#[derive(Debug)]
pub(crate) struct History {
    /// The number of the opening, which no other in this process has.
    pub(crate) opening: u64,
    /// The addresses of controllers.
    addresses: Lock<BTreeMap<SocketAddr, Confirmed>>,
    /// The verification results of connected controllers.
    verdicts: Lock<Verdicts>,
    /// Further associations that may have been used.
    further: Lock<Vec<Weak<Controller>>>,
    /// Increases at the begin and at the end of each write.
    writes: AtomicU64,
    /// `writes` before the last flush that succeeded.
    flushed: AtomicU64,
    /// The boot of the machine that has the last writes; 0 if it is not known.
    writer_boot: Lock<u64>,
}

/// An address that confirmed the namespace.
#[derive(Debug, Default)]
struct Confirmed {
    /// Whether it later showed another namespace or version.
    has_changed: bool,
    /// The version that the path's controller showed last, if the namespace has one.
    version: Option<u64>,
}

impl History {
    pub(crate) fn new() -> Self {
        static OPENINGS: AtomicU64 = AtomicU64::new(1);
        Self {
            opening: OPENINGS.fetch_add(1, Ordering::Relaxed),
            addresses: Lock::default(),
            verdicts: Lock::default(),
            further: Lock::default(),
            writes: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            writer_boot: Lock::default(),
        }
    }

    /// The verification results.
    pub(crate) fn verdicts(&self) -> MutexGuard<'_, Verdicts> {
        self.verdicts.lock()
    }

    /// Records that a write begins on an association. Returns false, and records nothing, if another machine has writes
    /// that are not flushed: the write must not be sent.
    pub(crate) fn begin_write_on(&self, association: &Arc<Association>) -> bool {
        let boot = self.verdicts().boot(association);
        self.begin_write(boot)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SocketAddr, Confirmed>> {
        self.addresses.lock()
    }

    /// Records that an address confirmed the namespace. It may then be used for I/O. `version` is the one that the
    /// path's controller showed; `None` for a further association.
    pub(crate) fn confirm(&self, address: SocketAddr, version: Option<u64>) {
        let mut addresses = self.lock();
        let confirmed = addresses.entry(address).or_default();
        confirmed.version = version.or(confirmed.version);
    }

    /// Whether a writable file may have another version at an address than when it was opened: the address confirmed it
    /// before. A further association must show the version of the path's controller.
    pub(crate) fn permits(&self, address: SocketAddr, version: u64, is_further: bool) -> bool {
        let addresses = self.lock();
        let known = addresses.get(&address).filter(|known| !known.has_changed);
        known.is_some_and(|known| !is_further || known.version == Some(version))
    }

    /// Records that an address shows another namespace or version. This matters only if it was used before.
    pub(crate) fn note_change(&self, address: SocketAddr) {
        if let Some(confirmed) = self.lock().get_mut(&address) {
            confirmed.has_changed = true;
        }
    }

    /// Whether an address confirmed the namespace and showed no other since.
    pub(crate) fn is_confirmed(&self, address: SocketAddr) -> bool {
        let addresses = self.lock();
        let known = addresses.get(&address);
        known.is_some_and(|known| !known.has_changed)
    }

    /// An address that confirmed the namespace and later showed another one.
    pub(crate) fn changed(&self) -> Option<SocketAddr> {
        let addresses = self.lock();
        let changed = addresses.iter().find(|(_, known)| known.has_changed);
        changed.map(|(address, _)| *address)
    }

    /// The same on the machine with this boot; 0 if that is not known.
    fn begin_write(&self, boot: u64) -> bool {
        let mut writer_boot = self.lock_writer_boot();
        if !self.is_permitted(boot, *writer_boot) {
            return false;
        }
        if boot > 0 || self.is_flushed() {
            *writer_boot = boot;
        }
        self.writes.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Records the end of a write.
    pub(crate) fn end_write(&self) {
        self.writes.fetch_add(1, Ordering::AcqRel);
    }

    /// A mark for [`History::note_flush`], before the flush.
    pub(crate) fn write_mark(&self) -> u64 {
        self.writes.load(Ordering::Acquire)
    }

    /// Records that all writes before a mark are durable.
    pub(crate) fn note_flush(&self, mark: u64) {
        self.flushed.fetch_max(mark, Ordering::AcqRel);
    }

    /// Whether commands may be sent to the machine with this boot; 0 if that is not known. Not if another machine has
    /// writes that are not flushed.
    pub(crate) fn permits_boot(&self, boot: u64) -> bool {
        self.is_permitted(boot, *self.lock_writer_boot())
    }

    fn is_permitted(&self, boot: u64, writer_boot: u64) -> bool {
        boot == 0 || writer_boot == 0 || boot == writer_boot || self.is_flushed()
    }

    fn is_flushed(&self) -> bool {
        self.write_mark() <= self.flushed.load(Ordering::Acquire)
    }

    fn lock_writer_boot(&self) -> MutexGuard<'_, u64> {
        self.writer_boot.lock()
    }

    /// Records a further association that may be used.
    pub(crate) fn note_further(&self, controller: &Arc<Controller>) {
        let mut further = self.further.lock();
        // Each reconnect brings new ones.
        further.retain(|known| known.strong_count() > 0);
        if !further.iter().any(|known| known.as_ptr() == Arc::as_ptr(controller)) {
            further.push(Arc::downgrade(controller));
        }
    }

    /// The further associations that are connected.
    pub(crate) fn further(&self) -> Vec<Arc<Controller>> {
        let further = self.further.lock();
        let connected = further.iter().filter_map(Weak::upgrade);
        connected.filter(|known| known.ended().is_none()).collect()
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
        history.confirm(address(1), None);
        assert!(history.is_confirmed(address(1)));
        assert!(!history.is_confirmed(address(2)));
        history.note_change(address(1));
        assert!(!history.is_confirmed(address(1)));
        history.confirm(address(1), None);
        assert_eq!(history.changed(), Some(address(1)));
        let later = History::new();
        assert_ne!(later.opening, history.opening);
        later.confirm(address(1), None);
        assert!(later.is_confirmed(address(1)));
    }

    #[test]
    fn a_further_association_must_show_the_version_of_the_path() {
        let address = |port: u16| SocketAddr::from(([192, 0, 2, 1], port));
        let history = History::new();
        assert!(!history.permits(address(1), 7, false), "it was never used");
        history.confirm(address(1), Some(7));
        for (version, is_further, is_permitted) in [(7, true, true), (8, true, false), (8, false, true)] {
            let permits = history.permits(address(1), version, is_further);
            assert_eq!(permits, is_permitted, "{version} {is_further}");
        }
        // The path is connected again after a restart. A further association does not change its version.
        history.confirm(address(1), Some(8));
        history.confirm(address(1), None);
        assert!(history.permits(address(1), 8, true));
        assert!(!history.permits(address(2), 8, false));
        history.note_change(address(1));
        assert!(!history.permits(address(1), 8, false));
    }

    #[test]
    fn another_boot_is_refused_while_writes_are_not_flushed() {
        let history = History::new();
        assert!(
            history.permits_boot(1) && history.permits_boot(2),
            "nothing was written"
        );
        assert!(history.begin_write(1));
        assert!(history.permits_boot(1) && history.permits_boot(0));
        assert!(!history.permits_boot(2) && !history.begin_write(2));
        history.end_write();
        let mark = history.write_mark();
        // This write begins after the flush.
        assert!(history.begin_write(1));
        history.note_flush(mark);
        assert!(!history.permits_boot(2));
        history.end_write();
        history.note_flush(history.write_mark());
        assert!(history.permits_boot(2) && history.begin_write(2));
        assert!(!history.permits_boot(1), "the other machine has the last writes");
        // A target without an index is not restricted.
        assert!(history.begin_write(0));
        assert!(!history.permits_boot(1));
    }
}
