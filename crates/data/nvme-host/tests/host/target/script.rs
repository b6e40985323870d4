//! What the relay changes, and the faults that it injects.

use std::time::Duration;

use straightway_nvme::{Digests, Status};

/// A fault of a target in its I/O commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InjectedFault {
    /// Fewer bytes than requested, with success.
    ShortRead,
    /// Data for a command that is not outstanding.
    WrongCid,
    /// Data at a larger offset than expected.
    Gap,
    /// More data than requested.
    LongRead,
    /// A wrong data digest.
    DataDigest,
    /// A wrong header digest.
    HeaderDigest,
    /// A second completion of a command.
    LateAnswer,
    /// An R2T beyond the end of the command.
    ReadyBeyond,
    /// An R2T for a read.
    ReadyForRead,
    /// Success before any data of a write was requested.
    WriteWithoutData,
    /// Success after only half of the data of a write was requested.
    HalfWrite,
    /// A termination request.
    Term,
    /// A closed connection.
    Close,
    /// Half of the data, then a closed connection.
    CloseInside,
    /// No completion.
    Silence,
    /// A retryable error.
    Interrupted,
    /// A permanent error.
    Protected,
    /// A media error.
    Media,
    /// Bytes that are not a PDU.
    Garbage,
    /// A path error.
    Path,
}

/// The properties of a target, and those that the relay shows instead. `None` shows the target's own.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent property")]
pub(crate) struct Script {
    pub(crate) is_writable: bool,
    /// Whether no host is permitted.
    pub(crate) is_closed: bool,
    pub(crate) block_shift: u8,
    pub(crate) transfer_shift: Option<u8>,
    pub(crate) capsule_bytes: Option<u32>,
    pub(crate) host_data_bytes_max: Option<u32>,
    pub(crate) queues: Option<u16>,
    pub(crate) entries: Option<u16>,
    /// The maximum data length of one data PDU of a read.
    pub(crate) data_bytes_max: usize,
    /// Whether the last data PDU completes a read.
    pub(crate) has_success: bool,
    pub(crate) needs_auth: bool,
    /// Whether I/O queue connections are cut.
    pub(crate) cuts_queues: bool,
    /// Whether Identify Namespace gets no answer.
    pub(crate) hides_namespaces: bool,
    /// Whether every Asynchronous Event Request is answered at once.
    pub(crate) storms: bool,
    /// The digests in the `ICResp`.
    pub(crate) digests: Option<Digests>,
    pub(crate) uuid: Option<[u8; 16]>,
    /// ANATT.
    pub(crate) transition_s: Option<u8>,
    /// The duration of a flush.
    pub(crate) flush_time: Duration,
    pub(crate) flush_status: Option<Status>,
    /// Whether the target has a name index, as those of others do not.
    pub(crate) has_index: bool,
    /// The boot in the name index.
    pub(crate) boot: Option<u64>,
    /// The version of all entries in the name index.
    pub(crate) version: Option<u64>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            is_writable: true,
            is_closed: false,
            block_shift: 12,
            transfer_shift: None,
            capsule_bytes: None,
            host_data_bytes_max: None,
            queues: None,
            entries: None,
            data_bytes_max: 1 << 20,
            has_success: true,
            needs_auth: false,
            cuts_queues: false,
            hides_namespaces: false,
            storms: false,
            digests: None,
            uuid: None,
            transition_s: None,
            flush_time: Duration::ZERO,
            flush_status: None,
            has_index: false,
            boot: None,
            version: None,
        }
    }
}
