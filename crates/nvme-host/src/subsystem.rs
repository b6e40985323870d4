//! A subsystem: its paths, and a side queue for headers and flushes.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::{Cqe, Nqn, Sgl, Sqe, Status, log::AnaState};

use crate::{
    controller::{Controller, QueueId},
    link::{Link, LinkError},
    path::{Path, PathState},
    portal::Portal,
    quarantine::Quarantine,
    settings::HostSettings,
    verify::{Fingerprint, Verdict, verdict},
};

/// The polling interval while a namespace is being verified.
const VERIFY_INTERVAL: Duration = Duration::from_millis(1);

/// The interval for reading the ANA log while no path is usable.
const ANA_INTERVAL: Duration = Duration::from_millis(100);

/// The time within which a failed connection attempt is retried when an object is opened.
const QUICK_MAX: Duration = Duration::from_secs(2);

/// A subsystem and its paths.
#[derive(Debug)]
pub(crate) struct Subsystem {
    pub(crate) nqn: Nqn,
    pub(crate) settings: Arc<HostSettings>,
    pub(crate) paths: Vec<Arc<Path>>,
    pub(crate) quarantine: Quarantine,
    /// The process that owns these connections.
    process: u32,
    side: Mutex<Option<Side>>,
}

/// A queue for single commands of any thread.
#[derive(Debug)]
struct Side {
    link: Link,
    controller: Arc<Controller>,
    _id: QueueId,
}

/// The controllers for the commands of a namespace.
#[derive(Debug)]
pub(crate) enum Choice {
    /// Use these in turn.
    Use(Vec<Arc<Controller>>),
    /// None is usable. Check again at this time.
    Wait(Instant),
    /// None will be usable.
    Nowhere(Error),
}

impl Subsystem {
    pub(crate) fn new(portal: &Portal, nqn: Nqn, settings: &Arc<HostSettings>) -> Arc<Self> {
        let mut portals = vec![portal.clone()];
        for path in &settings.paths {
            if !portals.contains(path) {
                portals.push(path.clone());
            }
        }
        let paths = portals.into_iter();
        let paths = paths
            .map(|portal| Path::new(portal, &nqn, settings))
            .collect();
        Arc::new(Self {
            paths,
            nqn,
            settings: Arc::clone(settings),
            quarantine: Quarantine::default(),
            process: std::process::id(),
            side: Mutex::new(None),
        })
    }

    /// Whether the connections belong to this process and not to its parent.
    pub(crate) fn is_own(&self) -> bool {
        self.is_of(std::process::id())
    }

    /// Whether the connections belong to this process.
    pub(crate) fn is_of(&self, process: u32) -> bool {
        self.process == process
    }

    /// Chooses the controllers for a namespace: those of optimized paths, or of non-optimized ones if there are none.
    pub(crate) fn choose(&self, print: &Fingerprint, now: Instant) -> Choice {
        let nsid = print.nsid;
        let mut is_other = false;
        let mut due: Option<Instant> = None;
        let (mut best, mut spare) = (Vec::new(), Vec::new());
        let mut wait = |at: Instant| due = Some(due.map_or(at, |due| due.min(at)));
        for path in &self.paths {
            match path.state(now) {
                PathState::Up(controller) => match controller.state_of(nsid) {
                    state @ (AnaState::Optimized | AnaState::NonOptimized) => {
                        match verdict(&controller, print) {
                            Verdict::Same if state == AnaState::Optimized => best.push(controller),
                            Verdict::Same => spare.push(controller),
                            Verdict::Other => is_other = true,
                            Verdict::Pending => wait(now + VERIFY_INTERVAL),
                        }
                    }
                    AnaState::Lost => {}
                    AnaState::Inaccessible | AnaState::Change => {
                        // The state may change. An event or the next ANA log shows it.
                        controller.request_ana_refresh();
                        controller.touch();
                        wait(now + ANA_INTERVAL);
                    }
                },
                PathState::Pending(at) => wait(at),
                PathState::Down => {}
            }
        }
        if best.is_empty() {
            best = spare;
        }
        match due {
            _ if !best.is_empty() => Choice::Use(best),
            Some(due) => Choice::Wait(due),
            None if is_other => Choice::Nowhere(self.replaced()),
            None => Choice::Nowhere(self.error()),
        }
    }

