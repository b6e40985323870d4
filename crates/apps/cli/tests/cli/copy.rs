//! `copy` in the cases that succeed.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    io::{Seek, SeekFrom, Write},
    mem::MaybeUninit,
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
};

use rustix::fs::inotify;
use serde_json::Value;

use crate::test_dir::{PART, TestDir, noise, routed};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn every_size_arrives_whole_by_every_route() {
    let dir = TestDir::new();
    for len in [0, 1, 4095, 4096, 4097, 1_500_001] {
        dir.file("source", len, len as u64);
        for route in ["auto", "direct", "staged", "buffered"] {
            let receipt = dir.receipt(&["source", "target", "--route", route]);
            assert!(
                fs::read(dir.path("target")).unwrap() == noise(len, len as u64),
                "{len} by {route}"
            );
            assert_eq!(receipt["bytes"], len as u64);
            for leg in ["read", "write"] {
                assert_eq!(routed(&receipt, leg, None), len as u64, "{receipt}");
                let others = ["direct", "staged", "buffered"].into_iter();
                let others = others.filter(|other| match route {
                    "auto" => false,
                    // An unaligned end is copied inside an aligned superset, with O_DIRECT too.
                    "direct" => *other == "buffered",
                    demanded => *other != demanded,
                });
                let detour: u64 = others.map(|o| routed(&receipt, leg, Some(o))).sum();
                assert_eq!(detour, 0, "{len} by {route}: {receipt}");
            }
        }
    }
    assert_eq!(dir.names(), ["source", "target"]);
}

#[test]
fn three_gibibytes_and_one_byte_with_holes_arrive_with_holes() {
    const BYTES: u64 = (3 << 30) + 1;
    let dir = TestDir::new();
    let mut source = fs::File::create(dir.path("source")).unwrap();
    source.set_len(BYTES).unwrap();
    let islands = [(0, 5000), ((1 << 30) + 777, 100_000), (BYTES - 1, 1)];
    for (at, len) in islands {
        source.seek(SeekFrom::Start(at)).unwrap();
        source.write_all(&noise(len, at)).unwrap();
    }
    source.sync_all().unwrap();
    for route in ["auto", "direct", "buffered"] {
        dir.receipt(&["source", "target", "--route", route]);
        let meta = fs::metadata(dir.path("target")).unwrap();
        assert_eq!(meta.len(), BYTES);
        assert!(meta.blocks() * 512 < 2 << 20, "{} blocks", meta.blocks());
        let target = fs::File::open(dir.path("target")).unwrap();
        for (at, len) in islands {
            let mut bytes = vec![0; len];
            std::os::unix::fs::FileExt::read_exact_at(&target, &mut bytes, at).unwrap();
            assert!(bytes == noise(len, at), "{route}: at {at}");
        }
    }
}

#[test]
fn an_existing_target_is_replaced_whether_longer_or_shorter() {
    let dir = TestDir::new();
    dir.file("source", 10_000, 1);
    for len in [0, 9_999, 100_000] {
        dir.file("target", len, 2);
        dir.receipt(&["source", "target"]);
        assert!(fs::read(dir.path("target")).unwrap() == noise(10_000, 1));
    }
}

#[test]
fn several_files_go_into_a_folder_and_keep_their_permissions() {
    let dir = TestDir::new();
    let folder = dir.folder("into");
    for (name, seed, bits) in [("a", 1, 0o600), ("b", 2, 0o755), ("c", 3, 0o444)] {
        set_mode(&dir.file(name, 5000, seed), bits);
    }
    let receipt = dir.receipt(&["a", "b", "c", "into"]);
    assert_eq!(receipt["bytes"], 15_000);
    for (name, seed, bits) in [("a", 1, 0o600), ("b", 2, 0o755), ("c", 3, 0o444)] {
        assert!(fs::read(folder.join(name)).unwrap() == noise(5000, seed));
        assert_eq!(mode(&folder.join(name)), bits);
    }
}

