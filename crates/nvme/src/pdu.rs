//! PDUs: how a TCP stream is cut into commands, completions and data.
//!
//! Every PDU begins with 8 bytes: type, flags, header length, data offset (PDO), total length (PLEN). A header may be
//! followed by its digest, by padding and by data with a digest of its own. [`Framing`] knows what the two sides agreed
//! on; all lengths are checked against each other and against its limits before anybody reads or reserves a byte.

mod decode;
mod encode;
mod fault;

pub use fault::{FatalStatus, Fault, TermReq};

use crate::{Cqe, DIGEST_BYTES, Sqe};

/// The bytes that all PDUs begin with.
pub const COMMON_BYTES: usize = 8;

/// The longest head of a PDU: PDO is one byte, and `ICReq` and `ICResp` have 128.
pub const HEAD_BYTES_MAX: usize = 256;

/// The bytes of `ICReq` and `ICResp`.
pub const IC_BYTES: usize = 128;

/// The least MAXH2CDATA.
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

/// Which side of a connection reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The host: it reads what controllers send.
    Host,
    /// The controller: it reads what hosts send.
    Controller,
}

/// Which digests a connection has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Digests {
    /// Over headers.
    pub header: bool,
    /// Over data.
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

/// What the two sides of a connection agreed on, and what this side takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framing {
    /// Which side reads.
    pub role: Role,
    /// The digests, after `ICReq` and `ICResp`.
    pub digests: Digests,
    /// Data in PDUs that this side sends begins at a multiple of this: (CPDA or HPDA of the other side + 1) × 4.
    pub align_bytes: u8,
    /// The most data that one data PDU of the other side may carry.
    pub data_bytes_max: u32,
    /// The most data that a command of the other side may carry in its capsule.
    pub capsule_bytes_max: u32,
}

/// A PDU without its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pdu {
    /// The host's first.
    IcReq(IcReq),
    /// The controller's first.
    IcResp(IcResp),
    /// The host gives the connection up.
    HostTerm(TermReq),
    /// The controller gives the connection up.
    ControllerTerm(TermReq),
    /// A command, perhaps with data.
    Command(Sqe),
    /// A completion.
    Response(Cqe),
    /// Data of a write, asked for by [`Pdu::Ready`].
    HostData(Data),
    /// Data of a read.
    ControllerData(Data),
    /// The controller asks for data of a write (R2T).
    Ready(Ready),
}

/// How a host begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IcReq {
    /// The version of the format: 0.
    pub version: u16,
    /// The alignment of data that the host wants: data at multiples of (this + 1) × 4.
    pub align: u8,
    /// The digests that it wants.
    pub digests: Digests,
    /// How many requests for data of one command may be open, less one.
    pub ready_max: u32,
}

/// How a controller begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IcResp {
    /// The version of the format: 0.
    pub version: u16,
    /// The alignment of data that the controller wants.
    pub align: u8,
    /// The digests that are used.
    pub digests: Digests,
    /// The most data in one [`Pdu::HostData`].
    pub data_bytes_max: u32,
}

/// A part of a command's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// The command.
    pub cid: u16,
    /// For data of a write, the tag of the request for it; otherwise 0.
    pub tag: u16,
    /// Where in the command's data this part begins.
    pub offset: u32,
    /// How long it is.
    pub bytes: u32,
    /// Whether it is the last: of this request, or of this read.
    pub is_last: bool,
    /// Whether the command succeeded and no completion follows; only for reads.
    pub is_success: bool,
}

/// A request for data of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The command.
    pub cid: u16,
    /// What the data must carry.
    pub tag: u16,
    /// Where in the command's data it begins.
    pub offset: u32,
    /// How long it is.
    pub bytes: u32,
}

/// What [`Framing::decode`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// The head is not there yet: this many bytes are needed, counted from its start.
    Partial(usize),
    /// A whole head.
    Whole(Frame),
}

/// A PDU whose head was read, and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The PDU.
    pub pdu: Pdu,
    /// The bytes of its head, with digest and padding: data begin there.
    pub head_bytes: usize,
    /// The bytes of data that follow.
    pub data_bytes: usize,
    /// Whether the data is followed by its digest ([`DIGEST_BYTES`]).
    pub has_digest: bool,
}

impl Frame {
    /// The bytes of the whole PDU.
    pub const fn total_bytes(&self) -> usize {
        let digest = if self.has_digest { DIGEST_BYTES } else { 0 };
        self.head_bytes + self.data_bytes + digest
    }
}

impl Framing {
    /// A connection before `ICReq` and `ICResp`: no digests. `data_bytes_max` bounds what one PDU may carry.
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

    /// The same after the other side's wish for alignment, and the digests agreed on.
    #[must_use]
    pub const fn agreed(self, digests: Digests, align: u8) -> Self {
        Self {
            digests,
            // At most 31, checked when it was decoded.
            align_bytes: (align % 32 + 1) * 4,
            ..self
        }
    }
}

#[cfg(test)]
mod tests;
