//! Locks that are not poisoned by a panic.
//!
//! `std`'s locks report that a thread panicked while it held them. Here a panic ends the job it happened in, and the
//! state behind a lock is changed in steps that each leave it valid. So the state is used as it is, and `lock` returns
//! the guard itself.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError},
    time::Duration,
};

/// A value for one thread at a time.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Waits until no other thread holds it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes it if no thread holds it.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The value, for its only user.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// The value.
    pub fn into_inner(self) -> T {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A value for several readers or one writer at a time.
#[derive(Debug, Default)]
pub struct SharedLock<T>(RwLock<T>);

impl<T> SharedLock<T> {
    /// An unlocked one.
    pub const fn new(value: T) -> Self {
        Self(RwLock::new(value))
    }

    /// Waits until no thread writes.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until no other thread reads or writes.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes threads that wait for a change of the value in a [`Lock`]. They may also wake without one.
#[derive(Debug, Default)]
pub struct Signal(Condvar);

impl Signal {
    /// One that no thread waits for.
    pub const fn new() -> Self {
        Self(Condvar::new())
    }

    /// Releases the lock, waits, and takes it again.
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(guard).unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits at most `timeout`.
    pub fn wait_timeout<'a, T>(&self, guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
        let waited = self.0.wait_timeout(guard, timeout);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Waits as long as `condition` holds.
    pub fn wait_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_while(guard, condition);
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits as long as `condition` holds, at most `timeout`.
    pub fn wait_timeout_while<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        timeout: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let waited = self.0.wait_timeout_while(guard, timeout, condition);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Wakes all threads.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_lock_is_usable_after_a_panic_of_its_holder() {
        let (lock, shared) = (Lock::new(1), SharedLock::new(2));
        thread::scope(|scope| {
            let panicked = scope.spawn(|| {
                let (_lock, _shared) = (lock.lock(), shared.write());
                panic!("with both locks held");
            });
            assert!(panicked.join().is_err());
        });
        assert_eq!((*lock.lock(), *shared.read()), (1, 2));
        assert_eq!(lock.try_lock().as_deref(), Some(&1));
        assert_eq!(lock.into_inner(), 1);
    }

    #[test]
    fn try_lock_does_not_wait() {
        let lock = Lock::new(());
        let held = lock.lock();
        assert!(lock.try_lock().is_none());
        drop(held);
        assert!(lock.try_lock().is_some());
    }
}
