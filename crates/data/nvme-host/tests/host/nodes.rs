//! Several paths to targets of this project: ports of one target, two targets of one file, and nodes with other files.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::FileExt,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_io::{Handle, request::Op, store::open_one};
use straightway_nvme::{Digests, Nqn};
use straightway_nvme_host::{HostSettings, NvmeEngine, NvmeTcp, Portal};
use straightway_nvme_target::{Config, Listen, NamespaceSource, Target};

use crate::rig::{bytes_of, engine, error_of, io, run, settings};

const NQN: &str = "nqn.2026-11.org.example:nodes";
const BYTES: usize = 1 << 20;
const PIECE: usize = 16 << 10;

fn config(file: &Path, is_writable: bool) -> Config {
    let address = "127.0.0.1:0".parse().unwrap();
    let sources = vec![NamespaceSource::Path(file.to_owned())];
    let mut config = Config::new(Nqn::new(NQN).unwrap(), address, sources);
    config.is_writable = is_writable;
    config
}

fn portals(target: &Target) -> Vec<Portal> {
    let addresses = target.addresses().into_iter();
    let portal = |address: std::net::SocketAddr| Portal::new("127.0.0.1", address.port());
    addresses.map(portal).collect()
}

/// Opens the served file by several paths.
fn open(mut portals: Vec<Portal>) -> Arc<dyn Handle> {
    let first = portals.remove(0);
    let settings = HostSettings {
        attempts_max: 4,
        paths: portals,
        ..settings(Digests::default())
    };
    let store = NvmeTcp::new(first, settings);
    open_one(&store, OsStr::new(&format!("{NQN}/file"))).unwrap()
}

/// Reads everything. Each byte must be the given one.
fn read_all(engine: &mut NvmeEngine, object: &Arc<dyn Handle>, byte: u8) {
    let pieces = (0..BYTES).step_by(PIECE).zip(0..);
    let ios = pieces.map(|(at, tag)| io(Op::Read, object, at as u64, PIECE, tag));
    for done in run(engine, ios.collect()) {
        assert_eq!(done.result.unwrap(), PIECE);
        assert!(bytes_of(&done.io).iter().all(|is| *is == byte));
    }
}

/// Reads everything until a condition holds, and once more.
fn read_until(engine: &mut NvmeEngine, object: &Arc<dyn Handle>, byte: u8, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "a path is not used");
        read_all(engine, object, byte);
    }
    read_all(engine, object, byte);
}

fn reads(target: &Target) -> u64 {
    target.receipts().iter().map(|host| host.reads).sum()
}

#[test]
fn a_node_with_another_file_of_the_same_name_and_size_is_never_read() {
    for is_writable in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let node = |name: &str, byte: u8| {
            let folder = folder.path().join(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("file"), vec![byte; BYTES]).unwrap();
            Target::start(&config(&folder.join("file"), is_writable)).unwrap()
        };
        let (right, wrong) = (node("right", 1), node("wrong", 2));
        let addresses = [&right, &wrong].map(|target| target.addresses()[0].to_string());
        let object = open([portals(&right), portals(&wrong)].concat());
        let Some(mut engine) = engine(8) else { return };
        read_until(&mut engine, &object, 1, || wrong.connections() > 0);
        // Time to verify it.
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(500) {
            read_all(&mut engine, &object, 1);
        }
        let mut header = [0; 8];
        object.read_exact_at(0, &mut header).unwrap();
        assert_eq!(header, [1; 8]);
        object.check_unchanged().unwrap();
        assert_eq!(reads(&wrong), 0);
        // It does not take over either. The error names both.
        drop(right);
        let done = run(&mut engine, vec![io(Op::Read, &object, 0, PIECE, 0)]);
        let error = error_of(done);
        for address in &addresses {
            assert!(error.contains(address), "{address}: {error}");
        }
        assert!(object.read_exact_at(0, &mut header).is_err());
        assert_eq!(reads(&wrong), 0);
    }
}

