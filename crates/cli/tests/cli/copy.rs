//! What `copy` does when all goes well.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs,
    io::{Seek, SeekFrom, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{MetadataExt, PermissionsExt, symlink},
    },
    path::Path,
};

use serde_json::Value;

use crate::yard::{Yard, noise, routed};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn every_size_arrives_whole_by_every_route() {
    let yard = Yard::new();
    for len in [0, 1, 4095, 4096, 4097, 1_500_001] {
        yard.file("source", len, len as u64);
        for route in ["auto", "direct", "staged", "buffered"] {
            let receipt = yard.receipt(&["source", "target", "--route", route]);
            assert!(
                fs::read(yard.path("target")).unwrap() == noise(len, len as u64),
                "{len} by {route}"
            );
            assert_eq!(receipt["bytes"], len as u64);
            for leg in ["read", "write"] {
                assert_eq!(routed(&receipt, leg, None), len as u64, "{receipt}");
                let others = ["direct", "staged", "buffered"].into_iter();
                let others = others.filter(|other| match route {
                    "auto" => false,
                    // A ragged end travels inside an aligned superset, by O_DIRECT too.
                    "direct" => *other == "buffered",
                    demanded => *other != demanded,
                });
                let detour: u64 = others.map(|o| routed(&receipt, leg, Some(o))).sum();
                assert_eq!(detour, 0, "{len} by {route}: {receipt}");
            }
        }
    }
    assert_eq!(yard.names(), ["source", "target"]);
}

#[test]
fn three_gibibytes_and_one_byte_with_holes_arrive_with_holes() {
    const BYTES: u64 = (3 << 30) + 1;
    let yard = Yard::new();
    let mut source = fs::File::create(yard.path("source")).unwrap();
    source.set_len(BYTES).unwrap();
    let islands = [(0, 5000), ((1 << 30) + 777, 100_000), (BYTES - 1, 1)];
    for (at, len) in islands {
        source.seek(SeekFrom::Start(at)).unwrap();
        source.write_all(&noise(len, at)).unwrap();
    }
    source.sync_all().unwrap();
    for route in ["auto", "direct", "buffered"] {
        yard.receipt(&["source", "target", "--route", route]);
        let meta = fs::metadata(yard.path("target")).unwrap();
        assert_eq!(meta.len(), BYTES);
        assert!(meta.blocks() * 512 < 2 << 20, "{} blocks", meta.blocks());
        let target = fs::File::open(yard.path("target")).unwrap();
        for (at, len) in islands {
            let mut bytes = vec![0; len];
            std::os::unix::fs::FileExt::read_exact_at(&target, &mut bytes, at).unwrap();
            assert!(bytes == noise(len, at), "{route}: at {at}");
        }
    }
}

#[test]
fn an_old_target_is_replaced_whole_whether_longer_or_shorter() {
    let yard = Yard::new();
    yard.file("source", 10_000, 1);
    for len in [0, 9_999, 100_000] {
        yard.file("target", len, 2);
        yard.receipt(&["source", "target"]);
        assert!(fs::read(yard.path("target")).unwrap() == noise(10_000, 1));
    }
}

#[test]
fn several_files_go_into_a_folder_and_keep_their_permissions() {
    let yard = Yard::new();
    let folder = yard.folder("into");
    for (name, seed, bits) in [("a", 1, 0o600), ("b", 2, 0o755), ("c", 3, 0o444)] {
        set_mode(&yard.file(name, 5000, seed), bits);
    }
    let receipt = yard.receipt(&["a", "b", "c", "into"]);
    assert_eq!(receipt["bytes"], 15_000);
    for (name, seed, bits) in [("a", 1, 0o600), ("b", 2, 0o755), ("c", 3, 0o444)] {
        assert!(fs::read(folder.join(name)).unwrap() == noise(5000, seed));
        assert_eq!(mode(&folder.join(name)), bits);
    }
}

#[test]
fn a_copy_does_not_lend_the_rights_of_its_owner() {
    let yard = Yard::new();
    set_mode(&yard.file("source", 10, 1), 0o4755);
    yard.receipt(&["source", "target"]);
    assert_eq!(mode(&yard.path("target")), 0o755);
}

