//! `load`, `inspect` and `rewrite` on small models, and what of them is refused.

use std::{fmt::Write as _, fs};

use serde_json::Value;

use crate::yard::{Ran, Yard, noise, routed};

/// A safetensors file with `count` tensors of 64 rows of 16 KiB.
fn file(yard: &Yard, name: &str, first: usize, count: usize) {
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
    fs::write(yard.path(name), bytes).unwrap();
}

/// A folder with two files of three tensors each.
fn model(yard: &Yard) {
    yard.folder("model");
    file(yard, "model/1.safetensors", 0, 3);
    file(yard, "model/2.safetensors", 3, 3);
}

fn json(ran: &Ran) -> Value {
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

fn run(yard: &Yard, line: &str) -> Ran {
    yard.run(line.split(' '))
}

#[test]
fn a_model_is_loaded_and_verified_with_one_receipt() {
    let yard = Yard::new();
    model(&yard);
    let ran = run(&yard, "load model --verify");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(
        ran.out
            .starts_with("6 of 6 tensors in 2 files, to host: headers "),
        "{}",
        ran.out
    );
    assert!(ran.out.contains("6 MiB in "), "{}", ran.out);
    let receipt = json(&run(&yard, "load model --json"));
    assert_eq!(receipt["bytes"], 6 << 20);
    assert_eq!(routed(&receipt, "read", None), 6 << 20);
}

#[test]
fn filters_slices_and_ranks_read_only_their_part() {
    let yard = Yard::new();
    model(&yard);
    for (line, bytes) in [
        ("load model --json --filter layers.4.weight", 1 << 20),
        ("load model --json --filter layers.[0-1].*", 2 << 20),
        (
            "load model --json --filter regex:[05].weight --rank 3/8",
            2 << 17,
        ),
        ("load model --json --slice 1:0..2048", 3 << 20),
        (
            "load model --json --slice *.2.weight@0:1/2",
            (5 << 20) + (1 << 19),
        ),
        (
            "load model --json --rank 2/3 --dim 1 --uneven",
            6 * 64 * 1364 * 4,
        ),
    ] {
        assert_eq!(json(&run(&yard, line))["bytes"], bytes, "{line}");
    }
}

#[test]
fn what_a_model_is_and_how_it_would_be_read_is_shown_and_told_to_programs() {
    let yard = Yard::new();
    model(&yard);
    let page = run(
        &yard,
        "inspect model --route buffered --filter layers.[25].*",
    );
    assert_eq!(page.code, Some(0), "{}", page.err);
    insta::assert_snapshot!(yard.redact(&page.out));
    let told = json(&run(&yard, "inspect model --json"));
    assert_eq!(told["tensors"].as_array().unwrap().len(), 6);
    assert_eq!(told["files"][1]["is_aligned"], false);
    let routes = told["routes"].as_array().unwrap();
    let bytes: u64 = routes.iter().map(|r| r["bytes"].as_u64().unwrap()).sum();
    assert_eq!(bytes, 6 << 20);
}

#[test]
fn a_rewritten_model_is_the_same_on_pages_and_leaves_no_trace() {
    let yard = Yard::new();
    model(&yard);
    assert_eq!(run(&yard, "rewrite model aligned").code, Some(0));
    assert_eq!(
        run(&yard, "rewrite aligned parts --shard-size 2MiB").code,
        Some(0)
    );
    let told = json(&run(&yard, "inspect parts --json"));
    let files = told["files"].as_array().unwrap();
    assert_eq!(files.len(), 3);
    assert!(files.iter().all(|f| f["is_aligned"] == true));
    assert_eq!(run(&yard, "load parts --verify").code, Some(0));
    // The same tensors, in the same order, have the same bytes from the start of the data on.
    let data = |name: &str, start: usize| fs::read(yard.path(name)).unwrap().split_off(start);
    let old = data(
        "model/1.safetensors",
        fs::read(yard.path("model/1.safetensors")).unwrap().len() - (3 << 20),
    );
    assert!(old == data("aligned/1.safetensors", 4096));
    assert!(!yard.has_part());
}

#[test]
fn what_is_wrong_is_refused_by_name_and_with_a_way_out() {
    let yard = Yard::new();
    model(&yard);
    fs::write(yard.path("short.safetensors"), [1, 2, 3]).unwrap();
    yard.folder("empty");
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
        "load model --slice 0",
        "load model --device tpu",
        "load model --filter regex:(",
        "rewrite model model --shard-size 1MiB",
        "inspect model/1.safetensors --filter layers.5.weight",
    ] {
        let before = yard.names();
        let ran = run(&yard, line);
        assert_eq!(ran.code, Some(2), "{line}: {ran:?}");
        assert_eq!(ran.out, "", "{line}: stdout is for data");
        assert_eq!(yard.names(), before, "{line}: something was left behind");
        writeln!(said, "$ {line}\n{}", yard.redact(&ran.err).trim_end()).unwrap();
    }
    insta::assert_snapshot!(said);
}
