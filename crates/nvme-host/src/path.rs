//! One address of a subsystem: connected, connecting, waiting for the next attempt, or given up.

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use straightway_core::{Error, Kind};
use straightway_nvme::Nqn;

use crate::{
    control::IDLE,
    controller::{Controller, Refusal},
    portal::Portal,
    settings::Settings,
};

/// One address of a subsystem.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) portal: Portal,
    subsystem: Nqn,
    settings: Arc<Settings>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    controller: Option<Arc<Controller>>,
    /// Whether a thread is connecting.
    is_connecting: bool,
    /// Attempts that failed since it last served I/O.
    attempts: u32,
    /// When to try again.
    next: Instant,
    /// Why it is not connected.
    failure: Option<Refusal>,
}

/// How a path stands.
#[derive(Debug)]
pub(crate) enum Standing {
    /// It is connected.
    Up(Arc<Controller>),
    /// It may be connected then, or soon.
    Pending(Instant),
    /// It will not be.
    Down,
}

impl Path {
    pub(crate) fn new(portal: Portal, subsystem: &Nqn, settings: &Arc<Settings>) -> Arc<Self> {
        Arc::new(Self {
            portal,
            subsystem: subsystem.clone(),
            settings: Arc::clone(settings),
            state: Mutex::new(State {
                controller: None,
                is_connecting: false,
                attempts: 0,
                next: Instant::now(),
                failure: None,
            }),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How it stands. Where an attempt is due, a thread begins it.
    pub(crate) fn standing(self: &Arc<Self>, now: Instant) -> Standing {
        let mut state = self.lock();
        if let Some(controller) = self.connected(&mut state, now) {
            return Standing::Up(controller);
        }
        if state.is_connecting {
            return Standing::Pending(now + std::time::Duration::from_millis(2));
        }
        let is_final = state.failure.as_ref().is_some_and(|f| f.is_final);
        if is_final || state.attempts >= self.settings.attempts_max {
            return Standing::Down;
        }
        if now < state.next {
            return Standing::Pending(state.next);
        }
        let path = Arc::clone(self);
        let thread = std::thread::Builder::new().name("straightway-nvme".to_owned());
        match thread.spawn(move || path.attempt()) {
            Ok(_) => state.is_connecting = true,
            Err(error) => {
                let why = format!("no thread: {error}");
                let is_final = false;
                self.note_failure(&mut state, Refusal { why, is_final });
            }
        }
        Standing::Pending(now + std::time::Duration::from_millis(2))
    }

    /// The controller while it is good. One that ended is forgotten, with its reason.
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
            let is_final = false;
            self.note_failure(state, Refusal { why, is_final });
            return None;
        }
        if why != IDLE {
            tracing::warn!(
                "{}: the connection was lost ({why}); reconnecting",
                self.portal
            );
            let is_final = false;
            state.failure = Some(Refusal { why, is_final });
        }
        None
    }

    /// The controller, if it is connected.
    pub(crate) fn connected_now(&self) -> Option<Arc<Controller>> {
        self.connected(&mut self.lock(), Instant::now())
    }

    /// Tries to connect, on a thread of its own.
    fn attempt(&self) {
        let result = self.connect();
        let mut state = self.lock();
        state.is_connecting = false;
        self.note(&mut state, result);
    }

    /// Connects on the caller's thread, once. The error says how it stands.
    pub(crate) fn connect_here(&self) -> Result<Arc<Controller>, Error> {
        {
            let mut state = self.lock();
            if let Some(controller) = self.connected(&mut state, Instant::now()) {
                return Ok(controller);
            }
        }
        let result = self.connect();
        let mut state = self.lock();
        // Another thread may have been faster.
        if let Some(controller) = self.connected(&mut state, Instant::now()) {
            return Ok(controller);
        }
        self.note(&mut state, result);
        match &state.controller {
            Some(controller) => Ok(Arc::clone(controller)),
            None => Err(self.error_of(&state)),
        }
    }

    fn connect(&self) -> Result<Arc<Controller>, Refusal> {
        let addresses = self.portal.addresses(self.settings.connect_max);
        let addresses = addresses.map_err(|error| Refusal {
            why: error.to_string(),
            is_final: false,
        })?;
        let mut last = None;
        for address in addresses {
            match Controller::connect(address, &self.subsystem, &self.settings) {
                Ok(controller) => return Ok(controller),
                Err(refusal) if refusal.is_final => return Err(refusal),
                Err(refusal) => last = Some(refusal),
            }
        }
        Err(last.expect("a name has at least one address"))
    }

    fn note(&self, state: &mut State, result: Result<Arc<Controller>, Refusal>) {
        match result {
            Ok(controller) => {
                if state.failure.take().is_some() {
                    tracing::info!("{}: connected again", self.portal);
                }
                state.controller = Some(controller);
            }
            Err(refusal) => self.note_failure(state, refusal),
        }
    }

    fn note_failure(&self, state: &mut State, refusal: Refusal) {
        state.attempts += 1;
        state.next = Instant::now() + self.settings.delay(state.attempts);
        state.failure = Some(refusal);
        tracing::warn!("{}: {}", self.portal, self.status_of(state));
    }

    /// How its reconnection stands: "…; attempt 3 of 20, next in 4 s".
    fn status_of(&self, state: &State) -> String {
        let Some(failure) = &state.failure else {
            return "connected".to_owned();
        };
        let mut text = failure.why.clone();
        if failure.is_final {
            return text;
        }
        let (attempt, most) = (state.attempts, self.settings.attempts_max);
        let _ = write!(text, "; attempt {attempt} of {most}");
        if attempt < most {
            let wait = state.next.saturating_duration_since(Instant::now());
            let _ = write!(text, ", next in {:.1} s", wait.as_secs_f32());
        }
        text
    }

    /// How it stands, in words.
    pub(crate) fn status(&self) -> String {
        self.status_of(&self.lock())
    }

    /// Why it is not connected.
    pub(crate) fn error(&self) -> Error {
        self.error_of(&self.lock())
    }

    fn error_of(&self, state: &State) -> Error {
        let is_final = state.failure.as_ref().is_some_and(|f| f.is_final);
        let why = match &state.failure {
            Some(failure) if is_final || state.attempts <= 1 => failure.why.clone(),
            _ => self.status_of(state),
        };
        let (kind, hint) = if is_final {
            (
                Kind::Invalid,
                "check the NQN, the host's name (--nvme-hostnqn), its secret (--nvme-secret-file) and the target's \
                 list of hosts",
            )
        } else {
            (
                Kind::Transient,
                "check the address, the network and the target",
            )
        };
        Error::new(kind, "connect to", &self.portal, why).with_hint(hint)
    }

    /// Allows a new series of attempts: someone opens the subsystem again.
    pub(crate) fn forgive(&self) {
        let mut state = self.lock();
        state.attempts = 0;
        state.next = Instant::now();
        state.failure = None;
    }
}
