//! Decoding of PDUs.

use super::{
    COMMON_BYTES, Data, Decoded, Digests, FatalStatus, Fault, Frame, Framing, H2C_DATA_BYTES_MIN, IC_BYTES, IcReq,
    IcResp, Pdu, Ready, Role, TermReq, flag, kind,
};
use crate::{
    Cqe, DIGEST_BYTES, Sqe, digest,
    entry::{CQE_BYTES, SQE_BYTES},
    wire,
};

/// The maximum length of the offending header in a termination request.
const TERM_DATA_BYTES_MAX: usize = 128;

/// The common header: the first 8 bytes.
#[derive(Clone, Copy)]
struct Common {
    kind: u8,
    flags: u8,
    header_bytes: usize,
    data_at: usize,
    total_bytes: usize,
}

/// The properties of a PDU type.
struct Shape {
    header_bytes: usize,
    /// The minimum and the maximum data length.
    data: (usize, usize),
    /// Whether the negotiated digests apply.
    has_digests: bool,
}

impl Framing {
    /// Decodes the head of the PDU at the start of `bytes`. Bytes after it are ignored.
    pub fn decode(&self, bytes: &[u8]) -> Result<Decoded, Fault> {
        let Some(common) = bytes.first_chunk::<COMMON_BYTES>() else {
            return Ok(Decoded::Partial(COMMON_BYTES));
        };
        let common = Common {
            kind: common[0],
            flags: common[1],
            header_bytes: usize::from(common[2]),
            data_at: usize::from(common[3]),
            total_bytes: wire::u32_at(common, 4) as usize,
        };
        let shape = self.shape(common.kind)?;
        let (head_bytes, data_bytes, has_digest) = self.lengths(common, &shape)?;
        if bytes.len() < head_bytes {
            return Ok(Decoded::Partial(head_bytes));
        }
        let header = &bytes[..shape.header_bytes];
        if shape.has_digests && self.digests.header {
            let received = wire::u32_at(bytes, shape.header_bytes);
            if digest(header) != received {
                let what = "the header digest is wrong";
                return Err(Fault::new(FatalStatus::HEADER_DIGEST, received, what));
            }
        }
        Ok(Decoded::Whole(Frame {
            pdu: pdu(common, header, data_bytes)?,
            head_bytes,
            data_bytes,
            has_digest,
        }))
    }

    /// The properties of a PDU type. Fails if the other side may not send it.
    fn shape(&self, kind: u8) -> Result<Shape, Fault> {
        let data_max = self.data_bytes_max as usize;
        let (from, header_bytes, data) = match kind {
            kind::IC_REQ => (Role::Host, IC_BYTES, (0, 0)),
            kind::IC_RESP => (Role::Controller, IC_BYTES, (0, 0)),
            kind::HOST_TERM => (Role::Host, 24, (0, TERM_DATA_BYTES_MAX)),
            kind::CONTROLLER_TERM => (Role::Controller, 24, (0, TERM_DATA_BYTES_MAX)),
            kind::COMMAND => (Role::Host, 72, (0, self.capsule_bytes_max as usize)),
            kind::RESPONSE | kind::READY => (Role::Controller, 24, (0, 0)),
            kind::HOST_DATA => (Role::Host, 24, (1, data_max)),
            kind::CONTROLLER_DATA => (Role::Controller, 24, (1, data_max)),
            _ => return Err(Fault::field(0, "the type of a PDU is unknown")),
        };
        if from == self.role {
            let what = "a PDU of the wrong direction";
            return Err(Fault::field(0, what));
        }
        let has_digests = !matches!(
            kind,
            kind::IC_REQ | kind::IC_RESP | kind::HOST_TERM | kind::CONTROLLER_TERM
        );
        Ok(Shape {
            header_bytes,
            data,
            has_digests,
        })
    }

