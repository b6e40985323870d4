//! What the head of an answer leads to: a body that goes into its I/O, or an error.

use std::time::{Duration, Instant};

use super::{
    HttpEngine, State,
    connection::{Ending, Phase},
};
use crate::{
    answer::Answer,
    checksum::Checksum,
    head::{self, Parsed},
    remote::ERROR_BYTES_MAX,
    service::Judgement,
    upload::PartTag,
};

/// How long the body of an error is waited for.
const ERROR_PATIENCE: Duration = Duration::from_secs(2);

/// What the head of an answer says.
pub(super) enum Verdict {
    /// What was asked for follows.
    Accepted(Option<Checksum>),
    /// What was sent is stored.
    Stored(PartTag),
    /// An error, whose body follows: as long as this, where it is known.
    Error(Option<u64>),
    /// Neither.
    Refused(Judgement),
}

impl HttpEngine {
    /// Reads the head of an answer, or the body of an error, as far as it came.
    pub(super) fn read_head(&mut self, key: u32, now: Instant) {
        let connection = &self.connections[key];
        let number = match connection.phase {
            Phase::Erring(..) => return self.read_error(key, now),
            phase => phase.request().expect("an answer is awaited for a request"),
        };
        let request = &self.requests[number];
        let parsed = head::parse(connection.scratch(), |answer, is_reusable| {
            let verdict = match answer.status {
                200 if request.sending.is_some() => request.judge_stored(answer),
                200 | 206 => match request.remote.check_plain(answer, &request.range()) {
                    Ok(()) => Verdict::Accepted(request.remote.checksum(answer, &request.range())),
                    Err(judgement) => Verdict::Refused(judgement),
                },
                204 | 304 => Verdict::Error(Some(0)),
                _ => Verdict::Error(answer.content_length().unwrap_or(None)),
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
                request.sum = sum.or(request.sum);
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
                connection.phase = Phase::Erring(number, end);
                connection.expect_within(ERROR_PATIENCE, now);
                self.read_error(key, now);
            }
            Parsed::Whole(_, (Verdict::Refused(judgement), _)) => self.fail(key, judgement, now),
        }
    }

    /// Judges an error when its body came.
    fn read_error(&mut self, key: u32, now: Instant) {
        let connection = &self.connections[key];
        // One that is sent in chunks ends so.
        let is_over = |end: usize| {
            connection.filled >= end || connection.scratch().ends_with(b"\r\n0\r\n\r\n")
        };
        if matches!(connection.phase, Phase::Erring(_, end) if is_over(end)) {
            self.judge_error(key, now);
        }
    }

    /// Judges an error by what came of it.
    pub(super) fn judge_error(&mut self, key: u32, now: Instant) {
        let connection = &self.connections[key];
        let Phase::Erring(number, end) = connection.phase else {
            return;
        };
        let scratch = connection.scratch();
        let remote = &self.requests[number].remote;
        let bodies = |length: usize| &scratch[length..end.min(scratch.len())];
        // The head is read twice, since its length comes with it.
        let length = match head::parse(scratch, |_, _| ()) {
            Parsed::Whole(length, ()) => length,
            _ => scratch.len(),
        };
        let judged = head::parse(scratch, |answer, _| {
            let answer = Answer {
                body: bodies(length),
                ..*answer
            };
            remote.service().judge(remote.name(), &answer)
        });
        let judgement = match judged {
            Parsed::Whole(_, judgement) => judgement,
            _ => self.broken(key, "its head cannot be read"),
        };
        self.fail(key, judgement, now);
    }

    /// The answer is what was asked for: its connection gets the I/O, and a slower one is closed.
    fn accept(&mut self, key: u32, number: u32, head_bytes: usize, now: Instant) {
        let connection = &mut self.connections[key];
        connection.phase = Phase::Filling(number);
        connection.expect_body(now);
        let first_byte = now.saturating_duration_since(connection.since);
        connection.origin.pace().note_answer(first_byte);
        let request = &mut self.requests[number];
        let body = &connection.scratch()[head_bytes..];
        let taken = request.fill(body);
        let has_surplus = taken < body.len();
        connection.is_reusable &= !has_surplus;
        connection.clear_scratch();
        let State::Asked { first, hedge } = request.state else {
            unreachable!("an answer comes to what was asked")
        };
        request.tries.hedges_won += u32::from(hedge == Some(key));
        request.state = State::Asked {
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

    /// All of an I/O is in place.
    pub(super) fn complete(&mut self, key: u32, now: Instant) {
        let connection = &mut self.connections[key];
        let number = connection
            .phase
            .request()
            .expect("it filled a request's I/O");
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
