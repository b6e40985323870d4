//! Refused commands: exit code 2, a message that names the object, and nothing left behind.

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixListener,
    },
    path::Path,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::test_dir::{Ran, TestDir, in_memory};

/// Expects that `copy` with `args` is refused and changes nothing. Returns its message.
fn refused(dir: &TestDir, args: &str) -> String {
    let before = dir.names();
    let ran = dir.run(std::iter::once("copy").chain(args.split(' ')));
    judge(dir, args, &ran, &before)
}

fn judge(dir: &TestDir, args: &str, ran: &Ran, before: &[String]) -> String {
    assert_eq!(ran.code, Some(2), "{args}: {ran:?}");
    assert_eq!(ran.out, "", "{args}: stdout is for data");
    assert!(!ran.err.contains("panicked"), "{args}: {}", ran.err);
    assert_eq!(dir.names(), before, "{args}: something was left behind");
    format!("$ copy {args}\n{}", dir.redact(&ran.err))
}

fn all_refused(dir: &TestDir, lines: &[&str]) -> String {
    lines.iter().map(|args| refused(dir, args)).collect()
}

#[test]
fn paths_that_make_no_sense() {
    let dir = TestDir::new();
    dir.file("file", 5000, 1);
    dir.folder("folder/inner");
    dir.file("folder/file", 100, 2);
    dir.folder("other");
    dir.file("other/file", 100, 3);
    let said = all_refused(
        &dir,
        &[
            "missing target",
            "missing host:",
            "folder host:",
            "folder file",
            "file no-such-folder/target",
            "file no-such-folder/",
            "file file/target",
            "file folder missing-too",
            "file folder file",
            "file other/file folder",
            "folder folder/inner",
            "folder folder/inner/new",
            "folder folder",
            ". new",
            "file host: --verify",
            "file target --trace file",
            "file target --trace ./target",
            "file host: --trace file",
            "folder new --trace folder/file",
        ],
    );
    insta::assert_snapshot!(said);
    assert_eq!(fs::read(dir.path("file")).unwrap().len(), 5000);
}

#[test]
fn two_sources_with_the_same_target_name() {
    let dir = TestDir::new();
    dir.folder("one/x");
    dir.folder("two/x");
    dir.folder("three/x/l");
    dir.folder("into");
    std::os::unix::fs::symlink("nowhere", dir.path("one/x/l")).unwrap();
    dir.file("two/x/l", 10, 1);
    let said = all_refused(&dir, &["one/x two/x into", "two/x three/x into", "three/x one/x into"]);
    insta::assert_snapshot!(said);
}

#[test]
fn a_file_onto_itself() {
    let dir = TestDir::new();
    dir.file("file", 5000, 1);
    dir.folder("folder");
    symlink("file", dir.path("symlink")).unwrap();
    fs::hard_link(dir.path("file"), dir.path("hard-link")).unwrap();
    symlink("../file", dir.path("folder/file")).unwrap();
    let lines = [
        "file file",
        "file ./folder/../file",
        "file symlink",
        "symlink file",
        "file hard-link",
        "file folder",
    ];
    insta::assert_snapshot!(all_refused(&dir, &lines));
    assert_eq!(fs::read(dir.path("file")).unwrap().len(), 5000);
}

