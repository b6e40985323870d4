//! Changes while hosts are connected.

use std::{collections::BTreeSet, fs, os::unix::fs::FileExt, thread, time::Duration};

use straightway_nvme::{
    Nqn, Sgl, Sqe, Status,
    admin::{Admin, AsyncEvent, EventMask, Feature},
    identify,
    index::{INDEX_PAGE, INDEX_SCANS, IndexEntry, IndexHeader},
    log::{AnaLog, AnaState, decode_changed, page},
    nvm::{LbaRange, Nvm, encode_dataset},
};
use straightway_nvme_target::{Config, NamespaceSource};

use super::host::{Host, Login, config, file, memory, pattern, read, start, write};

fn watch(host: &mut Host) -> u16 {
    let mask = Admin::SetFeatures {
        feature: Feature::EVENTS,
        is_saved: false,
        value: EventMask::NAMESPACES | EventMask::ANA,
        nsid: 0,
    };
    host.admin.ok(mask.sqe(), &[]);
    host.admin.begin(Admin::EventRequest.sqe(), &[])
}

fn event(host: &mut Host, request: u16) -> AsyncEvent {
    let (cqe, _) = host.admin.finish(request, &[]);
    assert!(cqe.status.is_success());
    AsyncEvent::from_result(cqe.result)
}

fn changed(host: &mut Host) -> Vec<u32> {
    let (status, log) = host.log(page::CHANGED_NAMESPACES, 0, 4096);
    assert!(status.is_success());
    decode_changed(&log).unwrap().unwrap()
}

#[test]
fn added_changed_and_removed_files_are_reported_and_served() {
    let folder = tempfile::tempdir().unwrap();
    let served = folder.path().join("m");
    file(folder.path(), "m/a", &pattern(4096, 1));
    let (target, address) = start(&config(vec![NamespaceSource::Path(served.clone())]));
    let mut host = Host::new(address, &Login::default());
    let mut queue = host.queue(1);
    let request = watch(&mut host);
    assert!(target.rescan().unwrap().is_empty());

    file(folder.path(), "m/b", &pattern(8192, 2));
    assert_eq!(target.rescan().unwrap().into_iter().collect::<Vec<_>>(), [2]);
    assert_eq!(event(&mut host, request), AsyncEvent::NAMESPACES);
    // It is reported once until the log is read, whatever happens meanwhile.
    let request = host.admin.begin(Admin::EventRequest.sqe(), &[]);
    file(folder.path(), "m/a", &pattern(12_288, 3));
    target.rescan().unwrap();
    // Time in which a second event would arrive.
    thread::sleep(Duration::from_millis(50));
    // The log page is sent first, then the event that was held back.
    let log = straightway_nvme::admin::GetLog {
        page: page::CHANGED_NAMESPACES,
        specific: 0,
        retains_event: false,
        offset: 0,
        bytes: 4096,
        nsid: u32::MAX,
    };
    let cid = host.admin.begin(Admin::GetLog(log).sqe(), &[]);
    let (cqe, list) = host.admin.finish(cid, &[]);
    assert!(cqe.status.is_success());
    assert_eq!(decode_changed(&list).unwrap().unwrap(), [1, 2]);
    assert_eq!(event(&mut host, request), AsyncEvent::NAMESPACES);
    assert_eq!(changed(&mut host), [0_u32; 0]);
    assert_eq!(host.namespace(1).blocks, 24);
    assert!(queue.ok(read(1, 0, 24), &[]) == pattern(12_288, 3));
    assert!(queue.ok(read(2, 0, 16), &[]) == pattern(8192, 2));

    // A replaced file keeps its NSID and gets another version.
    let before = host.index();
    let other = file(folder.path(), "other", &pattern(8192, 7));
    fs::rename(other, served.join("b")).unwrap();
    target.rescan().unwrap();
    let after = host.index();
    let (old, new) = (before.find(b"m/b").unwrap(), after.find(b"m/b").unwrap());
    assert!(old.nsid == new.nsid && old.version != new.version);
    assert!(queue.ok(read(2, 0, 16), &[]) == pattern(8192, 7));

    fs::remove_file(served.join("a")).unwrap();
    target.rescan().unwrap();
    assert_eq!(queue.status(read(1, 0, 1), &[]), Status::INVALID_NAMESPACE.dnr());
    let list = host.identify(identify::page::NAMESPACES, 0);
    assert_eq!(identify::decode_list(&list).unwrap(), [2]);
    // A new file gets an NSID that was never used.
    file(folder.path(), "m/z", &pattern(512, 9));
    target.rescan().unwrap();
    assert_eq!(host.index().find(b"m/z").unwrap().nsid, 3);
}

