//! What a container has: an overlay over another file system, and a control group with a memory limit. The tests need
//! root, and print a reason if they are skipped.

use std::{
    fs,
    io::Write,
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use rustix::fs::{Advice, fadvise};
use serde_json::Value;
use straightway_sys::{mount::Mounts, root::Root};

use crate::{
    machine::Mount,
    test_dir::{Ran, TestDir, noise, routed},
};

/// Mounts an overlay at `merged`, with its layers `l`, `u` and `w` in a folder of the directory.
fn overlay(dir: &TestDir, base: &Path) -> Option<Mount> {
    for layer in ["l", "u", "w"] {
        fs::create_dir_all(base.join(layer)).unwrap();
    }
    let base = base.display();
    let layers = format!("lowerdir={base}/l,upperdir={base}/u,workdir={base}/w");
    Mount::new(&["-t", "overlay", "overlay", "-o", &layers], &dir.folder("merged"))
}

/// The bytes that a receipt reports for a reason.
fn because(receipt: &Value, leg: &str, reason: &str) -> u64 {
    let rows = receipt["routes"].as_array().unwrap().iter();
    rows.filter(|row| row["leg"] == leg && row["reason"] == reason)
        .map(|row| row["bytes"].as_u64().unwrap())
        .sum()
}

#[test]
fn writes_to_an_overlay_are_reported_direct_only_if_the_file_system_below_has_extents() {
    for (mkfs, args, is_direct) in [
        ("mkfs.ext2", &["-q", "-F"][..], false),
        ("mkfs.ext3", &["-q", "-F"], false),
        ("mkfs.ext4", &["-q", "-F"], true),
        ("mkfs.xfs", &["-q", "-f"], true),
    ] {
        let dir = TestDir::new();
        dir.file("source", 3 << 20, 1);
        // xfs needs at least 300 MiB. The image is sparse.
        let Some(below) = Mount::made(&dir, 320 << 20, mkfs, args, "loop") else {
            continue;
        };
        let Some(_merged) = overlay(&dir, &dir.path("small")) else {
            return;
        };
        let demanded = dir.run(["copy", "source", "merged/copy", "--route", "direct", "--json"]);
        let receipt = dir.receipt(&["source", "merged/again"]);
        if is_direct {
            assert_eq!(demanded.code, Some(0), "{mkfs}: {}", demanded.err);
            assert_eq!(routed(&receipt, "write", Some("direct")), 3 << 20, "{mkfs}: {receipt}");
        } else {
            assert_eq!(demanded.code, Some(2), "{mkfs}: {demanded:?}");
            assert!(demanded.err.contains("\"hint\":\"use --route auto"), "{}", demanded.err);
            assert_eq!(
                because(&receipt, "write", "direct_unproven"),
                3 << 20,
                "{mkfs}: {receipt}"
            );
        }
        assert!(fs::read(dir.path("merged/again")).unwrap() == noise(3 << 20, 1));
        drop(below);
    }
}

#[test]
fn a_sparse_copy_to_an_overlay_stays_sparse() {
    let dir = TestDir::new();
    let source = dir.path("source");
    let file = fs::File::create(&source).unwrap();
    file.write_all_at(&noise(8192, 1), 8 << 20).unwrap();
    let Some(_below) = Mount::made(&dir, 320 << 20, "mkfs.xfs", &["-q", "-f"], "loop") else {
        return;
    };
    let Some(_merged) = overlay(&dir, &dir.path("small")) else {
        return;
    };
    dir.receipt(&["source", "merged/copy"]);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(dir.path("merged/copy")).unwrap());
    assert_eq!(
        blocks * 512,
        8192,
        "the test of what the file system supports leaves no block"
    );
}

#[test]
fn the_page_cache_below_an_overlay_is_seen() {
    const MIB: usize = 1 << 20;
    let dir = TestDir::new();
    let Some(_merged) = overlay(&dir, &dir.folder("layers")) else {
        return;
    };
    let bytes = noise(8 * MIB, 1);
    fs::write(dir.path("layers/l/source"), &bytes).unwrap();
    let below = fs::File::open(dir.path("layers/l/source")).unwrap();
    below.sync_all().unwrap();
    let resident = |target: &str| because(&dir.receipt(&["merged/source", target]), "read", "resident");
    let evict = || fadvise(&below, 0, None, Advice::DontNeed).unwrap();
    if routed(&dir.receipt(&["merged/source", "host:"]), "read", Some("buffered")) == 8 * MIB as u64
        && resident("host:") == 0
    {
        eprintln!("skipped: no O_DIRECT here");
        return;
    }
    for target in ["host:", "copy"] {
        // It was read through the page cache, or not at all.
        fs::read(dir.path("merged/source")).unwrap();
        assert_eq!(resident(target), 8 * MIB as u64, "to {target}");
        evict();
        assert_eq!(resident(target), 0, "to {target}");
        // Without readahead, so that nothing else is cached.
        evict();
        fadvise(&below, 0, None, Advice::Random).unwrap();
        below.read_exact_at(&mut vec![0; 3 * MIB], 2 * MIB as u64).unwrap();
        below.read_exact_at(&mut vec![0; MIB / 2], 6 * MIB as u64).unwrap();
        assert_eq!(resident(target), 3 * MIB as u64, "to {target}");
    }
    assert!(fs::read(dir.path("copy")).unwrap() == bytes);
    // The kernel tells nobody but the owner which pages are cached, and everybody else that all are.
    evict();
    for folder in [
        dir.root(),
        &dir.path("layers"),
        &dir.path("layers/l"),
        &dir.path("merged"),
    ] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let Some(ran) = dir.run_as_nobody(&["copy", "merged/source", "host:", "--json"]) else {
        return;
    };
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let receipt: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(because(&receipt, "read", "resident"), 0, "{receipt}");
}

