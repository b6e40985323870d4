//! The host against the target of this project: contents are compared at every queue depth.

use std::{ffi::OsStr, sync::Arc, time::Duration};

use straightway_core::{ErrorKind, random::Seed};
use straightway_io::{
    Handle, Store,
    request::Op,
    store::{Missing, StoreExt, list_all, open_one},
};
use straightway_nvme::{Digests, Nqn, auth::AuthKeys};
use straightway_nvme_host::{HostSettings, NvmeTcp, Portal};
use straightway_nvme_target::{Config, HostPolicy, HostRule, NamespaceSource, Target};

use crate::{
    rig::{bytes_of, content, engine, io, run, settings},
    target::BOTH,
};

const NQN: &str = "nqn.2026-11.org.example:ours";

fn config(sources: Vec<NamespaceSource>, block_shift: u8) -> Config {
    let address = "127.0.0.1:0".parse().unwrap();
    let mut config = Config::new(Nqn::new(NQN).unwrap(), address, sources);
    config.block_shift = block_shift;
    config.is_writable = true;
    config
}

fn store(target: &Target, settings: HostSettings) -> NvmeTcp {
    let address = target.addresses()[0];
    let portal = Portal::new(&address.ip().to_string(), address.port());
    NvmeTcp::new(portal, settings)
}

fn open(store: &NvmeTcp, name: &str) -> Arc<dyn Handle> {
    open_one(store, OsStr::new(&format!("{NQN}/{name}"))).unwrap()
}

fn memory(bytes: u64) -> Vec<NamespaceSource> {
    let name = "memory".to_owned();
    vec![NamespaceSource::Memory { name, bytes }]
}

#[test]
fn thousands_of_extents_are_right_at_every_depth_with_and_without_digests() {
    const BYTES: usize = 4 << 20;
    let expected = content(BYTES);
    for (block_shift, digests) in [(9, Digests::default()), (9, BOTH), (12, BOTH)] {
        let target = Target::start(&config(memory(BYTES as u64), block_shift)).unwrap();
        let store = store(&target, settings(digests));
        let object = open(&store, "1");
        let block = 1_usize << block_shift;
        let mut rng = Seed(7).rng();
        for depth in [1, 2, 3, 5, 8, 16, 32, 64, 128] {
            let Some(mut engine) = engine(depth) else {
                return;
            };
            // Everything is written in pieces of odd lengths in random order, and read back in other pieces.
            let mut cuts: Vec<usize> = (0..40).map(|_| rng.index(BYTES / block) * block).collect();
            cuts.extend([0, BYTES]);
            cuts.sort_unstable();
            cuts.dedup();
            let mut pieces: Vec<_> = cuts.windows(2).map(|pair| (pair[0], pair[1])).collect();
            pieces.rotate_left(7);
            let writes = pieces.into_iter().zip(0..).map(|((from, to), tag)| {
                let mut io = io(Op::Write, &object, from as u64, to - from, tag);
                io.fill(&expected[from..to]);
                io
            });
            for done in run(&mut engine, writes.collect()) {
                assert_eq!(done.result.unwrap(), done.io.bytes);
            }
            let reads = (0..120).map(|tag| {
                let longest = [1, 3, 20, 300][tag as usize % 4].min(BYTES / block);
                let blocks = 1 + rng.index(longest);
                let at = rng.index(BYTES / block - blocks + 1) * block;
                io(Op::Read, &object, at as u64, blocks * block, tag)
            });
            for done in run(&mut engine, reads.collect()) {
                assert_eq!(done.result.unwrap(), done.io.bytes);
                let at = done.io.offset as usize;
                assert!(bytes_of(&done.io) == expected[at..at + done.io.bytes], "depth {depth}");
            }
        }
        store.sync(&[object]).unwrap();
    }
}