#[test]
fn a_file_that_is_rewritten_in_place_has_another_version_without_a_scan() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "data", &pattern(1 << 20, 1));
    file(folder.path(), "other", &pattern(4096, 2));
    let sources = ["data", "other"].map(|name| NamespaceSource::Path(folder.path().join(name)));
    let (_target, address) = start(&config(sources.to_vec()));
    let mut host = Host::new(address, &Login::default());
    let before = host.index();
    assert_eq!(host.index(), before, "nothing has changed");
    let data = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let modified = data.metadata().unwrap().modified().unwrap();
    data.write_all_at(&[9; 512], 4096).unwrap();
    let after = host.index();
    let version = |index: &straightway_nvme::index::NameIndex, name: &[u8]| {
        let entry = index.find(name).unwrap();
        (entry.nsid, entry.bytes, entry.version)
    };
    assert_ne!(version(&after, b"data"), version(&before, b"data"));
    assert_eq!(version(&after, b"other"), version(&before, b"other"));
    // Also if the program sets the time of modification back.
    data.write_all_at(&[8; 512], 4096).unwrap();
    data.set_modified(modified).unwrap();
    let last = host.index();
    assert_ne!(version(&last, b"data"), version(&before, b"data"));
    assert_ne!(version(&last, b"data"), version(&after, b"data"));
}

#[test]
fn a_single_entry_has_its_current_version() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "m/data", &pattern(1 << 20, 1));
    file(folder.path(), "m/other", &pattern(4096, 2));
    let source = NamespaceSource::Path(folder.path().join("m"));
    let (_target, address) = start(&config(vec![source]));
    let mut host = Host::new(address, &Login::default());
    let index = host.index();
    let mut entry = |name: &[u8]| {
        let range = index.range_of(name).unwrap();
        let (status, bytes) = host.log(INDEX_PAGE, range.start as u64, range.len() as u32);
        assert!(status.is_success());
        let (entry, rest) = IndexEntry::decode(&bytes).unwrap();
        assert!(rest.is_empty());
        entry
    };
    let names: [&[u8]; 2] = [b"m/data", b"m/other"];
    for name in names {
        assert_eq!(Some(&entry(name)), index.find(name));
    }
    let data = fs::OpenOptions::new().write(true).open(&path).unwrap();
    data.write_all_at(&[9; 512], 4096).unwrap();
    let versions = names.map(|name| (entry(name).version, index.find(name).unwrap().version));
    assert_ne!(versions[0].0, versions[0].1);
    assert_eq!(versions[1].0, versions[1].1);
}

#[test]
fn an_entry_has_the_length_and_the_version_of_one_look_without_a_scan() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "m/data", &pattern(5000, 1));
    file(folder.path(), "m/empty", &[]);
    let source = NamespaceSource::Path(folder.path().join("m"));
    let (_target, address) = start(&config(vec![source]));
    let mut host = Host::new(address, &Login::default());
    let queue = &mut host.queue(1);
    let first = host.index();
    let nsid = first.find(b"m/data").unwrap().nsid;
    let mut versions = vec![first.find(b"m/data").unwrap().version];
    // Grown, shrunk, of the same length, emptied, and filled again.
    for (number, bytes) in (2..).zip([70_000, 700, 700, 0, 0, 3000]) {
        let content = pattern(bytes, number);
        fs::write(&path, &content).unwrap();
        let index = host.index();
        let entry = index.find(b"m/data").unwrap();
        assert_eq!(entry.bytes, bytes as u64);
        assert_eq!(entry.nsid, if bytes == 0 { 0 } else { nsid }, "a name keeps its number");
        assert!(!versions.contains(&entry.version), "{bytes} bytes");
        versions.push(entry.version);
        assert_eq!(host.index(), index, "it is settled");
        if bytes > 0 {
            let blocks = bytes.div_ceil(512) as u32;
            assert_eq!(host.namespace(nsid).blocks, u64::from(blocks));
            assert!(queue.ok(read(nsid, 0, blocks), &[])[..bytes] == content);
        }
    }
    // A file that was empty when it was listed.
    fs::write(folder.path().join("m/empty"), pattern(900, 3)).unwrap();
    let entry = host.index().find(b"m/empty").unwrap().clone();
    assert_eq!((entry.bytes, entry.nsid), (900, nsid + 1));
}

