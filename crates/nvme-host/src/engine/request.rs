//! An I/O on its way.

use std::{sync::Arc, time::Instant};

use straightway_io::request::{Io, Op};
use straightway_nvme::Status;
use straightway_sys::Tries;

use crate::namespace::Namespace;

/// An I/O on its way, by one or several commands on one queue.
#[derive(Debug)]
pub(super) struct Request {
    /// `None` while the ring has it.
    pub(super) io: Option<Io>,
    pub(super) namespace: Arc<Namespace>,
    pub(super) op: Op,
    pub(super) tag: u32,
    /// Where in the namespace.
    pub(super) offset: u64,
    /// How many bytes: whole blocks inside the namespace.
    pub(super) bytes: usize,
    /// How many bytes it answers when all is done.
    pub(super) result_bytes: usize,
    /// The queue that it is bound to.
    pub(super) queue: Option<u32>,
    /// For how many bytes there are commands.
    pub(super) issued: usize,
    /// Commands without an answer.
    pub(super) open: u32,
    /// What a command of this attempt was refused with.
    pub(super) refused: Option<Status>,
    /// Attempts that failed.
    pub(super) failures: u32,
    pub(super) tries: Tries,
    /// When the next attempt may begin.
    pub(super) not_before: Instant,
    /// Whether its data may have been written already: it may be sent again as it is.
    pub(super) is_repeat: bool,
    pub(super) unwanted_since: Option<Instant>,
}

impl Request {
    pub(super) fn new(io: Io, namespace: Arc<Namespace>, bytes: usize, now: Instant) -> Self {
        let result_bytes = match io.op {
            Op::Read => bytes,
            // What lies beyond the end of the namespace is padding.
            Op::Write => io.bytes,
        };
        Self {
            namespace,
            op: io.op,
            tag: io.tag,
            offset: io.offset,
            bytes,
            result_bytes,
            io: Some(io),
            queue: None,
            issued: 0,
            open: 0,
            refused: None,
            failures: 0,
            tries: Tries::default(),
            not_before: now,
            is_repeat: false,
            unwanted_since: None,
        }
    }

    pub(super) fn is_write(&self) -> bool {
        self.op == Op::Write
    }

    /// Whether it has nothing more to send and waits for nothing.
    pub(super) fn is_settled(&self) -> bool {
        self.open == 0 && (self.issued == self.bytes || self.refused.is_some())
    }
}
