//! Identify, log pages and reads.

use std::thread;

use straightway_core::random::Seed;
use straightway_nvme::{
    Nqn, Status, identify,
    log::{DiscoveryEntry, DiscoveryHeader, SubsystemKind},
};
use straightway_nvme_target::NamespaceSource;

use super::host::{Host, Login, config, file, logins, memory, pattern, read, start};

#[test]
fn a_folder_is_read_byte_for_byte_by_its_index() {
    let folder = tempfile::tempdir().unwrap();
    let sizes = [
        ("model/config.json", 700),
        ("model/a.safetensors", 3_000_001),
        ("model/sub/b.safetensors", 1 << 20),
        ("model/one", 1),
        ("model/empty", 0),
    ];
    for (seed, (name, bytes)) in sizes.iter().enumerate() {
        file(folder.path(), name, &pattern(*bytes, seed as u64));
    }
    let (_target, address) = start(&config(vec![NamespaceSource::Path(folder.path().join("model"))]));
    for login in logins() {
        let mut host = Host::new(address, &login);
        let index = host.index();
        assert_eq!(index.entries.len(), sizes.len());
        let mut queue = host.queue(1);
        for (seed, (name, bytes)) in sizes.iter().enumerate() {
            let entry = index.find(name.as_bytes()).unwrap().clone();
            assert_eq!((entry.bytes, entry.is_writable), (*bytes as u64, false));
            if *bytes == 0 {
                assert_eq!(entry.nsid, 0);
                continue;
            }
            let namespace = host.namespace(entry.nsid);
            assert_eq!(namespace.blocks, bytes.div_ceil(512) as u64);
            assert!(namespace.is_protected);
            let mut expected = pattern(*bytes, seed as u64);
            expected.resize(bytes.next_multiple_of(512), 0);
            let mut got = Vec::new();
            let mut blocks = 1;
            while (got.len() as u64) < namespace.blocks * 512 {
                let at = got.len() as u64 / 512;
                blocks = (blocks * 3 + 1).min(8192).min((namespace.blocks - at) as u32);
                got.extend(queue.ok(read(entry.nsid, at, blocks), &[]));
                blocks = blocks.max(1);
            }
            assert!(got == expected, "{name} by {login:?}");
        }
    }
}

