//! Values and processes: a forked child shares neither the threads of its parent nor the values that depend on them.

use std::{
    fmt, mem, process,
    sync::{MutexGuard, OnceLock},
};

use straightway_core::{Error, ErrorKind, Lock, Result};

/// A process. A value that depends on threads, sockets or locks remembers the one that made it. The
/// default one is no process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The process that calls.
    pub fn this() -> Self {
        Self(process::id())
    }

    /// Whether it is the process that calls. It is not in a forked child.
    pub fn is_this(self) -> bool {
        self == Self::this()
    }

    /// Returns an error in a forked child: `target` depends on threads, locks or sockets that only its parent can use.
    /// The remedy becomes the error's hint.
    pub fn check(self, target: impl fmt::Display, remedy: &str) -> Result<()> {
        if self.is_this() {
            return Ok(());
        }
        let message = format!("it belongs to process {}, from which this one was forked", self.0);
        Err(Error::new(ErrorKind::Invalid, "use", target, message).with_hint(remedy))
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.0
    }
}

/// A value of this process, behind a lock.
///
/// A forked child gets a new one. Threads that the child does not have may hold the lock of the parent's value or locks
/// inside it, and nobody would release them in the child. So the child neither waits for that lock nor drops the value:
/// dropping an executor waits for its threads.
#[derive(Debug)]
pub struct PerProcess<T>(OnceLock<Box<Owned<T>>>);

/// The value of one process.
#[derive(Debug)]
struct Owned<T> {
    process: Process,
    value: Lock<T>,
    /// The value of a forked child.
    child: PerProcess<T>,
}

impl<T> PerProcess<T> {
    /// The default value, in each process.
    pub const fn new() -> Self {
        Self(OnceLock::new())
    }
}

impl<T> Default for PerProcess<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: Default> PerProcess<T> {
    /// Locks the value of this process.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let process = Process::this();
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

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        if let Some(mut owned) = self.0.take()
            && !owned.process.is_this()
        {
            drop(mem::take(&mut owned.child));
            mem::forget(owned);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A value that must not be dropped.
    #[derive(Default)]
    struct Kept(u32);

    impl Drop for Kept {
        fn drop(&mut self) {
            assert_ne!(self.0, 1, "the value of the parent is dropped in its child");
        }
    }

    #[test]
    fn a_child_has_a_value_of_its_own_and_does_not_drop_that_of_its_parent() {
        let of_parent = Owned {
            process: Process(0),
            value: Lock::new(Kept(1)),
            child: PerProcess::new(),
        };
        let parent_s_lock = PerProcess::<Kept>(OnceLock::from(Box::new(of_parent)));
        let _held_by_a_thread_of_the_parent = mem::ManuallyDrop::new(parent_s_lock.0.get().unwrap().value.lock());
        parent_s_lock.lock().0 = 2;
        assert_eq!(parent_s_lock.lock().0, 2);
        assert!(Process::this().is_this() && !Process(0).is_this());
        Process::this().check("an executor", "make one").unwrap();
        let error = Process(0).check("an executor", "make one").unwrap_err();
        assert_eq!((error.kind(), error.hint()), (ErrorKind::Invalid, Some("make one")));
    }
}
