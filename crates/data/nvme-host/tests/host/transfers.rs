//! Correct responses: bytes, block sizes, limits, flushes, and refused requests.

use std::ffi::OsStr;

use straightway_core::{ErrorKind, random::Seed};
use straightway_io::{
    Store,
    request::Op,
    store::{CommitMode, Like, StoreExt, open_one},
};
use straightway_nvme::Digests;

use crate::{
    rig::{bytes_of, content, engine, error_of, io, open, run, settings, store},
    target::{BOTH, NQN, Script, Target},
};

const BYTES: usize = 3 << 20;

/// Offsets and lengths in whole blocks, spread over the namespace.
fn extents(block: usize, count: usize) -> Vec<(u64, usize)> {
    let blocks = BYTES / block;
    let mut rng = Seed(12_345).rng();
    let mut all = Vec::new();
    for index in 0..count {
        let longest = [1, 4, 40, 700][index % 4].min(blocks);
        let length = 1 + rng.index(longest);
        let start = rng.index(blocks - length + 1);
        all.push(((start * block) as u64, length * block));
    }
    all
}

fn scripts() -> Vec<(Script, Digests)> {
    let plain = Digests::default();
    let script = Script::default();
    vec![
        (script.clone(), plain),
        (script.clone(), BOTH),
        (
            Script {
                block_shift: 9,
                data_bytes_max: 5000,
                has_success: false,
                ..script.clone()
            },
            BOTH,
        ),
        (
            Script {
                block_shift: 9,
                transfer_shift: Some(1),
                capsule_bytes: Some(0),
                host_data_bytes_max: Some(4096),
                entries: Some(4),
                ..script.clone()
            },
            Digests {
                header: true,
                data: false,
            },
        ),
        (
            Script {
                capsule_bytes: Some(1 << 20),
                data_bytes_max: 300_000,
                ..script
            },
            plain,
        ),
    ]
}

#[test]
fn bytes_are_right_with_every_kind_of_target() {
    for (script, digests) in scripts() {
        let expected = content(BYTES);
        let block = 1 << script.block_shift;
        let target = Target::new(expected.clone(), script);
        let store = store(&target, settings(digests));
        let object = open(&store).unwrap();
        assert_eq!(object.object().bytes, BYTES as u64);
        for depth in [1, 7, 64] {
            let Some(mut engine) = engine(depth) else {
                return;
            };
            let ios = extents(block, 150).into_iter().zip(0..);
            let ios = ios.map(|((at, n), tag)| io(Op::Read, &object, at, n, tag));
            for done in run(&mut engine, ios.collect()) {
                assert_eq!(done.result.unwrap(), done.io.bytes);
                let at = done.io.offset as usize;
                assert!(bytes_of(&done.io) == expected[at..at + done.io.bytes], "{at}");
            }
        }
    }
}

#[test]
fn written_bytes_are_read_back() {
    for (script, digests) in scripts() {
        let block = 1 << script.block_shift;
        let target = Target::new(vec![0; BYTES], script);
        let store = store(&target, settings(digests));
        let object = open(&store).unwrap();
        let expected = content(BYTES);
        let Some(mut engine) = engine(16) else { return };
        let step = 37 * block;
        let ios = (0..BYTES).step_by(step).zip(0..).map(|(at, tag)| {
            let length = step.min(BYTES - at);
            let mut io = io(Op::Write, &object, at as u64, length, tag);
            io.fill(&expected[at..at + length]);
            io
        });
        for done in run(&mut engine, ios.collect()) {
            assert_eq!(done.result.unwrap(), done.io.bytes);
        }
        store.sync(&[object]).unwrap();
        assert_eq!(target.flushes(), 1);
        assert!(target.content() == expected);
    }
}

#[test]
fn headers_are_read_at_any_offset_and_drafts_are_written_in_place() {
    let expected = content(BYTES);
    let script = Script {
        block_shift: 9,
        ..Script::default()
    };
    let target = Target::new(expected.clone(), script);
    let store = store(&target, settings(Digests::default()));
    let object = open(&store).unwrap();
    for (at, length) in [(0, 8), (511, 2), (100, 300_000), (BYTES - 3, 3)] {
        let mut bytes = vec![0; length];
        object.read_exact_at(at as u64, &mut bytes).unwrap();
        assert!(bytes == expected[at..at + length]);
    }
    assert!(object.read_exact_at(BYTES as u64 - 1, &mut [0; 2]).is_err());
    object.check_unchanged().unwrap();
    let name = format!("{NQN}/1");
    let create = |bytes| store.create(OsStr::new(&name), bytes, &Like::Replaced);
    let draft = create(5000).unwrap();
    assert_eq!(draft.handle().object().bytes, 5000);
    draft.write_all_at(512, &[7; 1024]).unwrap();
    let error = draft.write_all_at(512, &[7; 10]).unwrap_err();
    assert!(error.to_string().contains("whole blocks of 512"), "{error}");
    store.commit(vec![draft], CommitMode::InOrder).unwrap();
    assert_eq!(target.content()[512..1536], [7; 1024]);
    let error = create(BYTES as u64 + 1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("are to be written"), "{error}");
    target.truncate(BYTES as u64 / 2);
    assert!(object.check_unchanged().is_err(), "it shrank");
}

