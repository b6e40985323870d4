//! Round trips of PDUs, and refused PDUs.

use proptest::prelude::*;

use super::*;
use crate::{Status, digest, entry::Sgl};

fn sqe() -> impl Strategy<Value = Sqe> {
    let ids = (any::<u8>(), any::<u8>(), any::<u16>(), any::<u32>());
    let sgl = (any::<u64>(), any::<u32>(), any::<u8>());
    let rest = (any::<[u32; 2]>(), any::<u64>(), any::<[u32; 6]>());
    (ids, sgl, rest).prop_map(|(ids, sgl, rest)| Sqe {
        opcode: ids.0,
        flags: ids.1,
        cid: ids.2,
        nsid: ids.3,
        sgl: Sgl {
            address: sgl.0,
            bytes: sgl.1,
            kind: sgl.2,
        },
        low: rest.0,
        metadata: rest.1,
        dwords: rest.2,
    })
}

fn cqe() -> impl Strategy<Value = Cqe> {
    let ids = (any::<u64>(), any::<u16>(), any::<u16>(), any::<u16>());
    (ids, 0..0x8000_u16).prop_map(|(ids, status)| Cqe {
        result: ids.0,
        sq_head: ids.1,
        sq_id: ids.2,
        cid: ids.3,
        status: Status(status),
    })
}

/// A PDU, the side that reads it, and its data length.
fn pdu() -> impl Strategy<Value = (Pdu, Role, usize)> {
    let ic = (0..32_u8, any::<bool>(), any::<bool>(), 1024..1_u32 << 20);
    let range = (any::<u16>(), any::<u16>(), 0..1_u32 << 30, 1..10_000_u32);
    let flags = (any::<bool>(), any::<bool>());
    let term = (any::<u16>(), any::<u32>(), 0..128_usize);
    prop_oneof![
        (ic.clone(), any::<u32>()).prop_map(|((align, header, data, _), ready_max)| {
            let digests = Digests { header, data };
            let version = 0;
            let ic = IcReq {
                version,
                align,
                digests,
                ready_max,
            };
            (Pdu::IcReq(ic), Role::Controller, 0)
        }),
        ic.prop_map(|(align, header, data, quarter)| {
            let digests = Digests { header, data };
            let (version, data_bytes_max) = (0, quarter * 4);
            let ic = IcResp {
                version,
                align,
                digests,
                data_bytes_max,
            };
            (Pdu::IcResp(ic), Role::Host, 0)
        }),
        (term, any::<bool>()).prop_map(|((status, information, bytes), is_host)| {
            let status = FatalStatus(status);
            let term = TermReq { status, information };
            if is_host {
                (Pdu::HostTerm(term), Role::Controller, bytes)
            } else {
                (Pdu::ControllerTerm(term), Role::Host, bytes)
            }
        }),
        (sqe(), 0..10_000_usize).prop_map(|(sqe, n)| (Pdu::Command(sqe), Role::Controller, n)),
        cqe().prop_map(|cqe| (Pdu::Response(cqe), Role::Host, 0)),
        (range.clone(), flags).prop_map(|((cid, tag, offset, bytes), (is_last, is_success))| {
            let is_success = is_success && is_last;
            let data = Data {
                cid,
                tag: 0,
                offset,
                bytes,
                is_last,
                is_success,
            };
            let _ = tag;
            (Pdu::ControllerData(data), Role::Host, bytes as usize)
        }),
        (range.clone(), any::<bool>()).prop_map(|((cid, tag, offset, bytes), is_last)| {
            let data = Data {
                cid,
                tag,
                offset,
                bytes,
                is_last,
                is_success: false,
            };
            (Pdu::HostData(data), Role::Controller, bytes as usize)
        }),
        range.prop_map(|(cid, tag, offset, bytes)| {
            let ready = Ready {
                cid,
                tag,
                offset,
                bytes,
            };
            (Pdu::Ready(ready), Role::Host, 0)
        }),
    ]
}

fn framing(role: Role, header: bool, data: bool, align: u8) -> Framing {
    Framing::new(role, 1 << 20).agreed(Digests { header, data }, align)
}