#[test]
fn a_copy_drops_the_setuid_bit() {
    let dir = TestDir::new();
    set_mode(&dir.file("source", 10, 1), 0o4755);
    dir.receipt(&["source", "target"]);
    assert_eq!(mode(&dir.path("target")), 0o755);
}

#[test]
fn a_folder_arrives_with_everything_in_it() {
    let dir = TestDir::new();
    dir.folder("tree/empty");
    set_mode(&dir.folder("tree/nested/deep"), 0o700);
    dir.file("tree/nested/deep/file", 70_000, 1);
    dir.file("tree/hollow", 0, 1);
    symlink("nested/deep/file", dir.path("tree/link")).unwrap();
    symlink("nowhere", dir.path("tree/dangling")).unwrap();
    for i in 0..300 {
        dir.file(&format!("tree/small-{i}"), i * 7, i as u64);
    }
    set_mode(&dir.path("tree/nested"), 0o555);
    let receipt = dir.receipt(&["tree", "copy", "--verify"]);
    assert_eq!(receipt["bytes"], 70_000 + 7 * (299 * 300 / 2));
    set_mode(&dir.path("tree/nested"), 0o755);
    assert_eq!(mode(&dir.path("copy/nested")), 0o555);
    set_mode(&dir.path("copy/nested"), 0o755);
    assert_eq!(mode(&dir.path("copy/nested/deep")), 0o700);
    let inside = |top: &str| -> Vec<_> {
        let names = dir.names().into_iter();
        names
            .filter_map(|name| name.strip_prefix(top).map(str::to_owned))
            .collect()
    };
    assert_eq!(inside("tree/"), inside("copy/"));
    for name in inside("copy/") {
        let (from, to) = (dir.path("tree").join(&name), dir.path("copy").join(&name));
        if to.is_symlink() {
            assert_eq!(fs::read_link(from).unwrap(), fs::read_link(to).unwrap());
        } else if to.is_file() {
            assert!(fs::read(from).unwrap() == fs::read(to).unwrap(), "{name}");
        }
    }
    // Into an existing folder it goes under its own name; a second copy replaces the first.
    dir.folder("into");
    for _ in 0..2 {
        dir.receipt(&["tree", "into"]);
        assert_eq!(inside("tree/"), inside("into/tree/"));
    }
}

#[test]
fn names_may_have_any_bytes_and_the_maximum_length() {
    let dir = TestDir::new();
    let odd = OsStr::from_bytes(b"\xff\n odd \xfe");
    let long = "n".repeat(255);
    dir.folder("into");
    for name in [odd, OsStr::new(&long)] {
        fs::write(dir.path(name), b"bytes").unwrap();
        let args = [OsStr::new("copy"), name, OsStr::new("into")];
        let ran = dir.run(args);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert_eq!(fs::read(dir.path("into").join(name)).unwrap(), b"bytes");
    }
}

/// All keys of a value, with the path of each.
fn keys(value: &Value, way: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let way = format!("{way}.{name}");
                keys(field, &way, found);
                found.insert(way);
            }
        }
        Value::Array(rows) => rows.iter().for_each(|row| keys(row, way, found)),
        _ => {}
    }
}

#[test]
fn a_receipt_has_exactly_the_documented_fields() {
    let dir = TestDir::new();
    dir.file("source", 2_000_001, 1);
    let receipt = dir.receipt(&["source", "target", "--verify"]);
    let page = include_str!("../../../../../docs/receipt.md");
    let example = page.split("```json").nth(1).unwrap();
    let example: Value = serde_json::from_str(example.split("```").next().unwrap()).unwrap();
    let (mut documented, mut there) = (BTreeSet::new(), BTreeSet::new());
    keys(&example, "", &mut documented);
    keys(&receipt, "", &mut there);
    assert_eq!(documented, there);
    assert_eq!(receipt["schema"], example["schema"]);
    let number = |field: &str| receipt[field].as_f64().unwrap();
    let rate = number("bytes") / number("seconds");
    assert!((rate / number("rate_bytes_per_s") - 1.0).abs() < 1e-6);
    assert!(number("storage_bytes") >= 2.0 * number("bytes"));
    assert!(number("staging_bytes_peak") <= 64.0 * 1024.0 * 1024.0);
}