#[test]
fn unaligned_io_and_io_past_the_end_are_refused() {
    let target = Target::new(content(1 << 20), Script::default());
    let store = store(&target, settings(Digests::default()));
    let object = open(&store).unwrap();
    let Some(mut engine) = engine(4) else { return };
    for (at, length) in [(1, 4096), (0, 512)] {
        let done = run(&mut engine, vec![io(Op::Read, &object, at, length, 0)]);
        let error = error_of(done);
        assert!(error.contains("whole blocks of 4096"), "{error}");
    }
    let past = run(&mut engine, vec![io(Op::Read, &object, 1 << 20, 4096, 0)]);
    assert_eq!(*past[0].result.as_ref().unwrap(), 0);
    let across = run(&mut engine, vec![io(Op::Read, &object, (1 << 20) - 4096, 8192, 0)]);
    assert_eq!(*across[0].result.as_ref().unwrap(), 4096);
}

#[test]
fn bad_names_and_bad_targets_are_clear_errors_soon() {
    let start = std::time::Instant::now();
    let target = Target::new(content(1 << 16), Script::default());
    let own = |name: &str| {
        let store = store(&target, settings(Digests::default()));
        open_one(&store, OsStr::new(name)).unwrap_err().to_string()
    };
    let says = |text: String, what: &str| assert!(text.contains(what), "{text}");
    says(own("nqn.wrong/1"), "no subsystem nqn.wrong");
    says(own(&format!("{NQN}/9")), "no namespace 9");
    says(own(&format!("{NQN}/0")), "a namespace is 1 to");
    let refusing = |script: Script| {
        let target = Target::new(content(1 << 16), script);
        let store = store(&target, settings(Digests::default()));
        open(&store).unwrap_err().to_string()
    };
    let closed = Script {
        is_closed: true,
        ..Script::default()
    };
    says(
        refusing(closed),
        "does not allow the host nqn.2014-08.org.nvmexpress:uuid:",
    );
    let locked = Script {
        needs_auth: true,
        ..Script::default()
    };
    says(refusing(locked), "authentication");
    let nowhere = |host: &str, port| {
        let portal = straightway_nvme_host::Portal::new(host, port);
        let store = straightway_nvme_host::NvmeTcp::new(portal, settings(Digests::default()));
        open(&store).unwrap_err().to_string()
    };
    let unknown = nowhere("no-such-host.invalid", 4420);
    assert!(!unknown.contains("next in"), "{unknown}");
    says(unknown, "no-such-host.invalid");
    // A port without a listener, one with another protocol, and one that does not respond.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let refused = nowhere("127.0.0.1", port);
    assert!(!refused.contains("next in"), "{refused}");
    says(refused.clone(), "attempts failed");
    says(refused, "nobody listens");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let _ = std::io::Write::write_all(&mut stream, b"SSH-2.0-OpenSSH_9.2\r\n");
        std::thread::sleep(std::time::Duration::from_secs(20));
    });
    says(nowhere("127.0.0.1", port), "does not speak NVMe/TCP");
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut soon = settings(Digests::default());
    soon.connect_max = std::time::Duration::from_millis(500);
    let silent = straightway_nvme_host::Portal::new("127.0.0.1", port);
    let silent = straightway_nvme_host::NvmeTcp::new(silent, soon);
    says(open(&silent).unwrap_err().to_string(), "no answer in time");
    drop(listener);
    assert!(start.elapsed() < std::time::Duration::from_secs(40));
}

#[test]
fn a_block_longer_than_a_transfer_is_refused_when_the_namespace_is_opened() {
    let script = Script {
        block_shift: 16,
        transfer_shift: Some(1),
        ..Script::default()
    };
    let target = Target::new(content(1 << 20), script);
    let error = open(&store(&target, settings(Digests::default()))).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(text.contains("65536") && text.contains("8192"), "{text}");
    assert!(text.contains(NQN) && error.hint().is_some(), "{text}");
}

#[test]
fn a_target_without_the_requested_digests_is_refused() {
    let none = Digests::default();
    let header = Digests { header: true, ..none };
    for (offered, missing) in [
        (none, "the header digest and the data digest"),
        (header, "the data digest"),
    ] {
        let script = Script {
            digests: Some(offered),
            ..Script::default()
        };
        let target = Target::new(content(1 << 16), script);
        let error = open(&store(&target, settings(BOTH))).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        let text = error.to_string();
        let address = target.address.to_string();
        assert!(text.contains(missing) && text.contains(&address), "{text}");
        let hint = error.hint().unwrap();
        assert!(hint.contains("nvme_digests"), "{hint}");
        open(&store(&target, settings(offered))).unwrap();
    }
}

#[test]
fn more_lanes_than_queues_get_associations_of_their_own() {
    let expected = content(1 << 20);
    let script = Script {
        queues: Some(1),
        ..Script::default()
    };
    let target = Target::new(expected.clone(), script);
    let store = store(&target, settings(Digests::default()));
    let object = open(&store).unwrap();
    let engines: Option<Vec<_>> = (0..4).map(|_| engine(4)).collect();
    let Some(mut engines) = engines else { return };
    for engine in &mut engines {
        for done in run(engine, vec![io(Op::Read, &object, 4096, 65536, 1)]) {
            assert!(bytes_of(&done.io) == expected[4096..4096 + 65536]);
        }
    }
}
