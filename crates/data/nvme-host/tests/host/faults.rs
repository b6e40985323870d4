//! A target that violates the protocol, once or always. The result is an error or a retry, never wrong bytes.

use std::{
    ffi::OsStr,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use straightway_core::ErrorKind;
use straightway_io::{Handle, Store, engine::Engine as _, request::Op, store::Like};
use straightway_nvme::Digests;

use crate::{
    rig::{bytes_of, content, engine, io, open, open_as, run, settings, store},
    target::{BOTH, InjectedFault, NQN, Script, Target},
};

const BYTES: usize = 1 << 20;

/// Faults of reads.
const OF_READS: [InjectedFault; 16] = [
    InjectedFault::ShortRead,
    InjectedFault::WrongCid,
    InjectedFault::Gap,
    InjectedFault::LongRead,
    InjectedFault::DataDigest,
    InjectedFault::HeaderDigest,
    InjectedFault::LateAnswer,
    InjectedFault::ReadyForRead,
    InjectedFault::Term,
    InjectedFault::Close,
    InjectedFault::CloseInside,
    InjectedFault::Silence,
    InjectedFault::Interrupted,
    InjectedFault::Media,
    InjectedFault::Garbage,
    InjectedFault::Path,
];

/// Whether a reconnect or a retry recovers from the fault.
fn is_transient(fault: InjectedFault) -> bool {
    !matches!(fault, InjectedFault::Media | InjectedFault::Protected)
}

#[test]
fn a_single_fault_costs_a_retry_and_no_byte() {
    for fault in OF_READS {
        for script in [
            Script::default(),
            Script {
                block_shift: 9,
                has_success: false,
                ..Script::default()
            },
        ] {
            let expected = content(BYTES);
            let target = Target::new(expected.clone(), script);
            let store = store(&target, settings(BOTH));
            let object = open(&store).unwrap();
            let Some(mut engine) = engine(8) else { return };
            target.inject(fault, 1);
            let lengths = [4096, 8192, 65536, 262_144];
            let ios = (0..32).map(|tag| {
                let length = lengths[tag as usize % 4];
                let at = (tag as usize * 28_672).min(BYTES - length);
                io(Op::Read, &object, at as u64, length, tag)
            });
            let mut failed = 0;
            for done in run(&mut engine, ios.collect()) {
                match done.result {
                    Ok(moved) => {
                        assert_eq!(moved, done.io.bytes);
                        let at = done.io.offset as usize;
                        assert!(bytes_of(&done.io) == expected[at..at + moved], "{fault:?}");
                    }
                    Err(_) => failed += 1,
                }
            }
            assert_eq!(target.shared.injected.load(Ordering::SeqCst), 1, "{fault:?}");
            assert_eq!(failed == 0, is_transient(fault), "{fault:?}");
        }
    }
}

#[test]
fn a_permanent_fault_is_an_error_in_bounded_time() {
    for fault in OF_READS {
        let target = Target::new(content(BYTES), Script::default());
        let mut fast = settings(BOTH);
        fast.retries_max = 2;
        fast.command_max = Duration::from_millis(300);
        let store = store(&target, fast);
        let object = open(&store).unwrap();
        let Some(mut engine) = engine(8) else { return };
        target.inject(fault, u32::MAX);
        let start = Instant::now();
        let done = run(&mut engine, vec![io(Op::Read, &object, 4096, 65536, 0)]);
        let done = done.into_iter().next().unwrap();
        match (fault, done.result) {
            // The first completion was correct. The second one came too late to affect it.
            (InjectedFault::LateAnswer, Ok(moved)) => assert_eq!(moved, 65536),
            (_, Ok(_)) => panic!("{fault:?} went unnoticed"),
            (_, Err(error)) => {
                let error = object.error("read", error);
                let text = error.to_string();
                assert!(text.contains("nqn.2026-11.org.example:test"), "{text}");
                let kind = if is_transient(fault) {
                    ErrorKind::Transient
                } else {
                    ErrorKind::Corrupt
                };
                assert_eq!(error.kind(), kind, "{text}");
            }
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{fault:?}");
    }
}

#[test]
fn faults_of_writes_end_in_the_right_bytes_or_an_error() {
    for fault in [
        InjectedFault::ReadyBeyond,
        InjectedFault::WriteWithoutData,
        InjectedFault::HalfWrite,
        InjectedFault::Term,
        InjectedFault::Close,
        InjectedFault::Silence,
        InjectedFault::Interrupted,
        InjectedFault::Protected,
    ] {
        let nqn = format!("{NQN}-{fault:?}");
        let target = Target::named(&nqn, vec![0; BYTES], Script::default());
        let store = store(&target, settings(Digests::default()));
        let object = open_as(&store, &nqn).unwrap();
        let Some(mut engine) = engine(8) else { return };
        target.inject(fault, 1);
        let expected = content(BYTES);
        let ios = (0..16).map(|tag: u32| {
            let at = tag as usize * 65536;
            let mut io = io(Op::Write, &object, at as u64, 65536, tag);
            io.fill(&expected[at..at + 65536]);
            io
        });
        let done = run(&mut engine, ios.collect());
        let there = target.content();
        let mut failed = 0;
        for done in done {
            let at = done.io.offset as usize;
            match done.result {
                Ok(_) => assert!(there[at..at + 65536] == expected[at..at + 65536], "{fault:?}"),
                Err(error) => {
                    failed += 1;
                    let text = done.io.object.error("write", error).to_string();
                    assert!(text.contains("write protected"), "{fault:?}: {text}");
                }
            }
        }
        assert_eq!(failed, usize::from(fault == InjectedFault::Protected), "{fault:?}");
    }
}

#[test]
fn other_data_for_blocks_of_a_lost_write_waits_for_the_end_of_the_old_controller() {
    // Twice the keep-alive timeout plus one second.
    const WAIT: Duration = Duration::from_secs(5);
    let nqn = format!("{NQN}-quarantine");
    let target = Target::named(&nqn, vec![0; BYTES], Script::default());
    let mut settings = settings(Digests::default());
    settings.keep_alive = Duration::from_secs(2);
    let store = store(&target, settings);
    let object = open_as(&store, &nqn).unwrap();
    let Some(mut engine) = engine(8) else { return };
    let write = |offset: u64, byte: u8, tag| {
        let mut io = io(Op::Write, &object, offset, 65536, tag);
        io.fill(&vec![byte; 65536]);
        io
    };
    target.inject(InjectedFault::Close, 1);
    let start = Instant::now();
    run(&mut engine, vec![write(0, 1, 0)]);
    assert!(start.elapsed() < WAIT, "a repeat does not wait");
    // Other data for the same blocks waits, and meanwhile other blocks are written.
    engine.submit(write(4096, 3, 0)).unwrap();
    engine.submit(write(1 << 19, 2, 1)).unwrap();
    let mut done = Vec::new();
    while done.len() < 2 {
        engine.poll(&mut done, Duration::from_millis(200)).unwrap();
        assert!(start.elapsed() < 4 * WAIT, "{engine:?} lost an I/O");
    }
    assert_eq!([done[0].io.tag, done[1].io.tag], [1, 0], "other blocks do not wait");
    assert!(start.elapsed() >= WAIT, "{:?}", start.elapsed());
    assert!(done.iter().all(|done| done.result.is_ok()));
    assert_eq!(target.content()[4096], 3);
}

#[test]
fn other_data_of_another_store_waits_for_the_end_of_the_old_controller_too() {
    let nqn = format!("{NQN}-stores");
    let target = Target::named(&nqn, vec![0; BYTES], Script::default());
    let mut settings = settings(Digests::default());
    settings.keep_alive = Duration::from_secs(1);
    let opened = || open_as(&store(&target, settings.clone()), &nqn).unwrap();
    let Some(mut engine) = engine(8) else { return };
    let mut write = |object: &Arc<dyn Handle>, byte: u8| {
        let mut io = io(Op::Write, object, 0, 65536, 0);
        io.fill(&vec![byte; 65536]);
        let done = run(&mut engine, vec![io]);
        assert_eq!(*done[0].result.as_ref().unwrap(), 65536);
    };
    let first = opened();
    target.inject(InjectedFault::Close, 1);
    let start = Instant::now();
    write(&first, 1);
    write(&opened(), 2);
    // Twice the keep-alive timeout plus one second.
    let waited = start.elapsed();
    assert!(waited >= Duration::from_secs(3), "{waited:?}");
    assert_eq!(target.content()[0], 2);
}

#[test]
fn a_header_whose_data_was_not_requested_is_written_again() {
    for fault in [InjectedFault::WriteWithoutData, InjectedFault::HalfWrite] {
        let nqn = format!("{NQN}-header-{fault:?}");
        let target = Target::named(&nqn, vec![0; BYTES], Script::default());
        let store = store(&target, settings(Digests::default()));
        let draft = store.create(OsStr::new(&format!("{nqn}/1")), BYTES as u64, &Like::Replaced);
        let draft = draft.unwrap();
        let expected = content(65536);
        target.inject(fault, 1);
        draft.write_all_at(4096, &expected).unwrap();
        assert_eq!(target.shared.injected.load(Ordering::SeqCst), 1);
        let there = target.content();
        assert!(there[4096..4096 + 65536] == expected, "{fault:?}");
    }
}

#[test]
fn a_storm_of_events_stops_neither_reads_nor_keep_alives() {
    let script = Script {
        storms: true,
        ..Script::default()
    };
    let expected = content(BYTES);
    let target = Target::new(expected.clone(), script);
    let store = store(&target, settings(Digests::default()));
    let object = open(&store).unwrap();
    let Some(mut engine) = engine(8) else { return };
    // One is sent when the queue is connected, and the next ones after a third of the timeout each.
    let start = Instant::now();
    while target.keep_alives() < 4 {
        assert!(start.elapsed() < Duration::from_secs(20), "no keep-alives are sent");
        let ios = (0..16).map(|tag| io(Op::Read, &object, u64::from(tag) * 65536, 65536, tag));
        for done in run(&mut engine, ios.collect()) {
            let at = done.io.offset as usize;
            assert_eq!(done.result.unwrap(), 65536);
            assert!(bytes_of(&done.io) == expected[at..at + 65536]);
        }
    }
    object.check_unchanged().unwrap();
}

#[test]
fn a_cancelled_job_gets_its_buffers_back_soon() {
    let target = Target::new(content(BYTES), Script::default());
    let mut slow = settings(Digests::default());
    slow.command_max = Duration::from_mins(1);
    slow.keep_alive = Duration::from_mins(1);
    let store = store(&target, slow);
    let object = open(&store).unwrap();
    let Some(mut engine) = engine(8) else { return };
    target.inject(InjectedFault::Silence, u32::MAX);
    for tag in 0..4 {
        engine.submit(io(Op::Read, &object, 0, 65536, tag)).unwrap();
    }
    let mut done = Vec::new();
    engine.poll(&mut done, Duration::from_millis(300)).unwrap();
    assert!(done.is_empty());
    let start = Instant::now();
    engine.cancel(&|_| true);
    while done.len() < 4 {
        engine.poll(&mut done, Duration::from_millis(100)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(5));
    }
    assert!(done.iter().all(|done| done.result.is_err()));
}
