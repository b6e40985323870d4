//! PDUs: the framing of commands, completions and data in a TCP stream.
//!
//! Every PDU begins with 8 bytes: type, flags, header length, data offset (PDO), total length (PLEN). The header may be
//! followed by a header digest, padding, data and a data digest. [`Framing`] holds the negotiated parameters. All
//! lengths are checked against each other and against its limits before any byte is read or any memory is allocated.

mod decode;
mod encode;
mod fault;

pub use fault::{FatalStatus, Fault, TermReq};

use crate::{Cqe, DIGEST_BYTES, Sqe};

/// The size of the common header of all PDUs.
pub const COMMON_BYTES: usize = 8;

/// The maximum size of a PDU before its data: PDO is one byte, and `ICReq` and `ICResp` have 128 bytes.
pub const HEAD_BYTES_MAX: usize = 256;

/// The size of `ICReq` and `ICResp`.
pub const IC_BYTES: usize = 128;

/// The minimum of MAXH2CDATA.
pub const H2C_DATA_BYTES_MIN: u32 = 4096;

/// Flags of a PDU.
pub(crate) mod flag {
    pub(crate) const HEADER_DIGEST: u8 = 0x01;
    pub(crate) const DATA_DIGEST: u8 = 0x02;
    pub(crate) const LAST: u8 = 0x04;
    pub(crate) const SUCCESS: u8 = 0x08;
}

/// Types of PDUs.
pub(crate) mod kind {
    pub(crate) const IC_REQ: u8 = 0x00;
    pub(crate) const IC_RESP: u8 = 0x01;
    pub(crate) const HOST_TERM: u8 = 0x02;
    pub(crate) const CONTROLLER_TERM: u8 = 0x03;
    pub(crate) const COMMAND: u8 = 0x04;
    pub(crate) const RESPONSE: u8 = 0x05;
    pub(crate) const HOST_DATA: u8 = 0x06;
    pub(crate) const CONTROLLER_DATA: u8 = 0x07;
    pub(crate) const READY: u8 = 0x09;
}

/// The side of a connection that decodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host: it reads PDUs of controllers.
    Host,
    /// The controller: it reads PDUs of hosts.
    Controller,
}

/// The digests of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Digests {
    /// Header digest (HDGST).
    pub header: bool,
    /// Data digest (DDGST).
    pub data: bool,
}

impl Digests {
    const fn bits(self) -> u8 {
        self.header as u8 | (self.data as u8) << 1
    }

    const fn from_bits(bits: u8) -> Self {
        Self {
            header: bits & 1 != 0,
            data: bits & 2 != 0,
        }
    }
}

/// The negotiated parameters of a connection, and the limits of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// The side that decodes.
    pub role: Role,
    /// The digests, once `ICReq` and `ICResp` have been exchanged.
    pub digests: Digests,
    /// The alignment of data in PDUs that this side sends: (CPDA or HPDA of the other side + 1) × 4.
    pub align_bytes: u8,
    /// The maximum data length of one data PDU of the other side.
    pub data_bytes_max: u32,
    /// The maximum in-capsule data length of a command of the other side.
    pub capsule_bytes_max: u32,
}

/// A PDU without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// The first PDU of a host: `ICReq`.
    IcReq(IcReq),
    /// The first PDU of a controller: `ICResp`.
    IcResp(IcResp),
    /// The host terminates the connection: `H2CTermReq`.
    HostTerm(TermReq),
    /// The controller terminates the connection: `C2HTermReq`.
    ControllerTerm(TermReq),
    /// A command capsule, with or without data.
    Command(Sqe),
    /// A response capsule: a completion.
    Response(Cqe),
    /// Data of a write, requested by [`Pdu::Ready`]: `H2CData`.
    HostData(Data),
    /// Data of a read: `C2HData`.
    ControllerData(Data),
    /// The controller requests data of a write: `R2T` (ready to transfer).
    Ready(Ready),
}

/// The fields of `ICReq`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IcReq {
    /// The PDU format version: 0.
    pub version: u16,
    /// HPDA: the host wants data at multiples of (this + 1) × 4.
    pub align: u8,
    /// The digests that the host requests.
    pub digests: Digests,
    /// MAXR2T: the maximum number of outstanding R2Ts of one command, less one.
    pub ready_max: u32,
}

/// The fields of `ICResp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IcResp {
    /// The PDU format version: 0.
    pub version: u16,
    /// CPDA: the data alignment that the controller wants.
    pub align: u8,
    /// The digests in use.
    pub digests: Digests,
    /// MAXH2CDATA: the maximum data length of one [`Pdu::HostData`].
    pub data_bytes_max: u32,
}

/// The fields of a data PDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// The command identifier.
    pub cid: u16,
    /// The transfer tag of the R2T for data of a write; otherwise 0.
    pub tag: u16,
    /// The offset of this data in the command's data.
    pub offset: u32,
    /// The length of this data.
    pub bytes: u32,
    /// Whether this is the last data PDU of the R2T or of the read.
    pub is_last: bool,
    /// Whether the command succeeded and no completion follows. Only for reads.
    pub is_success: bool,
}

/// The fields of `R2T`: a request for data of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The command identifier.
    pub cid: u16,
    /// The transfer tag that the data must carry.
    pub tag: u16,
    /// The offset of the requested data in the command's data.
    pub offset: u32,
    /// The length of the requested data.
    pub bytes: u32,
}

/// The result of [`Framing::decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// The head is incomplete. It needs this many bytes, counted from its start.
    Partial(usize),
    /// The head is complete.
    Whole(Frame),
}

/// A decoded PDU head and the length of the data after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The PDU.
    pub pdu: Pdu,
    /// The size of the head, with digest and padding. The data begins there.
    pub head_bytes: usize,
    /// The number of data bytes that follow.
    pub data_bytes: usize,
    /// Whether the data is followed by its digest ([`DIGEST_BYTES`]).
    pub has_digest: bool,
}

impl Frame {
    /// The size of the whole PDU.
    pub const fn total_bytes(&self) -> usize {
        let digest = if self.has_digest { DIGEST_BYTES } else { 0 };
        self.head_bytes + self.data_bytes + digest
    }
}

impl Framing {
    /// The framing before `ICReq` and `ICResp`: no digests. `data_bytes_max` limits the data of one PDU.
    pub const fn new(role: Role, data_bytes_max: u32) -> Self {
        Self {
            role,
            digests: Digests {
                header: false,
                data: false,
            },
            align_bytes: 4,
            data_bytes_max,
            capsule_bytes_max: data_bytes_max,
        }
    }

    /// The framing after negotiation, with the other side's data alignment and the agreed digests.
    #[must_use]
    pub const fn agreed(self, digests: Digests, align: u8) -> Self {
        Self {
            digests,
            // At most 31: decoding checks it.
            align_bytes: (align % 32 + 1) * 4,
            ..self
        }
    }
}

#[cfg(test)]
mod tests;
