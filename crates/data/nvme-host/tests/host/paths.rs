//! Connection losses, reconnects, several paths, and discovery.

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock, mpsc},
    time::{Duration, Instant},
};

use straightway_io::{StoreExt as _, engine::Engine as _, request::Op};
use straightway_lab::{PduRelay, Upstream};
use straightway_nvme::{Digests, Nqn, Status, log::AnaState};
use straightway_nvme_host::{Portal, discover};
use straightway_nvme_target::{Config, NamespaceSource};

use crate::{
    rig::{bytes_of, content, engine, error_of, io, open, portal, run, settings, store},
    target::{NQN, Script, Served, Target},
};

const BYTES: usize = 1 << 20;

#[test]
fn a_restarted_target_is_reconnected() {
    let expected = content(BYTES);
    let target = Target::new(expected.clone(), Script::default());
    let store = store(&target, settings(Digests::default()));
    let object = open(&store).unwrap();
    let Some(mut engine) = engine(8) else { return };
    for round in 0..10 {
        target.cut(round % 3 == 0);
        // The time for which the target is down.
        let up = Instant::now() + Duration::from_millis(60);
        let ios = (0..8).map(|tag| io(Op::Read, &object, u64::from(tag) * 65536, 65536, tag));
        for one in ios {
            engine.submit(one).unwrap();
        }
        let mut done = Vec::new();
        engine.poll(&mut done, Duration::from_millis(50)).unwrap();
        std::thread::sleep(up.saturating_duration_since(Instant::now()));
        target.up();
        let deadline = Instant::now() + Duration::from_secs(10);
        while done.len() < 8 {
            engine.poll(&mut done, Duration::from_millis(100)).unwrap();
            assert!(Instant::now() < deadline);
        }
        for done in done {
            let at = done.io.offset as usize;
            assert_eq!(done.result.unwrap(), 65536);
            assert!(bytes_of(&done.io) == expected[at..at + 65536]);
        }
    }
}

#[test]
fn an_unreachable_target_is_an_error_with_the_number_of_attempts() {
    let target = Target::new(content(BYTES), Script::default());
    let mut few = settings(Digests::default());
    few.attempts_max = 4;
    let store = store(&target, few);
    let object = open(&store).unwrap();
    let Some(mut engine) = engine(8) else { return };
    target.cut(true);
    let start = Instant::now();
    let done = run(&mut engine, vec![io(Op::Read, &object, 0, 65536, 0)]);
    let error = error_of(done);
    assert!(error.contains("; 4 attempts failed"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));
}

/// The ports of a target with one namespace.
fn ports(states: &[AnaState]) -> Vec<Target> {
    Target::ports(content(BYTES), states, &Script::default())
}

fn read_all(engine: &mut straightway_nvme_host::NvmeEngine, object: &Arc<dyn straightway_io::Handle>) {
    let expected = content(BYTES);
    let ios = (0..64).map(|tag| io(Op::Read, object, u64::from(tag) * 16384, 16384, tag));
    for done in run(engine, ios.collect()) {
        let at = done.io.offset as usize;
        assert_eq!(done.result.unwrap(), 16384);
        assert!(bytes_of(&done.io) == expected[at..at + 16384]);
    }
}

#[test]
fn optimized_paths_share_the_load_and_others_are_used_after_their_loss() {
    let states = [AnaState::Optimized, AnaState::Optimized, AnaState::NonOptimized];
    let targets = ports(&states);
    let mut settings = settings(Digests::default());
    // No timeout helps to detect the loss.
    settings.command_max = Duration::from_mins(1);
    settings.keep_alive = Duration::from_mins(1);
    settings.paths = targets[1..].iter().map(portal).collect();
    let store = store(&targets[0], settings);
    let object = open(&store).unwrap();
    let Some(mut engine) = engine(8) else { return };
    let reads = |index: usize| targets[index].reads();
    let deadline = Instant::now() + Duration::from_secs(5);
    while reads(1) == 0 && Instant::now() < deadline {
        read_all(&mut engine, &object);
    }
    let (first, second) = (reads(0), reads(1));
    read_all(&mut engine, &object);
    assert_eq!((reads(0) - first, reads(1) - second), (32, 32));
    assert_eq!(reads(2), 0);
    // One path is lost under load. The other takes over everything.
    targets[0].cut(true);
    let start = Instant::now();
    read_all(&mut engine, &object);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    // The second is lost too. The third takes over.
    targets[1].cut(true);
    let start = Instant::now();
    read_all(&mut engine, &object);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(reads(2) > 0);
}