    /// The error for a namespace that differs from the opened one.
    fn replaced(&self) -> Error {
        let why = "its target serves another namespace than the one that was opened";
        Error::new(ErrorKind::Corrupt, "transfer", &self.nqn, why)
    }

    /// The error if no path is usable.
    pub(crate) fn error(&self) -> Error {
        let first = self.paths.first().expect("there is at least one path");
        if self.paths.len() == 1 {
            return first.error();
        }
        let all = self
            .paths
            .iter()
            .map(|path| format!("{} ({})", path.portal, path.status()));
        let why = format!("no path works: {}", all.collect::<Vec<_>>().join(", "));
        Error::new(ErrorKind::Transient, "reach", &self.nqn, why)
            .with_hint("check the network and the targets")
    }

    /// Returns a connected controller. Connects on this thread if there is none. Paths are tried in the configured
    /// order, so that an object is opened at the address that the user gave.
    pub(crate) fn controller(&self) -> Result<Arc<Controller>> {
        let mut connected = self.paths.iter().filter_map(|path| path.connected_now());
        if let Some(controller) = connected.next() {
            return Ok(controller);
        }
        let mut failure = None;
        for path in &self.paths {
            match path.connect_here() {
                Ok(controller) => return Ok(controller),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) if self.paths.len() == 1 => Err(error),
            _ => Err(self.error()),
        }
    }

