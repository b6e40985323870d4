//! One I/O in the engine: its missing range, its state, and its retries.

use std::{ops::Range, sync::Arc, time::Instant};

use straightway_core::random::Seed;
use straightway_io::request::Io;
use straightway_sys::Tries;

use crate::{
    backoff::Backoff,
    checksum::{Checksum, MISMATCHES_MAX},
    remote::Remote,
    retry::Retries,
    service::{Judgement, Next},
};

use super::sending::Sending;

/// An I/O in progress.
#[derive(Debug)]
pub(super) struct Request {
    /// `None` while the ring has it.
    pub(super) io: Option<Io>,
    /// The tag of the I/O.
    pub(super) tag: u32,
    pub(super) remote: Arc<Remote>,
    /// The body to send, if it stores a part of an upload.
    pub(super) sending: Option<Sending>,
    /// The range of the I/O in the object, cut to the end of the object.
    start: u64,
    end: u64,
    /// The number of its bytes that were transferred.
    pub(super) got: usize,
    /// `got` when its last request was sent.
    got_before: usize,
    pub(super) state: State,
    /// When its last request was sent; before the first one, when the I/O was accepted.
    pub(super) sent: Instant,
    /// Whether it needs a new connection, after a failure.
    pub(super) needs_new: bool,
    pub(super) retries: Retries,
    pub(super) tries: Tries,
    /// The checksum of all its bytes, if the response to the request for all of them stated it.
    pub(super) sum: Option<Checksum>,
    /// The number of checksum mismatches.
    mismatches: u32,
}

/// The state of an I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It waits for a connection, at least until this time.
    Waiting(Instant),
    /// It waits for new credentials.
    Renewing,
    /// Its request was sent on one connection, and if that was slow, on a second one.
    InFlight {
        /// The first connection.
        first: u32,
        /// The connection of the hedge.
        hedge: Option<u32>,
    },
}

impl Request {
    /// An I/O of `remote` that ends at `end` in the object.
    pub(super) fn new(io: Io, remote: Arc<Remote>, end: u64, seed: Seed, now: Instant) -> Self {
        let backoff = Backoff::new(remote.origin().settings(), seed);
        Self {
            start: io.offset,
            end,
            tag: io.tag,
            io: Some(io),
            remote,
            sending: None,
            got: 0,
            got_before: 0,
            state: State::Waiting(now),
            sent: now,
            needs_new: false,
            retries: Retries::new(backoff),
            tries: Tries::default(),
            sum: None,
            mismatches: 0,
        }
    }

    /// The missing range.
    pub(super) fn range(&self) -> Range<u64> {
        self.start + self.got as u64..self.end
    }

    /// The length of the missing range.
    pub(super) fn missing(&self) -> usize {
        usize::try_from(self.end - self.start).expect("an I/O fits into memory") - self.got
    }

    /// Notes that a request for its missing range is sent.
    pub(super) fn note_sent(&mut self, now: Instant) {
        self.sent = now;
        self.got_before = self.got;
    }

    /// Notes that the last request of a read failed.
    pub(super) fn note_failure(&mut self) {
        if self.sending.is_none() {
            let got = self.got.saturating_sub(self.got_before);
            self.retries.backoff.note_attempt(got, self.missing() + got);
            self.got_before = self.got;
        }
    }

    /// Compares its complete bytes with their checksum. After a mismatch they are read again.
    pub(super) fn verify(&mut self) -> Result<(), Judgement> {
        let Some(sum) = self.sum.take() else {
            return Ok(());
        };
        let io = self.io.as_ref().expect("the ring does not have it");
        if sum.fits_io(io, self.got) {
            return Ok(());
        }
        self.got = 0;
        self.mismatches += 1;
        let is_last = self.mismatches == MISMATCHES_MAX;
        let next = if is_last { Next::Fail } else { Next::Retry };
        Err(Judgement::new(next, self.remote.damaged()))
    }

    /// Copies bytes of the body into the I/O. Returns the number of bytes taken.
    pub(super) fn fill(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.missing());
        let io = self.io.as_mut().expect("the ring does not have it");
        io.fill_from(self.got, &bytes[..taken]);
        self.note_got(taken);
        taken
    }

    /// Notes that bytes of the body arrived.
    pub(super) fn note_got(&mut self, bytes: usize) {
        self.got += bytes;
        self.retries.backoff.note_bytes(bytes);
    }
}
