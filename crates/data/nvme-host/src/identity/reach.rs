//! The controllers for a namespace, and single commands on the side queue of one of them.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_nvme::{Cqe, Sqe, log::AnaState, nvm::Nvm};

use super::{opened::Opened, verdicts::Verdict, verify::VERIFY_INTERVAL};
use crate::{
    quarantine::QUARANTINE,
    session::{
        controller::Controller,
        failure::{kind_of, remedy},
        path::{Path, PathState},
        side::SideFailure,
    },
};

/// The interval for reading the ANA log while no path is usable.
const ANA_INTERVAL: Duration = Duration::from_millis(100);

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

impl Opened {
    /// Chooses the controllers: those of optimized paths, or of non-optimized ones if there are none.
    pub(crate) fn choose(self: &Arc<Self>, now: Instant) -> Choice {
        let nsid = self.print.nsid;
        let mut other = None;
        let mut due: Option<Instant> = None;
        let (mut best, mut spare) = (Vec::new(), Vec::new());
        let mut wait = |at: Instant| due = Some(due.map_or(at, |due| due.min(at)));
        for path in &self.subsystem().paths {
            match path.state(now) {
                PathState::Up(controller) => match controller.association.state_of(nsid) {
                    state @ (AnaState::Optimized | AnaState::NonOptimized) => match self.verdict(&controller) {
                        Verdict::Same if state == AnaState::Optimized => best.push(controller),
                        Verdict::Same => spare.push(controller),
                        Verdict::Other(why) => other = Some(why),
                        Verdict::Pending => wait(now + VERIFY_INTERVAL),
                    },
                    AnaState::Lost => {}
                    AnaState::Inaccessible | AnaState::Change => {
                        // The state may change. An event or the next ANA log shows it.
                        let association = &controller.association;
                        association.request_ana_refresh();
                        association.touch();
                        if !association.is_overdue(nsid, controller.limits.transition, now) {
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
            (None, None) => Choice::Nowhere(self.unusable()),
        }
    }

    /// The error for a namespace that differs from the opened one.
    pub(crate) fn replaced(&self, why: &str) -> Error {
        Error::new(ErrorKind::Corrupt, "transfer", &self.subsystem().nqn, why).with_hint(
            "start the transfer again, and give only addresses of one target: files on two \
             nodes are different versions",
        )
    }

    /// The error if no path is usable.
    fn unusable(&self) -> Error {
        let (subsystem, nsid) = (self.subsystem(), self.print.nsid);
        if subsystem.connected().is_empty() {
            return subsystem.error();
        }
        let status = |path: &Arc<Path>| match path.connected_now() {
            Some(controller) => format!("its ANA state is {}", controller.association.state_of(nsid).name()),
            None => path.status(),
        };
        let all = subsystem.paths.iter();
        let all = all.map(|path| format!("{} ({})", path.portal, status(path)));
        let all = all.collect::<Vec<_>>().join(", ");
        let why = format!("no path to namespace {nsid} is usable: {all}");
        Error::new(ErrorKind::Transient, "reach", &subsystem.nqn, why)
            .with_hint("check the ANA states of the target's ports")
    }

    /// Runs an I/O command on a side queue, with retries after lost connections.
    pub(crate) fn run(self: &Arc<Self>, sqe: Sqe, out: &[u8], into: &mut [u8]) -> Result<Cqe> {
        self.check_own()?;
        let (subsystem, target) = (self.subsystem(), &self.name);
        let settings = &subsystem.settings;
        let lost = |why: String| {
            Error::new(ErrorKind::Transient, "reach", target, why).with_hint("check the network and the target")
        };
        let (mut connects, mut tries) = (0, 0);
        loop {
            let controller = self.wait_for_controller()?;
            let permit = |own: &Arc<Controller>| self.permit(own, !out.is_empty());
            let failure = match subsystem.sides.run(&controller, permit, sqe, out, into) {
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
                SideFailure::Forbidden(why) => return Err(self.replaced(&why)),
                SideFailure::Refused(status) if !status.is_retryable() => {
                    let error = Error::new(kind_of(status), "reach", target, status.to_string());
                    return Err(error.with_hint(remedy(status)));
                }
                SideFailure::Refused(status) => {
                    if status.is_ana() {
                        controller.association.request_ana_refresh();
                    }
                    std::thread::sleep(settings.delay((tries + 1).min(3)));
                    status.to_string()
                }
                SideFailure::Lost(why) => {
                    if !out.is_empty() {
                        let until = Instant::now() + controller.quarantine_time();
                        QUARANTINE.add_all(&subsystem.nqn, until);
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

    /// Makes all completed writes durable.
    pub(crate) fn flush(self: &Arc<Self>) -> Result<()> {
        let mark = self.history.write_mark();
        self.run(Nvm::Flush.sqe(self.print.nsid), &[], &mut [])?;
        self.history.note_flush(mark);
        Ok(())
    }

    /// Waits for a controller, chosen in the same way as for the I/O of lanes.
    fn wait_for_controller(self: &Arc<Self>) -> Result<Arc<Controller>> {
        loop {
            let now = Instant::now();
            match self.choose(now) {
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
