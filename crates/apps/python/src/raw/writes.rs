//! The writes to one file: how many are under way, and whether one of them failed.

use std::time::Duration;

use straightway_core::{Error, Lock, Receipt, Result, Signal};

/// The writes to one file.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    state: Lock<State>,
    ended: Signal,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    /// The first failure.
    failed: Option<Error>,
}

impl Writes {
    /// Counts a write that begins.
    pub(crate) fn begin(&self) {
        self.state.lock().running += 1;
    }

    /// Counts a write that has ended.
    pub(crate) fn end(&self, outcome: &Result<Receipt>) {
        let mut state = self.state.lock();
        state.running -= 1;
        if let Err(error) = outcome {
            state.failed.get_or_insert_with(|| error.again());
        }
        drop(state);
        self.ended.notify_all();
    }

    /// The first failure of a write that has ended.
    pub(crate) fn check(&self) -> Result<()> {
        self.state
            .lock()
            .failed
            .as_ref()
            .map_or(Ok(()), |error| Err(error.again()))
    }

    /// Waits until no write runs, at most `timeout`. Returns whether none does.
    pub(crate) fn wait_for(&self, timeout: Duration) -> bool {
        let state = self.state.lock();
        let waited = self.ended.wait_timeout_while(state, timeout, |state| state.running > 0);
        waited.running == 0
    }
}
