//! Assigns requests to connections, opens connections, and sends hedges.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Error, ErrorKind};
use straightway_sys::{Socket, uring::sockets::Payload};

use super::{
    CONTROL_INTERVAL, HttpEngine, State, TICK_MAX,
    connection::{Connection, Ending, Phase},
};
use crate::{
    lookup::Resolution,
    origin::Origin,
    service::{Head, Judgement, Next},
};

/// The interval of checks whether a slow request can be hedged.
const HEDGE_INTERVAL: Duration = Duration::from_millis(5);

impl HttpEngine {
    /// Sends the waiting requests that may be sent now. Returns the time of the next.
    pub(super) fn start_waiting(&mut self, now: Instant) -> Instant {
        let mut due = now + TICK_MAX;
        // Requests that need another connection; these are opened in parallel.
        let mut unserved = 0;
        for _ in 0..self.waiting.len() {
            let Some(number) = self.waiting.pop_front() else {
                break;
            };
            let request = &self.requests[number];
            let State::Waiting(not_before) = request.state else {
                continue;
            };
            if not_before > now {
                due = due.min(not_before);
                self.waiting.push_back(number);
                continue;
            }
            let origin = Arc::clone(request.remote.origin());
            let Some(connection) = self.find_ready(&origin, request.needs_new) else {
                due = due.min(self.dial_for(number, &origin, unserved, now));
                unserved += 1;
                continue;
            };
            match origin.pace().admit(now) {
                Ok(()) => {
                    let first = connection;
                    self.requests[number].state = State::InFlight { first, hedge: None };
                    self.ask(number, connection, now);
                }
                Err(not_before) => {
                    due = due.min(not_before);
                    self.requests[number].state = State::Waiting(not_before);
                    self.waiting.push_back(number);
                }
            }
        }
        due
    }

    /// The idle connection to `origin` that was used last. Idle connections that have failed meanwhile are closed.
    fn find_ready(&mut self, origin: &Arc<Origin>, must_be_new: bool) -> Option<u32> {
        loop {
            let idle = self.connections.iter().filter(|(_, connection)| {
                connection.is_idle() && Arc::ptr_eq(&connection.origin, origin) && !(must_be_new && connection.is_used)
            });
            let (number, _) = idle.max_by_key(|(_, connection)| connection.since)?;
            if self.connections[number].is_quiet() {
                return Some(number);
            }
            self.close(number, Ending::Unneeded);
        }
    }

    /// Opens a connection for a waiting request, if one more is needed and allowed.
    fn dial_for(&mut self, number: u32, origin: &Arc<Origin>, unserved: usize, now: Instant) -> Instant {
        let due = now + TICK_MAX;
        if self.dialling(origin) > unserved || !self.make_room(self.connections_max, origin) {
            self.waiting.push_back(number);
            return due;
        }
        match self.dial(origin, now) {
            Ok(wait) => {
                self.waiting.push_back(number);
                wait.map_or(due, |wait| now + wait)
            }
            Err(error) => {
                self.judge(number, Judgement::of(error), now);
                due
            }
        }
    }

