//! The control thread of a controller: it owns the admin queue, sends keep-alives, and receives asynchronous events.
//!
//! It ends when the controller ends, or is unused for [`HostSettings::idle`].

use std::{
    io,
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use straightway_nvme::{
    Sqe,
    admin::{Admin, AsyncEvent},
    identify,
    log::{self, CHANGED_BYTES},
};

use super::{
    association::Association,
    failure::LinkError,
    link::{Link, get_log},
    opening::read_ana,
};
use crate::settings::HostSettings;

/// The polling interval of the admin queue.
const INTERVAL: Duration = Duration::from_millis(50);

/// The maximum number of events that are received within [`EVENTS_PAUSE`]. A target could send them endlessly.
const EVENTS_MAX: usize = 8;

/// The pause after so many events. Meanwhile commands are served, and namespaces can be verified again.
const EVENTS_PAUSE: Duration = Duration::from_secs(1);

/// An admin command of another thread.
#[derive(Debug)]
pub(super) struct AdminRequest {
    pub(super) sqe: Sqe,
    /// The number of data bytes that the command returns.
    pub(super) bytes: usize,
    pub(super) wait_max: Duration,
    pub(super) answer: mpsc::Sender<Result<Vec<u8>, LinkError>>,
}

struct Control {
    link: Link,
    association: Arc<Association>,
    page: identify::Controller,
    keep_alive: Duration,
    idle: Duration,
    /// The time of the last answered keep-alive. Only Keep Alive counts: some targets restart their timer by no other
    /// command.
    kept_alive: Instant,
    /// The number of events since a time, and the time from which events are received again.
    events: (usize, Instant),
    events_from: Instant,
    /// The time when the controller was last seen in use, and its activity count then.
    used: (Instant, u64),
}

/// Starts the thread. It ends when the sender of `asks` is dropped.
pub(super) fn start(
    association: &Arc<Association>,
    settings: &HostSettings,
    link: Link,
    page: identify::Controller,
    asks: mpsc::Receiver<AdminRequest>,
) -> io::Result<()> {
    let now = Instant::now();
    let mut control = Control {
        link,
        page,
        keep_alive: settings.keep_alive,
        idle: settings.idle,
        kept_alive: now,
        events: (0, now),
        events_from: now,
        used: (now, 0),
        association: Arc::clone(association),
    };
    let thread = std::thread::Builder::new().name("straightway-nvme".to_owned());
    thread.spawn(move || {
        let why = control.run(&asks);
        control.association.end(why);
    })?;
    Ok(())
}

impl Control {
    /// Serves until the controller ends. Returns the cause.
    fn run(&mut self, asks: &mpsc::Receiver<AdminRequest>) -> String {
        loop {
            match asks.recv_timeout(INTERVAL) {
                Ok(ask) => {
                    if let Err(why) = self.serve(&ask) {
                        return why;
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => return "it is unused".to_owned(),
            }
            if let Some(why) = self.association.ended() {
                return why.to_owned();
            }
            if let Err(why) = self.look() {
                return why;
            }
        }
    }

    /// Runs a command of another thread.
    fn serve(&mut self, ask: &AdminRequest) -> Result<(), String> {
        let mut bytes = vec![0; ask.bytes];
        // No keep-alive can be sent meanwhile, so the keep-alive timeout applies here too.
        let wait_max = match self.keep_alive {
            Duration::ZERO => ask.wait_max,
            keep_alive => ask.wait_max.min(keep_alive),
        };
        let deadline = Instant::now() + wait_max;
        let ran = self.link.run(ask.sqe, &[], &mut bytes, deadline);
        let ended = match &ran {
            Err(LinkError::Broken(why)) => Err(why.clone()),
            _ => Ok(()),
        };
        // The requester may have timed out.
        let _ = ask.answer.send(ran.map(|_| bytes));
        ended
    }

    /// Receives events, sends keep-alives, and ends an idle controller.
    fn look(&mut self) -> Result<(), String> {
        let now = Instant::now();
        let has_ana = self.take_events(now)?;
        let wants_ana = self.association.take_ana_request() || has_ana;
        if wants_ana && self.page.has_ana() {
            let log = read_ana(&mut self.link, &self.page, now + self.keep_alive);
            self.association.set_ana(log.map_err(|refusal| refusal.why)?);
        }
        let activity = self.association.activity();
        if activity != self.used.1 {
            self.used = (now, activity);
        }
        if now.duration_since(self.used.0) > self.idle {
            return Err(IDLE.to_owned());
        }
        self.send_keep_alive()
    }

    /// Receives events, unless there were too many. Returns whether ANA states changed.
    fn take_events(&mut self, now: Instant) -> Result<bool, String> {
        let failed = |error: LinkError| error.to_string();
        let (mut has_ana, mut has_namespaces) = (false, false);
        while now >= self.events_from {
            let Some(event) = self.link.next_event().map_err(failed)? else {
                break;
            };
            self.count_event(now);
            has_ana |= event == AsyncEvent::ANA;
            has_namespaces |= event == AsyncEvent::NAMESPACES;
            let again = self.link.request_event(now + self.keep_alive);
            again.map_err(failed)?;
        }
        if has_namespaces {
            self.association.count_namespace_change();
            self.read_changed()?;
            // Linux sends no further event for a change between the event and the read.
            self.association.count_namespace_change();
        }
        Ok(has_ana)
    }

    /// Counts an event. After too many, a pause begins.
    fn count_event(&mut self, now: Instant) {
        if now.duration_since(self.events.1) > EVENTS_PAUSE {
            self.events = (0, now);
        }
        self.events.0 += 1;
        if self.events.0 >= EVENTS_MAX {
            self.events_from = now + EVENTS_PAUSE;
            self.events = (0, self.events_from);
        }
    }

    /// Sends a keep-alive after a third of the timeout. A target that does not answer within the rest is lost.
    fn send_keep_alive(&mut self) -> Result<(), String> {
        let silence = self.kept_alive.elapsed();
        if self.keep_alive.is_zero() || silence < self.keep_alive / 3 {
            return Ok(());
        }
        // On a busy machine this thread may be late. The target still gets time to answer.
        let rest = self.kept_alive + self.keep_alive;
        let deadline = rest.max(Instant::now() + self.keep_alive / 3);
        match self.link.run(Admin::KeepAlive.sqe(), &[], &mut [], deadline) {
            Ok(_) => {
                self.kept_alive = Instant::now();
                Ok(())
            }
            Err(error) => {
                let time = self.keep_alive;
                Err(format!("no answer to a keep-alive ({time:?}): {error}"))
            }
        }
    }

    /// Reads the Changed Namespace List, which re-enables its event. Open objects are checked when they are used.
    fn read_changed(&mut self) -> Result<(), String> {
        let mut bytes = vec![0; CHANGED_BYTES];
        let sqe = get_log(log::page::CHANGED_NAMESPACES, bytes.len(), u32::MAX);
        let deadline = Instant::now() + self.keep_alive;
        match self.link.run(sqe, &[], &mut bytes, deadline) {
            Ok(_) | Err(LinkError::Refused(..)) => Ok(()),
            Err(LinkError::Broken(why)) => Err(why),
        }
    }
}

/// The cause of the end of an idle controller.
pub(crate) const IDLE: &str = "it was not used for a while";
