//! Handles failures: retries, renewal of credentials, and errors.

use std::{
    io,
    sync::{Arc, OnceLock},
    time::Instant,
};

use straightway_core::{Error, ErrorKind, Result};
use straightway_io::Handle;

use super::{
    CONTROL_INTERVAL, HttpEngine, State,
    connection::{Ending, Phase},
};
use crate::{
    client::untrusted,
    progress::too_slow,
    retry::RetryStep,
    service::{Judgement, Next, Service},
};

/// A renewal of credentials on a thread. The thread ends when `outcome` is set.
#[derive(Debug)]
pub(super) struct Renewal {
    service: Arc<dyn Service>,
    outcome: Arc<OnceLock<Result<()>>>,
}

impl HttpEngine {
    /// Closes a connection. It is removed once its operation has completed.
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

    /// Removes a connection that has no operation in the ring.
    pub(super) fn end(&mut self, key: u32, ending: Ending, now: Instant) {
        self.connections.remove(key);
        if let Ending::Judged(number, judgement) = ending {
            self.judge(number, judgement, now);
        }
    }

    /// Closes a failed connection and judges its request, unless a hedge of the request may still succeed.
    pub(super) fn fail(&mut self, key: u32, judgement: Judgement, now: Instant) {
        let connection = &self.connections[key];
        let Some(number) = connection.phase.request() else {
            return self.fail_dialling(key, judgement, now);
        };
        let request = &mut self.requests[number];
        let State::InFlight { first, hedge } = request.state else {
            unreachable!("its request was sent")
        };
        let Some(hedge) = hedge else {
            return self.close(key, Ending::Judged(number, judgement));
        };
        let other = if first == key { hedge } else { first };
        request.state = if judgement.next == Next::Retry {
            // The other connection may still succeed.
            State::InFlight {
                first: other,
                hedge: None,
            }
        } else {
            State::InFlight {
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

    /// Cancels a request.
    pub(super) fn abandon(&mut self, number: u32, now: Instant) {
        let request = &mut self.requests[number];
        let name = request.remote.object().name;
        let error = Error::new(ErrorKind::Cancelled, "read", name, "it was stopped");
        let judgement = Judgement::new(Next::Fail, error);
        match request.state {
            State::Waiting(_) | State::Renewing => {
                self.waiting.retain(|waiting| *waiting != number);
                self.judge(number, judgement, now);
            }
            State::InFlight { first, hedge } => {
                request.state = State::InFlight { first, hedge: None };
                if let Some(hedge) = hedge {
                    self.close(hedge, Ending::Unneeded);
                }
                self.close(first, Ending::Judged(number, judgement));
            }
        }
    }

    /// Closes a connection that could not be established, and judges one of the requests that wait for it.
    fn fail_dialling(&mut self, key: u32, judgement: Judgement, now: Instant) {
        let origin = Arc::clone(&self.connections[key].origin);
        origin.lookup().expire();
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

    /// Applies a judgement to a request, which has no connection any more.
    pub(super) fn judge(&mut self, number: u32, judgement: Judgement, now: Instant) {
        let Judgement { next, error } = judgement;
        let request = &mut self.requests[number];
        if request.missing() == 0 {
            // The last bytes arrived while the connection was being closed.
            return self.settle(number, now);
        }
        request.note_failure();
        let origin = request.remote.origin();
        let wait = match request.retries.decide(next, origin.pace(), now) {
            RetryStep::Wait(wait) => wait,
            RetryStep::Renew => {
                request.state = State::Renewing;
                return self.renew(now);
            }
            RetryStep::Fail => return self.finish(number, Err(io::Error::other(error))),
        };
        origin.show_wait(&error, request.sent, wait, &request.retries.backoff);
        request.tries.retries += 1;
        request.needs_new = true;
        request.state = State::Waiting(now + wait);
        self.waiting.push_back(number);
    }

    /// Completes a request whose bytes were all transferred, unless their checksum is wrong.
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

    /// Starts to renew the credentials of one request that waits for them, unless a renewal is in progress.
    fn renew(&mut self, now: Instant) {
        if self.renewal.is_some() {
            return;
        }
        let waiting = |(_, request): &(u32, &super::Request)| request.state == State::Renewing;
        let Some((_, request)) = self.requests.iter().find(waiting) else {
            return;
        };
        let service = Arc::clone(request.remote.service());
        let outcome = Arc::new(OnceLock::new());
        let (renewed, done) = (Arc::clone(&service), Arc::clone(&outcome));
        let renew = move || {
            let _ = done.set(renewed.renew());
        };
        let thread = std::thread::Builder::new().name("straightway-renew".to_owned());
        let started = thread.spawn(renew);
        self.renewal = Some(Renewal { service, outcome });
        if let Err(error) = started {
            let error = Error::os("start", "a thread that renews credentials", error);
            self.end_renewal(&Err(error), now);
        }
    }

    /// Checks whether the renewal is done. Returns the time of the next check.
    pub(super) fn check_renewal(&mut self, now: Instant) -> Instant {
        let outcome = self.renewal.as_ref().and_then(|renewal| {
            let outcome = renewal.outcome.get()?;
            Some(outcome.as_ref().copied().map_err(Error::again))
        });
        if let Some(outcome) = outcome {
            self.end_renewal(&outcome, now);
        }
        now + CONTROL_INTERVAL
    }

    fn end_renewal(&mut self, outcome: &Result<()>, now: Instant) {
        let Some(Renewal { service, .. }) = self.renewal.take() else {
            return;
        };
        for number in 0..u32::try_from(self.requests.capacity()).expect("queues are short") {
            if self.requests.get(number).is_none_or(|r| r.state != State::Renewing) {
                continue;
            }
            let request = &mut self.requests[number];
            let is_own = Arc::ptr_eq(request.remote.service(), &service);
            match outcome {
                Err(error) if is_own => {
                    let error = io::Error::other(error.again());
                    self.finish(number, Err(error));
                }
                // Other requests may share the credentials: their service checks them again.
                _ => {
                    if is_own {
                        request.retries.note_renewal();
                    }
                    request.state = State::Waiting(now);
                    self.waiting.push_back(number);
                }
            }
        }
    }

    /// Fails a connection whose deadline has passed.
    pub(super) fn give_up_waiting(&mut self, key: u32, now: Instant) {
        let connection = &self.connections[key];
        let settings = connection.origin.settings();
        let why = match connection.phase {
            // The ring has the buffer with the error. It is judged when the operation has ended.
            Phase::ReceivingError(..) if connection.lends_scratch() => return self.check_progress(key, now),
            Phase::ReceivingError(..) => return self.judge_error(key, now),
            phase if phase.is_dialling() => {
                format!("no connection within {:?}", settings.connect_max)
            }
            Phase::SendingBody(_) => {
                format!("the server accepted no data for {:?}", settings.stall_max)
            }
            Phase::ReceivingBody(_) => too_slow(settings),
            Phase::Awaiting(number) if self.requests[number].sending.is_some() => {
                format!("no response to a part within {:?}", settings.stored_max())
            }
            _ => format!("no response within {:?}", settings.stall_max),
        };
        let judgement = self.broken(key, &why);
        self.fail(key, judgement, now);
    }

    /// The error of a failed handshake or of a corrupted session.
    pub(super) fn untrusted(&self, key: u32, error: &rustls::Error) -> Error {
        untrusted(&self.connections[key].origin.site().to_string(), error)
    }
}