#[test]
fn unaligned_extents_at_every_depth_on_several_queues_are_right() {
    let folder = tempfile::tempdir().unwrap();
    let content = pattern(5 << 20, 9);
    let path = file(folder.path(), "data", &content);
    let (target, address) = start(&config(vec![NamespaceSource::Path(path)]));
    let host = Host::new(address, &Login::default());
    let commands = thread::scope(|scope| {
        let threads: Vec<_> = (1..=4_u16)
            .map(|number| {
                let (host, content) = (&host, &content);
                scope.spawn(move || {
                    let mut queue = host.queue(number);
                    let mut rng = Seed(u64::from(number)).rng();
                    let mut commands = 0;
                    for round in 0..120_u64 {
                        let depth = 1 + round % 32;
                        let extents: Vec<_> = (0..depth)
                            .map(|_| {
                                let start = rng.below(10_240);
                                (start, 1 + rng.below((10_240 - start).min(300)) as u32)
                            })
                            .collect();
                        let cids: Vec<_> = extents
                            .iter()
                            .map(|(start, blocks)| queue.begin(read(1, *start, *blocks), &[]))
                            .collect();
                        for (cid, (start, blocks)) in cids.into_iter().zip(extents) {
                            let (cqe, got) = queue.finish(cid, &[]);
                            assert!(cqe.status.is_success());
                            let at = start as usize * 512;
                            assert!(got == content[at..at + blocks as usize * 512]);
                            commands += 1;
                        }
                    }
                    commands
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum::<u64>()
    });
    drop(host);
    let receipts = target.stop();
    assert_eq!(receipts.len(), 1);
    assert_eq!((receipts[0].reads, receipts[0].errors), (commands, 0));
    assert_eq!(receipts[0].queues, 5);
}

#[test]
fn the_controller_reports_what_linux_and_spdk_require() {
    let (_target, address) = start(&memory(1 << 20));
    let mut host = Host::new(address, &Login::default());
    let page = host.identify(identify::page::CONTROLLER, 0);
    let page = identify::Controller::decode(&page).unwrap();
    assert_eq!(page.id, host.connected.controller);
    assert!(page.keep_alive_100ms > 0 && page.sgl & 1 == 1);
    assert!(page.command_capsule_16 >= 4 && page.response_capsule_16 >= 1);
    assert_eq!(page.capsule_offset_16, 0);
    assert!(page.has_ana() && page.namespaces_max > 0);
    assert!(page.namespaces_max <= page.namespaces);
    assert_eq!(page.transfer_bytes_max(), Some(4 << 20));
    let list = host.identify(identify::page::NAMESPACES, 0);
    assert_eq!(identify::decode_list(&list).unwrap(), [1]);
    let ids = host.identify(identify::page::DESCRIPTORS, 1);
    let ids = identify::NamespaceId::decode(&ids).unwrap();
    assert_eq!(ids.uuid, ids.nguid);
    assert_eq!(host.namespace(1).nguid, ids.nguid.unwrap());
    // A missing namespace has a page of zeros. An invalid NSID is refused.
    let nothing = host.identify(identify::page::NAMESPACE, 77);
    assert!(nothing.iter().all(|byte| *byte == 0));
    assert_eq!(host.log(0x7f, 0, 512).0, Status::INVALID_LOG_PAGE.dnr());
    assert_eq!(host.log(0x0c, 1 << 40, 16).0, Status::INVALID_FIELD.dnr());
    assert!(host.log(0x05, 0, 4096).0.is_success());
    assert!(host.log(0x02, 0, 512).0.is_success());
}

#[test]
fn ranges_outside_and_wrong_lengths_are_refused() {
    let (_target, address) = start(&memory(1 << 20));
    let host = Host::new(address, &Login::default());
    let mut queue = host.queue(1);
    assert_eq!(queue.status(read(1, 2048, 1), &[]), Status::LBA_RANGE.dnr());
    assert_eq!(queue.status(read(1, u64::MAX, 2), &[]), Status::LBA_RANGE.dnr());
    assert_eq!(queue.status(read(2, 0, 1), &[]), Status::INVALID_NAMESPACE.dnr());
    let mut short = read(1, 0, 8);
    short.sgl.bytes = 512;
    assert_eq!(queue.status(short, &[]), Status::SGL_DATA_LENGTH.dnr());
    let mut flagged = read(1, 0, 1);
    flagged.flags = 0;
    assert_eq!(queue.status(flagged, &[]), Status::INVALID_FIELD.dnr());
    let mut unknown = read(1, 0, 1);
    unknown.opcode = 0x99;
    assert_eq!(queue.status(unknown, &[]), Status::INVALID_OPCODE.dnr());
    assert!(queue.ok(read(1, 2047, 1), &[]).iter().all(|byte| *byte == 0));
}

#[test]
fn discovery_lists_every_port_and_referral() {
    let mut config = memory(1 << 20);
    config.ports.push(config.ports[0].clone());
    config.referrals = vec!["192.0.2.7:8009".parse().unwrap()];
    let (target, address) = start(&config);
    let login = Login {
        subsystem: Nqn::discovery(),
        ..Login::default()
    };
    let mut host = Host::connect(address, &login).unwrap();
    let page = host.identify(identify::page::CONTROLLER, 0);
    let page = identify::Controller::decode(&page).unwrap();
    assert_eq!(page.kind, identify::ControllerKind::DISCOVERY);
    let (status, log) = host.log(0x70, 0, 4096);
    assert!(status.is_success());
    let header = DiscoveryHeader::decode(&log).unwrap();
    assert_eq!(header.entries, 3);
    let entries: Vec<_> = log[1024..]
        .chunks(1024)
        .map(|entry| DiscoveryEntry::decode(entry).unwrap())
        .collect();
    for (entry, address) in entries.iter().zip(target.addresses()) {
        assert_eq!(entry.kind, SubsystemKind::NVM);
        assert_eq!(entry.address, "127.0.0.1");
        assert_eq!(entry.service, address.port().to_string());
    }
    assert_eq!(entries[2].kind, SubsystemKind::REFERRAL);
    assert_eq!(entries[2].address, "192.0.2.7");
    // An offset past the end must not reach memory after the page.
    assert_eq!(host.log(0x70, 8192, 64).0, Status::INVALID_FIELD.dnr());
    // A part of a page that does not begin at its start.
    assert_eq!(host.log(0x70, 1024, 1024).1, log[1024..2048]);
}

#[test]
fn wrong_names_controllers_and_queues_are_refused_with_the_field() {
    let mut config = memory(1 << 20);
    config.policy.is_closed = true;
    let (_closed, address) = start(&config);
    let refused = Host::connect(address, &Login::default()).unwrap_err();
    assert_eq!(refused.status, Status::CONNECT_INVALID_HOST.dnr());
    let (_target, address) = start(&memory(1 << 20));
    let other = Login {
        subsystem: Nqn::new("nqn.other").unwrap(),
        ..Login::default()
    };
    let refused = Host::connect(address, &other).unwrap_err();
    assert_eq!(refused.status, Status::CONNECT_INVALID_PARAM.dnr());
    assert_eq!(refused.result, 0x1_0100);
    let host = Host::new(address, &Login::default());
    // Another host that guesses the controller's identifier.
    let thief = Login {
        host: Nqn::new("nqn.thief").unwrap(),
        ..Login::default()
    };
    for (login, queue, controller) in [
        (&thief, 1, host.connected.controller),
        (&host.login, 1, 0x1234),
        (&host.login, 999, host.connected.controller),
    ] {
        let mut wire = super::host::Wire::open(address, login.digests);
        let cqe = super::host::connect(&mut wire, login, queue, controller);
        assert_eq!(cqe.status, Status::CONNECT_INVALID_PARAM.dnr());
    }
}