#[test]
fn a_folder_arrives_with_everything_in_it() {
    let yard = Yard::new();
    yard.folder("tree/empty");
    set_mode(&yard.folder("tree/nested/deep"), 0o700);
    yard.file("tree/nested/deep/file", 70_000, 1);
    yard.file("tree/hollow", 0, 1);
    symlink("nested/deep/file", yard.path("tree/link")).unwrap();
    symlink("nowhere", yard.path("tree/dangling")).unwrap();
    for i in 0..300 {
        yard.file(&format!("tree/small-{i}"), i * 7, i as u64);
    }
    set_mode(&yard.path("tree/nested"), 0o555);
    let receipt = yard.receipt(&["tree", "copy", "--verify"]);
    assert_eq!(receipt["bytes"], 70_000 + 7 * (299 * 300 / 2));
    set_mode(&yard.path("tree/nested"), 0o755);
    assert_eq!(mode(&yard.path("copy/nested")), 0o555);
    set_mode(&yard.path("copy/nested"), 0o755);
    assert_eq!(mode(&yard.path("copy/nested/deep")), 0o700);
    let inside = |top: &str| -> Vec<_> {
        let names = yard.names().into_iter();
        names
            .filter_map(|name| name.strip_prefix(top).map(str::to_owned))
            .collect()
    };
    assert_eq!(inside("tree/"), inside("copy/"));
    for name in inside("copy/") {
        let (from, to) = (yard.path("tree").join(&name), yard.path("copy").join(&name));
        if to.is_symlink() {
            assert_eq!(fs::read_link(from).unwrap(), fs::read_link(to).unwrap());
        } else if to.is_file() {
            assert!(fs::read(from).unwrap() == fs::read(to).unwrap(), "{name}");
        }
    }
    // Into a folder that is there it goes under its own name, and a second time over itself.
    yard.folder("into");
    for _ in 0..2 {
        yard.receipt(&["tree", "into"]);
        assert_eq!(inside("tree/"), inside("into/tree/"));
    }
}

#[test]
fn names_may_be_of_any_bytes_and_as_long_as_names_get() {
    let yard = Yard::new();
    let odd = OsStr::from_bytes(b"\xff\n odd \xfe");
    let long = "n".repeat(255);
    yard.folder("into");
    for name in [odd, OsStr::new(&long)] {
        fs::write(yard.path(name), b"bytes").unwrap();
        let args = [OsStr::new("copy"), name, OsStr::new("into")];
        let ran = yard.run(args);
        assert_eq!(ran.code, Some(0), "{}", ran.err);
        assert_eq!(fs::read(yard.path("into").join(name)).unwrap(), b"bytes");
    }
}

/// All keys of a value, with the way to each.
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
fn a_receipt_has_the_fields_that_are_documented_and_no_others() {
    let yard = Yard::new();
    yard.file("source", 2_000_001, 1);
    let receipt = yard.receipt(&["source", "target", "--verify"]);
    let page = include_str!("../../../../docs/receipt.md");
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
    let yard = Yard::new();
    yard.file("source", 8192, 1);
    let ran = yard.run(["copy", "source", "target", "--route", "buffered"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.out.starts_with("8 KiB in "), "{}", ran.out);
    for line in ["read  buffered", "write buffered"] {
        let line = ran.out.lines().find(|l| l.trim().starts_with(line));
        assert!(line.unwrap().ends_with("asked for"), "{}", ran.out);
    }
    assert_eq!(ran.err, "", "nothing is said where nobody sits");
}

#[test]
fn memory_is_a_target() {
    let yard = Yard::new();
    yard.file("a", 100_001, 1);
    yard.file("b", 0, 2);
    for route in ["auto", "direct", "staged", "buffered"] {
        let receipt = yard.receipt(&["a", "b", "a", "host:", "--route", route]);
        assert_eq!(receipt["bytes"], 200_002);
        assert_eq!(routed(&receipt, "read", None), 200_002);
        assert_eq!(routed(&receipt, "write", None), 0);
    }
    assert_eq!(yard.names(), ["a", "b"]);
}

#[test]
fn more_files_than_may_usually_be_open_go_into_memory() {
    let yard = Yard::new();
    let names: Vec<_> = (0..600).map(|i| format!("file-{i}")).collect();
    for (i, name) in names.iter().enumerate() {
        yard.file(name, 100, i as u64);
    }
    // Two descriptors each: more than the 1024 that most shells give.
    let limited = "ulimit -S -n 1024; exec \"$0\" copy file-* host: --json";
    let script = ["-c", limited, env!("CARGO_BIN_EXE_straightway")];
    let ran = yard.run_program("sh", &script);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let receipt: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(receipt["bytes"], 60_000);
}

#[test]
fn any_tuning_that_is_allowed_gives_the_same_bytes() {
    let yard = Yard::new();
    yard.file("source", 3_000_001, 1);
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
        yard.receipt(&args);
        assert!(
            fs::read(yard.path("target")).unwrap() == noise(3_000_001, 1),
            "{tuning}"
        );
    }
}

