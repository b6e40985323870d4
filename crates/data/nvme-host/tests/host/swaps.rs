//! Connections to one address that reach another target than the one whose namespace was verified.

use std::{
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, atomic::Ordering},
    thread,
    time::{Duration, Instant},
};

use straightway_io::{
    Handle, StoreExt as _,
    request::{Io, Op},
};
use straightway_nvme::{
    Digests, Status,
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
    twins_of([0, difference], [1, 1])
}

/// The same, on two machines, with equal versions.
fn nodes() -> [Target; 2] {
    twins_of([0, 0], [1, 2])
}

fn twins_of(differences: [u64; 2], boots: [u64; 2]) -> [Target; 2] {
    [0, 1].map(|number| {
        let (difference, boot) = (differences[number], boots[number]);
        let entry = IndexEntry {
            nsid: 1,
            is_writable: true,
            bytes: BYTES as u64,
            version: 7 + difference,
            name: b"file".to_vec(),
        };
        let index = NameIndex {
            generation: 1,
            boot,
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
    open(&store_at(address)).unwrap()
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

/// The store of one address.
fn store_at(address: SocketAddr) -> NvmeTcp {
    let settings = HostSettings {
        attempts_max: 4,
        ..settings(Digests::default())
    };
    NvmeTcp::new(Portal::new("127.0.0.1", address.port()), settings)
}

fn writes(target: &Target) -> u32 {
    target.shared.writes.load(Ordering::SeqCst)
}

fn flushes(target: &Target) -> u32 {
    target.shared.flushes.load(Ordering::SeqCst)
}

fn write_io(object: &Arc<dyn Handle>, at: usize) -> Io {
    let mut io = io(Op::Write, object, at as u64, PIECE, 0);
    io.fill(&vec![2; PIECE]);
    io
}

#[test]
fn a_flush_never_succeeds_on_another_machine_behind_the_address_than_the_one_with_the_writes() {
    let targets = nodes();
    // The flush of the machine that gets the writes would fail.
    targets[0].shared.script.lock().unwrap().flush_status = Status::WRITE_FAULT.dnr();
    let store = store_at(split(&targets, 2, false));
    let object = open(&store).unwrap();
    let (Some(mut first), Some(mut second)) = (engine(8), engine(8)) else {
        return;
    };
    // Both machines confirm the file before anything is written.
    read(&mut first, &object);
    read(&mut second, &object);
    assert!(reads(&targets[1]) > 0, "the second lane reaches the second machine");
    assert!(run(&mut first, vec![write_io(&object, 0)])[0].result.is_ok());
    let error = error_of(run(&mut second, vec![write_io(&object, PIECE)]));
    assert!(
        error.contains("another one than the machine with the last writes"),
        "{error}"
    );
    let error = store.sync(&[Arc::clone(&object)]).unwrap_err().to_string();
    assert!(
        error.contains("another one than the machine with the last writes"),
        "{error}"
    );
    assert_eq!((writes(&targets[1]), flushes(&targets[1])), (0, 0));
}

#[test]
fn writes_and_flushes_stay_on_one_of_two_machines_with_the_same_file() {
    for status in [Status::SUCCESS, Status::WRITE_FAULT.dnr()] {
        let targets = nodes();
        let mut settings = settings(Digests::default());
        settings.paths = vec![Portal::new("127.0.0.1", targets[1].address.port())];
        let store = NvmeTcp::new(Portal::new("127.0.0.1", targets[0].address.port()), settings);
        let object = open(&store).unwrap();
        let Some(mut engine) = engine(8) else { return };
        let deadline = Instant::now() + Duration::from_secs(20);
        while reads(&targets[0]) == 0 || reads(&targets[1]) == 0 {
            assert!(Instant::now() < deadline, "a path is not used");
            read(&mut engine, &object);
        }
        for target in &targets {
            target.shared.script.lock().unwrap().flush_status = status;
        }
        let ios = (0..BYTES / PIECE).map(|number| Io {
            tag: number as u32,
            ..write_io(&object, number * PIECE)
        });
        for done in run(&mut engine, ios.collect()) {
            assert_eq!(done.result.unwrap(), PIECE);
        }
        let written = [0, 1].map(|number| writes(&targets[number]) > 0);
        assert!(written[0] != written[1], "one machine has all writes: {written:?}");
        assert_eq!(store.sync(&[Arc::clone(&object)]).is_ok(), status == Status::SUCCESS);
        let flushed = [0, 1].map(|number| flushes(&targets[number]) > 0);
        assert_eq!(flushed, written);
    }
}
