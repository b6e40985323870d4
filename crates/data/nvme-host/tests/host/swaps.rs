//! Connections to one address that reach another target than the one whose namespace was verified.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_io::{
    Handle, StoreExt as _,
    request::{Io, Op},
};
use straightway_lab::{PduRelay, Upstream};
use straightway_nvme::{Digests, Status};
use straightway_nvme_host::{HostSettings, NvmeEngine, NvmeTcp, Portal};

use crate::{
    rig::{bytes_of, content, engine, error_of, io, open, run, settings},
    target::{NQN, Script, Served, Target},
};

const BYTES: usize = 1 << 20;
const PIECE: usize = 64 << 10;

/// Two targets with the same NQN and different namespaces.
fn targets(queues: Option<u16>) -> [Target; 2] {
    let script = Script {
        queues,
        ..Script::default()
    };
    // Identifiers follow from the NQN and the name of the file.
    let other = Served::file("other", vec![0xBA; BYTES]);
    [
        Target::new(content(BYTES), script.clone()),
        Target::serving(NQN, &other, script),
    ]
}

/// Two targets of one writable file. The second shows another version of it by `difference`.
fn twins(difference: u64) -> [Target; 2] {
    twins_of([0, difference], [1, 1])
}

/// The same, on two machines, with equal versions.
fn nodes() -> [Target; 2] {
    twins_of([0, 0], [1, 2])
}

fn twins_of(differences: [u64; 2], boots: [u64; 2]) -> [Target; 2] {
    let served = Served::file("file", content(BYTES));
    [0, 1].map(|number| {
        let script = Script {
            queues: Some(1),
            has_index: true,
            boot: Some(boots[number]),
            version: Some(7 + differences[number]),
            ..Script::default()
        };
        Target::serving(NQN, &served, script)
    })
}

/// An address whose first `count` connections reach the first target, and all others the second. With `is_restart`, the
/// first connections are closed when the next one is made.
fn split(targets: &[Target; 2], count: usize, is_restart: bool) -> PduRelay {
    let [first, second] = [targets[0].address, targets[1].address];
    PduRelay::with_pick(move |number| {
        Some(Upstream {
            address: if number < count { first } else { second },
            is_restart: is_restart && number == count,
        })
    })
}

fn opened(relay: &PduRelay) -> Arc<dyn Handle> {
    open(&store_at(relay)).unwrap()
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

#[test]
fn a_queue_of_a_restarted_target_is_not_used_for_the_old_association() {
    let targets = targets(None);
    // The admin queue reaches the first target. When the I/O queue is connected, the second one has taken its place,
    // and accepts the queue.
    let relay = split(&targets, 1, true);
    let object = opened(&relay);
    let Some(mut engine) = engine(8) else { return };
    let error = failure(&mut engine, &object);
    assert!(error.contains("another namespace"), "{error}");
    assert_eq!(targets[1].reads(), 0);
}

#[test]
fn a_further_association_with_another_target_is_not_used() {
    // Each association has one queue. The second lane and the headers need further associations.
    let targets = targets(Some(1));
    let relay = split(&targets, 2, false);
    let object = opened(&relay);
    let (Some(mut first), Some(mut second)) = (engine(8), engine(8)) else {
        return;
    };
    read(&mut first, &object);
    let error = failure(&mut second, &object);
    assert!(error.contains("another namespace"), "{error}");
    let error = object.read_exact_at(0, &mut [0; 8]).unwrap_err();
    assert!(error.to_string().contains("another namespace"), "{error}");
    assert_eq!(targets[1].reads(), 0);
    read(&mut first, &object);
}

#[test]
fn a_further_association_with_another_version_of_a_writable_file_is_not_used() {
    let targets = twins(1);
    let relay = split(&targets, 2, false);
    let object = opened(&relay);
    let (Some(mut first), Some(mut second)) = (engine(8), engine(8)) else {
        return;
    };
    read(&mut first, &object);
    let error = failure(&mut second, &object);
    assert!(error.contains("was replaced or changed"), "{error}");
    assert_eq!(targets[1].reads(), 0);
}

#[test]
fn a_further_association_is_checked_at_the_end_too() {
    let targets = twins(0);
    let relay = split(&targets, 2, false);
    let object = opened(&relay);
    let (Some(mut first), Some(mut second)) = (engine(8), engine(8)) else {
        return;
    };
    read(&mut first, &object);
    read(&mut second, &object);
    assert!(targets[1].reads() > 0);
    object.check_unchanged().unwrap();
    targets[1].shared.script.lock().unwrap().version = Some(8);
    let error = object.check_unchanged().unwrap_err().to_string();
    assert!(error.contains("was replaced or changed"), "{error}");
}

#[test]
fn a_further_association_that_fails_does_not_end_the_controller_of_the_path() {
    let targets = targets(Some(1));
    let relay = split(&targets, 2, false);
    // The second target refuses all connections.
    targets[1].cut(true);
    let object = opened(&relay);
    let (Some(mut first), Some(mut second)) = (engine(8), engine(8)) else {
        return;
    };
    read(&mut first, &object);
    let error = failure(&mut second, &object);
    assert!(error.contains("attempts failed"), "{error}");
    // The path has not connected again.
    read(&mut first, &object);
    assert_eq!(targets[0].connections(), 2);
}

/// The store of one address.
fn store_at(relay: &PduRelay) -> NvmeTcp {
    let settings = HostSettings {
        attempts_max: 4,
        ..settings(Digests::default())
    };
    NvmeTcp::new(Portal::new("127.0.0.1", relay.address().port()), settings)
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
    targets[0].shared.script.lock().unwrap().flush_status = Some(Status::WRITE_FAULT.dnr());
    let relay = split(&targets, 2, false);
    let store = store_at(&relay);
    let object = open(&store).unwrap();
    let (Some(mut first), Some(mut second)) = (engine(8), engine(8)) else {
        return;
    };
    // Both machines confirm the file before anything is written.
    read(&mut first, &object);
    read(&mut second, &object);
    assert!(targets[1].reads() > 0, "the second lane reaches the second machine");
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
    assert_eq!((targets[1].writes(), targets[1].flushes()), (0, 0));
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
        while targets[0].reads() == 0 || targets[1].reads() == 0 {
            assert!(Instant::now() < deadline, "a path is not used");
            read(&mut engine, &object);
        }
        for target in &targets {
            target.shared.script.lock().unwrap().flush_status = Some(status);
        }
        let ios = (0..BYTES / PIECE).map(|number| Io {
            tag: number as u32,
            ..write_io(&object, number * PIECE)
        });
        for done in run(&mut engine, ios.collect()) {
            assert_eq!(done.result.unwrap(), PIECE);
        }
        let written = [0, 1].map(|number| targets[number].writes() > 0);
        assert!(written[0] != written[1], "one machine has all writes: {written:?}");
        assert_eq!(store.sync(&[Arc::clone(&object)]).is_ok(), status == Status::SUCCESS);
        let flushed = [0, 1].map(|number| targets[number].flushes() > 0);
        assert_eq!(flushed, written);
    }
}
