//! What the machine may be like: small, full and strange file systems, and a kernel without
//! io_uring. Most of it takes root, and says so where it is skipped.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::yard::{Ran, Yard, in_memory, noise, routed};

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
        Self::made(yard, 16 << 20, mkfs, &["-q", "-F", "-m", "0"], "loop")
    }

    /// A file system of `bytes` made by `mkfs` with `args`, on a loop device, mounted as `small`.
    fn made(yard: &Yard, bytes: u64, mkfs: &str, args: &[&str], options: &str) -> Option<Self> {
        let image = yard.path("image");
        fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        let image = image.display().to_string();
        run(mkfs, &[args, &[&image]].concat())?;
        Self::new(&["-o", options, &image], &yard.folder("small"))
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
fn fills_up(mkfs: &str, routes: &[&str]) {
    let yard = Yard::new();
    yard.file("fits", 3 << 20, 1);
    yard.file("too-long", 40 << 20, 2);
    let Some(mount) = Mount::small(&yard, mkfs) else {
        return;
    };
    for engine in ["auto", "pool"] {
        for route in routes {
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
    fills_up("mkfs.ext4", &["auto", "direct", "buffered"]);
}

#[test]
fn a_disk_that_fills_up_in_mid_write_leaves_nothing() {
    // ext2 has no fallocate, so that the end comes as a surprise. Nor has it extents, without which the
    // kernel writes through the page cache.
    fills_up("mkfs.ext2", &["auto", "buffered"]);
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

/// Expects the route direct to be refused for a copy with these arguments, and `auto` to say why one leg of it
/// goes through the page cache.
fn assert_buffered(yard: &Yard, args: [&str; 2], leg: &str, reason: &str) {
    for route in ["direct", "staged"] {
        let ran = yard.run(["copy", args[0], args[1], "--route", route]);
        assert_eq!(ran.code, Some(2), "{args:?} {route}: {ran:?}");
        assert!(ran.err.contains("page cache"), "{}", ran.err);
        assert!(ran.err.contains("hint: use --route auto"), "{}", ran.err);
    }
    let receipt = yard.receipt(&args);
    let rows = receipt["routes"].as_array().unwrap();
    let of_leg: Vec<_> = rows.iter().filter(|row| row["leg"] == leg).collect();
    assert!(!of_leg.is_empty());
    for row in of_leg {
        assert_eq!(
            (&row["route"], &row["reason"]),
            (&"buffered".into(), &reason.into())
        );
    }
}

#[test]
fn btrfs_is_called_direct_only_where_it_is() {
    let yard = Yard::new();
    let options = "loop,compress-force=zstd";
    let Some(mount) = Mount::made(&yard, 128 << 20, "mkfs.btrfs", &["-q"], options) else {
        return;
    };
    yard.file("source", 3_000_000, 1);
    assert_buffered(
        &yard,
        ["source", "small/copy"],
        "write",
        "file_system_buffers",
    );
    // What is compressed on the drive goes through the page cache.
    fs::write(yard.path("small/compressed"), vec![7; 3_000_000]).unwrap();
    run("sync", &["-f", &mount.at.display().to_string()]).unwrap();
    assert_buffered(
        &yard,
        ["small/compressed", "host:"],
        "read",
        "file_system_buffers",
    );
    // What is not there yet may become so.
    let unsettled = yard.path("small/unsettled");
    fs::write(&unsettled, vec![8; 3_000_000]).unwrap();
    assert_buffered(
        &yard,
        ["small/unsettled", "host:"],
        "read",
        "direct_unproven",
    );
    let remount = ["-o", "remount,compress=no", &mount.at.display().to_string()];
    run("mount", &remount).unwrap();
    yard.file("small/plain", 3_000_000, 2);
    run("sync", &["-f", &mount.at.display().to_string()]).unwrap();
    // A sweep leaves out what the file system does not do.
    let ran = yard.run([
        "bench", "small", "--size", "4MiB", "--runs", "1", "--depth", "1", "--block", "1MiB",
        "--json",
    ]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let outcome: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    let tracks = |work: &str| -> Vec<String> {
        let samples = outcome["samples"].as_array().unwrap().iter();
        let of_work = samples.filter(|s| s["work"] == work);
        of_work
            .map(|s| s["route"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(tracks("write"), ["buffered"]);
    assert_eq!(tracks("read"), ["direct", "staged", "buffered", "buffered"]);
    let receipt = yard.receipt(&["small/plain", "host:", "--route", "direct"]);
    assert!(
        routed(&receipt, "read", Some("direct")) > 2_900_000,
        "{receipt}"
    );
}

#[test]
fn ext4_without_extents_or_with_a_journal_for_data_is_not_called_direct() {
    for (mkfs, options, reason) in [
        (
            &["-q", "-F", "-O", "^extents,^64bit"][..],
            "loop",
            "file_system_buffers",
        ),
        (&["-q", "-F"][..], "loop,data=journal", "no_direct_io"),
    ] {
        let yard = Yard::new();
        yard.file("source", 3_000_000, 1);
        let Some(_mount) = Mount::made(&yard, 64 << 20, "mkfs.ext4", mkfs, options) else {
            return;
        };
        let receipt = yard.receipt(&["source", "small/copy"]);
        assert_eq!(routed(&receipt, "write", Some("buffered")), 3_000_000);
        let rows = receipt["routes"].as_array().unwrap();
        let row = rows.iter().find(|row| row["leg"] == "write").unwrap();
        assert_eq!(row["reason"], reason);
        let ran = yard.run(["copy", "source", "small/copy", "--route", "direct"]);
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
}

/// A loop device over a file, detached when dropped.
struct Loop(String);

impl Loop {
    fn over(file: &Path) -> Option<Self> {
        let file = file.display().to_string();
        let made = Command::new("losetup")
            .args(["-f", "--show", &file])
            .output();
        match made {
            Ok(made) if made.status.success() => Some(Self(
                String::from_utf8(made.stdout).unwrap().trim().to_owned(),
            )),
            other => {
                eprintln!("skipped: losetup: {other:?}");
                None
            }
        }
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).output();
    }
}

#[test]
fn a_block_device_is_read_straight_from_the_drive() {
    let yard = Yard::new();
    let device = yard.file("disk", 3 << 20, 1);
    let Some(device) = Loop::over(&device) else {
        return;
    };
    let receipt = yard.receipt(&[&device.0, "host:", "--route", "direct"]);
    assert_eq!(routed(&receipt, "read", Some("direct")), 3 << 20);
    let receipt = yard.receipt(&[&device.0, "copy", "--verify"]);
    assert_eq!(routed(&receipt, "read", None), 3 << 20);
    assert!(fs::read(yard.path("copy")).unwrap() == noise(3 << 20, 1));
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
    let direct = ["source", "target", "--verify", "--route", "direct"];
    let receipt = yard.receipt(&direct);
    let ran = yard.run(["copy", "source", "target", "--engine", "io-uring"]);
    let copy = || ["copy"].iter().chain(&direct);
    let quiet = yard.run(copy());
    let told = [
        yard.run(copy().chain(&["-v"])),
        yard.run_with(&[("STRAIGHTWAY_LOG", "straightway_io=warn")], copy()),
    ];
    let other = yard.run_with(&[("STRAIGHTWAY_LOG", "straightway_sys=debug")], copy());
    drop(forbidden);
    let warnings = receipt["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 1, "{receipt}");
    let warning = warnings[0].as_str().unwrap();
    assert!(warning.contains("io_uring"), "{warning}");
    assert!(
        quiet.out.contains(&format!("  warning: {warning}")),
        "{}",
        quiet.out
    );
    for ran in [quiet, other] {
        assert_eq!(ran.err, "");
    }
    for ran in told {
        assert!(
            ran.err
                .starts_with("warning: using the thread pool instead: "),
            "{}",
            ran.err
        );
    }
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

/// Runs the binary with these arguments where only `most` files may be open.
fn with_files_max(yard: &Yard, most: u32, args: &str) -> Ran {
    let limited = format!("ulimit -n {most}; exec \"$0\" {args}");
    yard.run_program("bash", &["-c", &limited, env!("CARGO_BIN_EXE_straightway")])
}

#[test]
fn where_few_files_may_be_open_many_are_copied_and_loaded_a_few_at_a_time() {
    let yard = Yard::new();
    yard.folder("many");
    for number in 0..150 {
        let header = format!(
            "{{\"t{number}\":{{\"dtype\":\"U8\",\"shape\":[5000],\"data_offsets\":[0,5000]}}}}"
        );
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend(header.into_bytes());
        bytes.extend(noise(5000, number));
        fs::write(yard.path(format!("many/{number:03}.safetensors")), bytes).unwrap();
    }
    for args in ["load many --verify", "copy many copies --verify"] {
        let ran = with_files_max(&yard, 100, args);
        assert_eq!(ran.code, Some(0), "{args}: {}", ran.err);
    }
    for number in 0..150 {
        let name = format!("{number:03}.safetensors");
        let copy = fs::read(yard.path(format!("copies/{name}"))).unwrap();
        assert!(copy == fs::read(yard.path(format!("many/{name}"))).unwrap());
    }
    // All files of a rewritten model are open until the end. What helps is said.
    let ran = with_files_max(&yard, 100, "rewrite many new");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("Too many open files"), "{}", ran.err);
    assert!(
        ran.err
            .contains("hint: 100 files may be open at once, and that is the hard limit"),
        "{}",
        ran.err
    );
}

#[test]
fn what_is_known_of_a_model_with_a_long_header_is_written_piece_by_piece() {
    let yard = Yard::new();
    let tensors: Vec<_> = (0..150_000)
        .map(|i| {
            let end = i + 1;
            format!("\"model.layers.{i:07}.weight\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[{i},{end}]}}")
        })
        .collect();
    let header = format!("{{{}}}", tensors.join(","));
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.into_bytes());
    bytes.resize(bytes.len() + 150_000, 0);
    fs::write(yard.path("long.safetensors"), bytes).unwrap();
    // 250 MB of addresses. As one value and one text it took 380 MB of memory.
    let limited = "ulimit -v 250000; exec \"$0\" inspect --json long.safetensors";
    let ran = yard.run_program("bash", &["-c", limited, env!("CARGO_BIN_EXE_straightway")]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let found: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(found["tensors"].as_array().unwrap().len(), 150_000);
}
