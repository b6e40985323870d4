//! A subsystem: its paths, and side queues for headers and flushes.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::{Cqe, Nqn, Sqe, Status, log::AnaState};

use crate::{
    controller::Controller,
    link::LinkError,
    path::{Path, PathState},
    portal::Portal,
    quarantine::QUARANTINE,
    settings::HostSettings,
    side::{SideFailure, SideQueues},
    verdicts::Verdict,
    verify::{Fingerprint, VERIFY_INTERVAL, other_machine, verdict},
};

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
    /// The process that owns these connections.
    process: u32,
    sides: SideQueues,
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
        let paths = paths.map(|portal| Path::new(portal, &nqn, settings)).collect();
        Arc::new(Self {
            paths,
            nqn,
            settings: Arc::clone(settings),
            process: std::process::id(),
            sides: SideQueues::default(),
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

    /// Returns an error in a child of the process that made the connections. Both would send commands on the same
    /// sockets, and could take each other's responses.
    pub(crate) fn check_own(&self, target: impl fmt::Display) -> Result<()> {
        if self.is_own() {
            return Ok(());
        }
        let why = "it was opened before this process was forked";
        let error = Error::new(ErrorKind::Invalid, "use", target, why);
        Err(error.with_hint("open it again in this process"))
    }

    /// Chooses the controllers for a namespace: those of optimized paths, or of non-optimized ones if there are none.
    pub(crate) fn choose(&self, print: &Fingerprint, now: Instant) -> Choice {
        let nsid = print.nsid;
        let mut other = None;
        let mut due: Option<Instant> = None;
        let (mut best, mut spare) = (Vec::new(), Vec::new());
        let mut wait = |at: Instant| due = Some(due.map_or(at, |due| due.min(at)));
        for path in &self.paths {
            match path.state(now) {
                PathState::Up(controller) => match controller.state_of(nsid) {
                    state @ (AnaState::Optimized | AnaState::NonOptimized) => match verdict(&controller, print) {
                        Verdict::Same if !print.history.permits_boot(controller.boot()) => {
                            other = Some(other_machine(controller.address).into());
                        }
                        Verdict::Same if state == AnaState::Optimized => best.push(controller),
                        Verdict::Same => spare.push(controller),
                        Verdict::Other(why) => other = Some(why),
                        Verdict::Pending => wait(now + VERIFY_INTERVAL),
                    },
                    AnaState::Lost => {}
                    AnaState::Inaccessible | AnaState::Change => {
                        // The state may change. An event or the next ANA log shows it.
                        controller.request_ana_refresh();
                        controller.touch();
                        if !controller.is_overdue(nsid, now) {
                            wait(now + ANA_INTERVAL);
                        }
                    }
                },
                PathState::Pending(at) => wait(at),
                PathState::Down => {}
            }
        }
        if best.is_empty() {
            best = spare;
        }
        match (due, other) {
            _ if !best.is_empty() => Choice::Use(best),
            (Some(due), _) => Choice::Wait(due),
            (None, Some(why)) => Choice::Nowhere(self.replaced(&why)),
            (None, None) => Choice::Nowhere(self.unusable(nsid)),
        }
    }

    /// The error for a namespace that differs from the opened one.
    pub(crate) fn replaced(&self, why: &str) -> Error {
        Error::new(ErrorKind::Corrupt, "transfer", &self.nqn, why).with_hint(
            "start the transfer again, and give only addresses of one target: files on two \
             nodes are different versions",
        )
    }

    /// The error if no path to a namespace is usable.
    fn unusable(&self, nsid: u32) -> Error {
        if self.connected().is_empty() {
            return self.error();
        }
        let status = |path: &Arc<Path>| match path.connected_now() {
            Some(controller) => format!("its ANA state is {}", controller.state_of(nsid).name()),
            None => path.status(),
        };
        let all = self.paths.iter();
        let all = all.map(|path| format!("{} ({})", path.portal, status(path)));
        let all = all.collect::<Vec<_>>().join(", ");
        let why = format!("no path to namespace {nsid} is usable: {all}");
        Error::new(ErrorKind::Transient, "reach", &self.nqn, why)
            .with_hint("check the ANA states of the target's ports")
    }

    /// The error if no path is connected.
    fn error(&self) -> Error {
        let first = self.paths.first().expect("there is at least one path");
        if self.paths.len() == 1 {
            return first.error();
        }
        let all = self
            .paths
            .iter()
            .map(|path| format!("{} ({})", path.portal, path.status()));
        let why = format!("no path works: {}", all.collect::<Vec<_>>().join(", "));
        Error::new(ErrorKind::Transient, "reach", &self.nqn, why).with_hint("check the network and the targets")
    }

    /// The controllers of all connected paths.
    pub(crate) fn connected(&self) -> Vec<Arc<Controller>> {
        let paths = self.paths.iter();
        paths.filter_map(|path| path.connected_now()).collect()
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
        self.attempt(|controller| controller.ask(sqe, bytes))
    }

    /// Runs admin commands on one controller of any path, with retries after lost connections. The error comes with its
    /// cause.
    pub(crate) fn attempt<T>(
        &self,
        run: impl Fn(&Controller) -> Result<T, LinkError>,
    ) -> Result<T, (LinkError, Error)> {
        if let Err(error) = self.check_own(&self.nqn) {
            return Err((LinkError::Broken(error.to_string()), error));
        }
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
            let error = match run(&controller) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            tries += 1;
            let is_final = matches!(&error, LinkError::Refused(status, _) if !status.is_retryable());
            if is_final || tries > self.settings.retries_max {
                let failure = Error::new(ErrorKind::Transient, "ask", &self.nqn, error.to_string());
                let failure = failure.with_hint("check the target and its log, and try again");
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

    /// Runs an I/O command on a side queue, with retries after lost connections. `target` is for messages.
    pub(crate) fn run(&self, target: &str, print: &Fingerprint, sqe: Sqe, out: &[u8], into: &mut [u8]) -> Result<Cqe> {
        self.check_own(target)?;
        let settings = &self.settings;
        let lost = |why: String| {
            Error::new(ErrorKind::Transient, "reach", target, why).with_hint("check the network and the target")
        };
        let (mut connects, mut tries) = (0, 0);
        loop {
            let controller = self.wait_for(print)?;
            let failure = match self.sides.run(&controller, print, sqe, out, into) {
                Ok(cqe) => return Ok(cqe),
                Err(failure) => failure,
            };
            let why = match failure {
                SideFailure::Connect(why) => {
                    connects += 1;
                    if connects >= settings.attempts_max {
                        return Err(lost(why));
                    }
                    std::thread::sleep(settings.delay(connects));
                    continue;
                }
                SideFailure::Other(why) => return Err(self.replaced(&why)),
                SideFailure::Refused(status) if !status.is_retryable() => {
                    let error = Error::new(kind_of(status), "reach", target, status.to_string());
                    return Err(error.with_hint(remedy(status)));
                }
                SideFailure::Refused(status) => {
                    if status.is_ana() {
                        controller.request_ana_refresh();
                    }
                    std::thread::sleep(settings.delay((tries + 1).min(3)));
                    status.to_string()
                }
                SideFailure::Lost(why) => {
                    if !out.is_empty() {
                        let until = Instant::now() + controller.quarantine_time();
                        QUARANTINE.add_all(&self.nqn, until);
                    }
                    why
                }
            };
            tries += 1;
            if tries > settings.retries_max {
                return Err(lost(why));
            }
        }
    }

    /// Waits for a controller that serves a namespace, chosen in the same way as for the I/O of lanes.
    fn wait_for(&self, print: &Fingerprint) -> Result<Arc<Controller>> {
        loop {
            let now = Instant::now();
            match self.choose(print, now) {
                Choice::Use(controllers) => {
                    let first = controllers.into_iter().next();
                    return Ok(first.expect("there is at least one"));
                }
                Choice::Wait(due) => std::thread::sleep(due.saturating_duration_since(now)),
                Choice::Nowhere(error) => return Err(error),
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

/// The remedy for a status that fails an I/O.
pub(crate) fn remedy(status: Status) -> &'static str {
    match status.code() {
        code if code == Status::WRITE_PROTECTED.code() => "serve it writable: `straightway target --writable`",
        code if code == Status::CAPACITY.code() => "free space on the target",
        code if [Status::INVALID_NAMESPACE.code(), Status::LBA_RANGE.code()].contains(&code) => {
            "it may have been removed or resized: open it again"
        }
        _ => "check the target and its log, and try again",
    }
}

#[cfg(test)]
mod tests {
    use straightway_io::{Handle as _, store::Draft as _};
    use straightway_nvme::{identify::NamespaceId, index::IndexEntry, nvm::Nvm};

    use super::*;
    use crate::{
        history::History,
        namespace::{InPlace, Namespace},
    };

    #[test]
    fn a_forked_child_does_not_use_the_connections_of_its_parent() {
        let portal = Portal::new("127.0.0.1", 9);
        let nqn = Nqn::new("nqn.forked").unwrap();
        let mut subsystem = Subsystem::new(&portal, nqn, &Arc::default());
        Arc::get_mut(&mut subsystem).unwrap().process = 0;
        let print = Fingerprint {
            nsid: 1,
            bytes: 4096,
            block_shift: 12,
            id: NamespaceId::default(),
            entry: None,
            address: ([127, 0, 0, 1], 9).into(),
            history: History::new(),
        };
        let flush = Nvm::Flush.sqe(1);
        let ran = subsystem.run("the object", &print, flush, &[], &mut []);
        let (_, asked) = subsystem.attempt(|_| Ok(())).unwrap_err();
        let entry = IndexEntry {
            nsid: 0,
            is_writable: false,
            bytes: 0,
            version: 0,
            name: b"empty".to_vec(),
        };
        let namespace = Namespace::open_entry(&subsystem, entry, "the object".to_owned()).unwrap();
        let read = namespace.read_exact_at(0, &mut []);
        let namespace = Arc::new(namespace);
        let written = InPlace { namespace }.write_all_at(0, &[]);
        let errors = [ran.map(drop), read, written].map(Result::unwrap_err);
        for error in errors.into_iter().chain([asked]) {
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("forked"), "{error}");
        }
    }
}
