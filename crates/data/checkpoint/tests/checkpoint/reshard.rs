//! States saved with any sharding are restored with any other.

use proptest::prelude::*;
use straightway_checkpoint::Steps;
use straightway_weights::{Dtype, Rectangle, Shape};

use crate::fixture::{Piece, State, options, restore, save_ranks};

/// Cuts every tensor into a grid and distributes the cells to ranks.
fn grid(state: &State, cuts: &[Vec<u64>], world: usize) -> Vec<Vec<Piece>> {
    let mut ranks = vec![Vec::new(); world];
    let mut turn = 0;
    for tensor in &state.tensors {
        let bounds: Vec<Vec<u64>> = tensor
            .shape
            .iter()
            .zip(cuts)
            .map(|(&length, cuts)| {
                let mut bounds: Vec<_> = cuts.iter().map(|c| c % (length + 1)).collect();
                bounds.extend([0, length]);
                bounds.sort_unstable();
                bounds.dedup();
                bounds
            })
            .collect();
        let mut cells = vec![(Vec::new(), Vec::new())];
        for bounds in &bounds {
            let extend = |(start, lengths): (Vec<u64>, Vec<u64>)| {
                bounds.windows(2).map(move |pair| {
                    let (mut start, mut lengths) = (start.clone(), lengths.clone());
                    start.push(pair[0]);
                    lengths.push(pair[1] - pair[0]);
                    (start, lengths)
                })
            };
            cells = cells.into_iter().flat_map(extend).collect();
        }
        for (start, lengths) in cells {
            let (start, lengths) = (Shape::from(&*start), Shape::from(&*lengths));
            let rectangle = Rectangle::new(&tensor.name, &tensor.shape, start, lengths).unwrap();
            ranks[turn % world].push(Piece {
                name: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                bytes: tensor.part(&rectangle),
                rectangle,
            });
            turn += 1;
        }
    }
    ranks
}

fn cuts() -> impl Strategy<Value = Vec<Vec<u64>>> {
    prop::collection::vec(prop::collection::vec(0_u64..100, 0..3), 3)
}

fn states() -> impl Strategy<Value = State> {
    let shape = prop::collection::vec(1_u64..24, 0..=3);
    let dtype = prop::sample::select(vec![Dtype::U8, Dtype::Bf16, Dtype::F32, Dtype::F64]);
    let tensors = prop::collection::vec((shape, dtype), 1..4);
    (0_u64..1000, tensors).prop_map(|(seed, tensors)| {
        let named: Vec<_> = tensors
            .iter()
            .zip(["a", "b", "c"])
            .map(|((shape, dtype), name)| (name, *dtype, shape.as_slice()))
            .collect();
        State::of(seed, &named)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_sharding_is_restored_by_any_other(
        state in states(),
        saved in cuts(),
        wanted in cuts(),
        (world, readers) in (1_usize..4, 1_usize..4),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let ranks = grid(&state, &saved, world);
        for outcome in save_ranks(folder.path(), 5, &ranks, &options()) {
            outcome.unwrap();
        }
        let store = Steps::open(folder.path()).unwrap();
        let checkpoint = store.checkpoint(5).unwrap();
        for pieces in grid(&state, &wanted, readers) {
            let seen = restore(&checkpoint, &pieces).unwrap();
            for (piece, seen) in pieces.iter().zip(&seen) {
                prop_assert_eq!(seen, &piece.bytes);
            }
        }
    }
}

#[test]
fn a_restore_reads_only_the_chunks_that_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::of(1, &[("w", Dtype::U8, &[64, 4096])]);
    let ranks: Vec<_> = (0..4).map(|rank| state.cut(0, rank, 4)).collect();
    for outcome in save_ranks(folder.path(), 1, &ranks, &options()) {
        outcome.unwrap();
    }
    let checkpoint = Steps::open(folder.path()).unwrap().checkpoint(1).unwrap();
    // A shard without wanted bytes need not exist.
    std::fs::remove_file(folder.path().join("step-1/rank-00003-of-00004.safetensors")).unwrap();
    let pieces = state.cut(0, 5, 64);
    assert_eq!(restore(&checkpoint, &pieces).unwrap()[0], pieces[0].bytes);
    assert!(restore(&checkpoint, &state.cut(0, 63, 64)).is_err());
}