#[test]
fn a_path_that_stops_responding_is_left_within_the_keep_alive_timeout() {
    let targets = ports(&[AnaState::Optimized; 2]);
    let mut settings = settings(Digests::default());
    settings.paths = targets[1..].iter().map(portal).collect();
    // Only the keep-alive can detect it.
    settings.command_max = Duration::from_mins(1);
    let store = store(&targets[0], settings);
    let object = open(&store).unwrap();
    let Some(mut engine) = engine(8) else { return };
    let is_used = |target: &Target| target.reads() > 0;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !targets.iter().all(is_used) && Instant::now() < deadline {
        read_all(&mut engine, &object);
    }
    targets[0].freeze();
    let start = Instant::now();
    // A waiting admin command does not prevent the control thread from detecting it.
    let asked = Arc::clone(&object);
    let asking = std::thread::spawn(move || asked.check_unchanged());
    read_all(&mut engine, &object);
    // After 1.5 s. Even on a busy machine this is long before the timeout of the command.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    asking.join().unwrap().unwrap();
}

#[test]
fn a_header_is_read_by_another_path_within_the_keep_alive_timeout() {
    let targets = ports(&[AnaState::Optimized; 2]);
    let mut settings = settings(Digests::default());
    settings.paths = vec![portal(&targets[1])];
    // Only the keep-alive can detect it.
    settings.command_max = Duration::from_mins(1);
    let store = store(&targets[0], settings);
    let object = open(&store).unwrap();
    let mut header = [0; 8];
    object.read_exact_at(0, &mut header).unwrap();
    targets[0].freeze();
    let start = Instant::now();
    object.read_exact_at(100, &mut header).unwrap();
    assert_eq!(header[..], content(BYTES)[100..108]);
    // After 1.5 s. Even on a busy machine this is long before the timeout of the command.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_flush_that_takes_longer_than_the_idle_time_keeps_its_controller() {
    let script = Script {
        flush_time: Duration::from_millis(2500),
        ..Script::default()
    };
    let target = Target::new(content(BYTES), script);
    let mut short = settings(Digests::default());
    short.idle = Duration::from_secs(1);
    short.command_max = Duration::from_secs(20);
    let store = store(&target, short);
    let object = open(&store).unwrap();
    store.sync(&[Arc::clone(&object)]).unwrap();
    object.check_unchanged().unwrap();
    // The admin queue and one I/O queue.
    assert_eq!(target.connections(), 2);
}

#[test]
fn a_failed_flush_is_followed_by_a_command_on_the_same_queue() {
    let script = Script {
        flush_status: Some(Status::WRITE_FAULT.dnr()),
        ..Script::default()
    };
    let target = Target::new(content(BYTES), script);
    let store = store(&target, settings(Digests::default()));
    let object = open(&store).unwrap();
    assert!(store.sync(&[object]).is_err());
    assert_eq!(target.flushes(), 2);
    // The admin queue and one I/O queue.
    assert_eq!(target.connections(), 2);
}

#[test]
fn a_target_that_cuts_every_queue_is_given_up() {
    let target = Target::new(content(BYTES), Script::default());
    let mut few = settings(Digests::default());
    few.attempts_max = 4;
    let store = store(&target, few);
    let object = open(&store).unwrap();
    let Some(mut engine) = engine(8) else { return };
    target.shared.script.lock().unwrap().cuts_queues = true;
    let done = run(&mut engine, vec![io(Op::Read, &object, 0, 65536, 0)]);
    let error = error_of(done);
    assert!(error.contains("; 4 attempts failed"), "{error}");
    let made = target.connections();
    assert!(made < 20, "{made} connections");
}