#[test]
fn a_folder_is_listed_and_read_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let models = folder.path().join("models");
    std::fs::create_dir_all(models.join("a/b")).unwrap();
    let files = [("x.bin", 100_001), ("a/y.bin", 5000), ("a/b/z.bin", 12), ("empty", 0)];
    for (name, bytes) in files {
        std::fs::write(models.join(name), content(bytes)).unwrap();
    }
    let target = Target::start(&config(vec![NamespaceSource::Path(models.clone())], 9)).unwrap();
    let store = store(&target, settings(Digests::default()));
    for (name, bytes) in files {
        let object = open(&store, &format!("models/{name}"));
        assert_eq!(object.object().bytes, bytes as u64);
        let mut read = vec![0; bytes];
        object.read_exact_at(0, &mut read).unwrap();
        assert!(read == content(bytes), "{name}");
        object.check_unchanged().unwrap();
    }
    let below = |name: &str| {
        let inside = store.below(OsStr::new(name), Missing::Refuse).unwrap();
        let all = list_all(&*inside).unwrap();
        let objects: Vec<_> = all.objects.iter().map(|o| (o.name.clone(), o.bytes)).collect();
        (objects, all.folders)
    };
    let (objects, folders) = below(&format!("{NQN}/models"));
    let expected = [("empty".into(), Some(0)), ("x.bin".into(), Some(100_001))];
    assert_eq!((objects, folders), (expected.to_vec(), vec!["a".into()]));
    let (objects, folders) = below(&format!("{NQN}/models/a"));
    assert_eq!(
        (objects, folders),
        (vec![("y.bin".into(), Some(5000))], vec!["b".into()])
    );
    assert_eq!(below(NQN).1, ["models"]);
    let listed = list_all(&store).unwrap();
    assert_eq!(listed.folders, [NQN], "the portal lists its subsystems");
    let missing = open_one(&store, OsStr::new(&format!("{NQN}/models/none"))).unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound, "{missing}");
    // A file that is replaced by one of the same length has another version, also if it was opened by its number.
    let object = open(&store, "models/x.bin");
    let numbers: Vec<_> = (1..=3).map(|nsid| open(&store, &nsid.to_string())).collect();
    for numbered in &numbers {
        numbered.check_unchanged().unwrap();
    }
    std::fs::write(models.join("new"), vec![7; 100_001]).unwrap();
    std::fs::rename(models.join("new"), models.join("x.bin")).unwrap();
    target.rescan().unwrap();
    assert!(object.check_unchanged().is_err());
    let changed = numbers.iter().filter(|n| n.check_unchanged().is_err());
    assert_eq!(changed.count(), 1);
}

#[test]
fn a_number_is_a_name_where_the_target_has_that_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    std::fs::create_dir(path("3")).unwrap();
    // Namespaces are numbered in the order of their names: `2` is 1, `3/x` is 2, and `a` is 3.
    for (name, byte) in [("2", 2), ("3/x", 3), ("a", 4)] {
        std::fs::write(path(name), vec![byte; 1000]).unwrap();
    }
    let sources = ["2", "3", "a"].map(|name| NamespaceSource::Path(path(name)));
    let target = Target::start(&config(sources.to_vec(), 9)).unwrap();
    let store = store(&target, settings(Digests::default()));
    let first = |object: &Arc<dyn Handle>| {
        let mut byte = [0];
        object.read_exact_at(0, &mut byte).unwrap();
        (byte[0], object.object().bytes)
    };
    assert_eq!(first(&open(&store, "2")), (2, 1000), "a name");
    assert_eq!(first(&open(&store, "1")), (2, 1024), "a namespace");
    let name = |name: &str| format!("{NQN}/{name}");
    let inside = store.below(OsStr::new(&name("3")), Missing::Refuse);
    let inside = inside.unwrap();
    assert_eq!(list_all(&*inside).unwrap().objects[0].name, "x");
    let object = open_one(&*inside, OsStr::new("x")).unwrap();
    assert_eq!(first(&object), (3, 1000));
    let folder = open_one(&store, OsStr::new(&name("3"))).unwrap_err();
    assert_eq!(folder.kind(), ErrorKind::NotFound, "{folder}");
    let missing = open_one(&store, OsStr::new(&name("0"))).unwrap_err();
    assert!(missing.to_string().contains("a namespace is"), "{missing}");
    let namespace = store.below(OsStr::new(&name("1")), Missing::Refuse);
    assert_eq!(namespace.unwrap_err().kind(), ErrorKind::NotFolder);
}

