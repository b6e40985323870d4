//! Handles completed operations on sockets.

use std::time::Instant;

use straightway_core::{Error, ErrorKind};
use straightway_sys::uring::sockets::{Payload, SocketCompletion};

use super::{
    HttpEngine, Object,
    connection::{Ending, Phase},
    session::{Session, Stage},
};
use crate::{
    head::{self, Parsed},
    service::{Judgement, Next},
};

impl HttpEngine {
    /// Hands an operation of a connection to the ring.
    pub(super) fn operate(&mut self, key: u32, payload: Payload<Object>, now: Instant) {
        let connection = &mut self.connections[key];
        debug_assert!(connection.operation.is_none(), "one operation at a time");
        match self.ring.begin(key, &connection.socket, payload) {
            Ok(operation) => connection.operation = Some(operation),
            Err(payload) => {
                self.restore(key, payload, 0);
                self.fail(key, self.broken(key, "the kernel accepts no more operations"), now);
            }
        }
    }

    /// Receives the next bytes: a body into its I/O, all else into the connection's buffer.
    pub(super) fn receive(&mut self, key: u32, now: Instant) {
        let connection = &mut self.connections[key];
        let payload = match connection.phase {
            Phase::Idle => return,
            Phase::ReceivingBody(number) if connection.session.is_none() => {
                let request = &mut self.requests[number];
                let (from, to) = (request.got, request.got + request.missing());
                let io = request.io.take().expect("the ring does not have it");
                Payload::Fill { io, from, to }
            }
            _ => connection.lend_incoming(),
        };
        self.operate(key, payload, now);
    }

    /// Returns the buffers of an operation to their owners, with `moved` bytes in them.
    fn restore(&mut self, key: u32, payload: Payload<Object>, moved: usize) {
        let connection = &mut self.connections[key];
        match payload {
            Payload::FillThen { .. } | Payload::SpillAfter { .. } => {
                unreachable!("no request has two pieces")
            }
            Payload::Connect(_) => {}
            Payload::Send { bytes, from } if connection.sends_body() => {
                self.restore_body(key, bytes, from + moved);
            }
            Payload::Send { bytes, .. } => connection.take_outgoing(bytes),
            Payload::Spill { io, from, .. } => self.restore_sent(key, io, from + moved),
            Payload::Receive { bytes, .. } => connection.take_incoming(bytes, moved),
            Payload::Fill { io, .. } => {
                let number = connection.phase.request().expect("it fills a request's I/O");
                let request = &mut self.requests[number];
                request.io = Some(io);
                request.note_got(moved);
            }
        }
    }

    /// Handles a completed operation.
    pub(super) fn land(&mut self, landed: SocketCompletion<Object>, now: Instant) {
        let SocketCompletion { key, payload, result } = landed;
        let connection = &mut self.connections[key];
        connection.operation = None;
        if let (Payload::Send { bytes, from }, Ok(sent), None) = (&payload, &result, &connection.ending)
            && !connection.sends_body()
            && *sent > 0
            && from + sent < bytes.len()
        {
            let from = from + sent;
            let Payload::Send { bytes, .. } = payload else {
                unreachable!("it was matched above")
            };
            return self.operate(key, Payload::Send { bytes, from }, now);
        }
        let is_send = matches!(payload, Payload::Send { .. } | Payload::Spill { .. });
        let is_connect = matches!(payload, Payload::Connect(_));
        self.restore(key, payload, *result.as_ref().unwrap_or(&0));
        if let Some(ending) = self.connections[key].ending.take() {
            return self.end(key, ending, now);
        }
        let was_checking = std::mem::take(&mut self.connections[key].watch.is_checking);
        let is_error = matches!(self.connections[key].phase, Phase::ReceivingError(..));
        match result {
            _ if was_checking && is_error => self.judge_error(key, now),
            Err(_) if was_checking => self.continue_body(key, now),
            Err(error) if self.awaits_early_response(key, &error, now) => {}
            Err(error) => {
                let judgement = self.broken(key, &error.to_string());
                self.fail(key, judgement, now);
            }
            Ok(_) if is_connect => self.connected(key, now),
            Ok(0) => self.ended_by_peer(key, now),
            Ok(_) if is_send => self.sent(key, now),
            Ok(_) => self.received(key, now),
        }
    }

