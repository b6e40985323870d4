//! Saves and rewrites: files that other readers accept, that are page-aligned, and that appear complete or not at all.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt, path::Path, sync::Arc};

use straightway_core::{ErrorKind, Leg, Place};
use straightway_io::{Executor, wrapper::faulty::Faults};
use straightway_weights::{Dtype, FileSaver, Held, Holding, Model, Selection, Shape};

use crate::fixture::{Weights, assert_loads, folder, loader, small, weights, write};

fn saver() -> FileSaver {
    FileSaver::new(loader().executor)
}

fn some() -> Weights {
    weights(&[("a", &[500, 512]), ("b", &[3]), ("c", &[1000, 300]), ("d", &[0])])
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn loaded_weights_are_saved_byte_for_byte() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write(&path, &some());
    let model = Model::open(&path).unwrap();
    let loaded = loader().load(&model, &Selection::all(&model), Place::Host).unwrap();
    let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let copy = folder.path().join("copy.safetensors");
    let receipt = saver().save(&copy, &loaded.region, &loaded.tensors, &metadata).unwrap();
    assert_eq!(receipt.bytes, model.bytes());
    assert_loads(&copy, &some());
    let copy = Model::open(&copy).unwrap();
    assert_eq!(copy.shards[0].metadata, metadata);
    assert_eq!(copy.shards[0].data_offset % 4096, 0);
}

#[test]
fn more_than_a_window_is_saved_whole() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let all = weights(&[("a", &[40 << 20]), ("b", &[999]), ("c", &[1 << 20])]);
    let held: Vec<_> = all
        .iter()
        .map(|(name, (_, shape, bytes))| Held {
            name,
            dtype: Dtype::Bf16,
            shape: shape.iter().map(|n| *n as u64).collect(),
            bytes: Holding::Host(bytes),
        })
        .collect();
    saver().save_held(&path, &held, &BTreeMap::new()).unwrap();
    assert_loads(&path, &all);
}

#[test]
fn tensors_that_readers_would_refuse_are_not_written() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    let held = |name, len: u64| Held {
        name,
        dtype: Dtype::F32,
        shape: Shape::from(&[len][..]),
        bytes: Holding::Host(&[0; 8]),
    };
    for (tensors, words) in [
        (vec![held("a", 3)], "tensor \"a\" has 8 bytes"),
        (vec![held("a", 2), held("a", 2)], "two tensors are called \"a\""),
        (vec![held("__metadata__", 2)], "no tensor may be called"),
    ] {
        let error = saver().save_held(&path, &tensors, &BTreeMap::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(words), "{error}");
    }
    assert!(names(folder.path()).is_empty());
}

#[test]
fn a_model_is_rewritten_page_aligned_with_its_index_and_metadata() {
    let folder = folder();
    let (source, target) = (folder.path().join("from"), folder.path().join("to"));
    fs::create_dir(&source).unwrap();
    let mut all = some();
    let second = all.split_off("b");
    write(&source.join("x-1.safetensors"), &all);
    write(&source.join("x-2.safetensors"), &second);
    let index = "{\"metadata\":{\"total_size\":1,\"author\":\"me\"},\"weight_map\":{\"a\":\"x-1.safetensors\",\"b\":\"x-2.safetensors\"}}";
    fs::write(source.join("model.safetensors.index.json"), index).unwrap();
    let model = Model::open(&source).unwrap();
    let receipt = saver().rewrite(&model, &target, None).unwrap();
    assert_eq!(receipt.bytes, model.bytes());
    for leg in [Leg::Read, Leg::Write] {
        let moved = receipt.routes.iter().filter(|r| r.leg == leg);
        assert_eq!(moved.map(|r| r.bytes).sum::<u64>(), model.bytes());
    }
    assert_eq!(
        names(&target),
        ["model.safetensors.index.json", "x-1.safetensors", "x-2.safetensors"]
    );
    assert_loads(&target, &some());
    let rewritten = Model::open(&target).unwrap();
    assert!(rewritten.shards.iter().all(|s| s.data_offset % 4096 == 0));
    let said: serde_json::Value = serde_json::from_str(rewritten.index_metadata.as_deref().unwrap()).unwrap();
    assert_eq!(said, serde_json::json!({"total_size": model.bytes(), "author": "me"}));
}