#[test]
fn the_generation_of_the_index_changes_with_names_and_numbers_and_not_with_lengths() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "m/data", &pattern(5000, 1));
    let source = NamespaceSource::Path(folder.path().join("m"));
    let (_target, address) = start(&config(vec![source]));
    let mut host = Host::new(address, &Login::default());
    let first = host.index();
    fs::write(&path, pattern(6000, 2)).unwrap();
    let grown = host.index();
    assert_eq!((grown.generation, grown.entries[0].bytes), (first.generation, 6000));
    fs::write(&path, []).unwrap();
    assert!(host.index().generation > grown.generation);
    // A new name is found if the host asks for it.
    let before = host.index().generation;
    file(folder.path(), "m/new", &pattern(100, 3));
    let (status, head) = host.log(INDEX_PAGE, 0, 64);
    assert!(status.is_success());
    assert_eq!(IndexHeader::decode(&head).unwrap().generation, before);
    let (status, head) = host.specific_log(INDEX_PAGE, INDEX_SCANS, 0, 64);
    assert!(status.is_success());
    let header = IndexHeader::decode(&head).unwrap();
    assert!((header.generation, header.entries) > (before, 1));
}

#[test]
fn names_have_different_numbers_when_all_numbers_were_used() {
    let folder = tempfile::tempdir().unwrap();
    let kept: Vec<_> = (0..20).map(|number| format!("m/kept-{number:02}")).collect();
    for (name, seed) in kept.iter().zip(1..) {
        file(folder.path(), name, &pattern(700, seed));
    }
    let source = NamespaceSource::Path(folder.path().join("m"));
    let (target, address) = start(&config(vec![source]));
    // 600 files come, and 590 of them go, until each of the 4096 numbers was used.
    for round in 0..8 {
        let names: Vec<_> = (0..600).map(|number| format!("m/{round}-{number:03}")).collect();
        for name in &names {
            file(folder.path(), name, &pattern(600, 9));
        }
        target.rescan().unwrap();
        for name in &names[if round < 7 { ..590 } else { ..0 }] {
            fs::remove_file(folder.path().join(name)).unwrap();
        }
        target.rescan().unwrap();
    }
    let mut host = Host::new(address, &Login::default());
    let mut queue = host.queue(1);
    let index = host.index();
    let numbers: BTreeSet<u32> = index.entries.iter().map(|entry| entry.nsid).collect();
    assert_eq!((index.entries.len(), numbers.len()), (690, 690));
    for (name, seed) in kept.iter().zip(1..) {
        let nsid = index.find(name.as_bytes()).unwrap().nsid;
        assert!(queue.ok(read(nsid, 0, 2), &[])[..700] == pattern(700, seed), "{name}");
    }
}

#[test]
fn a_file_that_gets_a_whole_number_of_blocks_again_is_writable_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "data", &pattern(4096, 1));
    let mut config = config(vec![NamespaceSource::Path(path.clone())]);
    config.is_writable = true;
    let (_target, address) = start(&config);
    let mut host = Host::new(address, &Login::default());
    for (bytes, is_writable) in [(4096, true), (5000, false), (8192, true)] {
        fs::write(&path, pattern(bytes, 2)).unwrap();
        assert_eq!(host.index().entries[0].is_writable, is_writable, "{bytes}");
        assert_eq!(host.namespace(1).is_protected, !is_writable, "{bytes}");
    }
}

#[test]
fn a_host_sees_the_writes_of_others_as_another_version_and_not_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "data", &pattern(1 << 20, 1));
    let mut files = config(vec![NamespaceSource::Path(path)]);
    files.is_writable = true;
    let login = Login {
        host: Nqn::new("nqn.other").unwrap(),
        ..Login::default()
    };
    let version = |host: &mut Host| host.index().entries[0].version;
    for config in [memory(1 << 20), files] {
        let (_target, address) = start(&config);
        let mut host = Host::new(address, &Login::default());
        let mut other = Host::new(address, &login);
        let mut queue = host.queue(1);
        let own = version(&mut host);
        let zero = Nvm::WriteZeroes {
            range: LbaRange::new(8, 3),
            may_deallocate: false,
            is_durable: false,
        };
        let dataset = Nvm::Dataset {
            ranges: 1,
            deallocates: true,
        };
        let dataset = dataset.sqe(1).with_sgl(Sgl::in_capsule(16));
        let ranges = encode_dataset(&[LbaRange::new(20, 8)]);
        let data = pattern(64 * 512, 5);
        let commands: [(Sqe, &[u8]); 4] = [
            (write(1, 0, 8, true), &data[..4096]),
            (write(1, 0, 64, false), &data),
            (zero.sqe(1), &[]),
            (dataset, &ranges),
        ];
        for (command, data) in commands {
            let before = version(&mut other);
            assert_eq!(version(&mut other), before);
            queue.ok(command, data);
            assert_ne!(version(&mut other), before, "{command:?}");
            assert_eq!(version(&mut host), own, "{command:?}");
        }
    }
}

