//! One I/O while the engine has it: what is still to be asked for, and how often that was tried.

use std::{ops::Range, sync::Arc, time::Instant};

use straightway_io::request::Io;
use straightway_sys::Tries;

use crate::{
    backoff::Backoff,
    checksum::{Checksum, MISMATCHES_MAX},
    remote::Remote,
    service::{Judgement, Next},
};

use super::sending::Sending;

/// An I/O under way.
#[derive(Debug)]
pub(super) struct Request {
    /// `None` while the ring has it.
    pub(super) io: Option<Io>,
    /// The tag of the I/O.
    pub(super) tag: u32,
    pub(super) remote: Arc<Remote>,
    /// What is sent, where it stores a part of the object.
    pub(super) sending: Option<Sending>,
    /// Where in the object the I/O begins, and where it ends or the object does.
    start: u64,
    end: u64,
    /// How many of its bytes are in place.
    pub(super) got: usize,
    pub(super) state: State,
    /// Whether only a new connection will do.
    pub(super) needs_new: bool,
    pub(super) backoff: Backoff,
    pub(super) renewals: u32,
    pub(super) tries: Tries,
    /// The checksum of all its bytes, where an answer told it.
    pub(super) sum: Option<Checksum>,
    /// How often its bytes had another one.
    mismatches: u32,
}

/// Where an I/O is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It waits for a connection, and not before this.
    Waiting(Instant),
    /// It waits for new credentials.
    Renewing,
    /// It was asked for on this connection, and if that was slow, on another.
    Asked {
        /// The connection.
        first: u32,
        /// The second one.
        hedge: Option<u32>,
    },
}

impl Request {
    /// An I/O of `remote`, whose object ends at `end`.
    pub(super) fn new(io: Io, remote: Arc<Remote>, end: u64, seed: u64, now: Instant) -> Self {
        let backoff = Backoff::new(remote.origin().network().settings(), seed);
        Self {
            start: io.offset,
            end,
            tag: io.tag,
            io: Some(io),
            remote,
            sending: None,
            got: 0,
            state: State::Waiting(now),
            needs_new: false,
            backoff,
            renewals: 0,
            tries: Tries::default(),
            sum: None,
            mismatches: 0,
        }
    }

    /// What is still to be asked for.
    pub(super) fn range(&self) -> Range<u64> {
        self.start + self.got as u64..self.end
    }

    /// How many bytes that are.
    pub(super) fn missing(&self) -> usize {
        usize::try_from(self.end - self.start).expect("an I/O fits into memory") - self.got
    }

    /// Compares its bytes, which are all there, with their checksum. Where that is another one, they are asked for again.
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

    /// Puts bytes of the body in place. Answers how many it took.
    pub(super) fn fill(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.missing());
        let io = self.io.as_mut().expect("the ring does not have it");
        io.fill_from(self.got, &bytes[..taken]);
        self.got += taken;
        taken
    }
}
