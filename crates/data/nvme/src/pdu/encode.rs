//! Encoding of PDUs.

use super::{Data, Digests, Framing, IC_BYTES, Pdu, Ready, TermReq, flag, kind};
use crate::{DIGEST_BYTES, digest, wire};

impl Framing {
    /// Appends the head of a PDU that carries `data_bytes` of data: header, digest and padding. The caller appends the
    /// data and, if [`Framing::has_data_digest`] is true, its [`digest`].
    pub fn encode(&self, pdu: &Pdu, data_bytes: usize, out: &mut Vec<u8>) {
        let start = out.len();
        let (kind, header_bytes) = shape(pdu);
        let is_plain = matches!(kind, kind::IC_REQ..=kind::CONTROLLER_TERM);
        let digests = if is_plain { Digests::default() } else { self.digests };
        let mut flags = flags(pdu);
        let mut head_bytes = header_bytes;
        if digests.header {
            flags |= flag::HEADER_DIGEST;
            head_bytes += DIGEST_BYTES;
        }
        let mut total_bytes = head_bytes + data_bytes;
        let mut data_at = 0;
        if data_bytes > 0 && !is_plain {
            data_at = head_bytes.next_multiple_of(usize::from(self.align_bytes.max(4)));
            total_bytes = data_at + data_bytes;
            if digests.data {
                flags |= flag::DATA_DIGEST;
                total_bytes += DIGEST_BYTES;
            }
        }
        out.resize(start + head_bytes.max(data_at), 0);
        let head = &mut out[start..];
        head[0] = kind;
        head[1] = flags;
        head[2] = u8::try_from(header_bytes).expect("headers have at most 128 bytes");
        head[3] = u8::try_from(data_at).expect("data begin at most 128 bytes behind a header");
        let total_bytes = u32::try_from(total_bytes).expect("data are bounded");
        wire::put(head, 4, &total_bytes.to_le_bytes());
        fields(pdu, head);
        if digests.header {
            let sum = digest(&head[..header_bytes]);
            wire::put(head, header_bytes, &sum.to_le_bytes());
        }
    }

    /// Whether data that this side sends is followed by a digest.
    pub const fn has_data_digest(&self) -> bool {
        self.digests.data
    }
}

/// The type and the header length.
fn shape(pdu: &Pdu) -> (u8, usize) {
    match pdu {
        Pdu::IcReq(_) => (kind::IC_REQ, IC_BYTES),
        Pdu::IcResp(_) => (kind::IC_RESP, IC_BYTES),
        Pdu::HostTerm(_) => (kind::HOST_TERM, 24),
        Pdu::ControllerTerm(_) => (kind::CONTROLLER_TERM, 24),
        Pdu::Command(_) => (kind::COMMAND, 72),
        Pdu::Response(_) => (kind::RESPONSE, 24),
        Pdu::HostData(_) => (kind::HOST_DATA, 24),
        Pdu::ControllerData(_) => (kind::CONTROLLER_DATA, 24),
        Pdu::Ready(_) => (kind::READY, 24),
    }
}

fn flags(pdu: &Pdu) -> u8 {
    let (Pdu::HostData(data) | Pdu::ControllerData(data)) = pdu else {
        return 0;
    };
    let last = if data.is_last { flag::LAST } else { 0 };
    last | if data.is_success { flag::SUCCESS } else { 0 }
}

/// Encodes the fields after the common header.
fn fields(pdu: &Pdu, head: &mut [u8]) {
    match pdu {
        Pdu::IcReq(ic) => initial(head, ic.version, ic.align, ic.digests, ic.ready_max),
        Pdu::IcResp(ic) => initial(head, ic.version, ic.align, ic.digests, ic.data_bytes_max),
        Pdu::HostTerm(term) | Pdu::ControllerTerm(term) => {
            let TermReq { status, information } = term;
            wire::put(head, 8, &status.0.to_le_bytes());
            wire::put(head, 10, &information.to_le_bytes());
        }
        Pdu::Command(sqe) => wire::put(head, 8, &sqe.encode()),
        Pdu::Response(cqe) => wire::put(head, 8, &cqe.encode()),
        Pdu::HostData(data) | Pdu::ControllerData(data) => {
            let Data {
                cid,
                tag,
                offset,
                bytes,
                ..
            } = *data;
            range(head, cid, tag, offset, bytes);
        }
        Pdu::Ready(ready) => {
            let Ready {
                cid,
                tag,
                offset,
                bytes,
            } = *ready;
            range(head, cid, tag, offset, bytes);
        }
    }
}

fn initial(head: &mut [u8], version: u16, align: u8, digests: Digests, limit: u32) {
    wire::put(head, 8, &version.to_le_bytes());
    head[10] = align;
    head[11] = digests.bits();
    wire::put(head, 12, &limit.to_le_bytes());
}

fn range(head: &mut [u8], cid: u16, tag: u16, offset: u32, bytes: u32) {
    wire::put(head, 8, &cid.to_le_bytes());
    wire::put(head, 10, &tag.to_le_bytes());
    wire::put(head, 12, &offset.to_le_bytes());
    wire::put(head, 16, &bytes.to_le_bytes());
}