#[test]
fn memory_is_another_namespace_after_a_restart_and_a_file_is_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "data", &pattern(4096, 1));
    let files = config(vec![NamespaceSource::Path(path)]);
    let identity = |config: &Config| {
        let (_target, address) = start(config);
        let mut host = Host::new(address, &Login::default());
        let ids = host.identify(identify::page::DESCRIPTORS, 1);
        let ids = identify::NamespaceId::decode(&ids).unwrap();
        (ids.uuid.unwrap(), host.index().entries[0].version)
    };
    assert_eq!(identity(&files), identity(&files));
    let memory = memory(1 << 20);
    let (before, after) = (identity(&memory), identity(&memory));
    assert!(before.0 != after.0 && before.1 != after.1);
}

#[test]
fn an_ana_state_is_reported_and_kept() {
    let mut config = memory(1 << 20);
    config.ports.push(config.ports[0].clone());
    let (target, address) = start(&config);
    let other_address = target.addresses()[1];
    let mut host = Host::new(address, &Login::default());
    let mut queue = host.queue(1);
    let request = watch(&mut host);
    queue.ok(read(1, 0, 1), &[]);
    target.set_state(0, AnaState::Inaccessible);
    assert_eq!(event(&mut host, request), AsyncEvent::ANA);
    let (_, log) = host.log(page::ANA, 0, 16 + 32 + 4);
    let log = AnaLog::decode(&log).unwrap();
    assert_eq!(log.state_of(1), Some(AnaState::Inaccessible));
    assert_eq!(queue.status(read(1, 0, 1), &[]), Status::ANA_INACCESSIBLE);
    // The other port continues.
    let other = Host::new(other_address, &Login::default());
    other.queue(1).ok(read(1, 0, 1), &[]);
    target.set_state(0, AnaState::NonOptimized);
    queue.ok(read(1, 0, 1), &[]);
}

#[test]
fn each_source_is_an_ana_group_with_its_own_state_on_each_port() {
    let source = |name: &str| NamespaceSource::Memory {
        name: name.to_owned(),
        bytes: 1 << 16,
    };
    let mut config = config(vec![source("a"), source("b")]);
    config.ports.push(config.ports[0].clone());
    config.ports[0].groups.insert(2, AnaState::NonOptimized);
    config.ports[1].groups.insert(1, AnaState::Inaccessible);
    let (target, address) = start(&config);
    let states = |host: &mut Host| {
        let (_, log) = host.log(page::ANA, 0, 16 + 2 * (32 + 4));
        let log = AnaLog::decode(&log).unwrap();
        [1, 2].map(|nsid| log.state_of(nsid).unwrap())
    };
    let mut host = Host::new(address, &Login::default());
    let expected = [AnaState::Optimized, AnaState::NonOptimized];
    assert_eq!(states(&mut host), expected);
    assert_eq!([1, 2].map(|nsid| host.namespace(nsid).ana_group), [1, 2]);
    let mut other = Host::new(target.addresses()[1], &Login::default());
    let mut queue = other.queue(1);
    let expected = [AnaState::Inaccessible, AnaState::Optimized];
    assert_eq!(states(&mut other), expected);
    assert_eq!(queue.status(read(1, 0, 1), &[]), Status::ANA_INACCESSIBLE);
    queue.ok(read(2, 0, 1), &[]);
    let request = watch(&mut other);
    target.set_group_state(1, 1, AnaState::NonOptimized);
    assert_eq!(event(&mut other, request), AsyncEvent::ANA);
    queue.ok(read(1, 0, 1), &[]);
    assert_eq!(states(&mut host)[0], AnaState::Optimized);
    config.ports[0].groups.insert(3, AnaState::Optimized);
    assert!(config.check().is_err(), "there are two groups");
}

#[test]
fn a_target_that_stops_ends_its_connections() {
    let (target, address) = start(&memory(1 << 20));
    let mut host = Host::new(address, &Login::default());
    let mut queue = host.queue(1);
    queue.ok(read(1, 0, 1), &[]);
    target.stop();
    assert!(queue.receive().is_none());
    assert!(host.admin.receive().is_none());
}

#[test]
fn invalid_settings_are_refused() {
    let good = memory(1 << 20);
    assert!(good.check().is_ok());
    let mut odd = memory(1000);
    assert!(odd.check().is_err());
    odd = good.clone();
    odd.block_shift = 13;
    assert!(odd.check().is_err());
    odd = good.clone();
    odd.ports.clear();
    assert!(odd.check().is_err());
    odd = good.clone();
    odd.sources.clear();
    assert!(odd.check().is_err());
    let missing = config(vec![NamespaceSource::Path("/nowhere/at/all".into())]);
    assert!(straightway_nvme_target::Target::start(&missing).is_err());
    let folder = tempfile::tempdir().unwrap();
    let path = file(folder.path(), "a", b"x");
    let twice = config(vec![NamespaceSource::Path(path.clone()), NamespaceSource::Path(path)]);
    assert!(straightway_nvme_target::Target::start(&twice).is_err());
}
