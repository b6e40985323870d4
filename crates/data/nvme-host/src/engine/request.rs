//! An I/O in progress.

use std::{sync::Arc, time::Instant};

use straightway_io::request::{Io, Op};
use straightway_nvme::Status;
use straightway_sys::Tries;

use crate::namespace::Namespace;

/// An I/O in progress, executed by one or more commands on one queue.
#[derive(Debug)]
pub(super) struct Request {
    /// The I/O; `None` while the ring owns it.
    pub(super) io: Option<Io>,
    pub(super) namespace: Arc<Namespace>,
    pub(super) op: Op,
    pub(super) tag: u32,
    /// The offset in the namespace.
    pub(super) offset: u64,
    /// The length: whole blocks inside the namespace.
    pub(super) bytes: usize,
    /// The number of bytes that it returns on success.
    pub(super) result_bytes: usize,
    /// The queue that it is bound to.
    pub(super) queue: Option<u32>,
    /// The number of bytes that have commands.
    pub(super) issued: usize,
    /// The number of outstanding commands.
    pub(super) open: u32,
    /// The failure status of a command of this attempt.
    pub(super) refused: Option<Status>,
    /// The number of failed attempts.
    pub(super) failures: u32,
    /// The number of the association that was last asked to confirm its namespace.
    pub(super) asked: Option<u64>,
    pub(super) tries: Tries,
    /// The earliest time of the next attempt.
    pub(super) not_before: Instant,
    /// Whether its data may have been written already. It may then be repeated unchanged.
    pub(super) is_repeat: bool,
    pub(super) unwanted_since: Option<Instant>,
}

impl Request {
    pub(super) fn new(io: Io, namespace: Arc<Namespace>, bytes: usize, now: Instant) -> Self {
        let result_bytes = match io.op {
            Op::Read => bytes,
            // The bytes beyond the end of the namespace are padding.
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
            asked: None,
            tries: Tries::default(),
            not_before: now,
            is_repeat: false,
            unwanted_since: None,
        }
    }

    pub(super) fn is_write(&self) -> bool {
        self.op == Op::Write
    }

    /// Whether it has nothing more to send and no outstanding command.
    pub(super) fn is_settled(&self) -> bool {
        self.open == 0 && (self.issued == self.bytes || self.refused.is_some())
    }
}