#[test]
fn the_table_for_people_says_the_route_and_the_reason() {
    let dir = TestDir::new();
    dir.file("source", 8192, 1);
    let ran = dir.run(["copy", "source", "target", "--route", "buffered"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.out.starts_with("8 KiB in "), "{}", ran.out);
    for line in ["read  buffered", "write buffered"] {
        let line = ran.out.lines().find(|l| l.trim().starts_with(line));
        assert!(line.unwrap().ends_with("requested"), "{}", ran.out);
    }
    assert_eq!(ran.err, "", "no progress without a terminal");
}

#[test]
fn memory_is_a_target() {
    let dir = TestDir::new();
    dir.file("a", 100_001, 1);
    dir.file("b", 0, 2);
    for route in ["auto", "direct", "staged", "buffered"] {
        let receipt = dir.receipt(&["a", "b", "a", "host:", "--route", route]);
        assert_eq!(receipt["bytes"], 200_002);
        assert_eq!(routed(&receipt, "read", None), 200_002);
        assert_eq!(routed(&receipt, "write", None), 0);
    }
    assert_eq!(dir.names(), ["a", "b"]);
}

#[test]
fn more_files_than_the_soft_limit_are_read_into_memory() {
    let dir = TestDir::new();
    let names: Vec<_> = (0..600).map(|i| format!("file-{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        dir.file(name, 100, i as u64);
    }
    // Two descriptors per file: more than 1024, the default limit of most shells.
    let limited = "ulimit -S -n 1024; exec \"$0\" copy file-* host: --json";
    let script = ["-c", limited, env!("CARGO_BIN_EXE_straightway")];
    let ran = dir.run_program("sh", &script);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let receipt: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(receipt["bytes"], 60_000);
}

#[test]
fn any_valid_tuning_copies_the_same_bytes() {
    let dir = TestDir::new();
    dir.file("source", 3_000_001, 1);
    for tuning in [
        "--chunk 4KiB --depth 1 --staging 4KiB",
        "--chunk 64KiB --depth 64 --lanes 8",
        "--staging 1000000 --lanes 3",
        "--engine pool --depth 4096 --chunk 4KiB",
        "--lanes 256 --staging 1MiB",
        "--limit 100MB/s",
    ] {
        let args = ["source", "target", "--verify"].into_iter();
        let args: Vec<_> = args.chain(tuning.split(' ')).collect();
        dir.receipt(&args);
        assert!(fs::read(dir.path("target")).unwrap() == noise(3_000_001, 1), "{tuning}");
    }
}

#[test]
fn a_rate_limit_holds_on_every_route_and_the_receipt_names_it() {
    let dir = TestDir::new();
    dir.file("source", 60_000, 1);
    for target in ["host:", "target"] {
        for route in ["auto", "direct", "buffered"] {
            // A low limit, which a busy machine reaches too. If a copy is slower still, it is tried again.
            let args = ["source", target, "--route", route, "--limit", "50kB/s"];
            let kept = (0..20).any(|_| {
                let receipt = dir.receipt(&[&args[..], &["--chunk", "4KiB"]].concat());
                let moved = receipt["bytes"].as_f64().unwrap();
                let rate = moved / receipt["seconds"].as_f64().unwrap();
                // The initial burst of 50 ms may be added.
                assert!(rate < 70e3, "{target} by {route}: {rate}");
                // The limit does not slow the copy down further.
                receipt["bound_by"] == "throttle" && rate > 42e3
            });
            assert!(kept, "{target} by {route}");
        }
    }
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let dir = TestDir::new();
    dir.file("source", 100, 1);
    for args in [&["copy", "--json", "source", "host:"][..], &["copy", "source", "host:"]] {
        let mut child = dir.command(args).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
    }
}

#[test]
fn a_link_in_the_target_tree_is_not_followed_out_of_it() {
    let dir = TestDir::new();
    dir.folder("source/sub/deep");
    dir.file("source/sub/deep/f", 5000, 1);
    dir.file("source/g", 5000, 2);
    std::os::unix::fs::symlink("g", dir.path("source/link")).unwrap();
    dir.folder("victim/deep");
    dir.file("victim/deep/f", 100, 3);
    for (target, link, to) in [
        ("target", "target/source", "../victim"),
        ("target", "target/source/sub", "../../victim"),
        ("target", "target/source/sub/deep", "../../../victim/deep"),
    ] {
        dir.folder(Path::new(link).parent().unwrap().to_str().unwrap());
        std::os::unix::fs::symlink(to, dir.path(link)).unwrap();
        let ran = dir.run(["copy", "source", target]);
        assert_eq!(ran.code, Some(2), "{link}: {}", ran.out);
        let message = format!("error: cannot open {link}: it is a symbolic link");
        assert!(ran.err.starts_with(&message), "{}", ran.err);
        fs::remove_dir_all(dir.path(target)).unwrap();
    }
    // A link to a file is replaced by the file. The path of the command line may be a link itself.
    dir.folder("target/source");
    std::os::unix::fs::symlink("../../victim/deep/f", dir.path("target/source/g")).unwrap();
    std::os::unix::fs::symlink("target", dir.path("named")).unwrap();
    let ran = dir.run(["copy", "source", "named", "--verify"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(fs::read(dir.path("target/source/g")).unwrap(), noise(5000, 2));
    assert_eq!(fs::read_link(dir.path("target/source/link")).unwrap(), Path::new("g"));
    assert_eq!(fs::read(dir.path("victim/deep/f")).unwrap(), noise(100, 3));
    assert_eq!(fs::read_dir(dir.path("victim/deep")).unwrap().count(), 1);
}

#[test]
fn a_link_in_the_target_tree_is_replaced_at_once() {
    let dir = TestDir::new();
    dir.folder("source");
    dir.folder("target/source");
    symlink("new", dir.path("source/link")).unwrap();
    symlink("new", dir.path("source/file")).unwrap();
    symlink("old", dir.path("target/source/link")).unwrap();
    dir.file("target/source/file", 10, 1);
    // A link of a killed copy.
    symlink("new", dir.path(format!("target/source/.link.0123{PART}"))).unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let events = inotify::WatchFlags::DELETE | inotify::WatchFlags::MOVED_TO;
    inotify::add_watch(&watch, dir.path("target/source"), events).unwrap();
    dir.file("source/new", 10, 2);
    dir.receipt(&["source", "target"]);
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut seen = inotify::Reader::new(&watch, &mut buffer);
    let (mut removed, mut placed) = (Vec::new(), Vec::new());
    while let Ok(event) = seen.next() {
        let name = event.file_name().unwrap().to_string_lossy().into_owned();
        if event.events().contains(inotify::ReadFlags::DELETE) {
            removed.push(name);
        } else {
            placed.push(name);
        }
    }
    placed.sort();
    assert_eq!(placed, ["file", "link", "new"]);
    assert_eq!(removed, [format!(".link.0123{PART}")], "no name was ever missing");
    for name in ["file", "link"] {
        let link = dir.path(format!("target/source/{name}"));
        assert_eq!(fs::read_link(link).unwrap(), Path::new("new"));
    }
    assert!(!dir.has_part());
    // What is not a file or a link stays.
    fs::remove_file(dir.path("target/source/link")).unwrap();
    dir.folder("target/source/link");
    let ran = dir.run(["copy", "source", "target"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(
        ran.err.contains("target/source/link: it is a folder, not a file"),
        "{}",
        ran.err
    );
    assert!(!dir.has_part());
}
