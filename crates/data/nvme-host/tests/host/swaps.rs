//! Connections to one address that reach another target than the one whose namespace was verified.

use std::{
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, atomic::Ordering},
    thread,
};

use straightway_io::{Handle, request::Op};
use straightway_nvme::{
    Digests,
    index::{IndexEntry, NameIndex},
};
use straightway_nvme_host::{HostSettings, NvmeEngine, NvmeTcp, Portal};

use crate::{
    rig::{bytes_of, content, engine, error_of, io, open, run, settings},
    target::{Script, Target},
};

const BYTES: usize = 1 << 20;
const PIECE: usize = 64 << 10;

/// Two targets with the same NQN and different namespaces.
fn targets(queues: u16) -> [Target; 2] {
    let script = Script {
        queues,
        ..Script::default()
    };
    let other = Script {
        uuid: [8; 16],
        ..script.clone()
    };
    [
        Target::new(content(BYTES), script),
        Target::new(vec![0xBA; BYTES], other),
    ]
}

/// Two targets with the same writable file. The second shows another version of it by `difference`.
fn twins(difference: u64) -> [Target; 2] {
    [0, difference].map(|difference| {
        let entry = IndexEntry {
            nsid: 1,
            is_writable: true,
            bytes: BYTES as u64,
            version: 7 + difference,
            name: b"file".to_vec(),
        };
        let index = NameIndex {
            generation: 1,
            boot: 1,
            entries: vec![entry],
        };
        let script = Script {
            queues: 1,
            index: Some(index),
            ..Script::default()
        };
        Target::new(content(BYTES), script)
    })
}

/// An address whose first `count` connections reach the first target, and all others the second. With `is_restart`, the
/// first connections are closed when the next one is made.
fn split(targets: &[Target; 2], count: usize, is_restart: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let [first, second] = [targets[0].address, targets[1].address];
    thread::spawn(move || {
        let mut old: Vec<TcpStream> = Vec::new();
        for (number, near) in listener.incoming().flatten().enumerate() {
            let far = if number < count {
                old.push(near.try_clone().unwrap());
                TcpStream::connect(first).unwrap()
            } else {
                if is_restart {
                    for stream in old.drain(..) {
                        let _ = stream.shutdown(Shutdown::Both);
                    }
                }
                TcpStream::connect(second).unwrap()
            };
            let back = (far.try_clone().unwrap(), near.try_clone().unwrap());
            thread::spawn(move || pump(&near, &far));
            thread::spawn(move || pump(&back.0, &back.1));
        }
    });
    address
}

fn pump(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = to.set_nodelay(true);
    let _ = std::io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
}

fn opened(address: SocketAddr) -> Arc<dyn Handle> {
    let settings = HostSettings {
        attempts_max: 4,
        ..settings(Digests::default())
    };
    let portal = Portal::new("127.0.0.1", address.port());
    open(&NvmeTcp::new(portal, settings)).unwrap()
}

/// Reads a piece, which must be that of the first target.
fn read(engine: &mut NvmeEngine, object: &Arc<dyn Handle>) {
    let done = run(engine, vec![io(Op::Read, object, 0, PIECE, 0)]);
    assert_eq!(*done[0].result.as_ref().unwrap(), PIECE);
    assert!(bytes_of(&done[0].io) == content(BYTES)[..PIECE]);
}

/// The error of a read.
fn failure(engine: &mut NvmeEngine, object: &Arc<dyn Handle>) -> String {
    error_of(run(engine, vec![io(Op::Read, object, 0, PIECE, 0)]))
}

fn reads(target: &Target) -> u32 {
    target.shared.reads.load(Ordering::SeqCst)
}

#[test]
fn a_queue_of_a_restarted_target_is_not_used_for_the_old_association() {
    let targets = targets(8);
    // The admin queue reaches the first target. When the I/O queue is connected, the second one has taken its place,
    // and accepts the queue.
    let object = opened(split(&targets, 1, true));
    let Some(mut engine) = engine(8) else { return };
    let error = failure(&mut engine, &object);
    assert!(error.contains("another namespace"), "{error}");
    assert_eq!(reads(&targets[1]), 0);
}

#[test]
fn a_further_association_with_another_target_is_not_used() {
    // Each association has one queue. The second lane and the headers need further associations.
    let targets = targets(1);
    let object = opened(split(&targets, 2, false));
    let (Some(mut first), Some(mut second)) = (engine(8), engine(8)) else {
        return;
    };
    read(&mut first, &object);
    let error = failure(&mut second, &object);
    assert!(error.contains("another namespace"), "{error}");
    let error = object.read_exact_at(0, &mut [0; 8]).unwrap_err();
    assert!(error.to_string().contains("another namespace"), "{error}");
    assert_eq!(reads(&targets[1]), 0);
    read(&mut first, &object);
}

#[test]
fn a_further_association_with_another_version_of_a_writable_file_is_not_used() {
    let targets = twins(1);
    let object = opened(split(&targets, 2, false));
    let (Some(mut first), Some(mut second)) = (engine(8), engine(8)) else {
        return;
    };
    read(&mut first, &object);
    let error = failure(&mut second, &object);
    assert!(error.contains("was replaced or changed"), "{error}");
    assert_eq!(reads(&targets[1]), 0);
}

#[test]
fn a_further_association_is_checked_at_the_end_too() {
    let targets = twins(0);
    let object = opened(split(&targets, 2, false));
    let (Some(mut first), Some(mut second)) = (engine(8), engine(8)) else {
        return;
    };
    read(&mut first, &object);
    read(&mut second, &object);
    assert!(reads(&targets[1]) > 0);
    object.check_unchanged().unwrap();
    let mut script = targets[1].shared.script.lock().unwrap();
    script.index.as_mut().unwrap().entries[0].version += 1;
    drop(script);
    let error = object.check_unchanged().unwrap_err().to_string();
    assert!(error.contains("was replaced or changed"), "{error}");
}

#[test]
fn a_further_association_that_fails_does_not_end_the_controller_of_the_path() {
    let targets = targets(1);
    let address = split(&targets, 2, false);
    // The second target refuses all connections.
    targets[1].cut(true);
    let object = opened(address);
    let (Some(mut first), Some(mut second)) = (engine(8), engine(8)) else {
        return;
    };
    read(&mut first, &object);
    let error = failure(&mut second, &object);
    assert!(error.contains("attempts failed"), "{error}");
    // The path has not connected again.
    read(&mut first, &object);
    assert_eq!(targets[0].shared.connections.load(Ordering::SeqCst), 2);
}