/// A control group with a memory limit, and one inside it that has none. Removed when dropped.
struct Group {
    outer: PathBuf,
    inner: PathBuf,
    /// The file with the limit.
    limit: PathBuf,
}

impl Group {
    /// Prints the reason and returns `None` if there can be none.
    fn new(bytes: u64) -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let skip = |why: String| {
            eprintln!("skipped: no control group: {why}");
            None
        };
        let mounts = Mounts::read(&Root::machine()).unwrap();
        let of_memory = |version: &str, file: &str| {
            let mut all = mounts.iter().filter(|mount| mount.file_system == version);
            all.find(|mount| version == "cgroup2" || mount.option("memory").is_some())
                .map(|mount| mount.point.clone())
                .filter(|point| version == "cgroup" || has_word(&point.join("cgroup.subtree_control"), "memory"))
                .map(|point| (point, file.to_owned()))
        };
        let found = of_memory("cgroup", "memory.limit_in_bytes").or_else(|| of_memory("cgroup2", "memory.max"));
        let Some((point, file)) = found else {
            return skip("memory is not limited by groups here".to_owned());
        };
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let outer = point.join(format!("straightway-test-{}-{count}", std::process::id()));
        let inner = outer.join("inner");
        let limit = outer.join(file);
        let group = Self { outer, inner, limit };
        let made = fs::create_dir(&group.outer)
            .and_then(|()| fs::write(&group.limit, bytes.to_string()))
            .and_then(|()| fs::create_dir(&group.inner));
        match made {
            Ok(()) => Some(group),
            Err(error) => skip(error.to_string()),
        }
    }

    /// Runs the binary in the inner group.
    fn run(&self, dir: &TestDir, args: &str) -> Ran {
        let script = format!(
            "echo $$ > '{}/cgroup.procs' && exec \"$0\" {args}",
            self.inner.display()
        );
        dir.run_program("bash", &["-c", &script, env!("CARGO_BIN_EXE_straightway")])
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that has just ended may still count.
        for folder in [&self.inner, &self.outer] {
            for _ in 0..100 {
                if fs::remove_dir(folder).is_ok() {
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}

fn has_word(path: &Path, word: &str) -> bool {
    fs::read_to_string(path).is_ok_and(|text| text.split_whitespace().any(|other| other == word))
}

#[test]
fn memory_beyond_the_limit_of_a_control_group_is_refused_before_it_is_used() {
    let dir = TestDir::new();
    let Some(group) = Group::new(200 << 20) else { return };
    fs::File::create(dir.path("big")).unwrap().set_len(1 << 30).unwrap();
    let header = br#"{"t":{"dtype":"U8","shape":[500000000],"data_offsets":[0,500000000]}}"#;
    let mut model = fs::File::create(dir.path("m.safetensors")).unwrap();
    model.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    model.write_all(header).unwrap();
    model.set_len(8 + header.len() as u64 + 500_000_000).unwrap();
    for (args, needed) in [
        ("copy big host:", "allocate 1 GiB of host memory"),
        ("load m.safetensors", "allocate 477 MiB of host memory"),
    ] {
        let ran = group.run(&dir, args);
        assert_eq!(ran.code, Some(2), "{args}: {ran:?}");
        let limit = format!(
            "the memory limit of its control group, 200 MiB ({})",
            group.limit.display()
        );
        for part in [needed, &limit, "hint: ask for less, or raise the limit"] {
            assert!(ran.err.contains(part), "{part}: {}", ran.err);
        }
    }
}

#[test]
fn near_the_limit_of_a_control_group_a_read_is_refused_or_works_and_is_never_killed() {
    let dir = TestDir::new();
    let Some(group) = Group::new(160 << 20) else { return };
    let mut outcomes = Vec::new();
    for mib in [64, 96, 112, 120, 128, 136, 144, 152] {
        let name = format!("{mib}");
        fs::File::create(dir.path(&name)).unwrap().set_len(mib << 20).unwrap();
        for route in ["auto", "staged"] {
            let ran = group.run(&dir, &format!("copy {name} host: --route {route}"));
            assert!(matches!(ran.code, Some(0 | 2)), "{mib} MiB by {route}: {ran:?}");
            outcomes.push(ran.code);
        }
    }
    assert_eq!(outcomes.first(), Some(&Some(0)), "a small read works");
    assert_eq!(outcomes.last(), Some(&Some(2)), "a large one is refused");
}

#[test]
fn rings_are_smaller_in_a_small_control_group() {
    let dir = TestDir::new();
    let Some(group) = Group::new(64 << 20) else { return };
    dir.file("source", 40 << 20, 1);
    let ran = group.run(&dir, "copy source copy --route direct --json");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let receipt: Value = serde_json::from_str(&ran.out).unwrap();
    let peak = receipt["staging_bytes_peak"].as_u64().unwrap();
    assert!((1..=8 << 20).contains(&peak), "{receipt}");
    assert!(fs::read(dir.path("copy")).unwrap() == noise(40 << 20, 1));
}