    /// The TCP connection is established: opens the tunnel next, or begins TLS.
    fn connected(&mut self, key: u32, now: Instant) {
        let connection = &mut self.connections[key];
        match connection.origin.tunnel_head() {
            Some(head) => {
                connection.out = head;
                connection.phase = Phase::Tunnelling;
                self.send(key, now);
            }
            None => self.secure(key, now),
        }
    }

    /// Begins TLS if the origin uses it; otherwise the connection is ready.
    fn secure(&mut self, key: u32, now: Instant) {
        let connection = &mut self.connections[key];
        connection.clear_scratch();
        let Some(name) = connection.origin.server_name() else {
            connection.phase = Phase::Idle;
            connection.since = now;
            return;
        };
        let network = connection.origin.facilities();
        let config = network.known_tls().map(|tls| &tls.config);
        let config = config.expect("an origin with TLS has read the certificates");
        match Session::new(config, name) {
            Ok(session) => {
                connection.session = Some(Box::new(session));
                connection.phase = Phase::Handshaking;
                self.decrypt(key, now);
            }
            Err(error) => self.fail(key, Judgement::of(self.untrusted(key, &error)), now),
        }
    }

    /// The head, the body, or a message of a handshake was sent.
    pub(super) fn sent(&mut self, key: u32, now: Instant) {
        match self.connections[key].phase {
            Phase::SendingHead(number) | Phase::SendingBody(number) => {
                self.send_rest(key, number, now);
            }
            _ => self.receive(key, now),
        }
    }

    /// Bytes were received.
    fn received(&mut self, key: u32, now: Instant) {
        let connection = &self.connections[key];
        if connection.session.is_some() {
            return self.decrypt(key, now);
        }
        // A whole head must arrive within its deadline; a body must only make progress.
        match connection.phase {
            Phase::Tunnelling => return self.read_tunnel(key, now),
            Phase::Awaiting(_) | Phase::ReceivingError(..) => self.read_head(key, now),
            Phase::ReceivingBody(number) if self.requests[number].missing() == 0 => {
                self.complete(key, now);
            }
            Phase::ReceivingBody(_) => return self.continue_body(key, now),
            _ => {}
        }
        self.continue_receiving(key, now);
    }

    /// Cancels the receive operation of a body to learn how many bytes have arrived. The body of an error is then judged.
    pub(super) fn check_progress(&mut self, key: u32, now: Instant) {
        let connection = &mut self.connections[key];
        if let Some(operation) = connection.operation {
            connection.watch.is_checking = true;
            let stall_max = connection.origin.settings().stall_max;
            connection.expect_within(stall_max, now);
            self.ring.cancel(operation);
        }
    }

    /// Continues to receive a body, unless it comes too slowly.
    fn continue_body(&mut self, key: u32, now: Instant) {
        if self.is_too_slow(key, now) {
            self.give_up_waiting(key, now);
        } else {
            self.continue_receiving(key, now);
        }
    }

    /// Whether a connection receives a body, and too slowly.
    fn is_too_slow(&mut self, key: u32, now: Instant) -> bool {
        let connection = &mut self.connections[key];
        let Phase::ReceivingBody(number) = connection.phase else {
            return false;
        };
        let request = &self.requests[number];
        connection.is_too_slow(request.got, request.got + request.missing(), now)
    }

    /// Receives more, unless the connection is closing or has an operation already.
    fn continue_receiving(&mut self, key: u32, now: Instant) {
        let Some(connection) = self.connections.get(key) else {
            return;
        };
        if connection.operation.is_none() && connection.ending.is_none() {
            self.receive(key, now);
        }
    }