#[test]
fn a_limit_is_kept_to_on_every_route_and_the_receipt_says_that_it_bound() {
    let yard = Yard::new();
    yard.file("source", 1_000_000, 1);
    for target in ["host:", "target"] {
        for route in ["auto", "direct", "buffered"] {
            let args = ["source", target, "--route", route, "--limit", "4MB/s"];
            // Others may take the machine for so long that the limit does not bind: then it is tried again.
            let kept = (0..5).any(|_| {
                let receipt = yard.receipt(&[&args[..], &["--chunk", "16KiB"]].concat());
                let moved = receipt["bytes"].as_f64().unwrap();
                let rate = moved / receipt["seconds"].as_f64().unwrap();
                // What was saved up before the start, 50 ms, may come on top.
                assert!(rate < 5.5e6, "{target} by {route}: {rate}");
                // A copy is no slower than it may be.
                receipt["bound_by"] == "throttle" && rate > 3.5e6
            });
            assert!(kept, "{target} by {route}");
        }
    }
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    let yard = Yard::new();
    yard.file("source", 100, 1);
    for args in [
        &["copy", "--json", "source", "host:"][..],
        &["copy", "source", "host:"],
    ] {
        let mut child = yard.command(args).spawn().unwrap();
        drop(child.stdout.take());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{args:?}");
    }
}

#[test]
fn a_link_in_the_target_tree_leads_nothing_out_of_it() {
    let yard = Yard::new();
    yard.folder("source/sub/deep");
    yard.file("source/sub/deep/f", 5000, 1);
    yard.file("source/g", 5000, 2);
    std::os::unix::fs::symlink("g", yard.path("source/link")).unwrap();
    yard.folder("victim/deep");
    yard.file("victim/deep/f", 100, 3);
    for (target, link, to) in [
        ("target", "target/source", "../victim"),
        ("target", "target/source/sub", "../../victim"),
        ("target", "target/source/sub/deep", "../../../victim/deep"),
    ] {
        yard.folder(Path::new(link).parent().unwrap().to_str().unwrap());
        std::os::unix::fs::symlink(to, yard.path(link)).unwrap();
        let ran = yard.run(["copy", "source", target]);
        assert_eq!(ran.code, Some(2), "{link}: {}", ran.out);
        let message = format!("error: cannot open {link}: it is a symbolic link");
        assert!(ran.err.starts_with(&message), "{}", ran.err);
        fs::remove_dir_all(yard.path(target)).unwrap();
    }
    // A link to a file is replaced by the file, and what the user named may be a link itself.
    yard.folder("target/source");
    std::os::unix::fs::symlink("../../victim/deep/f", yard.path("target/source/g")).unwrap();
    std::os::unix::fs::symlink("target", yard.path("named")).unwrap();
    let ran = yard.run(["copy", "source", "named", "--verify"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(
        fs::read(yard.path("target/source/g")).unwrap(),
        noise(5000, 2)
    );
    assert_eq!(
        fs::read_link(yard.path("target/source/link")).unwrap(),
        Path::new("g")
    );
    assert_eq!(fs::read(yard.path("victim/deep/f")).unwrap(), noise(100, 3));
    assert_eq!(fs::read_dir(yard.path("victim/deep")).unwrap().count(), 1);
}
