//! Files that must be refused, each with the expected error message.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

use straightway_core::ErrorKind;
use straightway_weights::{Model, TENSORS_MAX};

use crate::fixture::folder;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../attacks/safetensors")
}

#[test]
fn every_attack_is_refused_with_the_expected_message_and_its_name() {
    let text = fs::read_to_string(corpus().join("refusals.txt")).unwrap();
    let words: BTreeMap<_, _> = text.lines().map(|l| l.split_once(": ").unwrap()).collect();
    assert!(words.len() >= 50, "only {} attacks", words.len());
    for entry in fs::read_dir(corpus()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if ["make.py", "refusals.txt"].contains(&name) {
            continue;
        }
        let told = Model::open(&path).unwrap_err().to_string();
        let expected = words[name];
        assert!(told.contains(expected), "{name}: expected `{expected}`, got `{told}`");
        assert!(told.contains(name), "{name} is not named: {told}");
    }
}

#[test]
fn a_missing_model_is_not_found() {
    let error = Model::open(Path::new("nowhere/model.safetensors")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let missing = corpus().join("index-missing-file");
    assert_eq!(Model::open(&missing).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn an_index_of_ten_million_tensors_is_refused_before_they_take_memory() {
    let folder = folder();
    let path = folder.path().join("model.safetensors.index.json");
    // Longer than an index may be.
    let file = fs::File::create(&path).unwrap();
    file.set_len(10_000_000 * 20).unwrap();
    let told = Model::open(&path).unwrap_err().to_string();
    assert!(told.contains("it is longer than 100000000 bytes"), "{told}");
    // One tensor too many in an index of an allowed length.
    let mut text = String::from("{\"weight_map\":{");
    for number in 0..=TENSORS_MAX {
        write!(text, "\"{number}\":\"f\",").unwrap();
    }
    text.pop();
    text.push_str("}}");
    fs::write(&path, text).unwrap();
    let told = Model::open(&path).unwrap_err().to_string();
    assert!(told.contains("more than 4000000 tensors"), "{told}");
}

#[test]
fn files_with_more_tensors_together_than_a_model_may_have_are_refused() {
    // The shortest possible entry: one file with the longest header has just under two million.
    let per_file = TENSORS_MAX / 3;
    let folder = folder();
    for file in 0..4 {
        let mut header = String::from("{");
        for number in 0..per_file {
            let name = format!("{file}{number:x}");
            let entry = "{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}";
            write!(header, "\"{name}\":{entry},").unwrap();
        }
        header.pop();
        header.push('}');
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        fs::write(folder.path().join(format!("{file}.safetensors")), bytes).unwrap();
    }
    let told = Model::open(folder.path()).unwrap_err().to_string();
    assert!(told.contains("the model has more than 4000000 tensors"), "{told}");
}
