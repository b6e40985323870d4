//! Where a region keeps what cuFile knows it by: registered once for its life, and no longer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use straightway_core::Result;

use super::registered_memory::RegisteredMemory;

/// A region's registration with cuFile, if it has one now.
#[derive(Debug, Default)]
pub struct Registration {
    known: Mutex<Option<Arc<RegisteredMemory>>>,
}

impl Registration {
    /// What cuFile knows the region by, if anything.
    pub fn get(&self) -> Option<Arc<RegisteredMemory>> {
        self.lock().clone()
    }

    /// What cuFile knows the region by; where it knows nothing, `register` tells it.
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

    /// Deregisters unless somebody is using it. Answers whether it is gone.
    pub fn give_way(&self) -> bool {
        let mut known = self.lock();
        let in_use = known.as_ref().is_some_and(|k| Arc::strong_count(k) > 1);
        if !in_use {
            *known = None;
        }
        !in_use
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<RegisteredMemory>>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
