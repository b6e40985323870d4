//! A value that every process has for itself: a forked child does not share that of its parent.

use std::{
    process,
    sync::{MutexGuard, OnceLock},
};

use straightway_core::Lock;

/// A value of this process, behind a lock.
///
/// A forked child gets a new one. Threads that the child does not have may hold the lock of the parent's value or locks
/// inside it, and nobody would release them in the child. So the child neither waits for that lock nor drops the value:
/// dropping an executor waits for its threads.
pub(crate) struct PerProcess<T>(OnceLock<Box<Owned<T>>>);

/// The value of one process.
struct Owned<T> {
    process: u32,
    value: Lock<T>,
    /// The value of a forked child.
    child: PerProcess<T>,
}

impl<T: Default> PerProcess<T> {
    /// The default value, in each process.
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// Locks the value of this process.
    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let process = process::id();
        let fresh = || {
            Box::new(Owned {
                process,
                value: Lock::default(),
                child: Self::new(),
            })
        };
        let mut owned = self.0.get_or_init(fresh);
        while owned.process != process {
            owned = owned.child.0.get_or_init(fresh);
        }
        owned.value.lock()
    }
}
