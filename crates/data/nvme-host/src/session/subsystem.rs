//! A subsystem: its paths, its side queues, and admin commands on any path.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::{Nqn, Sqe};
use straightway_sys::Process;

use super::{controller::Controller, failure::LinkError, path::Path, side::SideQueues};
use crate::{portal::Portal, settings::HostSettings};

/// The time within which a failed connection attempt is retried when an object is opened.
const QUICK_MAX: Duration = Duration::from_secs(2);

/// A subsystem and its paths.
#[derive(Debug)]
pub(crate) struct Subsystem {
    pub(crate) nqn: Nqn,
    pub(crate) settings: Arc<HostSettings>,
    pub(crate) paths: Vec<Arc<Path>>,
    /// The process that owns these connections.
    process: Process,
    pub(crate) sides: SideQueues,
}

impl Subsystem {
    pub(crate) fn new(portal: &Portal, nqn: Nqn, settings: &Arc<HostSettings>) -> Self {
        let mut portals = vec![portal.clone()];
        for path in &settings.paths {
            if !portals.contains(path) {
                portals.push(path.clone());
            }
        }
        let paths = portals.into_iter();
        let paths = paths.map(|portal| Path::new(portal, &nqn, settings)).collect();
        Self {
            paths,
            nqn,
            settings: Arc::clone(settings),
            process: Process::this(),
            sides: SideQueues::default(),
        }
    }

    /// Whether the connections belong to this process and not to its parent.
    pub(crate) fn is_own(&self) -> bool {
        self.process.is_this()
    }

    /// Whether the connections belong to this process.
    pub(crate) fn is_of(&self, process: Process) -> bool {
        self.process == process
    }

    /// Returns an error in a child of the process that made the connections. Both would send commands on the same
    /// sockets, and could take each other's responses.
    pub(crate) fn check_own(&self, target: impl fmt::Display) -> Result<()> {
        self.process.check(target, "open it again in this process")
    }

    /// The error if no path is connected.
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
        run: impl Fn(&Arc<Controller>) -> Result<T, LinkError>,
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
            if error.is_final() || tries > self.settings.retries_max {
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

    /// Makes its connections those of another process.
    #[cfg(test)]
    pub(crate) fn disown(&mut self) {
        self.process = Process::default();
    }
}
