//! What the machine may be like: small, full and strange file systems, and a kernel without
//! io_uring. Most of it takes root, and says so where it is skipped.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::yard::{Yard, in_memory, noise, routed};

/// A mounted file system, unmounted when dropped.
struct Mount {
    at: PathBuf,
}

impl Mount {
    /// Mounts with `args` at `at`; `None`, with the reason printed, where that is not possible.
    fn new(args: &[&str], at: &Path) -> Option<Self> {
        run("mount", &[args, &[&at.display().to_string()]].concat())?;
        Some(Self { at: at.to_owned() })
    }

    /// A file system of 16 MiB made by `mkfs`, on a loop device.
    fn small(yard: &Yard, mkfs: &str) -> Option<Self> {
        let image = yard.path("image");
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let image = image.display().to_string();
        run(mkfs, &["-q", "-F", "-m", "0", &image])?;
        Self::new(&["-o", "loop", &image], &yard.folder("small"))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
    }
}

fn run(program: &str, args: &[&str]) -> Option<()> {
    let why = match Command::new(program).args(args).output() {
        Ok(output) if output.status.success() => return Some(()),
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("skipped: {program}: {why}");
    None
}

/// Fills a small file system and expects an error that names the target, and no trace of it.
fn fills_up(mkfs: &str) {
    let yard = Yard::new();
    yard.file("fits", 3 << 20, 1);
    yard.file("too-long", 40 << 20, 2);
    let Some(mount) = Mount::small(&yard, mkfs) else {
        return;
    };
    for engine in ["auto", "pool"] {
        for route in ["auto", "direct", "buffered"] {
            let flags = ["--route", route, "--engine", engine];
            yard.receipt(&[&["fits", "small/old", "--verify"], &flags[..]].concat());
            for target in ["small/new", "small/old"] {
                let ran = yard.run([&["copy", "too-long", target], &flags[..]].concat());
                assert_eq!(ran.code, Some(2), "{mkfs} {route}: {ran:?}");
                assert!(
                    ran.err.contains(&format!(" {target}: No space left")),
                    "{}",
                    ran.err
                );
                assert!(ran.err.contains("hint: free space"), "{}", ran.err);
                let names: Vec<_> = fs::read_dir(&mount.at).unwrap().flatten().collect();
                assert_eq!(names.len(), 2, "lost+found and old: {names:?}");
                assert!(fs::read(yard.path("small/old")).unwrap() == noise(3 << 20, 1));
            }
        }
    }
}

#[test]
fn a_disk_that_is_too_full_says_so_before_a_byte_is_written() {
    fills_up("mkfs.ext4");
}

#[test]
fn a_disk_that_fills_up_in_mid_write_leaves_nothing() {
    // ext2 has no fallocate, so that the end comes as a surprise.
    fills_up("mkfs.ext2");
}

#[test]
fn a_sparse_source_fills_a_disk_in_mid_write_too() {
    let yard = Yard::new();
    let source = yard.file("source", 40 << 20, 2);
    let file = fs::OpenOptions::new().write(true).open(source).unwrap();
    file.set_len(50 << 20).unwrap();
    let Some(mount) = Mount::small(&yard, "mkfs.ext4") else {
        return;
    };
    for route in ["direct", "buffered"] {
        let ran = yard.run(["copy", "source", "small/new", "--route", route]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(" small/new: No space left"), "{}", ran.err);
        assert_eq!(fs::read_dir(&mount.at).unwrap().count(), 1);
    }
}

#[test]
fn tmpfs_works_through_the_page_cache_and_the_receipt_says_why() {
    let Some(memory) = in_memory() else { return };
    let yard = Yard::new();
    yard.file("source", 1_000_001, 1);
    let there = memory.path().join("file").display().to_string();
    for (args, leg) in [
        ([&*there, "host:"], "read"),
        (["source", &there], "write"),
        ([&*there, "back"], "read"),
    ] {
        fs::copy(yard.path("source"), &there).unwrap();
        let receipt = yard.receipt(&args);
        assert_eq!(routed(&receipt, leg, Some("buffered")), 1_000_001);
        let rows = receipt["routes"].as_array().unwrap();
        let row = rows.iter().find(|row| row["leg"] == leg).unwrap();
        assert_eq!(row["reason"], "no_direct_io");
    }
    assert!(fs::read(yard.path("back")).unwrap() == noise(1_000_001, 1));
}

#[test]
fn overlayfs_works_and_the_receipt_accounts_for_every_byte() {
    let Some(memory) = in_memory() else { return };
    let yard = Yard::new();
    for base in [yard.root(), memory.path()] {
        for name in ["lower", "upper", "work", "merged"] {
            fs::create_dir_all(base.join(name)).unwrap();
        }
        fs::write(base.join("lower/source"), noise(1_000_001, 1)).unwrap();
        let base_name = base.display();
        let layers = format!(
            "lowerdir={base_name}/lower,upperdir={base_name}/upper,workdir={base_name}/work"
        );
        let merged = base.join("merged");
        let args = ["-t", "overlay", "overlay", "-o", &layers];
        let Some(_mount) = Mount::new(&args, &merged) else {
            return;
        };
        let path = |name: &str| merged.join(name).display().to_string();
        let receipt = yard.receipt(&[&path("source"), &path("target"), "--verify"]);
        assert!(fs::read(path("target")).unwrap() == noise(1_000_001, 1));
        for leg in ["read", "write"] {
            assert_eq!(routed(&receipt, leg, None), 1_000_001);
        }
        if base == memory.path() {
            assert_eq!(routed(&receipt, "write", Some("buffered")), 1_000_001);
        }
    }
}

#[test]
fn a_pool_of_threads_does_the_same_work() {
    let yard = Yard::new();
    yard.file("source", 3_000_001, 1);
    for route in ["auto", "direct", "staged", "buffered"] {
        let args = [
            "source", "target", "--engine", "pool", "--verify", "--route",
        ];
        let receipt = yard.receipt(&[&args[..], &[route]].concat());
        assert_eq!(receipt["engine"], "thread pool");
        assert!(fs::read(yard.path("target")).unwrap() == noise(3_000_001, 1));
    }
}

/// The kernel's switch for io_uring, turned back when dropped.
struct Forbidden {
    before: String,
}

const SWITCH: &str = "/proc/sys/kernel/io_uring_disabled";

impl Forbidden {
    fn new() -> Option<Self> {
        let before = fs::read_to_string(SWITCH);
        let written = before.and_then(|before| fs::write(SWITCH, "2").map(|()| before));
        written
            .inspect_err(|error| eprintln!("skipped: {SWITCH}: {error}"))
            .ok()
            .map(|before| Self { before })
    }
}

impl Drop for Forbidden {
    fn drop(&mut self) {
        fs::write(SWITCH, &self.before).expect("it could be written before");
    }
}

/// The only test that turns the switch. Others may run at the same time: they then go by the pool,
/// which none of them minds.
#[test]
fn where_io_uring_is_forbidden_threads_do_the_work_and_the_receipt_says_so() {
    let yard = Yard::new();
    yard.file("source", 3_000_001, 1);
    let Some(forbidden) = Forbidden::new() else {
        return;
    };
    let receipt = yard.receipt(&["source", "target", "--verify", "--route", "direct"]);
    let ran = yard.run(["copy", "source", "target", "--engine", "io-uring"]);
    drop(forbidden);
    assert_eq!(receipt["engine"], "thread pool");
    assert!(fs::read(yard.path("target")).unwrap() == noise(3_000_001, 1));
    assert_eq!(ran.code, Some(2), "a demanded engine is not replaced");
    assert!(
        ran.err.contains("io_uring") && ran.err.contains("hint: "),
        "{}",
        ran.err
    );
}

#[test]
fn where_no_memory_may_be_locked_threads_do_the_work() {
    let yard = Yard::new();
    yard.file("source", 1 << 20, 1);
    let limited = "ulimit -l 0; exec setpriv --reuid=65534 --clear-groups \"$0\" copy source host:";
    let ran = yard.run_program("bash", &["-c", limited, env!("CARGO_BIN_EXE_straightway")]);
    if ran.err.contains("setpriv:") || ran.err.contains("Permission denied") {
        eprintln!("skipped: cannot run the binary as another user");
        return;
    }
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn a_folder_is_not_copied_into_itself_by_another_path() {
    let yard = Yard::new();
    let folder = yard.folder("folder");
    let Some(_mount) = Mount::new(
        &["--bind", &folder.display().to_string()],
        &yard.folder("again"),
    ) else {
        return;
    };
    let ran = yard.run(["copy", "folder", "again"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("is inside it"), "{}", ran.err);
}