#[test]
fn a_namespace_that_becomes_accessible_again_is_waited_for() {
    let targets = ports(&[AnaState::Inaccessible]);
    let store = store(&targets[0], settings(Digests::default()));
    let object = open(&store).unwrap();
    let Some(mut engine) = engine(8) else { return };
    engine.submit(io(Op::Read, &object, 0, 4096, 0)).unwrap();
    let mut done = Vec::new();
    engine.poll(&mut done, Duration::from_millis(300)).unwrap();
    assert!(done.is_empty());
    targets[0].set_state(AnaState::Optimized);
    let start = Instant::now();
    while done.is_empty() {
        engine.poll(&mut done, Duration::from_millis(100)).unwrap();
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(*done[0].result.as_ref().unwrap(), 4096);
}

#[test]
fn a_namespace_that_stays_inaccessible_is_an_error_after_the_transition_time() {
    for state in [AnaState::Inaccessible, AnaState::Change] {
        let script = Script {
            transition_s: Some(1),
            ..Script::default()
        };
        let target = Target::ports(content(BYTES), &[state], &script).remove(0);
        let store = store(&target, settings(Digests::default()));
        let object = open(&store).unwrap();
        let Some(mut engine) = engine(8) else { return };
        let start = Instant::now();
        let done = run(&mut engine, vec![io(Op::Read, &object, 0, 4096, 0)]);
        let error = error_of(done);
        assert!(error.contains(state.name()), "{error}");
        assert!(start.elapsed() >= Duration::from_secs(1));
        let error = object.read_exact_at(0, &mut [0; 8]).unwrap_err();
        assert!(error.to_string().contains(state.name()), "{error}");
        // Once it is opened again, it is waited for again.
        let object = open(&store).unwrap();
        target.set_state(AnaState::Optimized);
        read_all(&mut engine, &object);
    }
}

#[test]
fn headers_and_flushes_use_an_accessible_path() {
    let targets = ports(&[AnaState::Inaccessible, AnaState::Optimized]);
    let mut settings = settings(Digests::default());
    settings.paths = vec![portal(&targets[1])];
    let store = store(&targets[0], settings);
    let object = open(&store).unwrap();
    let mut bytes = vec![0; 300_000];
    object.read_exact_at(100, &mut bytes).unwrap();
    assert!(bytes == content(BYTES)[100..300_100]);
    store.sync(&[object]).unwrap();
    let flushes = |index: usize| targets[index].flushes();
    assert_eq!((flushes(0), flushes(1)), (0, 1));
}

#[test]
fn a_target_that_stops_identifying_its_namespaces_is_given_up() {
    let target = Target::new(content(BYTES), Script::default());
    let mut few = settings(Digests::default());
    few.attempts_max = 3;
    few.keep_alive = Duration::from_millis(500);
    let store = store(&target, few);
    let object = open(&store).unwrap();
    target.shared.script.lock().unwrap().hides_namespaces = true;
    let (answer, answered) = mpsc::channel();
    std::thread::spawn(move || {
        let read = object.read_exact_at(0, &mut [0; 8]);
        let flushed = store.sync(&[object]);
        let _ = answer.send((read, flushed));
    });
    let ended = answered.recv_timeout(Duration::from_secs(30));
    let (read, flushed) = ended.expect("both end in bounded time");
    let error = read.unwrap_err().to_string();
    assert!(error.contains("; 3 attempts failed"), "{error}");
    assert!(flushed.is_err());
}

#[test]
fn a_path_to_another_namespace_is_never_used() {
    let right = Target::new(content(BYTES), Script::default());
    // Identifiers follow from the NQN and the name of the file.
    let other = Served::file("other", vec![0xBA; BYTES]);
    let wrong = Target::serving(NQN, &other, Script::default());
    let mut settings = settings(Digests::default());
    settings.paths = vec![portal(&wrong)];
    let store = store(&right, settings);
    let object = open(&store).unwrap();
    let Some(mut engine) = engine(8) else { return };
    for _ in 0..5 {
        read_all(&mut engine, &object);
    }
    assert_eq!(wrong.reads(), 0);
    // A target that comes back with another namespace is refused.
    right.shared.script.lock().unwrap().uuid = Some([7; 16]);
    right.cut(false);
    let done = run(&mut engine, vec![io(Op::Read, &object, 0, 4096, 0)]);
    let error = error_of(done);
    assert!(error.contains("another namespace"), "{error}");
    assert!(object.read_exact_at(0, &mut [0; 8]).is_err());
}

#[test]
fn an_idle_controller_ends_and_is_connected_again() {
    let target = Target::new(content(BYTES), Script::default());
    let mut short = settings(Digests::default());
    short.idle = Duration::from_millis(200);
    let store = store(&target, short);
    let object = open(&store).unwrap();
    let Some(mut engine) = engine(8) else { return };
    read_all(&mut engine, &object);
    let before = target.connections();
    engine.rest();
    // The engine closes its queue when it runs again.
    target.wait_until_open(1);
    read_all(&mut engine, &object);
    assert!(target.connections() > before);
}

#[test]
fn discovery_follows_referrals_once_each() {
    let target = |referrals: Vec<SocketAddr>| {
        let memory = NamespaceSource::Memory {
            name: "memory".to_owned(),
            bytes: 4096,
        };
        let address = "127.0.0.1:0".parse().unwrap();
        let mut config = Config::new(Nqn::new(NQN).unwrap(), address, vec![memory]);
        config.referrals = referrals;
        straightway_nvme_target::Target::start(&config).unwrap()
    };
    // The second refers back to the first, which has no address yet: a cycle.
    let first_address = Arc::new(OnceLock::new());
    let known = Arc::clone(&first_address);
    let back = PduRelay::with_pick(move |_| {
        known.get().map(|address| Upstream {
            address: *address,
            is_restart: false,
        })
    });
    let second = target(vec![back.address()]);
    let gone = "127.0.0.1:9".parse().unwrap();
    let first = target(vec![second.addresses()[0], gone]);
    first_address.set(first.addresses()[0]).unwrap();
    let portal = |address: SocketAddr| Portal::new("127.0.0.1", address.port());
    // It is asked by the address to which the second refers.
    let (found, failed) = discover(&portal(back.address()), &settings(Digests::default())).unwrap();
    let mut portals: Vec<_> = found.iter().map(|found| found.portal.clone()).collect();
    portals.sort();
    let mut expected = [&first, &second].map(|target| portal(target.addresses()[0]));
    expected.sort();
    assert_eq!(portals, expected);
    assert!(found.iter().all(|found| found.subsystem.as_str() == NQN));
    assert_eq!(failed.len(), 1, "{failed:?}");
    assert_eq!(back.connections(), 1, "it is asked once");
    let nobody = Portal::new("127.0.0.1", 9);
    assert!(discover(&nobody, &settings(Digests::default())).is_err());
}
