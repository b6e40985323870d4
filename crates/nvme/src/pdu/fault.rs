//! Faults that end a connection, and the PDU that says so.

use std::fmt;

/// Why a connection cannot go on: the field FES of a termination request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FatalStatus(pub u16);

impl FatalStatus {
    /// A field of a header has a value that is not allowed. The information is its offset.
    pub const HEADER_FIELD: Self = Self(1);
    /// A PDU came where it must not.
    pub const SEQUENCE: Self = Self(2);
    /// A header digest is wrong. The information is the digest that was received.
    pub const HEADER_DIGEST: Self = Self(3);
    /// Data outside of the command's range.
    pub const DATA_RANGE: Self = Self(4);
    /// More requests or more data than the limit.
    pub const LIMIT: Self = Self(5);
    /// A parameter that is not supported. The information is its offset.
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

/// What a termination request says. Up to 128 bytes of the header that was wrong follow it as data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TermReq {
    /// Why.
    pub status: FatalStatus,
    /// What more, by the status: an offset, or a digest.
    pub information: u32,
}

/// A PDU that ends the connection, with what a termination request would say of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What to send to the other side.
    pub term: TermReq,
    /// The rule that was broken.
    pub what: &'static str,
}

impl Fault {
    /// A field of the header at `offset` breaks a rule.
    pub const fn field(offset: u32, what: &'static str) -> Self {
        Self::new(FatalStatus::HEADER_FIELD, offset, what)
    }

    /// A fault of any kind.
    pub const fn new(status: FatalStatus, information: u32, what: &'static str) -> Self {
        Self {
            term: TermReq {
                status,
                information,
            },
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