proptest! {
    #[test]
    fn encoded_pdus_are_decoded(
        (pdu, role, data_bytes) in pdu(),
        header: bool,
        data: bool,
        align in 0..32_u8,
        cut in 0..300_usize,
    ) {
        let framing = framing(role, header, data, align);
        let mut bytes = b"before".to_vec();
        framing.encode(&pdu, data_bytes, &mut bytes);
        let bytes = &bytes[6..];
        let Decoded::Whole(frame) = framing.decode(bytes).unwrap() else {
            panic!("the head is whole");
        };
        prop_assert_eq!(frame.pdu, pdu);
        prop_assert_eq!(frame.head_bytes, bytes.len());
        prop_assert_eq!(frame.data_bytes, data_bytes);
        prop_assert!(frame.head_bytes <= HEAD_BYTES_MAX);
        if data_bytes > 0 && !matches!(pdu, Pdu::HostTerm(_) | Pdu::ControllerTerm(_)) {
            prop_assert_eq!(frame.has_digest, data);
            prop_assert_eq!(frame.head_bytes % ((usize::from(align) + 1) * 4), 0);
        }
        // A truncated head requests more bytes, but never more than the head has.
        let cut = cut.min(bytes.len() - 1);
        match framing.decode(&bytes[..cut]) {
            Ok(Decoded::Partial(need)) => prop_assert!(cut < need && need <= bytes.len()),
            other => prop_assert!(false, "{:?}", other),
        }
    }

    #[test]
    fn a_header_digest_detects_a_flipped_bit(
        (pdu, role, data_bytes) in pdu(),
        at in 0..128_usize,
        bit in 0..8_u8,
    ) {
        let framing = framing(role, true, false, 0);
        let mut bytes = Vec::new();
        framing.encode(&pdu, data_bytes, &mut bytes);
        if matches!(bytes[0], kind::IC_REQ..=kind::CONTROLLER_TERM) {
            return Ok(());
        }
        let header_bytes = usize::from(bytes[2]);
        bytes[at % header_bytes] ^= 1_u8 << bit;
        bytes.resize(HEAD_BYTES_MAX, 0);
        prop_assert!(framing.decode(&bytes).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_decoded_or_refused(bytes: Vec<u8>, host: bool, header: bool, data: bool) {
        let role = if host { Role::Host } else { Role::Controller };
        match framing(role, header, data, 0).decode(&bytes) {
            Ok(Decoded::Partial(need)) => {
                prop_assert!(bytes.len() < need && need <= HEAD_BYTES_MAX);
            }
            Ok(Decoded::Whole(frame)) => prop_assert!(frame.total_bytes() <= (1 << 20) + 300),
            Err(fault) => prop_assert!(!fault.to_string().is_empty()),
        }
    }
}

/// Decodes, as a host, the head of a PDU with one byte changed.
fn changed(pdu: &Pdu, data_bytes: usize, at: usize, to: u8) -> Result<Decoded, Fault> {
    let framing = framing(Role::Host, false, false, 0);
    let mut bytes = Vec::new();
    framing.encode(pdu, data_bytes, &mut bytes);
    bytes[at] = to;
    bytes.resize(HEAD_BYTES_MAX, 0);
    framing.decode(&bytes)
}

#[test]
fn inconsistent_lengths_are_faults() {
    let data = Pdu::ControllerData(Data {
        cid: 1,
        tag: 0,
        offset: 0,
        bytes: 512,
        is_last: true,
        is_success: true,
    });
    for (at, to, offset) in [
        (0, 0x0a, 0), // an unknown type
        (0, 0x06, 0), // the wrong direction
        (1, 0x08, 1), // success before the last
        (1, 0x0d, 1), // a digest that was not negotiated
        (2, 25, 2),   // a longer header
        (3, 20, 3),   // data inside the header
        (3, 26, 3),   // data at an unaligned offset
        (3, 28, 16),  // less data than DATAL
        (5, 0, 4),    // a PDU without data
        (7, 1, 4),    // longer than the limit
        (17, 4, 16),  // DATAL is not the length
    ] {
        let fault = changed(&data, 512, at, to).unwrap_err();
        let expected = (FatalStatus::HEADER_FIELD, offset);
        let TermReq { status, information } = fault.term;
        assert_eq!((status, information), expected, "{at} {to}: {fault}");
    }
    let ready = Pdu::Ready(Ready {
        cid: 1,
        tag: 2,
        offset: u32::MAX,
        bytes: 0x100,
    });
    assert!(changed(&ready, 0, 8, 1).is_err(), "past the end of 32 bits");
    assert!(changed(&ready, 0, 17, 0).is_err(), "no length");
    let ic = Pdu::IcResp(IcResp {
        data_bytes_max: 4096,
        ..IcResp::default()
    });
    assert!(changed(&ic, 0, 8, 1).is_err(), "version 1");
    assert!(changed(&ic, 0, 10, 32).is_err(), "alignment 32");
    assert!(changed(&ic, 0, 13, 0).is_err(), "MAXH2CDATA 0");
}

#[test]
fn an_http_response_is_refused_as_an_unknown_pdu() {
    let framing = Framing::new(Role::Host, 1 << 20);
    let fault = framing.decode(b"HTTP/1.1 400 Bad Request\r\n").unwrap_err();
    assert_eq!(fault.what, "the type of a PDU is unknown");
}

#[test]
fn encoded_bytes_match_linux() {
    let framing = Framing::new(Role::Host, 1 << 20);
    let mut bytes = Vec::new();
    framing.encode(&Pdu::IcReq(IcReq::default()), 0, &mut bytes);
    assert_eq!((&bytes[..8], bytes.len()), (&[0, 0, 128, 0, 128, 0, 0, 0][..], 128));
    let mut bytes = Vec::new();
    let read = crate::nvm::Nvm::Read(crate::nvm::LbaRange::new(0x1_0000_0002, 8));
    let sqe = read.sqe(1).with_cid(3).with_sgl(Sgl::transport(4096));
    framing.encode(&Pdu::Command(sqe), 0, &mut bytes);
    let mut expected = vec![4, 0, 72, 0, 72, 0, 0, 0, 2, 0x40, 3, 0, 1, 0, 0, 0];
    expected.resize(40, 0);
    expected.extend([0, 16, 0, 0, 0, 0, 0, 0x5a, 2, 0, 0, 0, 1, 0, 0, 0, 7]);
    expected.resize(72, 0);
    assert_eq!(bytes, expected);
    let mut with_digests = Vec::new();
    let framing = framing.agreed(
        Digests {
            header: true,
            data: true,
        },
        0,
    );
    framing.encode(&Pdu::Command(sqe.with_sgl(Sgl::in_capsule(4))), 4, &mut with_digests);
    assert_eq!(&with_digests[..8], &[4, 3, 72, 76, 84, 0, 0, 0]);
    assert_eq!(with_digests[72..76], digest(&with_digests[..72]).to_le_bytes());
}