    /// The number of connections to `origin` that are being established.
    fn dialling(&self, origin: &Arc<Origin>) -> usize {
        let made = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.phase.is_dialling() && Arc::ptr_eq(&connection.origin, origin));
        made.count()
    }

    /// Whether one more connection fits within `most`. Closes the longest idle connection if necessary.
    fn make_room(&mut self, most: usize, origin: &Arc<Origin>) -> bool {
        if self.connections.len() < most {
            return true;
        }
        let idle = self.connections.iter().filter(|(_, c)| c.is_idle());
        // Connections to other servers first: those to this one may be reused.
        let spare = idle.min_by_key(|(_, c)| (Arc::ptr_eq(&c.origin, origin), c.since));
        let Some((spare, _)) = spare else {
            return false;
        };
        self.close(spare, Ending::Unneeded);
        self.connections.len() < most
    }

    /// Begins to connect. Returns the time to wait if the address is still being looked up.
    fn dial(&mut self, origin: &Arc<Origin>, now: Instant) -> Result<Option<Duration>, Error> {
        let address = match origin.lookup().next(now) {
            Resolution::Address(address) => address,
            Resolution::Pending => return Ok(Some(CONTROL_INTERVAL)),
            Resolution::Failed(error) => return Err(error),
        };
        let socket = Socket::new(&address);
        let socket = socket.map_err(|error| Error::os("connect to", origin.site(), error))?;
        let connection = Connection::new(origin, socket, now);
        let Ok(number) = self.connections.insert(connection) else {
            return Ok(Some(CONTROL_INTERVAL));
        };
        self.operate(number, Payload::Connect(address), now);
        Ok(None)
    }

    /// Sends the request for the missing range of an I/O.
    fn ask(&mut self, number: u32, key: u32, now: Instant) {
        let request = &mut self.requests[number];
        request.note_sent(now);
        let connection = &mut self.connections[key];
        let written = request.write_head(&mut connection.out);
        connection.phase = Phase::SendingHead(number);
        connection.since = now;
        connection.is_reusable = false;
        connection.clear_scratch();
        let stall_max = connection.origin.settings().stall_max;
        connection.expect_within(stall_max, now);
        let refused = match written {
            Ok(Head::Ready) => None,
            Ok(Head::Renew) => {
                let why = "the credentials have expired";
                let error = request.remote.failed(ErrorKind::Invalid, why, "renew them");
                Some(Judgement::new(Next::Renew, error))
            }
            Err(error) => Some(Judgement::of(error)),
        };
        if let Some(judgement) = refused {
            // Nothing was sent, so the connection can be reused.
            connection.phase = Phase::Idle;
            let request = &mut self.requests[number];
            if let State::InFlight { first, hedge: Some(_) } = request.state {
                // The first request is still in flight.
                request.state = State::InFlight { first, hedge: None };
                return;
            }
            return self.judge(number, judgement, now);
        }
        if let Some(session) = &mut connection.session
            && let Err(error) = session.encrypt(&connection.out)
        {
            return self.fail(key, Judgement::of(self.untrusted(key, &error)), now);
        }
        self.send(key, now);
    }

    /// Sends the outgoing bytes of a connection. A head fits into the socket's buffer, so a direct send costs less than
    /// an operation of the ring and a wait for its completion. The ring sends the rest, if any.
    pub(super) fn send(&mut self, key: u32, now: Instant) {
        let connection = &mut self.connections[key];
        let Some(bytes) = connection.lend_outgoing() else {
            return self.receive(key, now);
        };
        match connection.socket.send_now(&bytes) {
            Ok(sent) if sent == bytes.len() => {
                connection.take_outgoing(bytes);
                self.sent(key, now);
            }
            Ok(from) => self.operate(key, Payload::Send { bytes, from }, now),
            Err(error) => {
                connection.take_outgoing(bytes);
                let judgement = self.broken(key, &error.to_string());
                self.fail(key, judgement, now);
            }
        }
    }

    /// Sends the slowest request a second time, if it is slow enough and the budget allows it. Returns the time of the
    /// next check.
    pub(super) fn hedge(&mut self, now: Instant) -> Instant {
        let mut due = now + TICK_MAX;
        let mut slowest: Option<(Instant, u32)> = None;
        for (number, request) in self.requests.iter() {
            let State::InFlight { first, hedge: None } = request.state else {
                continue;
            };
            let connection = &self.connections[first];
            let origin = &connection.origin;
            if connection.phase != Phase::Awaiting(number)
                || request.sending.is_some()
                || connection.ending.is_some()
                || !origin.settings().hedges
            {
                continue;
            }
            match origin.pace().hedge_at(connection.since) {
                Some(at) if at > now => due = due.min(at),
                Some(_) if slowest.is_none_or(|(since, _)| connection.since < since) => {
                    slowest = Some((connection.since, number));
                }
                _ => {}
            }
        }
        let Some((_, number)) = slowest else {
            return due;
        };
        let origin = Arc::clone(self.requests[number].remote.origin());
        if !origin.pace().has_hedge() {
            return due.min(now + HEDGE_INTERVAL);
        }
        if let Some(key) = self.find_ready(&origin, false) {
            if origin.pace().take_hedge() {
                self.ask_again(number, key, now);
            }
        } else if self.dialling(&origin) == 0 && self.make_room(self.connections.capacity(), &origin) {
            // An error here is ignored: it is reported if a waiting request meets it.
            let _ = self.dial(&origin, now);
        }
        due.min(now + HEDGE_INTERVAL)
    }

    /// Sends a request on a second connection as well.
    fn ask_again(&mut self, number: u32, key: u32, now: Instant) {
        let request = &mut self.requests[number];
        if let State::InFlight { first, .. } = request.state {
            request.tries.hedges_sent += 1;
            request.state = State::InFlight {
                first,
                hedge: Some(key),
            };
            self.ask(number, key, now);
        }
    }
}
