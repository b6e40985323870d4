//! The process's lanes: started once, used by every call.

use std::sync::{Arc, Mutex, PoisonError};

use straightway_core::Result;
use straightway_io::{Executor, Settings};

/// An executor that all calls share, and the process that its threads belong to.
struct Shared(Mutex<Option<(u32, Arc<Executor>)>>);

static READING: Shared = Shared(Mutex::new(None));
static WRITING: Shared = Shared(Mutex::new(None));

/// The executor of this process that reads.
pub(crate) fn reading() -> Result<Arc<Executor>> {
    READING.get(Settings::default)
}

/// The executor of this process that writes. Reads need not wait behind what it flushes.
pub(crate) fn writing() -> Result<Arc<Executor>> {
    WRITING.get(|| Settings::default().for_writes())
}

impl Shared {
    fn get(&self, settings: impl FnOnce() -> Settings) -> Result<Arc<Executor>> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let here = std::process::id();
        match &*kept {
            Some((process, executor)) if *process == here => Ok(Arc::clone(executor)),
            _ => {
                let fresh = Arc::new(Executor::new(settings())?);
                // After a fork the parent's lanes are no threads of ours: waiting for them to end, as
                // dropping the executor would, never ends.
                std::mem::forget(kept.replace((here, Arc::clone(&fresh))));
                Ok(fresh)
            }
        }
    }
}
