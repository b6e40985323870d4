//! How a target is, and what it does wrong.

use std::net::SocketAddr;

use straightway_nvme::log::{AnaState, SubsystemKind};

/// What a target does wrong with I/O commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Fewer bytes than asked for, and success.
    ShortRead,
    /// Data for a command that is not open.
    WrongCid,
    /// Data that begins later than it should.
    Gap,
    /// More data than asked for.
    LongRead,
    /// A wrong data digest.
    DataDigest,
    /// A wrong header digest.
    HeaderDigest,
    /// A second answer to a command that is over.
    LateAnswer,
    /// A request for data beyond the command.
    ReadyBeyond,
    /// A request for data of a read.
    ReadyForRead,
    /// Success before any data of a write was asked for.
    WriteWithoutData,
    /// The end of the connection, in so many words.
    Term,
    /// The end of the connection.
    Close,
    /// Half of the data, then the end of the connection.
    CloseInside,
    /// No answer.
    Silence,
    /// A retryable error.
    Interrupted,
    /// An error that is final.
    Protected,
    /// A media error.
    Media,
    /// Bytes that are no PDU.
    Garbage,
    /// The path is lost.
    Path,
}

/// How a target is.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a lie of its own")]
pub(crate) struct Script {
    pub(crate) block_shift: u8,
    pub(crate) transfer_shift: u8,
    pub(crate) capsule_bytes: u32,
    pub(crate) host_data_bytes_max: u32,
    pub(crate) queues: u16,
    pub(crate) entries: u16,
    /// Pieces in which the data of a read comes.
    pub(crate) data_bytes_max: usize,
    pub(crate) has_success: bool,
    pub(crate) allows: bool,
    pub(crate) needs_auth: bool,
    /// Whether connections that are to be I/O queues are cut.
    pub(crate) cuts_queues: bool,
    pub(crate) uuid: [u8; 16],
    pub(crate) ana: Option<AnaState>,
    pub(crate) listed: Vec<(SubsystemKind, String, SocketAddr)>,
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
            uuid: [9; 16],
            ana: None,
            listed: Vec::new(),
        }
    }
}
