//! `copy` as people type it: `cp -r`, patterns, `--dry-run`, `--quiet`, names of memory, and what a repeated command does.

use std::{fs, os::unix::fs::symlink};

use rustix::process::Signal;
use serde_json::Value;

use crate::test_dir::{TestDir, noise};

#[test]
fn cp_with_its_flags_is_copy() {
    let dir = TestDir::new();
    dir.folder("model");
    dir.file("model/a", 5000, 1);
    dir.file("old", 10, 2);
    let ran = dir.run(["cp", "-r", "-f", "model", "new"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(fs::read(dir.path("new/a")).unwrap() == noise(5000, 1));
    let ran = dir.run(["copy", "--overwrite", "--quiet", "model/a", "old"]);
    assert_eq!((ran.code, &*ran.out, &*ran.err), (Some(0), "", ""), "quiet");
    assert!(fs::read(dir.path("old")).unwrap() == noise(5000, 1));
    dir.folder("empty");
    let ran = dir.run(["cp", "-q", "empty", "other"]);
    assert_eq!((ran.code, &*ran.out), (Some(0), ""));
    assert!(ran.err.contains("warning: no file was copied"), "{}", ran.err);
}

#[test]
fn a_dry_run_lists_everything_and_makes_nothing() {
    let dir = TestDir::new();
    dir.folder("tree/sub");
    dir.file("tree/sub/a", 5000, 1);
    symlink("sub/a", dir.path("tree/link")).unwrap();
    let before = dir.names();
    let ran = dir.run(["copy", "--dry-run", "tree", "new"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    for line in [
        "would make new/",
        "would make new/sub/",
        "would copy tree/sub/a to new/sub/a (4.88 KiB)",
        "would keep the link new/link -> sub/a",
        "1 file (4.88 KiB) and 1 link; nothing was written",
    ] {
        assert!(ran.out.lines().any(|said| said == line), "{line}: {}", ran.out);
    }
    let ran = dir.run(["copy", "-n", "--json", "tree", "new", "--cache", "cache"]);
    let plan: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(plan["files"][0]["target"], "new/sub/a");
    assert_eq!(plan["bytes"], 5000);
    let ran = dir.run(["copy", "-n", "tree/sub/a", "cuda:0"]);
    assert_eq!(ran.out, "would read tree/sub/a into cuda:0\n");
    assert_eq!(dir.names(), before);
    let ran = dir.run(["copy", "-n", "missing", "new"]);
    assert_eq!(ran.code, Some(2), "an error stays an error");
}

#[test]
fn quoted_patterns_match_local_names_and_a_literal_name_comes_first() {
    let dir = TestDir::new();
    dir.folder("model/sub");
    for (seed, name) in ["a.json", "b.json", ".hidden.json", "c.bin", "sub/d.json", "[a].json"]
        .iter()
        .enumerate()
    {
        dir.file(&format!("model/{name}"), 1000 + seed, seed as u64);
    }
    dir.folder("into");
    let ran = dir.run(["copy", "model/*.json", "into"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let names = |folder: &str| {
        let mut names: Vec<_> = fs::read_dir(dir.path(folder))
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names("into"), ["[a].json", "a.json", "b.json"]);
    assert!(fs::read(dir.path("into/b.json")).unwrap() == noise(1001, 1));
    // `[a].json` exists as it is written; as a pattern it would be `a.json`.
    dir.receipt(&["model/[a].json", "literal"]);
    assert!(fs::read(dir.path("literal")).unwrap() == noise(1005, 5));
    // A part in the middle, and folders with everything in them.
    dir.folder("deep");
    dir.receipt(&["m?del/s*/d.json", "model/su[a-b]", "deep"]);
    assert_eq!(names("deep"), ["d.json", "sub"]);
    assert!(fs::read(dir.path("deep/sub/d.json")).unwrap() == noise(1004, 4));
    for (args, words) in [
        (["copy", "model/*.txt", "into"], "matches nothing"),
        (["copy", "nowhere/*/x", "into"], "matches nothing"),
        // Even one match needs a folder: the result must not depend on the number of matches.
        (["copy", "model/*.bin", "new"], "need a folder"),
    ] {
        let ran = dir.run(args);
        assert_eq!(ran.code, Some(2), "{ran:?}");
        assert!(ran.err.contains(words), "{}", ran.err);
    }
}

#[test]
fn a_name_that_looks_like_memory_does_not_become_a_file() {
    let dir = TestDir::new();
    dir.file("source", 5000, 1);
    for target in ["host", "HOST:", "cpu", "host:"] {
        let receipt = dir.receipt(&["source", target]);
        assert_eq!(receipt["routes"][0]["leg"], "read", "{target}");
    }
    for (target, hint) in [
        ("cuda:", "cuda:0"),
        ("cuda:x", "cuda:0"),
        ("cuda0", "did you mean cuda:0?"),
        ("gpu1", "did you mean cuda:1?"),
        ("p2p:", "p2p:0000:04:00.0"),
        ("p2p:04:00.0", "did you mean p2p:0000:04:00.0?"),
    ] {
        let ran = dir.run(["copy", "source", target]);
        assert_eq!(ran.code, Some(2), "{target}: {ran:?}");
        let said = ran.err.contains(hint) && ran.err.contains(&format!("./{target}"));
        assert!(said, "{target}: {}", ran.err);
    }
    assert_eq!(dir.names(), ["source"]);
    // A word that is also the name of a folder is ambiguous.
    dir.folder("cuda");
    let ran = dir.run(["copy", "source", "cuda"]);
    assert!(
        ran.code == Some(2) && ran.err.contains("hint: write ./cuda or cuda:0"),
        "{ran:?}"
    );
    dir.receipt(&["source", "./cuda"]);
    assert!(fs::read(dir.path("cuda/source")).unwrap() == noise(5000, 1));
}

#[test]
fn the_same_command_after_an_interruption_writes_to_the_same_place() {
    let dir = TestDir::new();
    dir.folder("model/sub");
    dir.file("model/a", 1000, 1);
    dir.file("model/sub/b", 4 << 20, 2);
    let slowly = ["--limit", "2MB/s", "--chunk", "64KiB", "--depth", "2"];
    let mut running = dir.start(["copy", "model", "new/deep"].into_iter().chain(slowly));
    assert!(running.wait_until(|| dir.has_written_part()), "it never began");
    running.signal(Signal::INT);
    assert_eq!(running.wait().code, Some(130));
    assert!(!dir.path("new").exists(), "{:?}", dir.names());
    dir.receipt(&["model", "new/deep"]);
    assert!(fs::read(dir.path("new/deep/sub/b")).unwrap() == noise(4 << 20, 2));
}
