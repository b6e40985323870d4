//! Retention, removal during a read, differences, export.

use std::{fs, sync::Arc};

use proptest::prelude::*;
use straightway_checkpoint::{Restorer, Retention, SaveSource, StepChange, Steps};
use straightway_weights::{self as weights, Dtype, Model};

use crate::fixture::{State, assert_holds, executor, keep_last, options, restore, save, save_ranks, saver, settings};

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    #[test]
    fn the_last_and_every_mth_and_tagged_steps_stay_and_no_other(
        steps in prop::collection::btree_set(0_u64..40, 1..8),
        last in 0_usize..4,
        every in prop::option::of(1_u64..10),
        tagged in prop::collection::btree_set(0_u64..40, 0..3),
    ) {
        let folder = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        let mut saver = saver(folder.path(), options()).unwrap();
        let state = State::of(1, &[("w", Dtype::U8, &[10])]);
        let store = Steps::open(folder.path()).unwrap();
        for &step in &steps {
            save(&mut saver, step, &state).unwrap();
            if tagged.contains(&step) {
                store.tag(step, "best").unwrap();
            }
        }
        let newest: Vec<_> = steps.iter().rev().take(last.max(1)).copied().collect();
        let stays = |step: &u64| {
            newest.contains(step) || tagged.contains(step)
                || every.is_some_and(|every| step.is_multiple_of(every))
        };
        let wanted: Vec<_> = steps.iter().copied().filter(stays).collect();
        let retention = Retention { last, every, ..Retention::default() };
        let plan = store.plan_prune(&retention).unwrap();
        prop_assert_eq!(store.steps().unwrap().len(), steps.len());
        let pruned = store.prune(&retention).unwrap();
        prop_assert_eq!(&plan.removed, &pruned.removed);
        prop_assert_eq!(store.steps().unwrap(), wanted);
    }
}

#[test]
fn a_reader_at_work_survives_the_removal_of_its_step() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::small(1);
    let mut saver = saver(folder.path(), options()).unwrap();
    save(&mut saver, 1, &state).unwrap();
    let store = Steps::open(folder.path()).unwrap();
    let checkpoint = store.checkpoint(1).unwrap();
    let pieces = state.cut(0, 0, 1);
    restore(&checkpoint, &pieces[..1]).unwrap();
    store.remove(1).unwrap();
    assert_eq!(store.steps().unwrap(), [0_u64; 0]);
    let seen = restore(&checkpoint, &pieces).unwrap();
    assert!(pieces.iter().zip(&seen).all(|(piece, seen)| piece.bytes == *seen));
    let error = store.checkpoint(1).unwrap_err();
    assert!(error.to_string().contains("it has no complete step"), "{error}");
    assert!(store.latest().is_err());
}

#[test]
fn tags_are_added_and_removed_and_invalid_ones_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    save(&mut saver(folder.path(), options()).unwrap(), 1, &State::small(1)).unwrap();
    let store = Steps::open(folder.path()).unwrap();
    store.tag(1, "best").unwrap();
    store.tag(1, "v1.0").unwrap();
    assert_eq!(store.tags(1).unwrap(), ["best", "v1.0"]);
    store.untag(1, "best").unwrap();
    assert_eq!(store.tags(1).unwrap(), ["v1.0"]);
    assert!(store.tag(1, "a b").is_err());
    assert!(store.tag(2, "best").is_err());
    assert_holds(folder.path(), 1, &State::small(1));
}

#[test]
fn a_difference_names_added_removed_and_changed_tensors_with_byte_counts() {
    let folder = tempfile::tempdir().unwrap();
    for incremental in [false, true] {
        let folder = folder.path().join(incremental.to_string());
        let options = straightway_checkpoint::SaverOptions {
            incremental,
            ..options()
        };
        let mut saver = saver(&folder, options).unwrap();
        let mut state = State::small(1);
        save(&mut saver, 1, &state).unwrap();
        state.tensors[0].bytes[7] ^= 1;
        state.tensors[0].bytes[70] ^= 1;
        state.tensors[2].name = "scale2".to_owned();
        let bias = State::of(1, &[("bias", Dtype::Bf16, &[38])]);
        state.tensors[1] = bias.tensors[0].clone();
        save(&mut saver, 2, &state).unwrap();
        let store = Steps::open(&folder).unwrap();
        let (a, b) = (store.checkpoint(1).unwrap(), store.checkpoint(2).unwrap());
        let difference = Restorer::new(settings()).unwrap().diff(&a, &b).unwrap();
        let changes: Vec<_> = difference.changes.iter().map(|(n, c)| (n.as_str(), c)).collect();
        assert_eq!(
            changes,
            [
                (
                    "bias",
                    &StepChange::Reshaped("BF16 [37]".to_owned(), "BF16 [38]".to_owned())
                ),
                ("scale", &StepChange::Removed),
                ("scale2", &StepChange::Added),
                ("w", &StepChange::Bytes { different: 2, of: 4800 }),
            ]
        );
        assert_eq!(difference.same, 2);
        let none = Restorer::new(settings()).unwrap().diff(&a, &a).unwrap();
        assert_eq!((none.changes.len(), none.same), (0, 5));
    }
}

