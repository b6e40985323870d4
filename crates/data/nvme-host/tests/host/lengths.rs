//! Files on a target that get another length, become empty or full, or are replaced. The target scans its sources only
//! when a host asks for their entries. A transfer has the whole current content, or it fails.

use std::{
    ffi::OsStr,
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use straightway_core::{ErrorKind, Result, random::Seed};
use straightway_io::{
    Handle, Store as _,
    store::{Missing, StoreExt, Tag, list_all, open_one},
};
use straightway_nvme::{Digests, Nqn};
use straightway_nvme_host::{NvmeTcp, Portal};
use straightway_nvme_target::{Config, NamespaceSource, Target};

use crate::rig::settings;

const NQN: &str = "nqn.2026-11.org.example:lengths";

/// A served folder `m`, and a host.
struct Served {
    folder: tempfile::TempDir,
    target: Target,
    store: NvmeTcp,
}

impl Served {
    /// Serves these files. A name has its length and the seed of its content.
    fn new(files: &[(&str, usize, u64)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("m")).unwrap();
        for (name, bytes, seed) in files {
            fs::write(folder.path().join("m").join(name), Seed(*seed).bytes(*bytes)).unwrap();
        }
        let address = "127.0.0.1:0".parse().unwrap();
        let sources = vec![NamespaceSource::Path(folder.path().join("m"))];
        let target = Target::start(&Config::new(Nqn::new(NQN).unwrap(), address, sources)).unwrap();
        let store = host(&target);
        Self { folder, target, store }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("m").join(name)
    }

    fn open(&self, name: &str) -> Result<Arc<dyn Handle>> {
        open_one(&self.store, OsStr::new(&format!("{NQN}/m/{name}")))
    }

    /// The names and lengths in the folder.
    fn listed(&self) -> Vec<(String, u64)> {
        let below = self.store.below(OsStr::new(&format!("{NQN}/m")), Missing::Refuse);
        let listed = list_all(&*below.unwrap()).unwrap().objects;
        let named = listed.into_iter().map(|object| (object.name, object.bytes.unwrap()));
        named
            .map(|(name, bytes)| (name.into_string().unwrap(), bytes))
            .collect()
    }
}

fn host(target: &Target) -> NvmeTcp {
    let address = target.addresses()[0];
    let portal = Portal::new(&address.ip().to_string(), address.port());
    NvmeTcp::new(portal, settings(Digests::default()))
}

/// Reads a whole object, as a transfer does: it is compared with its version at opening at the end.
fn read(object: &Arc<dyn Handle>) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(object.object().bytes).unwrap()];
    object.read_exact_at(0, &mut bytes)?;
    object.check_unchanged()?;
    Ok(bytes)
}

/// Writes to the file in place, which keeps its inode.
fn rewrite(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
}

/// Replaces the file by another one.
fn replace(path: &Path, content: &[u8]) {
    let other = path.parent().unwrap().with_file_name("other");
    fs::write(&other, content).unwrap();
    fs::rename(other, path).unwrap();
}

#[test]
fn a_file_with_another_length_than_at_the_last_scan_is_read_whole() {
    let served = Served::new(&[("a", 1000, 1), ("b", 100_000, 2), ("empty", 0, 3)]);
    let mut rng = Seed(5).rng();
    for round in 0..60 {
        let name = ["a", "b", "empty"][rng.index(3)];
        // A third of the files is empty, another third has a length near that of others.
        let bytes = [0, 990 + rng.index(40), rng.index(300_000)][rng.index(3)];
        let content = Seed(100 + round).bytes(bytes);
        let change = [rewrite, replace][rng.index(2)];
        change(&served.path(name), &content);
        if round % 4 == 0 {
            assert!(served.listed().contains(&(name.to_owned(), bytes as u64)), "{round}");
        }
        // A host that knows the index, and a new one.
        let new = host(&served.target);
        let known = served.open(name).unwrap();
        let fresh = open_one(&new, OsStr::new(&format!("{NQN}/m/{name}"))).unwrap();
        for object in [known, fresh] {
            assert!(
                read(&object).unwrap() == content,
                "round {round}: {name}, {bytes} bytes"
            );
        }
    }
}

/// A change of a file.
type Change = fn(&Path);

#[test]
fn a_file_that_gets_another_length_during_a_transfer_fails_it() {
    let changes: [(&str, Change); 6] = [
        ("grown", |path| rewrite(path, &Seed(9).bytes(70_000))),
        ("shrunk", |path| rewrite(path, &Seed(9).bytes(5000))),
        ("emptied", |path| rewrite(path, &[])),
        ("replaced", |path| replace(path, &Seed(9).bytes(70_001))),
        ("swapped", |path| replace(path, &Seed(9).bytes(60_000))),
        ("removed", |path| fs::remove_file(path).unwrap()),
    ];
    for (what, change) in changes {
        let served = Served::new(&[("a", 60_000, 1), ("b", 60_000, 2), ("c", 60_000, 3)]);
        let objects: Vec<_> = ["a", "b", "c"].map(|name| served.open(name).unwrap()).into();
        let mut part = [0; 4096];
        for object in &objects {
            object.read_exact_at(0, &mut part).unwrap();
        }
        served.store.check_unchanged(&objects).unwrap();
        change(&served.path("b"));
        // The check of one file, and of all together as at the end of a copy of a folder.
        for error in [objects[1].check_unchanged(), served.store.check_unchanged(&objects)] {
            let error = error.unwrap_err();
            assert!(error.to_string().contains("m/b"), "{what}: {error}");
            assert!(error.hint().is_some(), "{what}: {error}");
        }
        served
            .store
            .check_unchanged(&[objects[0].clone(), objects[2].clone()])
            .unwrap();
    }
}

