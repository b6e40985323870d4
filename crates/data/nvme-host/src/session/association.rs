//! The state of an association that its controller, its control thread and its queues share.

use std::{
    collections::BTreeMap,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use straightway_core::Lock;
use straightway_nvme::log::{AnaLog, AnaState};

/// The state of an association.
#[derive(Debug, Default)]
pub(crate) struct Association {
    ended: OnceLock<String>,
    /// Increases with use. An association is idle if it does not change for a while.
    activity: AtomicU64,
    /// Increases when the controller reports that namespaces changed.
    namespace_changes: AtomicU64,
    ana: Lock<Option<AnaLog>>,
    wants_ana: AtomicBool,
    /// The times since which I/O has waited for inaccessible namespaces.
    waits: Lock<BTreeMap<u32, Instant>>,
}

impl Association {
    /// The cause of its end; `None` while it is usable.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.get().map(String::as_str)
    }

    /// Ends the association. Only the first cause is kept.
    pub(crate) fn end(&self, why: impl Into<String>) {
        let _ = self.ended.set(why.into());
    }

    /// Marks it as in use.
    pub(crate) fn touch(&self) {
        self.activity.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn activity(&self) -> u64 {
        self.activity.load(Ordering::Relaxed)
    }

    /// The number of reported changes of namespaces.
    pub(crate) fn namespace_changes(&self) -> u64 {
        self.namespace_changes.load(Ordering::Acquire)
    }

    pub(crate) fn count_namespace_change(&self) {
        self.namespace_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// The ANA state of a namespace; optimized if the controller does not report ANA states.
    pub(crate) fn state_of(&self, nsid: u32) -> AnaState {
        let ana = self.ana.lock();
        ana.as_ref().map_or(AnaState::Optimized, |log| {
            log.state_of(nsid).unwrap_or(AnaState::Inaccessible)
        })
    }

    /// Requests that the control thread reads the ANA log again.
    pub(crate) fn request_ana_refresh(&self) {
        self.wants_ana.store(true, Ordering::Relaxed);
    }

    pub(crate) fn take_ana_request(&self) -> bool {
        self.wants_ana.swap(false, Ordering::Relaxed)
    }

    /// Takes over new ANA states. A namespace that is or was accessible is waited for from the start next time.
    pub(crate) fn set_ana(&self, log: AnaLog) {
        let mut ana = self.ana.lock();
        let is_usable = |log: &AnaLog, nsid: u32| log.state_of(nsid).is_some_and(AnaState::is_usable);
        self.waits.lock().retain(|nsid, _| {
            let was_usable = ana.as_ref().is_some_and(|before| is_usable(before, *nsid));
            !was_usable && !is_usable(&log, *nsid)
        });
        *ana = Some(log);
    }

    /// Whether an inaccessible namespace has been waited for longer than `transition`.
    pub(crate) fn is_overdue(&self, nsid: u32, transition: Duration, now: Instant) -> bool {
        let since = *self.waits.lock().entry(nsid).or_insert(now);
        now.saturating_duration_since(since) > transition
    }

    /// Lets inaccessible namespaces be waited for again.
    pub(crate) fn restart_waits(&self) {
        self.waits.lock().clear();
    }
}
