//! The process's restorer: its pinned memory is kept from one restore to the next.

use std::sync::{Arc, Mutex, PoisonError};

use straightway_core::Result;
use straightway_io::{Progress, Settings};
use straightway_pipeline::checkpoint::Restorer;

/// The restorer while nobody uses it, and the process that it was made in.
static IDLE: Mutex<Option<(u32, Restorer)>> = Mutex::new(None);

/// Does `work` with the process's restorer, or where another thread has it, with a new one.
pub(super) fn with<T>(
    progress: &Arc<Progress>,
    work: impl FnOnce(&Restorer) -> Result<T>,
) -> Result<T> {
    let idle = || IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let here = std::process::id();
    let restorer = match idle().take() {
        Some((process, restorer)) if process == here => restorer,
        // After a fork its memory is the parent's, and the driver does not know it here.
        another => {
            std::mem::forget(another);
            Restorer::new(Settings::default())?
        }
    };
    let restorer = restorer.with_progress(progress);
    let outcome = work(&restorer);
    *idle() = Some((here, restorer));
    outcome
}