#[test]
fn sources_and_targets_that_are_not_files() {
    let dir = TestDir::new();
    dir.file("file", 5000, 1);
    dir.folder("tree");
    for name in ["pipe", "tree/pipe"] {
        mknodat(CWD, dir.path(name), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    }
    let _socket = UnixListener::bind(dir.path("socket")).unwrap();
    let lines = [
        "pipe target",
        "pipe host:",
        "socket target",
        "socket host:",
        "tree target",
        "/dev/zero target",
        "/dev/zero host:",
        "/proc/self/status target",
        "/proc/self/status host:",
        "file pipe",
        "file socket",
    ];
    insta::assert_snapshot!(all_refused(&dir, &lines));
}

#[test]
fn a_device_is_not_replaced_by_a_file() {
    let dir = TestDir::new();
    dir.file("file", 5000, 1);
    // A separate null device, so that the machine's is not at risk.
    let made = mknodat(
        CWD,
        dir.path("null"),
        FileType::CharacterDevice,
        Mode::RUSR | Mode::WUSR,
        rustix::fs::makedev(1, 3),
    );
    if let Err(error) = made {
        eprintln!("skipped: cannot make a device: {error}");
        return;
    }
    symlink("null", dir.path("link")).unwrap();
    insta::assert_snapshot!(all_refused(&dir, &["file null", "file link"]));
    assert!(!fs::symlink_metadata(dir.path("null")).unwrap().is_file());
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn files_without_permission() {
    let dir = TestDir::new();
    set_mode(dir.root(), 0o777);
    set_mode(&dir.file("secret", 5000, 1), 0o000);
    set_mode(&dir.file("open", 5000, 2), 0o644);
    set_mode(&dir.folder("locked"), 0o555);
    dir.folder("shut");
    dir.file("shut/file", 1, 1);
    let before = dir.names();
    set_mode(&dir.path("shut"), 0o000);
    let mut said = String::new();
    for args in [
        "secret target",
        "secret host:",
        "open locked",
        "open locked/target",
        "shut target",
        "shut/file target",
    ] {
        let words: Vec<_> = std::iter::once("copy").chain(args.split(' ')).collect();
        let Some(ran) = dir.run_as_nobody(&words) else {
            return;
        };
        set_mode(&dir.path("shut"), 0o755);
        said += &judge(&dir, args, &ran, &before);
        set_mode(&dir.path("shut"), 0o000);
    }
    set_mode(&dir.path("shut"), 0o755);
    insta::assert_snapshot!(said);
}

#[test]
fn flags_that_make_no_sense() {
    let dir = TestDir::new();
    dir.file("file", 5000, 1);
    let said = all_refused(
        &dir,
        &[
            "file target --chunk 5",
            "file target --chunk 0",
            "file target --chunk 6000",
            "file target --chunk 2GiB",
            "file target --chunk 16EiB",
            "file target --chunk 8000PiB --lanes 256",
            "file target --chunk -4KiB",
            "file target --chunk many",
            "file target --depth 0",
            "file target --depth 5000",
            "file target --staging 1",
            "file target --staging 0",
            "file target --staging 1MiB --chunk 4MiB",
            "file target --limit 0",
            "file target --limit 0.5",
            "file target --limit NaN",
            "file target --limit inf",
            "file target --lanes 0",
            "file target --lanes 9999",
            "file target --route scenic",
            "file target --engine steam",
            "file target --trace no-such-folder/trace",
            "file",
        ],
    );
    insta::assert_snapshot!(said);
}

#[test]
fn a_route_that_is_not_possible() {
    let Some(memory) = in_memory() else { return };
    let dir = TestDir::new();
    dir.file("file", 5000, 1);
    fs::copy(dir.path("file"), memory.path().join("file")).unwrap();
    symlink(memory.path(), dir.path("memory")).unwrap();
    let lines = [
        "memory/file target --route direct",
        "memory/file host: --route direct",
        "memory/file host: --route staged",
        "file memory/target --route direct",
        "file memory/target --route staged",
    ];
    insta::assert_snapshot!(all_refused(&dir, &lines));
    assert_eq!(fs::read_dir(memory.path()).unwrap().count(), 1);
}

#[test]
fn a_report_or_trace_replaces_only_an_older_one() {
    let dir = TestDir::new();
    let header = br#"{"a":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#;
    let model = [&(header.len() as u64).to_le_bytes()[..], header, &[7; 8]].concat();
    let scenario = b"[checkpoint.model]\nparameters = 1e12\n[checkpoint.storage]\nrate = \"200GB/s\"\n";
    let precious: [(&str, &[u8]); 4] = [
        ("m.safetensors", &model),
        ("s.toml", scenario),
        ("drive", &[7; 8192]),
        ("page.html", b"<!DOCTYPE html>by hand"),
    ];
    for (name, bytes) in precious {
        fs::write(dir.path(name), bytes).unwrap();
    }
    std::os::unix::fs::symlink("m.safetensors", dir.path("link")).unwrap();
    fs::hard_link(dir.path("m.safetensors"), dir.path("twin")).unwrap();
    for line in [
        "inspect m.safetensors --html m.safetensors",
        "inspect m.safetensors --html link",
        "inspect m.safetensors --html twin",
        "inspect link --html m.safetensors",
        "inspect . --html m.safetensors",
        "plan checkpoint --scenario s.toml --html s.toml",
        "plan checkpoint --scenario s.toml --html drive",
        "bench page.html --html page.html --no-profile",
        "bench drive --html drive --no-profile",
        "copy drive copy --trace drive",
        "copy drive copy --trace m.safetensors",
        "copy drive host: --trace link",
    ] {
        let ran = dir.run(line.split(' '));
        assert_eq!(ran.code, Some(2), "{line}: {}", ran.out);
        assert!(ran.err.starts_with("error: cannot write to "), "{line}: {}", ran.err);
        for (name, bytes) in precious {
            assert_eq!(fs::read(dir.path(name)).unwrap(), bytes, "{line}: {name}");
        }
        assert!(!dir.path("copy").exists() && !dir.has_part(), "{line}");
    }
    // An older report or trace is replaced. Of a link, the link itself is replaced and not its target.
    std::os::unix::fs::symlink("page.html", dir.path("shared.html")).unwrap();
    for line in [
        "inspect m.safetensors --html new.html",
        "inspect m.safetensors --html new.html",
        "inspect m.safetensors --html shared.html",
        "inspect m.safetensors --html /dev/null",
        "copy drive copy --trace new.trace",
        "copy drive copy --trace new.trace",
    ] {
        let ran = dir.run(line.split(' '));
        assert_eq!(ran.code, Some(0), "{line}: {}", ran.err);
    }
    assert_eq!(fs::read(dir.path("page.html")).unwrap(), precious[3].1);
    assert!(fs::symlink_metadata(dir.path("shared.html")).unwrap().is_file());
}

#[test]
fn objects_in_unsupported_stores() {
    let dir = TestDir::new();
    for (args, why) in [
        (
            "load gs://bucket/m",
            "the scheme \"gs\" is not supported; use s3://BUCKET/KEY",
        ),
        (
            "inspect memory:x/m",
            "memory:x/m: this program has no such store\nhint: copy it by other means to where this \
             program reaches: a path, s3://BUCKET/KEY",
        ),
        ("checkpoint ls memory:x/run", "this program has no such store"),
        (
            "load memory:x/m.safetensors",
            "memory:x/m.safetensors: this program has no such store",
        ),
        ("load s3://b/m", "a bucket is 3 to 63"),
        (
            "inspect nvme-tcp://127.0.0.1:9/nqn.m",
            "cannot connect to 127.0.0.1:9: nobody listens there",
        ),
        // A path that looks like a URI.
        ("load ./gs://bucket/m", "No such file"),
    ] {
        let ran = dir.run(args.split(' '));
        assert_eq!(ran.code, Some(2), "{args}: {ran:?}");
        assert!(ran.err.contains(why), "{args}: {}", ran.err);
    }
}