    /// The size of the head, the size of the data, and whether a data digest follows.
    fn lengths(&self, common: Common, shape: &Shape) -> Result<(usize, usize, bool), Fault> {
        if common.header_bytes != shape.header_bytes {
            return Err(Fault::field(2, "the header length does not fit the type"));
        }
        let has_header_digest = shape.has_digests && self.digests.header;
        if has_header_digest != (common.flags & flag::HEADER_DIGEST != 0) && shape.has_digests {
            return Err(Fault::field(1, "the header digest flag is not as negotiated"));
        }
        let digest_bytes = if has_header_digest { DIGEST_BYTES } else { 0 };
        let plain_bytes = shape.header_bytes + digest_bytes;
        let bare = |total: usize| total == plain_bytes && shape.data.0 == 0;
        if bare(common.total_bytes) {
            return Ok((plain_bytes, 0, false));
        }
        // The data of a termination request follow the header without a PDO.
        let data_at = if shape.has_digests { common.data_at } else { plain_bytes };
        if data_at < plain_bytes || data_at % 4 != 0 {
            return Err(Fault::field(3, "the data offset is wrong"));
        }
        let has_digest = shape.has_digests && self.digests.data;
        if shape.has_digests && has_digest != (common.flags & flag::DATA_DIGEST != 0) {
            return Err(Fault::field(1, "the data digest flag is not as negotiated"));
        }
        let around = data_at + if has_digest { DIGEST_BYTES } else { 0 };
        let Some(data_bytes) = common.total_bytes.checked_sub(around) else {
            return Err(Fault::field(4, "the PDU is shorter than its head"));
        };
        if data_bytes == 0 || data_bytes < shape.data.0 {
            return Err(Fault::field(4, "the PDU has no data"));
        }
        if data_bytes > shape.data.1 {
            return Err(Fault::field(4, "the PDU is longer than the limit"));
        }
        Ok((data_at, data_bytes, has_digest))
    }
}

/// Decodes the PDU of a complete header.
fn pdu(common: Common, header: &[u8], data_bytes: usize) -> Result<Pdu, Fault> {
    let kind = common.kind;
    Ok(match kind {
        kind::IC_REQ => Pdu::IcReq(IcReq {
            version: version(header)?,
            align: align(header)?,
            digests: Digests::from_bits(header[11]),
            ready_max: wire::u32_at(header, 12),
        }),
        kind::IC_RESP => {
            let data_bytes_max = wire::u32_at(header, 12);
            if data_bytes_max < H2C_DATA_BYTES_MIN || !data_bytes_max.is_multiple_of(4) {
                let what = "MAXH2CDATA is under 4096 or not a multiple of 4";
                return Err(Fault::new(FatalStatus::PARAMETER, 12, what));
            }
            Pdu::IcResp(IcResp {
                version: version(header)?,
                align: align(header)?,
                digests: Digests::from_bits(header[11]),
                data_bytes_max,
            })
        }
        kind::HOST_TERM | kind::CONTROLLER_TERM => {
            let term = TermReq {
                status: FatalStatus(wire::u16_at(header, 8)),
                information: wire::u32_at(header, 10),
            };
            if kind == kind::HOST_TERM {
                Pdu::HostTerm(term)
            } else {
                Pdu::ControllerTerm(term)
            }
        }
        kind::COMMAND => Pdu::Command(Sqe::decode(&wire::array_at::<SQE_BYTES>(header, 8))),
        kind::RESPONSE => Pdu::Response(Cqe::decode(&wire::array_at::<CQE_BYTES>(header, 8))),
        kind::READY => Pdu::Ready(ready(header)?),
        _ => {
            let data = data(common, header, data_bytes)?;
            if kind == kind::HOST_DATA {
                Pdu::HostData(data)
            } else {
                Pdu::ControllerData(data)
            }
        }
    })
}

fn version(header: &[u8]) -> Result<u16, Fault> {
    if wire::u16_at(header, 8) == 0 {
        return Ok(0);
    }
    let what = "the version of the PDU format is not 0";
    Err(Fault::new(FatalStatus::PARAMETER, 8, what))
}

fn align(header: &[u8]) -> Result<u8, Fault> {
    match header[10] {
        align @ 0..=31 => Ok(align),
        _ => Err(Fault::field(10, "the data alignment is over 31")),
    }
}

fn ready(header: &[u8]) -> Result<Ready, Fault> {
    let ready = Ready {
        cid: wire::u16_at(header, 8),
        tag: wire::u16_at(header, 10),
        offset: wire::u32_at(header, 12),
        bytes: wire::u32_at(header, 16),
    };
    if ready.bytes == 0 || ready.offset.checked_add(ready.bytes).is_none() {
        return Err(Fault::field(16, "a request for data has a wrong length"));
    }
    Ok(ready)
}

fn data(common: Common, header: &[u8], data_bytes: usize) -> Result<Data, Fault> {
    let data = Data {
        cid: wire::u16_at(header, 8),
        tag: if common.kind == kind::HOST_DATA {
            wire::u16_at(header, 10)
        } else {
            0
        },
        offset: wire::u32_at(header, 12),
        bytes: wire::u32_at(header, 16),
        is_last: common.flags & flag::LAST != 0,
        is_success: common.kind == kind::CONTROLLER_DATA && common.flags & flag::SUCCESS != 0,
    };
    if data.bytes as usize != data_bytes {
        return Err(Fault::field(16, "the data length is not that of the PDU"));
    }
    if data.offset.checked_add(data.bytes).is_none() {
        return Err(Fault::field(12, "the data offset is out of range"));
    }
    if data.is_success && !data.is_last {
        return Err(Fault::field(1, "success before the last data"));
    }
    Ok(data)
}
