//! The process's lanes: started once, used by every call.

use std::sync::{Arc, Mutex, PoisonError};

use straightway_core::Result;
use straightway_io::{Executor, Settings};

/// The executor, and the process that its threads belong to.
static EXECUTOR: Mutex<Option<(u32, Arc<Executor>)>> = Mutex::new(None);

/// The executor of this process.
pub(crate) fn shared() -> Result<Arc<Executor>> {
    let mut kept = EXECUTOR.lock().unwrap_or_else(PoisonError::into_inner);
    let here = std::process::id();
    match &*kept {
        Some((process, executor)) if *process == here => Ok(Arc::clone(executor)),
        _ => {
            let fresh = Arc::new(Executor::new(Settings::default())?);
            // After a fork the parent's lanes are no threads of ours: waiting for them to end, as
            // dropping the executor would, never ends.
            std::mem::forget(kept.replace((here, Arc::clone(&fresh))));
            Ok(fresh)
        }
    }
}
