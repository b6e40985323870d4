//! The registration of a region with cuFile, at most one at a time.

use std::sync::{Arc, MutexGuard};

use straightway_core::{Lock, Result};

use super::registered_memory::RegisteredMemory;

/// A region's registration with cuFile, if it has one.
#[derive(Debug, Default)]
pub struct CufileRegistration {
    known: Lock<Option<Arc<RegisteredMemory>>>,
}

impl CufileRegistration {
    /// The registration, if there is one.
    pub fn get(&self) -> Option<Arc<RegisteredMemory>> {
        self.lock().clone()
    }

    /// The registration. If there is none, `register` creates it.
    pub fn get_or_register(
        &self,
        register: impl FnOnce() -> Result<RegisteredMemory>,
    ) -> Result<Arc<RegisteredMemory>> {
        let mut known = self.lock();
        if let Some(known) = &*known {
            return Ok(Arc::clone(known));
        }
        let fresh = Arc::new(register()?);
        *known = Some(Arc::clone(&fresh));
        Ok(fresh)
    }

    /// Deregisters the region unless the registration is in use. Returns whether it is deregistered now.
    pub fn deregister_unused(&self) -> bool {
        let mut known = self.lock();
        let in_use = known.as_ref().is_some_and(|k| Arc::strong_count(k) > 1);
        if !in_use {
            *known = None;
        }
        !in_use
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<RegisteredMemory>>> {
        self.known.lock()
    }
}
