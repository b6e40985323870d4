//! Versions in the name index of a target: refused reads, a passing mismatch, and the cost.

use std::{
    ffi::OsStr,
    sync::{Arc, atomic::Ordering},
};

use straightway_core::ErrorKind;
use straightway_io::{
    Handle, Store as _,
    request::Op,
    store::{Named, open_one},
};
use straightway_nvme::{
    Digests,
    index::{IndexEntry, NameIndex},
};
use straightway_nvme_host::{NvmeEngine, NvmeTcp};

use crate::{
    rig::{content, engine, error_of, io, run, settings, store},
    target::{NQN, Script, Target},
};

const BYTES: usize = 1 << 20;
const PIECE: usize = 64 << 10;
const VERSION: u64 = 7;

fn name(number: usize) -> String {
    format!("file-{number:04}")
}

/// A target whose index has several names of its namespace.
fn indexed(names: usize) -> Target {
    let entry = |number: usize| IndexEntry {
        nsid: 1,
        is_writable: false,
        bytes: BYTES as u64,
        version: VERSION,
        name: name(number).into_bytes(),
    };
    let index = NameIndex {
        generation: 1,
        entries: (0..names).map(entry).collect(),
    };
    let script = Script {
        index: Some(index),
        ..Script::default()
    };
    Target::new(content(BYTES), script)
}

fn set_version(target: &Target, version: u64) {
    let mut script = target.shared.script.lock().unwrap();
    for entry in &mut script.index.as_mut().unwrap().entries {
        entry.version = version;
    }
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
    assert_eq!(target.shared.connections.load(Ordering::SeqCst), 2);
}

#[test]
fn a_passing_mismatch_fails_the_open_handle_and_no_later_one() {
    let target = indexed(1);
    let store = store(&target, settings(Digests::default()));
    let first = open(&store);
    let Some(mut engine) = engine(8) else { return };
    read(&mut engine, &first);
    first.check_unchanged().unwrap();
    set_version(&target, VERSION + 1);
    target.cut(false);
    let done = run(&mut engine, vec![io(Op::Read, &first, 0, PIECE, 0)]);
    let error = error_of(done);
    assert!(error.contains("was replaced or changed"), "{error}");
    set_version(&target, VERSION);
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
    // A name has 9 bytes, which are padded.
    let entries_bytes = FILES * (32 + 12);
    let read_bytes = || target.shared.index_bytes.load(Ordering::SeqCst) as usize;
    let names = (0..FILES).map(|number| Named::new(format!("{NQN}/{}", name(number))));
    let objects = store.open(&names.collect::<Vec<_>>()).unwrap();
    // The whole index once, between two headers.
    let opened = read_bytes();
    assert!(opened <= 3 * 64 + 2 * entries_bytes, "{opened}");
    for object in &objects {
        object.check_unchanged().unwrap();
    }
    assert_eq!(read_bytes() - opened, entries_bytes);
}
