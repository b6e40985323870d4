//! One address of a subsystem: connected, connecting, waiting for a retry, or failed.

use std::{
    fmt::Write as _,
    sync::{Arc, MutexGuard},
    time::Instant,
};

use straightway_core::{Error, ErrorKind, Lock};
use straightway_nvme::Nqn;

use super::{control::IDLE, controller::Controller, failure::Refusal};
use crate::{portal::Portal, settings::HostSettings};

/// One address of a subsystem.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) portal: Portal,
    subsystem: Nqn,
    settings: Arc<HostSettings>,
    state: Lock<State>,
}

#[derive(Debug)]
struct State {
    controller: Option<Arc<Controller>>,
    /// Whether a thread is connecting.
    is_connecting: bool,
    /// Failed attempts since it last served I/O.
    attempts: u32,
    /// The time of the next attempt.
    next: Instant,
    /// The cause of the last failure.
    failure: Option<Refusal>,
}

/// The state of a path.
#[derive(Debug)]
pub(crate) enum PathState {
    /// It is connected.
    Up(Arc<Controller>),
    /// Not connected. Check again at this time.
    Pending(Instant),
    /// Failed for good.
    Down,
}

impl Path {
    pub(crate) fn new(portal: Portal, subsystem: &Nqn, settings: &Arc<HostSettings>) -> Arc<Self> {
        Arc::new(Self {
            portal,
            subsystem: subsystem.clone(),
            settings: Arc::clone(settings),
            state: Lock::new(State {
                controller: None,
                is_connecting: false,
                attempts: 0,
                next: Instant::now(),
                failure: None,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Returns its state. If an attempt is due, starts a thread for it.
    pub(crate) fn state(self: &Arc<Self>, now: Instant) -> PathState {
        let mut state = self.lock();
        if let Some(controller) = self.connected(&mut state, now) {
            return PathState::Up(controller);
        }
        if state.is_connecting {
            return PathState::Pending(now + std::time::Duration::from_millis(2));
        }
        let is_final = state.failure.as_ref().is_some_and(|f| f.is_final);
        if is_final || state.attempts >= self.settings.attempts_max {
            return PathState::Down;
        }
        if now < state.next {
            return PathState::Pending(state.next);
        }
        let path = Arc::clone(self);
        let thread = std::thread::Builder::new().name("straightway-nvme".to_owned());
        match thread.spawn(move || path.attempt()) {
            Ok(_) => state.is_connecting = true,
            Err(error) => {
                let why = format!("no thread: {error}");
                self.note_failure(&mut state, Refusal::transient(why));
            }
        }
        PathState::Pending(now + std::time::Duration::from_millis(2))
    }

    /// The controller, if it is usable. Removes an ended controller and records the cause.
    fn connected(&self, state: &mut State, now: Instant) -> Option<Arc<Controller>> {
        let controller = state.controller.as_ref()?;
        let Some(why) = controller.ended() else {
            return Some(Arc::clone(controller));
        };
        let (why, has_served) = (why.to_owned(), controller.has_served());
        state.controller = None;
        state.next = now;
        if has_served {
            state.attempts = 0;
        } else if why != IDLE {
            self.note_failure(state, Refusal::transient(why));
            return None;
        }
        if why != IDLE {
            tracing::warn!("{}: the connection was lost ({why}); reconnecting", self.portal);
            state.failure = Some(Refusal::transient(why));
        }
        None
    }

    /// The controller, if it is connected.
    pub(crate) fn connected_now(&self) -> Option<Arc<Controller>> {
        self.connected(&mut self.lock(), Instant::now())
    }

    /// Tries to connect. Runs on its own thread.
    fn attempt(&self) {
        let result = self.connect();
        let mut state = self.lock();
        state.is_connecting = false;
        match result {
            Ok(controller) => self.note_connected(&mut state, &controller),
            Err(refusal) => self.note_failure(&mut state, refusal),
        }
    }

    /// Connects once, on the caller's thread.
    pub(crate) fn connect_here(&self) -> Result<Arc<Controller>, Error> {
        {
            let mut state = self.lock();
            if let Some(controller) = self.connected(&mut state, Instant::now()) {
                return Ok(controller);
            }
        }
        let result = self.connect();
        let mut state = self.lock();
        // Another thread may have connected first.
        if let Some(controller) = self.connected(&mut state, Instant::now()) {
            return Ok(controller);
        }
        match result {
            Ok(controller) => {
                self.note_connected(&mut state, &controller);
                Ok(controller)
            }
            Err(refusal) => {
                // The caller decides whether there is another attempt, so the log does not announce one.
                self.count_failure(&mut state, refusal);
                tracing::warn!("{}: {}", self.portal, status_of(&state));
                Err(self.error_of(&state))
            }
        }
    }

    fn connect(&self) -> Result<Arc<Controller>, Refusal> {
        let addresses = self.portal.addresses(self.settings.connect_max);
        let addresses = addresses.map_err(|error| Refusal::transient(error.to_string()))?;
        let mut last = None;
        for address in addresses {
            match Controller::connect(address, &self.subsystem, &self.settings, false) {
                Ok(controller) => return Ok(controller),
                Err(refusal) if refusal.is_final => return Err(refusal),
                Err(refusal) => last = Some(refusal),
            }
        }
        Err(last.expect("a name has at least one address"))
    }

    fn note_connected(&self, state: &mut State, controller: &Arc<Controller>) {
        if state.failure.take().is_some() {
            tracing::info!("{}: connected again", self.portal);
        }
        state.controller = Some(Arc::clone(controller));
    }

    /// Records a failed attempt. The log says when the next one begins: "…; attempt 3 of 20, next in 1.0 s".
    fn note_failure(&self, state: &mut State, refusal: Refusal) {
        let (mut text, is_final) = (refusal.why.clone(), refusal.is_final);
        self.count_failure(state, refusal);
        let (attempt, most) = (state.attempts, self.settings.attempts_max);
        if !is_final {
            let _ = write!(text, "; attempt {attempt} of {most}");
        }
        if !is_final && attempt < most {
            let wait = self.settings.delay(attempt).as_secs_f32();
            let _ = write!(text, ", next in {wait:.1} s");
        }
        tracing::warn!("{}: {text}", self.portal);
    }

    fn count_failure(&self, state: &mut State, refusal: Refusal) {
        state.attempts += 1;
        state.next = Instant::now() + self.settings.delay(state.attempts);
        state.failure = Some(refusal);
    }

    /// The text of its state, for errors.
    pub(crate) fn status(&self) -> String {
        status_of(&self.lock())
    }

    /// The error for a path that is not connected.
    pub(crate) fn error(&self) -> Error {
        self.error_of(&self.lock())
    }

    fn error_of(&self, state: &State) -> Error {
        let is_final = state.failure.as_ref().is_some_and(|f| f.is_final);
        let why = status_of(state);
        let (kind, hint) = if is_final {
            (
                ErrorKind::Invalid,
                "check the NQN, the host's name (⟦nvme_hostnqn⟧), its secret (⟦nvme_secret⟧) and the target's list of hosts",
            )
        } else {
            (ErrorKind::Transient, "check the address, the network and the target")
        };
        let own = state.failure.as_ref().and_then(|failure| failure.hint);
        Error::new(kind, "connect to", &self.portal, why).with_hint(own.unwrap_or(hint))
    }

    /// Allows a new series of attempts, because the subsystem is opened again.
    pub(crate) fn allow_retries(&self) {
        let mut state = self.lock();
        state.attempts = 0;
        state.next = Instant::now();
        state.failure = None;
        if let Some(controller) = &state.controller {
            controller.association.restart_waits();
        }
    }
}

/// The text of a state, for errors: "…; 3 attempts failed". It announces no further attempt: an error ends them.
fn status_of(state: &State) -> String {
    let Some(failure) = &state.failure else {
        return "connected".to_owned();
    };
    let why = &failure.why;
    match state.attempts {
        attempts @ 2.. if !failure.is_final => format!("{why}; {attempts} attempts failed"),
        _ => why.clone(),
    }
}
