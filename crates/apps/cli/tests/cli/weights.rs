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
        ran.out.starts_with("6 of 6 tensors in 2 files, to host: headers "),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("6 MiB in "), "{}", ran.out);
    let receipt = json(&run(&dir, "load model --json"));
    assert_eq!(receipt["bytes"], 6 << 20);
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
