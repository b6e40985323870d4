//! PDUs, commands and pages of NVMe/TCP.

use straightway_nvme::{
    Decoded, Digests, Framing, Pdu, Role, Sqe,
    admin::Admin,
    entry::SQE_BYTES,
    fabrics::{ConnectData, Fabrics},
    identify::{self, NamespaceId, decode_list, encode_list},
    log::{AnaLog, DiscoveryEntry, DiscoveryHeader, decode_changed},
    nvm::{Nvm, dataset_ranges},
    pdu::HEAD_BYTES_MAX,
};

/// The maximum data length of one PDU in this target.
const DATA_BYTES_MAX: u32 = 1 << 20;

/// Any bytes as a stream of PDUs. The first byte selects the role and the negotiated parameters. Heads are found at the
/// same places however the stream is split, stay within the limits, and round-trip.
pub(super) fn pdu(data: &[u8]) {
    let Some((first, mut rest)) = data.split_first() else {
        return;
    };
    let role = if first & 1 == 0 { Role::Host } else { Role::Controller };
    let digests = Digests {
        header: first & 2 != 0,
        data: first & 4 != 0,
    };
    let framing = Framing::new(role, DATA_BYTES_MAX).agreed(digests, first >> 3);
    loop {
        let frame = match framing.decode(rest) {
            Ok(Decoded::Whole(frame)) => frame,
            Ok(Decoded::Partial(need)) => {
                return assert!(rest.len() < need && need <= HEAD_BYTES_MAX);
            }
            Err(fault) => return super::assert_harmless(&fault.to_string()),
        };
        assert!(frame.head_bytes <= HEAD_BYTES_MAX && frame.head_bytes <= rest.len());
        assert!(frame.total_bytes() <= HEAD_BYTES_MAX + DATA_BYTES_MAX as usize + 4);
        for cut in 0..frame.head_bytes {
            match framing.decode(&rest[..cut]) {
                Ok(Decoded::Partial(need)) => assert!(cut < need && need <= frame.head_bytes),
                other => panic!("cut at {cut}: {other:?}"),
            }
        }
        let mut again = Vec::new();
        framing.encode(&frame.pdu, frame.data_bytes, &mut again);
        match framing.decode(&again) {
            Ok(Decoded::Whole(same)) => {
                assert_eq!((same.pdu, same.data_bytes), (frame.pdu, frame.data_bytes));
            }
            other => panic!("{other:?}"),
        }
        if let Pdu::Command(sqe) = frame.pdu {
            commands(&sqe);
        }
        match rest.get(frame.total_bytes()..) {
            Some(behind) => rest = behind,
            None => return,
        }
    }
}

/// A submission queue entry as each kind of command: a decoded command round-trips.
fn commands(sqe: &Sqe) {
    if let Ok(command) = Fabrics::from_sqe(sqe) {
        assert_eq!(Fabrics::from_sqe(&command.sqe()), Ok(command));
    }
    if let Ok(command) = Admin::from_sqe(sqe) {
        assert_eq!(Admin::from_sqe(&command.sqe()), Ok(command));
    }
    if let Ok(command) = Nvm::from_sqe(sqe) {
        assert_eq!(Nvm::from_sqe(&command.sqe(sqe.nsid)), Ok(command));
    }
}

/// Any bytes as a page. The first byte selects the page. A page of fixed length is padded with zeros.
pub(super) fn page(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else {
        return;
    };
    let padded = |bytes: usize| {
        let mut page = rest.to_vec();
        page.resize(bytes, 0);
        page
    };
    match first % 9 {
        0 => {
            let page = identify::Controller::decode(&padded(4096)).expect("any page is decoded");
            let _ = (page.transfer_bytes_max(), page.capsule_bytes_max());
            super::assert_harmless(&format!("{} {} {}", page.serial, page.model, page.firmware));
            let again = identify::Controller::decode(&page.encode());
            assert_eq!(again.expect("ours"), page);
        }
        1 => {
            let page = identify::Namespace::decode(&padded(4096)).expect("any page is decoded");
            if let (Ok(bytes), Ok(format)) = (page.bytes(), page.format()) {
                assert_eq!(bytes >> format.block_shift, page.blocks);
            }
            let again = identify::Namespace::decode(&page.encode());
            assert_eq!(again.expect("ours"), page);
        }
        2 => {
            if let Ok(id) = NamespaceId::decode(&padded(4096)) {
                assert_eq!(NamespaceId::decode(&id.encode()), Ok(id));
            }
        }
        3 => {
            if let Ok(list) = decode_list(&padded(4096)) {
                assert_eq!(decode_list(&encode_list(&list)), Ok(list));
            }
        }
        4 => {
            if let Ok(log) = AnaLog::decode(rest) {
                assert_eq!(AnaLog::decode(&log.encode()), Ok(log));
            }
        }
        5 => {
            if let Ok(entry) = DiscoveryEntry::decode(&padded(1024)) {
                super::assert_harmless(&format!("{} {} {}", entry.subsystem, entry.address, entry.service));
                assert_eq!(DiscoveryEntry::decode(&entry.encode()), Ok(entry));
            }
        }
        6 => {
            if let Ok(header) = DiscoveryHeader::decode(&padded(1024)) {
                assert_eq!(DiscoveryHeader::decode(&header.encode()), Ok(header));
            }
        }
        7 => {
            if let Ok(connect) = ConnectData::decode(&padded(1024)) {
                assert_eq!(ConnectData::decode(&connect.encode()), Ok(connect));
            }
        }
        _ => {
            let _ = (decode_changed(&padded(4096)), dataset_ranges(rest));
            let mut sqe = [0; SQE_BYTES];
            for (to, from) in sqe.iter_mut().zip(rest) {
                *to = *from;
            }
            commands(&Sqe::decode(&sqe));
        }
    }
}