#[test]
fn an_export_is_a_model_with_every_tensor_whole_in_files_of_the_size_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::small(5);
    let ranks: Vec<_> = (0..3).map(|rank| state.cut(0, rank, 3)).collect();
    let store_path = folder.path().join("run");
    for outcome in save_ranks(&store_path, 1, &ranks, &options()) {
        outcome.unwrap();
    }
    let checkpoint = Steps::open(&store_path).unwrap().checkpoint(1).unwrap();
    let restorer = Restorer::new(settings()).unwrap();
    let saver = weights::FileSaver::new(executor());
    for (name, most, files) in [("one", u64::MAX, 1), ("some", 4000, 2)] {
        let target = folder.path().join(name);
        let exported = restorer.export(&checkpoint, &saver, &target, most).unwrap();
        assert_eq!((exported.files.len(), exported.tensors), (files, 5), "{exported:?}");
        let model = Model::open(&target).unwrap();
        for tensor in &state.tensors {
            let found = model.tensor(&tensor.name).unwrap();
            let shard = fs::read(&model.shards[found.file as usize].path).unwrap();
            let range = found.extent.offset as usize..found.extent.end() as usize;
            assert!(shard[range] == tensor.bytes, "{}", tensor.name);
        }
        let error = restorer.export(&checkpoint, &saver, &target, most).unwrap_err();
        assert!(error.to_string().contains("it is not empty"), "{error}");
    }
}

#[test]
fn an_export_leaves_out_opaque_bytes_and_lists_them() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = saver(&folder.path().join("run"), options()).unwrap();
    let shape = weights::Shape::from(&[2_u64][..]);
    let state = [
        SaveSource::whole("w", Dtype::U8, shape, &[1, 2]),
        SaveSource::opaque("rng", b"7"),
    ];
    saver.save(1, &state, "null").unwrap();
    saver.wait().unwrap();
    let checkpoint = Steps::open(&folder.path().join("run")).unwrap().checkpoint(1).unwrap();
    let restorer = Restorer::new(settings()).unwrap();
    let writer = weights::FileSaver::new(Arc::clone(&executor()));
    let target = folder.path().join("out");
    let exported = restorer.export(&checkpoint, &writer, &target, u64::MAX).unwrap();
    assert_eq!((exported.tensors, exported.left_out), (1, vec!["rng".to_owned()]));
}

#[test]
fn the_last_steps_of_the_job_are_kept_even_if_others_have_higher_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = saver(folder.path(), options()).unwrap();
    let steps = [100, 101, 7, 5, 6];
    for step in steps {
        save(&mut saver, step, &State::small(step)).unwrap();
    }
    let store = Steps::open(folder.path()).unwrap();
    let mut retention = Retention {
        last: 2,
        // A save that failed does not exist, and is not counted.
        saved: [&steps[2..], &[8]].concat(),
        known: Some(vec![100, 101]),
        ..Retention::default()
    };
    // A step that is newer than `known` may be the job's own.
    assert_eq!(store.prune(&retention).unwrap().removed, [0_u64; 0]);
    retention.known = None;
    assert_eq!(store.prune(&retention).unwrap().removed, [7]);
    assert_eq!(store.steps().unwrap(), [5, 6, 100, 101]);
}

#[test]
fn an_unreadable_step_is_kept_with_the_steps_it_may_reference_and_others_are_pruned() {
    for incremental in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let options = straightway_checkpoint::SaverOptions {
            incremental,
            ..options()
        };
        let mut saver = saver(folder.path(), options).unwrap();
        let mut state = State::of(1, &[("w", Dtype::U8, &[10, 4096])]);
        for step in 1..=3 {
            state.tensors[0].bytes[step as usize * 4096] ^= 1;
            save(&mut saver, step, &state).unwrap();
        }
        let store = Steps::open(folder.path()).unwrap();
        fs::write(folder.path().join("step-3/manifest.json"), "{").unwrap();
        // With an unreadable parent, saves are full ones.
        for step in 4..=7 {
            save(&mut saver, step, &State::small(step)).unwrap();
        }
        fs::write(folder.path().join("step-5/tags.json"), "{").unwrap();
        let retention = keep_last(1);
        let pruned = store.prune(&retention).unwrap();
        let left: Vec<_> = pruned.left.iter().map(|(step, _)| *step).collect();
        assert_eq!(left, [3, 5], "{pruned:?}");
        let wanted: &[u64] = if incremental { &[1, 2, 3, 4, 5, 7] } else { &[3, 5, 7] };
        assert_eq!(store.steps().unwrap(), wanted, "{pruned:?}");
        assert_eq!(pruned.kept, wanted);
        if incremental {
            let error = store.remove(1).unwrap_err().to_string();
            assert!(error.contains("step 2 refers to it"), "{error}");
            let error = store.remove(2).unwrap_err().to_string();
            assert!(error.contains("step 3 cannot be read"), "{error}");
            assert!(store.manifest(2).is_ok(), "it was put back");
        }
        store.remove(3).unwrap();
        assert!(!store.steps().unwrap().contains(&3));
    }
}