    /// Runs an admin command on any path, with retries after lost connections. The error comes with its cause.
    pub(crate) fn ask(&self, sqe: Sqe, bytes: usize) -> Result<Vec<u8>, (LinkError, Error)> {
        let (start, mut tries) = (Instant::now(), 0);
        loop {
            let controller = match self.controller() {
                Ok(controller) => controller,
                // A connection that broke during setup is retried. A timeout is not waited for twice.
                Err(error)
                    if error.kind() == ErrorKind::Transient
                        && tries < self.settings.retries_max
                        && start.elapsed() < QUICK_MAX =>
                {
                    tries += 1;
                    std::thread::sleep(self.settings.delay(tries));
                    continue;
                }
                Err(error) => return Err((LinkError::Broken(error.to_string()), error)),
            };
            let error = match controller.ask(sqe, bytes) {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            tries += 1;
            let is_final =
                matches!(&error, LinkError::Refused(status, _) if !status.is_retryable());
            if is_final || tries > self.settings.retries_max {
                let failure = Error::new(ErrorKind::Transient, "ask", &self.nqn, error.to_string());
                return Err((error, failure));
            }
            match error {
                LinkError::Broken(why) => controller.end(why),
                LinkError::Refused(..) => std::thread::sleep(self.settings.delay(tries)),
            }
        }
    }

    /// Allows failed paths to try again.
    pub(crate) fn allow_retries(&self) {
        self.paths.iter().for_each(|path| path.allow_retries());
    }

    /// Runs an I/O command on the side queue, with retries after lost connections. `target` is for messages.
    pub(crate) fn run(
        &self,
        target: &str,
        print: &Fingerprint,
        sqe: Sqe,
        out: &[u8],
        into: &mut [u8],
    ) -> Result<Cqe> {
        let failed = |kind, why: String| Error::new(kind, "reach", target, why);
        let mut side = self.side.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tries = 0;
        loop {
            if side
                .as_ref()
                .is_none_or(|side| side.controller.ended().is_some())
            {
                *side = None;
                *side = Some(self.open_side(target)?);
            }
            let open = side.as_mut().expect("it was just opened");
            open.controller.touch();
            match self.recognised(&open.controller, print) {
                Some(Verdict::Same) => {}
                Some(_) => return Err(self.replaced()),
                None => {
                    *side = None;
                    continue;
                }
            }
            let capsule = open.controller.limits.capsule_bytes as usize;
            let bytes = u32::try_from(out.len()).expect("commands are short");
            let sqe = match out.len() {
                0 => sqe,
                length if length <= capsule => sqe.with_sgl(Sgl::in_capsule(bytes)),
                _ => sqe.with_sgl(Sgl::transport(bytes)),
            };
            let deadline = Instant::now() + self.settings.command_max;
            let error = match open.link.run(sqe, out, into, deadline) {
                Ok(cqe) => return Ok(cqe),
                Err(error) => error,
            };
            tries += 1;
            match error {
                LinkError::Refused(status, _) if !status.is_retryable() => {
                    return Err(failed(kind_of(status), status.to_string()));
                }
                _ if tries > self.settings.retries_max => {
                    return Err(failed(ErrorKind::Transient, error.to_string()));
                }
                LinkError::Refused(status, _) => {
                    if status.is_ana() {
                        open.controller.request_ana_refresh();
                    }
                    std::thread::sleep(self.settings.delay(tries.min(3)));
                }
                LinkError::Broken(why) => {
                    if !out.is_empty() {
                        let until = Instant::now() + self.settings.quarantine_time();
                        self.quarantine.add_all(until);
                    }
                    open.controller.end(why);
                    *side = None;
                }
            }
        }
    }

    /// Waits for the verification of a namespace on a controller; `None` if the controller ended meanwhile.
    fn recognised(&self, controller: &Arc<Controller>, print: &Fingerprint) -> Option<Verdict> {
        let deadline = Instant::now() + self.settings.command_max;
        loop {
            match verdict(controller, print) {
                Verdict::Pending if controller.ended().is_some() => return None,
                Verdict::Pending if Instant::now() > deadline => {
                    controller.end("it does not identify the namespace in time");
                    return None;
                }
                Verdict::Pending => std::thread::sleep(VERIFY_INTERVAL),
                known => return Some(known),
            }
        }
    }

    fn open_side(&self, target: &str) -> Result<Side> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            let made = self.controller().and_then(|controller| {
                let failed = |why: String| Error::new(ErrorKind::Transient, "reach", target, why);
                let queue = controller.queue().map_err(|refusal| {
                    // If a queue cannot be made, the controller is unusable.
                    controller.end(refusal.why.clone());
                    failed(refusal.why)
                })?;
                let queue = if let Some(queue) = queue {
                    Some((controller, queue))
                } else {
                    let own = controller.another().map_err(|r| failed(r.why))?;
                    let queue = own.queue().map_err(|r| failed(r.why))?;
                    queue.map(|queue| (own, queue))
                };
                let none = || failed("the target grants no I/O queue".to_owned());
                let (controller, (link, id)) = queue.ok_or_else(none)?;
                Ok(Side {
                    link,
                    controller,
                    _id: id,
                })
            });
            match made {
                Ok(side) => return Ok(side),
                Err(error) if error.kind() != ErrorKind::Transient => return Err(error),
                Err(error) if attempts >= self.settings.attempts_max => return Err(error),
                Err(_) => std::thread::sleep(self.settings.delay(attempts)),
            }
        }
    }
}

/// The error kind of a status.
pub(crate) fn kind_of(status: Status) -> ErrorKind {
    match status.code() {
        code if code == Status::INVALID_NAMESPACE.code() => ErrorKind::NotFound,
        code if code == Status::WRITE_PROTECTED.code() => ErrorKind::Invalid,
        code if code == Status::LBA_RANGE.code() => ErrorKind::Corrupt,
        _ if status.kind() == 2 => ErrorKind::Corrupt,
        _ if status.is_final() => ErrorKind::Invalid,
        _ => ErrorKind::Transient,
    }
}