#[test]
fn mutual_authentication_succeeds_and_a_wrong_secret_is_refused() {
    let host = Nqn::new("nqn.2026-11.org.example:host").unwrap();
    let [first, second, third] =
        [1_u8, 2, 3].map(|byte| straightway_nvme::auth::Secret::new(&[byte; 32], None).unwrap());
    let rule = HostRule {
        nqn: host.clone(),
        keys: Some(AuthKeys {
            host: first.clone(),
            controller: Some(second.clone()),
            hash: None,
            group: None,
        }),
        share: None,
    };
    let mut config = config(memory(1 << 16), 9);
    config.policy = HostPolicy {
        rules: vec![rule],
        is_closed: true,
    };
    let target = Target::start(&config).unwrap();
    let settings = |secret: Option<&_>, controller: Option<&_>| HostSettings {
        host: host.clone(),
        secret: secret.cloned(),
        controller_secret: controller.cloned(),
        ..settings(Digests::default())
    };
    let name = format!("{NQN}/1");
    let try_open = |settings: HostSettings| {
        let store = store(&target, settings);
        open_one(&store, OsStr::new(&name)).map(|object| object.object().bytes)
    };
    assert_eq!(try_open(settings(Some(&first), None)).unwrap(), 1 << 16);
    assert_eq!(try_open(settings(Some(&first), Some(&second))).unwrap(), 1 << 16);
    let start = std::time::Instant::now();
    for (own, theirs) in [(None, None), (Some(&third), None), (Some(&first), Some(&third))] {
        let error = try_open(settings(own, theirs)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains("authenticat"), "{error}");
    }
    let stranger = HostSettings {
        secret: Some(first.clone()),
        ..crate::rig::settings(Digests::default())
    };
    let error = try_open(stranger).unwrap_err();
    assert!(error.to_string().contains("does not allow the host"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(5));
}

#[test]
fn a_read_only_target_refuses_writes_with_an_error() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), content(1 << 16)).unwrap();
    let mut config = config(vec![NamespaceSource::Path(file.path().to_owned())], 9);
    config.is_writable = false;
    let target = Target::start(&config).unwrap();
    let store = store(&target, settings(Digests::default()));
    let object = open(&store, "1");
    let Some(mut engine) = engine(4) else { return };
    let done = run(&mut engine, vec![io(Op::Write, &object, 0, 32768, 0)]);
    let error = crate::rig::error_of(done);
    assert!(error.contains("write protected"), "{error}");
}

#[test]
fn the_end_of_a_write_goes_into_a_capsule_while_its_beginning_is_sent() {
    // Two commands at a time: the last 8 KiB of a write wait for a slot, which reads free while its first 4 MiB are
    // sent.
    const WRITE: usize = (4 << 20) + 8192;
    let bytes = 8 << 20;
    let target = Target::start(&config(memory(4 * bytes), 9)).unwrap();
    let mut few = settings(Digests::default());
    few.queue_entries = 3;
    let store = store(&target, few);
    let object = open(&store, "1");
    let Some(mut engine) = engine(16) else { return };
    for round in 0..4 {
        let expected = content(WRITE + round);
        let mut ios = Vec::new();
        for tag in 0..32 {
            if tag % 8 == 0 {
                let at = u64::from(tag / 8) * bytes;
                let mut write = io(Op::Write, &object, at, WRITE, tag);
                write.fill(&expected[round..]);
                ios.push(write);
            } else {
                ios.push(io(Op::Read, &object, bytes - 4096, 4096, tag));
            }
        }
        for done in run(&mut engine, ios) {
            assert_eq!(done.result.unwrap(), done.io.bytes);
        }
        let back = (0..4).map(|n| io(Op::Read, &object, n * bytes, WRITE, n as u32));
        for done in run(&mut engine, back.collect()) {
            assert!(bytes_of(&done.io) == expected[round..]);
        }
    }
}
