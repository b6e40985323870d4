//! `straightway kv`.

use std::fs;

use crate::test_dir::TestDir;

#[test]
fn a_kv_cache_is_measured_and_its_folder_is_left_as_it_was() {
    let dir = TestDir::new();
    let folder = dir.path("tiers");
    fs::create_dir(&folder).unwrap();
    let folder = folder.to_str().unwrap();
    let ran = dir.run(["kv", "bench", folder, "--size", "2MiB", "--kv-chunk", "64KiB", "--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&json["chunks"], &json["get"][0]["hits"]), (&32.into(), &32.into()));
    let ran = dir.run([
        "kv",
        "bench",
        folder,
        "--size",
        "1MiB",
        "--kv-chunk",
        "64KiB",
        "--encrypt",
    ]);
    assert!(ran.out.starts_with("16 chunks of 64 KiB, encrypted\n"), "{}", ran.out);
    assert_eq!(fs::read_dir(folder).unwrap().count(), 0);
    let ran = dir.run(["kv", "bench", folder, "--size", "1KiB"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("less than a chunk"), "{}", ran.err);
}

#[test]
fn a_kv_cache_is_shown_checked_and_removed() {
    let dir = TestDir::new();
    let folder = dir.path("tier");
    straightway_kv::Tier::create(&folder, 4096, 1 << 20).unwrap();
    fs::write(folder.join("notes.txt"), "mine").unwrap();
    let name = folder.to_str().unwrap();
    let ran = dir.run(["kv", "stat", name]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.contains("chunks      0 of at most "), "{}", ran.out);
    let ran = dir.run(["kv", "verify", name, "--json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let json: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!((&json["chunks"], &json["damaged"]), (&0.into(), &0.into()));
    let ran = dir.run(["kv", "clear", name]);
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    let left: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["notes.txt"]);
    let ran = dir.run(["kv", "stat", name]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("superblock"), "{}", ran.err);
}
