//! The properties of a test target, and the faults that it injects.

use std::{net::SocketAddr, time::Duration};

use straightway_nvme::{
    Digests, Status,
    index::NameIndex,
    log::{AnaState, SubsystemKind},
};

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

/// The properties of a target.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an independent property")]
pub(crate) struct Script {
    pub(crate) block_shift: u8,
    pub(crate) transfer_shift: u8,
    pub(crate) capsule_bytes: u32,
    pub(crate) host_data_bytes_max: u32,
    pub(crate) queues: u16,
    pub(crate) entries: u16,
    /// The maximum data length of one data PDU of a read.
    pub(crate) data_bytes_max: usize,
    pub(crate) has_success: bool,
    pub(crate) allows: bool,
    pub(crate) needs_auth: bool,
    /// Whether I/O queue connections are cut.
    pub(crate) cuts_queues: bool,
    /// Whether Identify Namespace gets no answer.
    pub(crate) hides_namespaces: bool,
    /// Whether every Asynchronous Event Request is answered at once.
    pub(crate) storms: bool,
    /// The digests in the `ICResp`; `None` for those that the host requests.
    pub(crate) digests: Option<Digests>,
    pub(crate) uuid: [u8; 16],
    pub(crate) ana: Option<AnaState>,
    /// ANATT.
    pub(crate) transition_s: u8,
    pub(crate) listed: Vec<(SubsystemKind, String, SocketAddr)>,
    /// The duration of a flush.
    pub(crate) flush_time: Duration,
    pub(crate) flush_status: Status,
    /// The name index, if the target has one.
    pub(crate) index: Option<NameIndex>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            block_shift: 12,
            transfer_shift: 0,
            capsule_bytes: 8192,
            host_data_bytes_max: 128 << 10,
            queues: 8,
            entries: 128,
            data_bytes_max: 1 << 20,
            has_success: true,
            allows: true,
            needs_auth: false,
            cuts_queues: false,
            hides_namespaces: false,
            storms: false,
            digests: None,
            uuid: [9; 16],
            ana: None,
            transition_s: 0,
            listed: Vec::new(),
            flush_time: Duration::ZERO,
            flush_status: Status::SUCCESS,
            index: None,
        }
    }
}
