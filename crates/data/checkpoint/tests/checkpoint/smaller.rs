//! Saves that write less than the state: incremental and compressed ones.

use std::fs;

use straightway_checkpoint::{Codec, Restorer, SaverOptions, Steps};
use straightway_weights::Dtype;

use crate::fixture::{State, assert_holds, keep_last, options, restore, save, save_ranks, saver, settings};

fn incremental() -> SaverOptions {
    SaverOptions {
        incremental: true,
        ..options()
    }
}

#[test]
fn a_save_in_which_one_chunk_in_a_hundred_changed_writes_that_and_little_more() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = State::of(1, &[("w", Dtype::U8, &[400, 4096])]);
    let mut saver = saver(folder.path(), incremental()).unwrap();
    let full = save(&mut saver, 1, &state).unwrap();
    assert_eq!(full.written_bytes, full.bytes);
    let mut before = state.clone();
    for step in 2..5 {
        for chunk in 0..4 {
            state.tensors[0].bytes[(step as usize * 40 + chunk) * 4096] ^= 1;
        }
        let committed = save(&mut saver, step, &state).unwrap();
        assert!(committed.written_bytes * 20 <= full.bytes, "{committed:?}");
        let file = folder.path().join(format!("step-{step}/rank-00000-of-00001.chunks"));
        assert_eq!(fs::metadata(file).unwrap().len(), committed.written_bytes);
        assert_holds(folder.path(), step - 1, &before);
        assert_holds(folder.path(), step, &state);
        before = state.clone();
    }
    let manifest = Steps::open(folder.path()).unwrap().manifest(4).unwrap();
    assert_eq!((manifest.parent, manifest.referenced()), (Some(3), vec![1, 2, 3]));
}

#[test]
fn a_state_that_did_not_change_writes_nothing_and_is_restored_by_other_ranks() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::small(3);
    let ranks: Vec<_> = (0..3).map(|rank| state.cut(0, rank, 3)).collect();
    for step in [1, 2] {
        for outcome in save_ranks(folder.path(), step, &ranks, &incremental()) {
            outcome.unwrap();
        }
    }
    let store = Steps::open(folder.path()).unwrap();
    assert_eq!(store.manifest(2).unwrap().written_bytes(), 0);
    assert_holds(folder.path(), 2, &state);
    let pieces = state.cut(1, 1, 2);
    let seen = restore(&store.checkpoint(2).unwrap(), &pieces).unwrap();
    assert!(pieces.iter().zip(&seen).all(|(piece, seen)| piece.bytes == *seen));
}

#[test]
fn a_parent_is_kept_as_long_as_a_kept_step_refers_to_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = State::of(1, &[("w", Dtype::U8, &[10, 4096])]);
    let mut saver = saver(folder.path(), incremental()).unwrap();
    for step in 1..=4 {
        state.tensors[0].bytes[step as usize * 4096] ^= 1;
        save(&mut saver, step, &state).unwrap();
    }
    let store = Steps::open(folder.path()).unwrap();
    let keep_one = keep_last(1);
    let pruned = store.prune(&keep_one).unwrap();
    assert_eq!((pruned.removed, pruned.kept), (vec![], vec![1, 2, 3, 4]));
    let error = store.remove(1).unwrap_err();
    assert!(error.to_string().contains("refers to it"), "{error}");
    assert_holds(folder.path(), 4, &state);
}

#[test]
fn a_save_that_would_reference_too_many_steps_is_a_full_one_and_frees_the_old_ones() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = State::of(1, &[("w", Dtype::U8, &[20, 4096])]);
    let short = SaverOptions {
        references_max: 2,
        ..incremental()
    };
    let mut saver = saver(folder.path(), short).unwrap();
    let store = Steps::open(folder.path()).unwrap();
    for step in 1..=10 {
        state.tensors[0].bytes[step as usize * 4096] ^= 1;
        save(&mut saver, step, &state).unwrap();
        assert!(store.manifest(step).unwrap().referenced().len() <= 2);
        let keep_one = keep_last(1);
        store.prune(&keep_one).unwrap();
        assert!(store.steps().unwrap().len() <= 3);
        assert_holds(folder.path(), step, &state);
    }
}

#[test]
fn compressed_chunks_are_restored_with_every_codec_and_mixed_with_raw_ones() {
    for codec in [Codec::Zstd, Codec::Lz4] {
        let folder = tempfile::tempdir().unwrap();
        let mut state = State::of(1, &[("noise", Dtype::U8, &[6, 8192]), ("even", Dtype::F32, &[50_000])]);
        for (number, byte) in state.tensors[1].bytes.iter_mut().enumerate() {
            *byte = (number / 3000) as u8;
        }
        let small = SaverOptions {
            codec,
            chunk_bytes: 64 << 10,
            ..incremental()
        };
        let mut saver = saver(folder.path(), small).unwrap();
        let committed = save(&mut saver, 1, &state).unwrap();
        assert!(committed.written_bytes < committed.bytes / 2, "{committed:?}");
        assert!(committed.estimate < 0.9);
        assert_holds(folder.path(), 1, &state);
        state.tensors[0].bytes[5] ^= 1;
        let more = save(&mut saver, 2, &state).unwrap();
        assert!(more.written_bytes < committed.written_bytes);
        assert_holds(folder.path(), 2, &state);
        let checkpoint = Steps::open(folder.path()).unwrap().checkpoint(2).unwrap();
        let verdict = Restorer::new(settings()).unwrap().verify(&checkpoint).unwrap();
        assert!(verdict.damage.is_empty(), "{:?}", verdict.damage);
    }
}

#[test]
fn a_save_after_a_step_was_removed_by_hand_is_a_full_one_and_works() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = State::of(1, &[("w", Dtype::U8, &[10, 4096])]);
    let mut one = saver(folder.path(), incremental()).unwrap();
    for step in 1..=2 {
        state.tensors[0].bytes[step as usize * 4096] ^= 1;
        save(&mut one, step, &state).unwrap();
    }
    fs::remove_dir_all(folder.path().join("step-1")).unwrap();
    let full = save(&mut one, 3, &state).unwrap();
    assert_eq!(full.written_bytes, full.bytes);
    drop(one);
    // The next save references it.
    let mut other = saver(folder.path(), incremental()).unwrap();
    let part = save(&mut other, 4, &state).unwrap();
    assert_eq!(part.written_bytes, 0);
    assert_holds(folder.path(), 4, &state);
}