    /// Processes received ciphertext.
    fn decrypt(&mut self, key: u32, now: Instant) {
        let session = self.connections[key].session.take();
        let mut session = session.expect("a connection with TLS has a session");
        let processed = session.process(|plain| self.take_plain(key, plain, now));
        let has_outgoing = session.has_outgoing();
        // A connection that is not reused may have been removed already.
        if self.connections.get(key).is_none() {
            return;
        }
        let connection = &mut self.connections[key];
        connection.session = Some(session);
        if connection.ending.is_some() {
            return;
        }
        match processed {
            Err(error) => return self.fail(key, Judgement::of(self.untrusted(key, &error)), now),
            Ok(Stage::Closed) => return self.ended_by_peer(key, now),
            Ok(Stage::Open) if connection.phase == Phase::Handshaking => {
                connection.phase = Phase::Idle;
                connection.since = now;
            }
            Ok(_) => {}
        }
        if self.is_too_slow(key, now) {
            return self.give_up_waiting(key, now);
        }
        if has_outgoing {
            self.send(key, now);
        } else {
            self.receive(key, now);
        }
    }

    /// Takes decrypted bytes of a head or a body.
    fn take_plain(&mut self, key: u32, bytes: &[u8], now: Instant) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let connection = self.connections.get(key);
            let Some(phase) = connection.filter(|c| c.ending.is_none()).map(|c| c.phase) else {
                return;
            };
            match phase {
                Phase::Awaiting(_) | Phase::ReceivingError(..) => {
                    let taken = self.connections[key].append_scratch(rest);
                    rest = &rest[taken..];
                    self.read_head(key, now);
                    if taken == 0 {
                        return;
                    }
                }
                Phase::ReceivingBody(number) => {
                    let request = &mut self.requests[number];
                    rest = &rest[request.fill(rest)..];
                    if request.missing() == 0 {
                        self.connections[key].is_reusable &= rest.is_empty();
                        self.complete(key, now);
                    }
                }
                // No request expects these bytes.
                _ => return self.close(key, Ending::Unneeded),
            }
        }
    }

    /// Parses the proxy's response.
    fn read_tunnel(&mut self, key: u32, now: Instant) {
        let connection = &self.connections[key];
        let scratch = connection.scratch();
        let why = match head::parse(scratch, |response, _| response.status) {
            Parsed::Partial => return self.receive(key, now),
            Parsed::Whole(length, 200..=299) if length == scratch.len() => {
                return self.secure(key, now);
            }
            Parsed::Whole(_, 407) => "the proxy asks for credentials".to_owned(),
            Parsed::Whole(_, status) => {
                format!("the proxy refused to open a tunnel (status {status})")
            }
            Parsed::Bad(why) => format!("the proxy's response is invalid: {why}"),
        };
        let error = Error::new(ErrorKind::Invalid, "connect to", connection.origin.site(), why);
        let error = error.with_hint("check the proxy and its credentials");
        self.fail(key, Judgement::fail(error), now);
    }

    /// The server has closed the connection.
    fn ended_by_peer(&mut self, key: u32, now: Instant) {
        match self.connections[key].phase {
            Phase::Idle => self.close(key, Ending::Unneeded),
            Phase::ReceivingError(..) => self.judge_error(key, now),
            _ => {
                let judgement = self.broken(key, "the server closed the connection");
                self.fail(key, judgement, now);
            }
        }
    }

    /// The error of a broken connection.
    pub(super) fn broken(&self, key: u32, why: &str) -> Judgement {
        let connection = &self.connections[key];
        let hint = "check the network and the server";
        let error = if let Some(number) = connection.phase.request() {
            let remote = &self.requests[number].remote;
            remote.failed(ErrorKind::Transient, why, hint)
        } else {
            let site = connection.origin.site();
            Error::new(ErrorKind::Transient, "connect to", site, why).with_hint(hint)
        };
        Judgement::new(Next::Retry, error)
    }
}