#[test]
fn a_model_is_divided_among_files_of_a_size_and_put_together_again() {
    let folder = folder();
    let (one, parts, whole) = (
        folder.path().join("one.safetensors"),
        folder.path().join("parts"),
        folder.path().join("whole"),
    );
    write(&one, &some());
    let model = Model::open(&one).unwrap();
    saver().rewrite(&model, &parts, Some(600_000)).unwrap();
    assert_eq!(
        names(&parts),
        [
            "model-00001-of-00002.safetensors",
            "model-00002-of-00002.safetensors",
            "model.safetensors.index.json",
        ]
    );
    assert_loads(&parts, &some());
    let model = Model::open(&parts).unwrap();
    saver().rewrite(&model, &whole, Some(u64::MAX)).unwrap();
    assert_loads(&whole.join("model.safetensors"), &some());
    let error = saver().rewrite(&model, &parts, Some(1000)).unwrap_err();
    assert!(error.to_string().contains("would stay beside the new ones"), "{error}");
}

#[test]
fn a_file_is_rewritten_in_its_own_place() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    write(&path, &some());
    let model = Model::open(&path).unwrap();
    saver().rewrite(&model, &path, None).unwrap();
    assert_loads(&path, &some());
    assert_eq!(Model::open(&path).unwrap().shards[0].data_offset % 4096, 0);
    assert_eq!(names(folder.path()), ["model.safetensors"]);
}

#[test]
fn a_model_whose_index_names_no_tensor_is_rewritten_as_one_without_tensors() {
    let folder = folder();
    let (source, target) = (folder.path().join("source"), folder.path().join("target"));
    fs::create_dir(&source).unwrap();
    let index = "{\"metadata\":{},\"weight_map\":{}}";
    fs::write(source.join("model.safetensors.index.json"), index).unwrap();
    let model = Model::open(&source).unwrap();
    for shard_bytes in [Some(1000), None] {
        let receipt = saver().rewrite(&model, &target, shard_bytes).unwrap();
        assert_eq!(receipt.bytes, 0);
        assert_loads(&target, &weights(&[]));
    }
}

#[test]
fn a_failed_rewrite_leaves_no_new_files_and_keeps_the_old_ones() {
    let folder = folder();
    let (source, target) = (folder.path().join("from"), folder.path().join("to"));
    fs::create_dir(&source).unwrap();
    write(&source.join("1.safetensors"), &weights(&[("a", &[500, 512])]));
    write(&source.join("2.safetensors"), &weights(&[("b", &[500, 512])]));
    let model = Model::open(&source).unwrap();
    saver().rewrite(&model, &target, None).unwrap();
    let before: Vec<_> = names(&target)
        .iter()
        .map(|n| fs::read(target.join(n)).unwrap())
        .collect();
    let faults = Faults {
        seed: 3,
        error_per_mille: 200,
        error_code: 5,
        ..Faults::default()
    };
    let broken = Executor::with_parts(small(), faults.into()).unwrap();
    let saver = FileSaver::new(Arc::new(broken));
    saver.rewrite(&model, &target, None).unwrap_err();
    let after: Vec<_> = names(&target)
        .iter()
        .map(|n| fs::read(target.join(n)).unwrap())
        .collect();
    assert!(before == after);
}

#[test]
fn a_model_that_replaces_a_private_one_keeps_its_permissions_under_other_names() {
    let folder = folder();
    let (one, target) = (folder.path().join("one.safetensors"), folder.path().join("to"));
    write(&one, &some());
    let model = Model::open(&one).unwrap();
    saver().rewrite(&model, &target, Some(600_000)).unwrap();
    let private = fs::Permissions::from_mode(0o600);
    for name in names(&target) {
        fs::set_permissions(target.join(name), private.clone()).unwrap();
    }
    saver().rewrite(&model, &target, Some(600_000)).unwrap();
    assert_loads(&target, &some());
    let there = names(&target);
    assert_eq!(there.len(), 3, "the old files are gone: {there:?}");
    for name in there {
        let mode = fs::metadata(target.join(&name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
        let is_new = !name.starts_with("model-0000");
        assert!(is_new, "its name was taken: {name}");
    }
}
