//! Versions in the name index of a target: refused reads, a passing mismatch, and the cost.

use std::{
    ffi::OsStr,
    fs,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use straightway_core::{Choice, ErrorKind, Extent, Move};
use straightway_io::{
    Executor, Handle, Objects, Region, Settings, Store as _,
    request::Op,
    store::{Named, StoreExt, Tag, open_one},
};
use straightway_nvme::Digests;
use straightway_nvme_host::{NvmeEngine, NvmeTcp};

use crate::{
    rig::{engine, error_of, io, portal, run, settings, store},
    target::{NQN, Script, Served, Target},
};

const BYTES: usize = 1 << 20;
const PIECE: usize = 64 << 10;

/// The bytes of an entry: its name has 11, which are padded.
const ENTRY: usize = 32 + 12;

/// The name of a file in the served folder.
fn file(number: usize) -> String {
    format!("file-{number:04}")
}

fn name(number: usize) -> String {
    format!("m/{}", file(number))
}

/// A folder with several files.
fn files(count: usize) -> Arc<Served> {
    Served::folder("m", (0..count).map(file), BYTES as u64)
}

/// A target with a name index.
fn serving(served: &Arc<Served>, is_writable: bool) -> Target {
    let script = Script {
        is_writable,
        has_index: true,
        boot: Some(1),
        ..Script::default()
    };
    Target::serving(NQN, served, script)
}

/// A target whose index has several names.
fn indexed(names: usize) -> Target {
    serving(&files(names), false)
}

/// Shows this version of all files instead of the real ones.
fn show_version(target: &Target, version: Option<u64>) {
    target.shared.script.lock().unwrap().version = version;
}

/// The first names of the index.
fn names(count: usize) -> Vec<Named> {
    let named = |number| Named::new(format!("{NQN}/{}", name(number)));
    (0..count).map(named).collect()
}

fn open(store: &NvmeTcp) -> Arc<dyn Handle> {
    open_one(store, OsStr::new(&format!("{NQN}/{}", name(0)))).unwrap()
}

fn read(engine: &mut NvmeEngine, object: &Arc<dyn Handle>) {
    let done = run(engine, vec![io(Op::Read, object, 0, PIECE, 0)]);
    assert_eq!(*done[0].result.as_ref().unwrap(), PIECE);
}

#[test]
fn a_refused_read_of_a_version_is_retried_and_ends_no_connection() {
    let target = indexed(1);
    let store = store(&target, settings(Digests::default()));
    let object = open(&store);
    let Some(mut engine) = engine(8) else { return };
    let refuse = |count: u32| target.shared.refusals.store(count, Ordering::SeqCst);
    // While the namespace is verified, and at the end of the transfer.
    refuse(2);
    read(&mut engine, &object);
    refuse(2);
    object.check_unchanged().unwrap();
    assert_eq!(target.shared.refusals.load(Ordering::SeqCst), 0);
    refuse(u32::MAX);
    let error = object.check_unchanged().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    refuse(0);
    object.check_unchanged().unwrap();
    // The admin queue and one I/O queue.
    assert_eq!(target.connections(), 2);
}

#[test]
fn a_passing_mismatch_fails_the_open_handle_and_no_later_one() {
    let target = indexed(1);
    let store = store(&target, settings(Digests::default()));
    let first = open(&store);
    let Some(mut engine) = engine(8) else { return };
    read(&mut engine, &first);
    first.check_unchanged().unwrap();
    show_version(&target, Some(7));
    target.cut(false);
    let done = run(&mut engine, vec![io(Op::Read, &first, 0, PIECE, 0)]);
    let error = error_of(done);
    assert!(error.contains("was replaced or changed"), "{error}");
    show_version(&target, None);
    let second = open(&store);
    read(&mut engine, &second);
    second.check_unchanged().unwrap();
    assert!(first.check_unchanged().is_err());
}

#[test]
fn opening_and_checking_a_file_reads_its_entry_and_not_the_whole_index() {
    const FILES: usize = 200;
    let target = indexed(FILES);
    let store = store(&target, settings(Digests::default()));
    let entries_bytes = FILES * ENTRY;
    let read_bytes = || target.index_reads().iter().sum::<usize>();
    let objects = store.open(&names(FILES)).unwrap();
    // The whole index once, between two headers.
    let opened = read_bytes();
    assert!(opened <= 3 * 64 + 2 * entries_bytes, "{opened}");
    for object in &objects {
        object.check_unchanged().unwrap();
    }
    assert_eq!(read_bytes() - opened, entries_bytes);
}

#[test]
fn a_lookup_that_misses_reads_the_header_unless_the_index_changed() {
    const HEADER: usize = 64;
    let served = files(200);
    let target = serving(&served, false);
    let store = store(&target, settings(Digests::default()));
    drop(open(&store));
    let read_bytes = || target.index_reads().iter().sum::<usize>();
    let look_up = |rest: &str| {
        let before = read_bytes();
        let opened = open_one(&store, OsStr::new(&format!("{NQN}/{rest}")));
        (opened, read_bytes() - before)
    };
    let (missing, bytes) = look_up("m/none");
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(bytes, HEADER);
    // A namespace by its number. The version of its entry is the current one.
    show_version(&target, Some(7));
    let (numbered, bytes) = look_up("1");
    let version = Tag::Text("7".to_owned());
    assert_eq!(numbered.unwrap().tag(), Some(version));
    assert_eq!(bytes, HEADER + ENTRY);
    fs::write(served.path.join("none"), [1; 4096]).unwrap();
    look_up("m/none").0.unwrap();
    fs::remove_file(served.path.join("none")).unwrap();
    let (missing, _) = look_up("m/none");
    assert_eq!(missing.unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn the_versions_of_many_files_are_checked_with_few_commands() {
    const FILES: usize = 200;
    let served = files(FILES);
    let target = serving(&served, false);
    let store = store(&target, settings(Digests::default()));
    let objects = store.open(&names(FILES)).unwrap();
    let reads = || target.index_reads().len();
    let before = reads();
    store.check_unchanged(&objects).unwrap();
    // The header and all entries.
    assert_eq!(reads() - before, 2);
    // If the target refuses that, each file is asked for, with retries.
    target.shared.refusals.store(2, Ordering::SeqCst);
    store.check_unchanged(&objects).unwrap();
    assert_eq!(target.shared.refusals.load(Ordering::SeqCst), 0);
    fs::write(served.path.join(file(150)), vec![1; BYTES]).unwrap();
    let error = store.check_unchanged(&objects).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    assert!(error.to_string().contains(&name(150)), "{error}");
    store.check_unchanged(&objects[..150]).unwrap();
}

#[test]
fn the_versions_of_many_files_are_checked_together_after_an_idle_time() {
    const FILES: usize = 200;
    let target = indexed(FILES);
    let mut short = settings(Digests::default());
    short.idle = Duration::from_millis(500);
    let store = store(&target, short);
    let objects = store.open(&names(FILES)).unwrap();
    let reads = || target.index_reads().len();
    let connections = || target.connections();
    let (before, connected) = (reads(), connections());
    target.wait_until_open(0);
    store.check_unchanged(&objects).unwrap();
    assert!(connections() > connected, "it was not idle");
    // The header, all entries and the header again for a new index; then the entries.
    assert_eq!(reads() - before, 4);
}

/// Changes the boot of the target's machine and closes all connections.
fn restart(target: &Target, boot: u64) {
    target.shared.script.lock().unwrap().boot = Some(boot);
    target.cut(false);
}

#[test]
fn a_restart_of_the_machine_is_an_error_while_writes_are_not_flushed() {
    let target = serving(&files(1), true);
    let store = store(&target, settings(Digests::default()));
    let object = open(&store);
    let Some(mut engine) = engine(8) else { return };
    let write = |engine: &mut NvmeEngine| {
        let mut write = io(Op::Write, &object, 0, PIECE, 0);
        write.fill(&vec![2; PIECE]);
        run(engine, vec![write])
    };
    let flush = || store.sync(&[Arc::clone(&object)]);
    read(&mut engine, &object);
    // Reads notice that the connection is lost, so that no write is lost with it.
    restart(&target, 2);
    read(&mut engine, &object);
    assert!(write(&mut engine)[0].result.is_ok());
    flush().unwrap();
    restart(&target, 3);
    read(&mut engine, &object);
    assert!(write(&mut engine)[0].result.is_ok());
    // The same machine.
    restart(&target, 3);
    read(&mut engine, &object);
    assert!(write(&mut engine)[0].result.is_ok());
    restart(&target, 4);
    let error = flush().unwrap_err().to_string();
    assert!(error.contains("was restarted"), "{error}");
    let error = error_of(write(&mut engine));
    assert!(error.contains("was restarted"), "{error}");
}

#[test]
fn a_version_that_changed_behind_one_of_two_paths_fails_the_check_of_many_files() {
    let served = files(3);
    let targets = [serving(&served, false), serving(&served, false)];
    let mut settings = settings(Digests::default());
    settings.paths = vec![portal(&targets[1])];
    let store = store(&targets[0], settings);
    let objects = store.open(&names(3)).unwrap();
    let Some(mut engine) = engine(8) else { return };
    let is_used = |target: &Target| target.reads() > 0;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !targets.iter().all(is_used) {
        assert!(Instant::now() < deadline, "a path is not used");
        for object in &objects {
            read(&mut engine, object);
        }
    }
    store.check_unchanged(&objects).unwrap();
    show_version(&targets[1], Some(7));
    let error = store.check_unchanged(&objects).unwrap_err().to_string();
    let address = targets[1].address.to_string();
    assert!(error.contains(&address), "{error}");
}

#[test]
fn a_load_of_many_files_checks_their_versions_together() {
    const FILES: usize = 64;
    const PART: u64 = 4096;
    if engine(1).is_none() {
        return;
    }
    let target = indexed(FILES);
    let store = Arc::new(store(&target, settings(Digests::default())));
    let handles = store.open(&names(FILES)).unwrap();
    let reads = || target.index_reads().len();
    let before = reads();
    let moves = (0..FILES as u32).map(|object| Move {
        object,
        extent: Extent::new(0, PART),
        at: u64::from(object) * PART,
    });
    let region = Arc::new(Region::host(FILES as u64 * PART).unwrap());
    let executor = Executor::new(Settings::default()).unwrap();
    let objects = Objects::new(store, handles);
    let ticket = executor.read(objects, moves.collect(), &region, Choice::Auto);
    ticket.unwrap().wait().unwrap();
    // Each file is verified before it is read. At the end, the header and all entries are read.
    assert_eq!(reads() - before, FILES + 2);
}
