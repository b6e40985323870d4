//! Handles the head of a response: a body for the I/O follows, or an error.

use std::time::Instant;

use super::{
    HttpEngine, State,
    connection::{Ending, Phase},
};
use crate::{
    checksum::Checksum,
    head::{self, Parsed},
    part::PartTag,
    remote::{ERROR_BYTES_MAX, ERROR_PATIENCE},
    service::Judgement,
};

/// The verdict on the head of a response.
pub(super) enum Verdict {
    /// The requested range follows, with its checksum if the head states one.
    Accepted(Option<Checksum>),
    /// The part is stored.
    Stored(PartTag),
    /// An error, whose body follows, with its length if the head states it.
    Error(Option<u64>),
    /// A response that is not acceptable.
    Refused(Judgement),
}

impl HttpEngine {
    /// Parses the bytes received so far: the head of a response, or the body of an error.
    pub(super) fn read_head(&mut self, key: u32, now: Instant) {
        let connection = &self.connections[key];
        let number = match connection.phase {
            Phase::ReceivingError(..) => return self.read_error(key, now),
            phase => phase.request().expect("the connection serves a request"),
        };
        let request = &self.requests[number];
        let parsed = head::parse(connection.scratch(), |response, is_reusable| {
            let verdict = match response.status {
                200 if request.sending.is_some() => request.judge_stored(response),
                200 | 206 => match request.remote.check_plain(response, &request.range()) {
                    Ok(()) => Verdict::Accepted(request.remote.checksum(response, &request.range())),
                    Err(judgement) => Verdict::Refused(judgement),
                },
                204 | 304 => Verdict::Error(Some(0)),
                _ => Verdict::Error(response.content_length().unwrap_or(None)),
            };
            (verdict, is_reusable)
        });
        match parsed {
            Parsed::Partial => {}
            Parsed::Bad(why) => {
                let judgement = self.broken(key, why);
                self.fail(key, judgement, now);
            }
            Parsed::Whole(length, (Verdict::Accepted(sum), is_reusable)) => {
                self.connections[key].is_reusable = is_reusable;
                let request = &mut self.requests[number];
                // The checksum in the response to a request for the rest is not that of all bytes.
                if request.got == 0 {
                    request.sum = sum.or(request.sum);
                }
                self.accept(key, number, length, now);
            }
            Parsed::Whole(length, (Verdict::Stored(tag), is_reusable)) => {
                let connection = &mut self.connections[key];
                connection.is_reusable = is_reusable && connection.filled == length;
                connection.clear_scratch();
                self.requests[number].note_stored(tag);
                self.complete(key, now);
            }
            Parsed::Whole(length, (Verdict::Error(body_bytes), _)) => {
                let connection = &mut self.connections[key];
                let most = ERROR_BYTES_MAX as u64;
                let body_bytes = body_bytes.map_or(most, |bytes| bytes.min(most));
                let end = length + usize::try_from(body_bytes).expect("it was bounded");
                connection.phase = Phase::ReceivingError(number, end);
                connection.expect_within(ERROR_PATIENCE, now);
                self.read_error(key, now);
            }
            Parsed::Whole(_, (Verdict::Refused(judgement), _)) => self.fail(key, judgement, now),
        }
    }

    /// Judges an error once its body is complete.
    fn read_error(&mut self, key: u32, now: Instant) {
        let connection = &self.connections[key];
        // A chunked body ends with these bytes.
        let is_over = |end: usize| connection.filled >= end || connection.scratch().ends_with(b"\r\n0\r\n\r\n");
        if matches!(connection.phase, Phase::ReceivingError(_, end) if is_over(end)) {
            self.judge_error(key, now);
        }
    }

    /// Judges an error by the part of its body received so far.
    pub(super) fn judge_error(&mut self, key: u32, now: Instant) {
        let connection = &self.connections[key];
        let Phase::ReceivingError(number, end) = connection.phase else {
            return;
        };
        let scratch = connection.scratch();
        let remote = &self.requests[number].remote;
        let bodies = |length: usize| &scratch[length..end.min(scratch.len())];
        // The head is parsed twice, since the first pass yields its length.
        let length = match head::parse(scratch, |_, _| ()) {
            Parsed::Whole(length, ()) => length,
            _ => scratch.len(),
        };
        let judged = head::parse(scratch, |response, _| {
            let mut response = *response;
            response.body = bodies(length);
            remote.service().judge(remote.name(), &response)
        });
        let judgement = match judged {
            Parsed::Whole(_, judgement) => judgement,
            _ => self.broken(key, "its head cannot be read"),
        };
        self.fail(key, judgement, now);
    }

    /// Begins to receive the body of an accepted response, and closes the slower connection of a hedged request.
    fn accept(&mut self, key: u32, number: u32, head_bytes: usize, now: Instant) {
        let connection = &mut self.connections[key];
        connection.phase = Phase::ReceivingBody(number);
        let first_byte = now.saturating_duration_since(connection.since);
        connection.origin.pace().note_response(first_byte);
        let request = &mut self.requests[number];
        let body = &connection.scratch()[head_bytes..];
        let taken = request.fill(body);
        let has_surplus = taken < body.len();
        connection.is_reusable &= !has_surplus;
        connection.clear_scratch();
        connection.expect_body(request.got, request.got + request.missing(), now);
        let State::InFlight { first, hedge } = request.state else {
            unreachable!("its request was sent")
        };
        request.tries.hedges_won += u32::from(hedge == Some(key));
        request.state = State::InFlight {
            first: key,
            hedge: None,
        };
        let is_whole = request.missing() == 0;
        let slower = if first == key { hedge } else { Some(first) };
        if let Some(slower) = slower {
            self.close(slower, Ending::Unneeded);
        }
        if is_whole {
            self.complete(key, now);
        }
    }

    /// Completes a request whose bytes were all transferred.
    pub(super) fn complete(&mut self, key: u32, now: Instant) {
        let connection = &mut self.connections[key];
        let number = connection.phase.request().expect("it served a request");
        connection.phase = Phase::Idle;
        connection.since = now;
        connection.is_used = true;
        let is_reusable = connection.is_reusable;
        self.settle(number, now);
        if !is_reusable {
            self.close(key, Ending::Unneeded);
        }
    }
}