#[test]
fn a_file_that_is_replaced_behind_the_second_path_only_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, vec![1; BYTES]).unwrap();
    let start = || Target::start(&config(&file, false)).unwrap();
    let (first, second) = (start(), start());
    let object = open([portals(&first), portals(&second)].concat());
    let Some(mut engine) = engine(8) else { return };
    // One file has one version, so both are used.
    read_until(&mut engine, &object, 1, || reads(&second) > 0);
    object.check_unchanged().unwrap();
    fs::write(folder.path().join("new"), vec![2; BYTES]).unwrap();
    fs::rename(folder.path().join("new"), &file).unwrap();
    second.rescan().unwrap();
    // The first target still has the old file open; that it lost its name is a change too.
    let error = object.check_unchanged().unwrap_err().to_string();
    assert!(error.contains("was replaced or changed"), "{error}");
    drop(first);
}

#[test]
fn a_file_that_is_rewritten_in_place_is_noticed_without_a_scan() {
    for is_writable in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, vec![1; BYTES]).unwrap();
        let target = Target::start(&config(&file, is_writable)).unwrap();
        let object = open(portals(&target));
        let Some(mut engine) = engine(8) else { return };
        read_all(&mut engine, &object, 1);
        object.check_unchanged().unwrap();
        let rewritten = fs::OpenOptions::new().write(true).open(&file).unwrap();
        rewritten.write_all_at(&vec![2; PIECE], 0).unwrap();
        let done = run(&mut engine, vec![io(Op::Read, &object, 0, PIECE, 0)]);
        assert!(bytes_of(&done[0].io) == vec![2; PIECE]);
        assert!(object.check_unchanged().is_err(), "it has mixed bytes");
    }
}

#[test]
fn a_write_by_another_host_is_noticed_by_a_reader_and_not_by_its_writer() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, vec![0; BYTES]).unwrap();
    let mut memory = config(&file, true);
    memory.sources = vec![NamespaceSource::Memory {
        name: "file".to_owned(),
        bytes: BYTES as u64,
    }];
    for config in [config(&file, true), memory] {
        let target = Target::start(&config).unwrap();
        // Each has its own host identifier.
        let (reader, writer) = (open(portals(&target)), open(portals(&target)));
        let Some(mut engine) = engine(8) else { return };
        read_all(&mut engine, &reader, 0);
        reader.check_unchanged().unwrap();
        let mut write = io(Op::Write, &writer, 0, PIECE, 0);
        write.fill(&vec![2; PIECE]);
        let done = run(&mut engine, vec![write]);
        assert_eq!(*done[0].result.as_ref().unwrap(), PIECE);
        assert!(reader.check_unchanged().is_err(), "{config:?}");
        writer.check_unchanged().unwrap();
    }
}

#[test]
fn two_ports_of_one_target_are_both_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, vec![1; BYTES]).unwrap();
    let mut config = config(&file, true);
    let second = Listen::new(config.ports[0].address);
    config.ports.push(second);
    let target = Target::start(&config).unwrap();
    let object = open(portals(&target));
    let Some(mut engine) = engine(8) else { return };
    // An admin queue and an I/O queue on each port.
    read_until(&mut engine, &object, 1, || target.connections() >= 4);
    object.check_unchanged().unwrap();
}

#[test]
fn a_restarted_target_may_show_another_version_of_a_file_that_was_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, vec![1; BYTES]).unwrap();
    let mut config = config(&file, true);
    let target = Target::start(&config).unwrap();
    config.ports[0].address = target.addresses()[0];
    let object = open(portals(&target));
    let Some(mut engine) = engine(8) else { return };
    let mut write = |at: usize, byte: u8| {
        let mut io = io(Op::Write, &object, at as u64, PIECE, 0);
        io.fill(&vec![byte; PIECE]);
        let done = run(&mut engine, vec![io]);
        assert_eq!(*done[0].result.as_ref().unwrap(), PIECE);
    };
    // Time stamps of files may have a resolution of 10 ms.
    std::thread::sleep(Duration::from_millis(20));
    write(0, 2);
    drop(target);
    let _target = Target::start(&config).unwrap();
    write(PIECE, 3);
    let expected: Vec<_> = [(2, PIECE), (3, PIECE), (1, BYTES - 2 * PIECE)]
        .into_iter()
        .flat_map(|(byte, count)| vec![byte; count])
        .collect();
    assert!(fs::read(&file).unwrap() == expected);
    assert!(object.check_unchanged().is_err(), "its version changed");
}
