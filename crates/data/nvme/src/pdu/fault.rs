//! Faults that end a connection, and the PDU that reports them.

use std::fmt;

/// The fatal error status (FES) of a termination request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatalStatus(pub u16);

impl FatalStatus {
    /// A header field has an invalid value. The information is its offset.
    pub const HEADER_FIELD: Self = Self(1);
    /// A PDU is out of sequence.
    pub const SEQUENCE: Self = Self(2);
    /// A header digest is wrong. The information is the digest that was received.
    pub const HEADER_DIGEST: Self = Self(3);
    /// Data is outside the command's range.
    pub const DATA_RANGE: Self = Self(4);
    /// Too many R2Ts or too much data.
    pub const LIMIT: Self = Self(5);
    /// An unsupported parameter. The information is its offset.
    pub const PARAMETER: Self = Self(6);
}

impl fmt::Display for FatalStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            1 => f.write_str("invalid header field"),
            2 => f.write_str("PDU out of sequence"),
            3 => f.write_str("header digest error"),
            4 => f.write_str("data out of range"),
            5 => f.write_str("limit exceeded"),
            6 => f.write_str("unsupported parameter"),
            other => write!(f, "unknown error {other}"),
        }
    }
}

/// The fields of a termination request. Up to 128 bytes of the offending header follow as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermReq {
    /// The fatal error status.
    pub status: FatalStatus,
    /// Details, depending on the status: an offset or a digest.
    pub information: u32,
}

/// A fault that ends the connection, with the termination request for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The termination request to send.
    pub term: TermReq,
    /// The rule that the PDU breaks.
    pub what: &'static str,
}

impl Fault {
    /// An invalid header field at `offset`.
    pub const fn field(offset: u32, what: &'static str) -> Self {
        Self::new(FatalStatus::HEADER_FIELD, offset, what)
    }

    /// A fault with any status.
    pub const fn new(status: FatalStatus, information: u32, what: &'static str) -> Self {
        Self {
            term: TermReq { status, information },
            what,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}", self.what, self.term.status)?;
        write!(f, ", {:#x})", self.term.information)
    }
}

impl std::error::Error for Fault {}
