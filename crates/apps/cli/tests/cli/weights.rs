//! `load`, `inspect` and `rewrite` on small models, and their refusals.

use std::{fmt::Write as _, fs};

use serde_json::Value;

use crate::test_dir::{Ran, TestDir, noise, routed};

/// A safetensors file with `count` tensors of 64 rows of 16 KiB.
fn file(dir: &TestDir, name: &str, first: usize, count: usize) {
    const TENSOR_BYTES: usize = 64 << 14;
    let mut header = serde_json::Map::new();
    for number in 0..count {
        let entry = serde_json::json!({
            "dtype": "F32",
            "shape": [64, 4096],
            "data_offsets": [number * TENSOR_BYTES, (number + 1) * TENSOR_BYTES],
        });
        header.insert(format!("layers.{}.weight", first + number), entry);
    }
    let header = serde_json::to_string(&header).unwrap();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(&noise(count * TENSOR_BYTES, first as u64));
    fs::write(dir.path(name), bytes).unwrap();
}

/// A folder with two files of three tensors each.
fn model(dir: &TestDir) {
    dir.folder("model");
    file(dir, "model/1.safetensors", 0, 3);
    file(dir, "model/2.safetensors", 3, 3);
}

fn json(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

fn run(dir: &TestDir, line: &str) -> Ran {
    dir.run(line.split(' '))
}

#[test]
fn a_model_is_loaded_and_verified_with_one_receipt() {
    let dir = TestDir::new();
    model(&dir);
    let ran = run(&dir, "load model --verify");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(
        ran.out
            .starts_with("6 of 6 tensors in 2 files, to host memory: headers read in "),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("6 MiB in "), "{}", ran.out);
    assert!(
        ran.out.contains("verified: 6 MiB in 2 objects read again in "),
        "{}",
        ran.out
    );
    let receipt = json(&run(&dir, "load model --verify --json"));
    assert_eq!(receipt["verified"]["bytes"], 6 << 20);
    assert_eq!(receipt["verified"]["method"], "read_again");
    let receipt = json(&run(&dir, "load model --json"));
    assert_eq!(
        (&receipt["bytes"], &receipt["verified"]),
        (&(6 << 20).into(), &Value::Null)
    );
    assert_eq!(routed(&receipt, "read", None), 6 << 20);
}

#[test]
fn filters_slices_and_ranks_read_only_their_part() {
    let dir = TestDir::new();
    model(&dir);
    for (line, bytes) in [
        ("load model --json --filter layers.4.weight", 1 << 20),
        ("load model --json --filter layers.[0-1].*", 2 << 20),
        ("load model --json --filter regex:[05].weight --rank 3/8", 2 << 17),
        ("load model --json --slice 1:0..2048", 3 << 20),
        ("load model --json --slice *.2.weight@0:1/2", (5 << 20) + (1 << 19)),
        ("load model --json --rank 2/3 --dim 1 --uneven", 6 * 64 * 1364 * 4),
    ] {
        assert_eq!(json(&run(&dir, line))["bytes"], bytes, "{line}");
    }
}

#[test]
fn inspect_shows_tensors_files_and_routes_as_text_and_json() {
    let dir = TestDir::new();
    model(&dir);
    let page = run(&dir, "inspect model --route buffered --filter layers.[25].*");
    assert_eq!(page.code, Some(0), "{}", page.err);
    insta::assert_snapshot!(dir.redact(&page.out));
    let told = json(&run(&dir, "inspect model --json"));
    assert_eq!(told["tensors"].as_array().unwrap().len(), 6);
    assert_eq!(told["files"][1]["is_aligned"], false);
    let routes = told["routes"].as_array().unwrap();
    let bytes: u64 = routes.iter().map(|r| r["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 6 << 20);
}

#[test]
fn a_rewritten_model_is_equal_page_aligned_and_leaves_nothing_else() {
    let dir = TestDir::new();
    model(&dir);
    assert_eq!(run(&dir, "rewrite model aligned").code, Some(0));
    assert_eq!(run(&dir, "rewrite aligned parts --shard-size 2MiB").code, Some(0));
    let told = json(&run(&dir, "inspect parts --json"));
    let files = told["files"].as_array().unwrap();
    assert_eq!(files.len(), 3);
    assert!(files.iter().all(|f| f["is_aligned"] == true));
    assert_eq!(run(&dir, "load parts --verify").code, Some(0));
    // The same tensors, in the same order, have the same bytes from the start of the data on.
    let data = |name: &str, start: usize| fs::read(dir.path(name)).unwrap().split_off(start);
    let old = data(
        "model/1.safetensors",
        fs::read(dir.path("model/1.safetensors")).unwrap().len() - (3 << 20),
    );
    assert!(old == data("aligned/1.safetensors", 4096));
    assert!(!dir.has_part());
}

#[test]
fn invalid_arguments_are_refused_by_name_with_a_hint() {
    let dir = TestDir::new();
    model(&dir);
    fs::write(dir.path("short.safetensors"), [1, 2, 3]).unwrap();
    dir.folder("empty");
    let mut said = String::new();
    for line in [
        "load missing",
        "load empty",
        "load short.safetensors",
        "load model --filter layers.9.weight",
        "load model --filter x*",
        "load model --rank 0/7",
        "load model --rank 8",
        "load model --slice 0:60..65",
        "load model --slice 2:0..1",
        "load model --slice layers.9.weight@0:0..1",
        "load model --slice 0",
        "load model --device tpu",
        "load model --filter regex:(",
        "rewrite model model --shard-size 1MiB",
        "inspect model/1.safetensors --filter layers.5.weight",
    ] {
        let before = dir.names();
        let ran = run(&dir, line);
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert_eq!(ran.out, "", "{line}: stdout is for data");
        assert_eq!(dir.names(), before, "{line}: something was left behind");
        writeln!(said, "$ {line}\n{}", dir.redact(&ran.err).trim_end()).unwrap();
    }
    insta::assert_snapshot!(said);
}

#[test]
fn a_device_is_named_as_in_python() {
    let dir = TestDir::new();
    model(&dir);
    for device in ["host", "cpu", "HOST", "host:"] {
        let receipt = json(&run(&dir, &format!("load model --json --device {device}")));
        assert_eq!(receipt["bytes"], 6 << 20);
    }
    for (device, words) in [("cuda0", "`cuda:` and a number"), ("tpu", "memory is")] {
        let ran = run(&dir, &format!("load model --device {device}"));
        assert!(ran.code == Some(2) && ran.err.contains(words), "{ran:?}");
    }
}

#[test]
fn a_rewritten_folder_has_the_other_files_of_the_model() {
    let dir = TestDir::new();
    model(&dir);
    dir.folder("model/1_Pooling");
    dir.folder("model/original");
    dir.folder("model/.git");
    for (seed, name) in ["config.json", "1_Pooling/config.json", "original/old.pth", ".git/x"]
        .iter()
        .enumerate()
    {
        dir.file(&format!("model/{name}"), 100 + seed, seed as u64);
    }
    // As in the cache of a model hub.
    dir.file("blob", 5000, 9);
    std::os::unix::fs::symlink("../blob", dir.path("model/tokenizer.json")).unwrap();
    let ran = run(&dir, "rewrite model new");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(
        ran.out.contains("3 other files of the folder were copied"),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("warning: original/old.pth"), "{}", ran.out);
    for (name, len, seed) in [
        ("config.json", 100, 0),
        ("1_Pooling/config.json", 101, 1),
        ("tokenizer.json", 5000, 9),
    ] {
        assert!(
            fs::read(dir.path("new").join(name)).unwrap() == noise(len, seed),
            "{name}"
        );
    }
    assert!(!dir.path("new/original").exists() && !dir.path("new/.git").exists());
    assert_eq!(json(&run(&dir, "load new --json"))["bytes"], 6 << 20);
    // Without them, below the model itself, and again to the same place.
    assert_eq!(run(&dir, "rewrite model bare --weights-only").code, Some(0));
    assert!(!dir.path("bare/config.json").exists());
    for _ in 0..2 {
        let ran = run(&dir, "rewrite model model/inside");
        assert_eq!(ran.code, Some(0), "{}", ran.err);
    }
    assert!(!dir.path("model/inside/inside").exists(), "{:?}", dir.names());
    let receipt = json(&run(&dir, "rewrite model small --shard-size 1KB --json"));
    let warning = receipt["warnings"].to_string();
    assert!(
        warning.contains("6 of 6 files are larger than the shard size"),
        "{warning}"
    );
}
