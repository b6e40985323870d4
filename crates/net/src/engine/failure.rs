//! What follows when something failed: another attempt, new credentials, or an error.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Instant,
};

use straightway_core::{Error, Kind, Result};
use straightway_io::Handle;

use super::{
    CONTROL_INTERVAL, HttpEngine, State,
    connection::{Ending, Phase},
};
use crate::{
    client::untrusted,
    remote::RENEWALS_MAX,
    service::{Judgement, Next, Service},
};

/// Credentials that a thread is renewing. The thread ends with the answer.
#[derive(Debug)]
pub(super) struct Renewal {
    service: Arc<dyn Service>,
    answer: Arc<OnceLock<Result<()>>>,
}

impl HttpEngine {
    /// Closes a connection, which is over as soon as its operation has landed.
    pub(super) fn close(&mut self, key: u32, ending: Ending) {
        let connection = &mut self.connections[key];
        if let Some(operation) = connection.operation {
            if connection.ending.replace(ending).is_none() {
                self.ring.cancel(operation);
            }
        } else {
            self.end(key, ending, Instant::now());
        }
    }

    /// Drops a connection without an operation.
    pub(super) fn end(&mut self, key: u32, ending: Ending, now: Instant) {
        self.connections.remove(key);
        if let Ending::Judged(number, judgement) = ending {
            self.judge(number, judgement, now);
        }
    }

    /// A connection has failed: it is closed, and its request judged, unless that has another one.
    pub(super) fn fail(&mut self, key: u32, judgement: Judgement, now: Instant) {
        let connection = &self.connections[key];
        let Some(number) = connection.phase.request() else {
            return self.fail_dialling(key, judgement, now);
        };
        let request = &mut self.requests[number];
        let State::Asked { first, hedge } = request.state else {
            unreachable!("a connection serves what was asked")
        };
        let Some(hedge) = hedge else {
            return self.close(key, Ending::Judged(number, judgement));
        };
        let other = if first == key { hedge } else { first };
        request.state = if judgement.next == Next::Retry {
            // The other one may still be answered.
            State::Asked {
                first: other,
                hedge: None,
            }
        } else {
            State::Asked {
                first: key,
                hedge: None,
            }
        };
        if judgement.next == Next::Retry {
            self.close(key, Ending::Unneeded);
        } else {
            self.close(other, Ending::Unneeded);
            self.close(key, Ending::Judged(number, judgement));
        }
    }

    /// Gives up a request that nobody wants any more.
    pub(super) fn abandon(&mut self, number: u32, now: Instant) {
        let request = &mut self.requests[number];
        let name = request.remote.object().name;
        let error = Error::new(Kind::Cancelled, "read", name, "it was stopped");
        let judgement = Judgement::new(Next::Fail, error);
        match request.state {
            State::Waiting(_) | State::Renewing => {
                self.waiting.retain(|waiting| *waiting != number);
                self.judge(number, judgement, now);
            }
            State::Asked { first, hedge } => {
                request.state = State::Asked { first, hedge: None };
                if let Some(hedge) = hedge {
                    self.close(hedge, Ending::Unneeded);
                }
                self.close(first, Ending::Judged(number, judgement));
            }
        }
    }

    /// A connection could not be made: one of the requests that wait for it is judged.
    fn fail_dialling(&mut self, key: u32, judgement: Judgement, now: Instant) {
        let origin = Arc::clone(&self.connections[key].origin);
        origin.lookup().distrust();
        self.close(key, Ending::Unneeded);
        let waits = |number: &u32| {
            let request = &self.requests[*number];
            let is_due = matches!(request.state, State::Waiting(not_before) if not_before <= now);
            is_due && Arc::ptr_eq(request.remote.origin(), &origin)
        };
        let waiting = self.waiting.iter().position(waits);
        if let Some(number) = waiting.and_then(|at| self.waiting.remove(at)) {
            self.judge(number, judgement, now);
        }
    }

