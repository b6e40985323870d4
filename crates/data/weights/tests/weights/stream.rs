//! A model batch by batch.

use std::{collections::BTreeMap, fs, sync::Arc};

use straightway_core::{ErrorKind, Place};
use straightway_weights::{Model, Selection};

use crate::fixture::{Weights, assert_same, folder, loader, seen, weights, write};

/// Twenty tensors in two files, one of them larger than a batch.
fn model(folder: &tempfile::TempDir) -> (Arc<Model>, Weights) {
    let mut all = Weights::new();
    for file in 0..2 {
        let names: Vec<_> = (0..10).map(|n| format!("t{file}{n}")).collect();
        let shape = |n: usize| {
            if n == 4 { &[300, 300][..] } else { &[100, 100][..] }
        };
        let shapes: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(n, name)| (name.as_str(), shape(n)))
            .collect();
        let one = weights(&shapes);
        write(&folder.path().join(format!("{file}.safetensors")), &one);
        all.extend(one);
    }
    (Arc::new(Model::open(folder.path()).unwrap()), all)
}

#[test]
fn batches_are_bounded_and_have_every_tensor_once() {
    let folder = folder();
    let (model, all) = model(&folder);
    let limit = 65_000;
    let stream = loader().stream(&model, &Selection::all(&model), Place::Host, limit);
    let mut whole = BTreeMap::new();
    for batch in stream.unwrap() {
        let mut batch = batch.unwrap();
        assert!(batch.receipt.bytes <= limit || batch.tensors.len() == 1);
        whole.append(&mut seen(&mut batch));
    }
    assert_same(&whole, &all);
}

#[test]
fn batches_that_are_kept_have_memory_of_their_own() {
    let folder = folder();
    let (model, all) = model(&folder);
    let stream = loader().stream_in_turns(&model, &Selection::all(&model), Place::Host, 65_000);
    let mut kept: Vec<_> = stream.unwrap().map(Result::unwrap).collect();
    let mut whole = BTreeMap::new();
    for batch in &mut kept {
        whole.append(&mut seen(batch));
    }
    assert_same(&whole, &all);
}

#[test]
fn an_error_follows_the_earlier_batches_and_ends_the_stream() {
    let folder = folder();
    let (model, _) = model(&folder);
    fs::remove_file(folder.path().join("1.safetensors")).unwrap();
    let stream = loader().stream(&model, &Selection::all(&model), Place::Host, 65_000);
    let batches: Vec<_> = stream.unwrap().collect();
    let (last, before) = batches.split_last().unwrap();
    assert_eq!(last.as_ref().unwrap_err().kind(), ErrorKind::NotFound);
    let tensors: usize = before.iter().map(|b| b.as_ref().unwrap().tensors.len()).sum();
    assert!((8..=10).contains(&tensors), "{tensors}");
}

#[test]
fn a_stream_that_is_dropped_after_its_last_batch_cancels_nothing() {
    let folder = folder();
    let (model, _) = model(&folder);
    let all = Selection::all(&model);
    for _ in 0..10 {
        let loader = loader();
        let count = loader.batches(&model, &all, 65_000).unwrap().len();
        let stream = loader.stream(&model, &all, Place::Host, 65_000).unwrap();
        // `take` does not wait for the end of the thread.
        assert!(stream.take(count).all(|batch| batch.is_ok()));
        assert!(!loader.progress.is_cancelled());
    }
}

#[test]
fn a_dropped_stream_ends_at_once() {
    let folder = folder();
    let (model, _) = model(&folder);
    let loader = loader();
    let stream = loader.stream(&model, &Selection::all(&model), Place::Host, 1);
    let mut stream = stream.unwrap();
    stream.next().unwrap().unwrap();
    drop(stream);
    assert!(loader.progress.is_cancelled());
    assert!(loader.progress.moved_bytes() < model.bytes());
}