#[test]
fn an_empty_file_that_is_filled_during_a_transfer_fails_it() {
    let served = Served::new(&[("a", 0, 1), ("b", 0, 2)]);
    let objects: Vec<_> = ["a", "b"].map(|name| served.open(name).unwrap()).into();
    served.store.check_unchanged(&objects).unwrap();
    rewrite(&served.path("b"), &[7; 5000]);
    let error = objects[1].check_unchanged().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Precondition, "{error}");
    assert!(served.store.check_unchanged(&objects).is_err());
    objects[0].check_unchanged().unwrap();
}

/// A content that shows whether it is whole: its length and a number, and then bytes of that seed.
fn sealed(number: u64) -> Vec<u8> {
    let bytes = 16 + (number * 7919 % 40_000) as usize;
    let mut content = (bytes as u64).to_le_bytes().to_vec();
    content.extend(number.to_le_bytes());
    content.extend(Seed(number).bytes(bytes - 16));
    content
}

fn is_whole(content: &[u8]) -> bool {
    let Some((head, _)) = content.split_first_chunk::<16>() else {
        // The writer truncates the file first.
        return content.is_empty();
    };
    let number = u64::from_le_bytes(*head.last_chunk().unwrap());
    content == sealed(number)
}

#[test]
fn a_file_that_is_rewritten_all_the_time_is_read_whole_or_not_at_all() {
    let served = Served::new(&[("a", 0, 1), ("still", 5000, 2)]);
    let (path, is_over) = (served.path("a"), AtomicBool::new(false));
    rewrite(&path, &sealed(1));
    served.target.rescan().unwrap();
    let (mut right, mut failed) = (0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for number in 0.. {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
                let change = [rewrite, replace][(number % 2) as usize];
                change(&path, &sealed(number));
                // Some pauses are long enough for a whole transfer.
                thread::sleep(Duration::from_millis([0, 1, 15, 60][(number / 2 % 4) as usize]));
            }
        });
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(1500) {
            match served.open("a").and_then(|object| read(&object)) {
                Ok(content) => {
                    assert!(is_whole(&content), "{} bytes", content.len());
                    right += 1;
                }
                Err(_) => failed += 1,
            }
            // The index and the other file can be read meanwhile.
            assert_eq!(served.listed().len(), 2);
            assert!(read(&served.open("still").unwrap()).unwrap() == Seed(2).bytes(5000));
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(right > 0, "{failed} transfers failed");
}

#[test]
fn names_that_are_added_or_removed_are_known_at_once() {
    let served = Served::new(&[("a", 1000, 1)]);
    assert_eq!(served.open("b").unwrap_err().kind(), ErrorKind::NotFound);
    for round in 0..10 {
        let content = Seed(round).bytes(3000 + round as usize);
        rewrite(&served.path("b"), &content);
        let object = served.open("b").unwrap();
        assert!(read(&object).unwrap() == content);
        assert_eq!(served.listed().len(), 2);
        fs::remove_file(served.path("b")).unwrap();
        assert!(object.check_unchanged().is_err());
        assert_eq!(served.open("b").unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(served.listed(), [("a".to_owned(), 1000)]);
    }
}

#[test]
fn a_link_that_leads_to_another_file_and_back_has_three_versions() {
    let served = Served::new(&[]);
    let folder = served.folder.path();
    for (name, seed) in [("one", 1), ("two", 2)] {
        fs::write(folder.join(name), Seed(seed).bytes(2000)).unwrap();
    }
    let link = |to: &str| {
        symlink(folder.join(to), folder.join("new")).unwrap();
        fs::rename(folder.join("new"), served.path("link")).unwrap();
    };
    let version = |seed: u64| {
        let object = served.open("link").unwrap();
        assert!(read(&object).unwrap() == Seed(seed).bytes(2000));
        match object.tag() {
            Some(Tag::Text(version)) => version,
            other => panic!("{other:?}"),
        }
    };
    link("one");
    let first = version(1);
    assert_eq!(version(1), first);
    let open = served.open("link").unwrap();
    link("two");
    let second = version(2);
    link("one");
    let third = version(1);
    assert!(first != second && second != third && first != third);
    // Bytes of both files may have been read.
    assert!(open.check_unchanged().is_err());
}
