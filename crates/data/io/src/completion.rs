//! The completion of something that runs in the background: its final outcome, and how those who wait learn of it.

use std::{
    sync::{Arc, MutexGuard},
    time::Duration,
};

use straightway_core::{Lock, Result, Signal};
use straightway_sys::Event;

/// An outcome that one thread publishes and another takes.
#[derive(Debug)]
pub struct Completion<T> {
    state: Lock<State<T>>,
    ended: Signal,
}

#[derive(Debug)]
struct State<T> {
    outcome: Outcome<T>,
    /// Raised at the end. It is made on demand.
    event: Option<Arc<Event>>,
}

#[derive(Debug)]
enum Outcome<T> {
    Pending,
    Ended(T),
    Taken,
}

impl<T> Default for Completion<T> {
    fn default() -> Self {
        let state = State {
            outcome: Outcome::Pending,
            event: None,
        };
        Self {
            state: Lock::new(state),
            ended: Signal::new(),
        }
    }
}

impl<T> Completion<T> {
    /// Publishes the outcome. It is final, and everything that belongs to it has been done before.
    pub fn publish(&self, outcome: T) {
        let mut state = self.lock();
        state.outcome = Outcome::Ended(outcome);
        if let Some(event) = &state.event {
            event.raise();
        }
        self.ended.notify_all();
    }

    /// Whether the outcome was published.
    pub fn is_ended(&self) -> bool {
        !self.lock().is_pending()
    }

    /// Waits for the outcome, at most `timeout`. Returns whether it was published.
    pub fn wait_for(&self, timeout: Duration) -> bool {
        let waited = self
            .ended
            .wait_timeout_while(self.lock(), timeout, |state| state.is_pending());
        !waited.is_pending()
    }

    /// Waits for the outcome and takes it; `None` if it was taken before.
    pub fn take(&self) -> Option<T> {
        let mut state = self.ended.wait_while(self.lock(), |state| state.is_pending());
        match std::mem::replace(&mut state.outcome, Outcome::Taken) {
            Outcome::Ended(outcome) => Some(outcome),
            Outcome::Pending | Outcome::Taken => None,
        }
    }

    /// The event that is raised at the end. It is made by the first call.
    pub fn event(&self) -> Result<Arc<Event>> {
        let mut state = self.lock();
        if let Some(event) = &state.event {
            return Ok(Arc::clone(event));
        }
        let event = Arc::new(Event::new()?);
        if !state.is_pending() {
            event.raise();
        }
        state.event = Some(Arc::clone(&event));
        Ok(event)
    }

    /// Forgets the event: nobody listens any more.
    pub(crate) fn forget_event(&self) {
        self.lock().event = None;
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock()
    }
}

impl<T> State<T> {
    fn is_pending(&self) -> bool {
        matches!(self.outcome, Outcome::Pending)
    }
}
