//! Which request goes to which connection, new connections, and hedges.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_core::{Error, Kind};
use straightway_sys::{Socket, uring::sockets::Payload};

use super::{
    CONTROL_INTERVAL, HttpEngine, State, TICK_MAX,
    connection::{Connection, Ending, Phase},
};
use crate::{
    lookup::Whereabouts,
    origin::Origin,
    service::{Head, Judgement, Next},
};

/// How soon it is looked again whether a slow request can be hedged.
const HEDGE_INTERVAL: Duration = Duration::from_millis(5);

impl HttpEngine {
    /// Sends the requests that may go. Answers when the next one may.
    pub(super) fn start_waiting(&mut self, now: Instant) -> Instant {
        let mut due = now + TICK_MAX;
        // Those that need another connection, which are made side by side.
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
                    self.requests[number].state = State::Asked { first, hedge: None };
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

    /// A connection to `origin` that waits for a request: the one that was used last. Those that have gone bad
    /// meanwhile are closed.
    fn find_ready(&mut self, origin: &Arc<Origin>, must_be_new: bool) -> Option<u32> {
        loop {
            let idle = self.connections.iter().filter(|(_, connection)| {
                connection.is_idle()
                    && Arc::ptr_eq(&connection.origin, origin)
                    && !(must_be_new && connection.is_used)
            });
            let (number, _) = idle.max_by_key(|(_, connection)| connection.since)?;
            if self.connections[number].is_quiet() {
                return Some(number);
            }
            self.close(number, Ending::Unneeded);
        }
    }

    /// Sees to it that a waiting request gets a connection.
    fn dial_for(
        &mut self,
        number: u32,
        origin: &Arc<Origin>,
        unserved: usize,
        now: Instant,
    ) -> Instant {
        let due = now + TICK_MAX;
        if self.dialling(origin) > unserved || !self.makes_room(self.connections_max, origin) {
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

    /// How many connections to `origin` are being made.
    fn dialling(&self, origin: &Arc<Origin>) -> usize {
        let made = self.connections.iter().filter(|(_, connection)| {
            connection.phase.is_dialling() && Arc::ptr_eq(&connection.origin, origin)
        });
        made.count()
    }

    /// Whether there may be one more connection, within `most`. One that has long had nothing to do makes room.
    fn makes_room(&mut self, most: usize, origin: &Arc<Origin>) -> bool {
        if self.connections.len() < most {
            return true;
        }
        let idle = self.connections.iter().filter(|(_, c)| c.is_idle());
        // Another server's first, since this one's are of use.
        let spare = idle.min_by_key(|(_, c)| (Arc::ptr_eq(&c.origin, origin), c.since));
        let Some((spare, _)) = spare else {
            return false;
        };
        self.close(spare, Ending::Unneeded);
        self.connections.len() < most
    }

    /// Begins a connection. Where its address is still looked up, answers how long to wait.
    fn dial(&mut self, origin: &Arc<Origin>, now: Instant) -> Result<Option<Duration>, Error> {
        let address = match origin.lookup().next(now) {
            Whereabouts::At(address) => address,
            Whereabouts::Pending => return Ok(Some(CONTROL_INTERVAL)),
            Whereabouts::Nowhere(error) => return Err(error),
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

    /// Sends the request for what is missing of an I/O.
    fn ask(&mut self, number: u32, key: u32, now: Instant) {
        let request = &mut self.requests[number];
        let connection = &mut self.connections[key];
        let written = request.write_head(&mut connection.out);
        connection.phase = Phase::Asking(number);
        connection.since = now;
        connection.is_reusable = false;
        connection.clear_scratch();
        let stall_max = connection.origin.network().settings().stall_max;
        connection.expect_within(stall_max, now);
        let refused = match written {
            Ok(Head::Ready) => None,
            Ok(Head::Renew) => {
                let why = "the credentials have expired";
                let error = request.remote.failed(Kind::Invalid, why, "renew them");
                Some(Judgement::new(Next::Renew, error))
            }
            Err(error) => Some(Judgement::of(error)),
        };
        if let Some(judgement) = refused {
            // Nothing was sent, so the connection is as good as before.
            connection.phase = Phase::Idle;
            let request = &mut self.requests[number];
            if let State::Asked {
                first,
                hedge: Some(_),
            } = request.state
            {
                // The first one is still under way.
                request.state = State::Asked { first, hedge: None };
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

    /// Sends what a connection has to send. A head fits into the socket's buffer, so that sending it at once costs less
    /// than an operation of the ring, whose completion would have to be waited for. The ring sends what does not fit.
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

    /// Sends the slowest request a second time, if it is slower than most and the budget allows it. Answers when to
    /// look again.
    pub(super) fn hedge(&mut self, now: Instant) -> Instant {
        let mut due = now + TICK_MAX;
        let mut slowest: Option<(Instant, u32)> = None;
        for (number, request) in self.requests.iter() {
            let State::Asked { first, hedge: None } = request.state else {
                continue;
            };
            let connection = &self.connections[first];
            let origin = &connection.origin;
            if connection.phase != Phase::Awaiting(number)
                || request.sending.is_some()
                || connection.ending.is_some()
                || !origin.network().settings().hedges
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
        } else if self.dialling(&origin) == 0
            && self.makes_room(self.connections.capacity(), &origin)
        {
            // What fails here fails for waiting requests too, and is told there.
            let _ = self.dial(&origin, now);
        }
        due.min(now + HEDGE_INTERVAL)
    }

    /// Asks on a second connection as well.
    fn ask_again(&mut self, number: u32, key: u32, now: Instant) {
        let request = &mut self.requests[number];
        if let State::Asked { first, .. } = request.state {
            request.tries.hedges_sent += 1;
            request.state = State::Asked {
                first,
                hedge: Some(key),
            };
            self.ask(number, key, now);
        }
    }
}