    /// Does with a request what a judgement says. It has no connection any more.
    pub(super) fn judge(&mut self, number: u32, judgement: Judgement, now: Instant) {
        let Judgement { next, error } = judgement;
        let request = &mut self.requests[number];
        if request.missing() == 0 {
            // The last bytes came while the connection was given up.
            return self.settle(number, now);
        }
        let wait = match next {
            Next::Renew if request.renewals < RENEWALS_MAX => {
                request.state = State::Renewing;
                return self.renew(now);
            }
            Next::Fail | Next::Renew => None,
            Next::Retry => request.backoff.next_wait(now),
            Next::SlowDown(asked) => {
                request.remote.origin().pace().slow_down(now, asked);
                let wait = request.backoff.next_asked_wait();
                wait.map(|wait| wait.max(asked.unwrap_or_default()))
            }
        };
        let Some(wait) = wait else {
            return self.finish(number, Err(io::Error::other(error)));
        };
        request.tries.retries += 1;
        request.needs_new = true;
        request.state = State::Waiting(now + wait);
        self.waiting.push_back(number);
    }

    /// All bytes of a request are in place: it is done, unless they do not have their checksum.
    pub(super) fn settle(&mut self, number: u32, now: Instant) {
        let request = &mut self.requests[number];
        match request.verify() {
            Ok(()) => {
                let got = request.got;
                self.finish(number, Ok(got));
            }
            Err(judgement) => self.judge(number, judgement, now),
        }
    }

    /// Starts to renew the credentials of a request that waits for it, one at a time.
    fn renew(&mut self, now: Instant) {
        if self.renewal.is_some() {
            return;
        }
        let waiting = |(_, request): &(u32, &super::Request)| request.state == State::Renewing;
        let Some((_, request)) = self.requests.iter().find(waiting) else {
            return;
        };
        let service = Arc::clone(request.remote.service());
        let answer = Arc::new(OnceLock::new());
        let (asked, told) = (Arc::clone(&service), Arc::clone(&answer));
        let renew = move || {
            let _ = told.set(asked.renew());
        };
        let thread = std::thread::Builder::new().name("straightway-renew".to_owned());
        let started = thread.spawn(renew);
        self.renewal = Some(Renewal { service, answer });
        if let Err(error) = started {
            let error = Error::os("start", "a thread that renews credentials", error);
            self.end_renewal(&Err(error), now);
        }
    }

    /// Looks whether credentials were renewed. Answers when to look again.
    pub(super) fn check_renewal(&mut self, now: Instant) -> Instant {
        let answer = self.renewal.as_ref().and_then(|renewal| {
            let answer = renewal.answer.get()?;
            Some(answer.as_ref().copied().map_err(Error::again))
        });
        if let Some(answer) = answer {
            self.end_renewal(&answer, now);
        }
        now + CONTROL_INTERVAL
    }

    fn end_renewal(&mut self, answer: &Result<()>, now: Instant) {
        let Some(Renewal { service, .. }) = self.renewal.take() else {
            return;
        };
        for number in 0..u32::try_from(self.requests.capacity()).expect("queues are short") {
            if self
                .requests
                .get(number)
                .is_none_or(|r| r.state != State::Renewing)
            {
                continue;
            }
            let request = &mut self.requests[number];
            let is_own = Arc::ptr_eq(request.remote.service(), &service);
            match answer {
                Err(error) if is_own => {
                    let error = io::Error::other(error.again());
                    self.finish(number, Err(error));
                }
                // Others may share the credentials, and are asked again whether theirs are good.
                _ => {
                    request.renewals += u32::from(is_own);
                    request.state = State::Waiting(now);
                    self.waiting.push_back(number);
                }
            }
        }
    }

    /// Nothing has come on a connection for too long.
    pub(super) fn give_up_waiting(&mut self, key: u32, now: Instant) {
        let connection = &self.connections[key];
        let settings = connection.origin.network().settings();
        let why = match connection.phase {
            Phase::Erring(..) => return self.judge_error(key, now),
            phase if phase.is_dialling() => {
                format!("no connection within {:?}", settings.connect_max)
            }
            Phase::Sending(_) => format!("nothing was taken for {:?}", settings.stall_max),
            Phase::Filling(_) => format!("nothing came for {:?}", settings.stall_max),
            _ => format!("no answer within {:?}", settings.stall_max),
        };
        let judgement = self.broken(key, &why);
        self.fail(key, judgement, now);
    }

    /// The error of a handshake, or of a session that was tampered with.
    pub(super) fn untrusted(&self, key: u32, error: &rustls::Error) -> Error {
        untrusted(&self.connections[key].origin.site().to_string(), error)
    }
}
