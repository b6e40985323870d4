//! Checkpoints in a memory store: saved, restored, verified and pruned.

use std::sync::Arc;

use straightway_checkpoint::{CheckpointSaver, Codec, Rank, Restorer, SaverOptions, Steps, fresh_run};
use straightway_core::{Reason, Receipt, Route};
use straightway_memory::Memory;

use crate::fixture::{State, executor, keep_last, options, restore, settings, sources};

/// Steps in a new memory store.
fn memory() -> Steps {
    Steps::in_store(Arc::new(Memory::new("run")))
}

/// Saves a state as `world` ranks, each on its own thread.
pub(crate) fn save(steps: &Steps, step: u64, state: &State, world: u64, options: &SaverOptions) {
    let run = fresh_run();
    std::thread::scope(|scope| {
        for rank in 0..world {
            let (steps, run) = (steps.clone(), run.clone());
            scope.spawn(move || {
                let pieces = state.cut(0, rank, world);
                let own = Rank {
                    rank: rank as u32,
                    world: world as u32,
                };
                let mut saver = CheckpointSaver::new(steps, own, &run, executor(), options.clone()).unwrap();
                saver.save(step, &sources(&pieces), "null").unwrap();
                saver.wait().unwrap().unwrap();
            });
        }
    });
}

/// Asserts that a step holds a state when it is restored as `world` ranks.
pub(crate) fn assert_holds(steps: &Steps, step: u64, state: &State, world: u64) {
    let checkpoint = steps.checkpoint(step).unwrap();
    for rank in 0..world {
        let pieces = state.cut(0, rank, world);
        let seen = restore(&checkpoint, &pieces).unwrap();
        for (piece, seen) in pieces.iter().zip(seen) {
            assert!(seen == piece.bytes, "tensor {} of step {step}", piece.name);
        }
    }
}

/// Saves states in three ways to stores of `make`, and checks that ranks of these numbers restore them. Returns the
/// receipt of a verification of each.
pub(crate) fn saved_and_restored(make: impl Fn() -> Steps, worlds: &[u64]) -> Vec<Receipt> {
    let ways = [(Codec::Raw, 0, false), (Codec::Zstd, 1, false), (Codec::Lz4, 0, true)];
    let receipt = |(codec, parity, incremental)| {
        let steps = make();
        let chosen = SaverOptions {
            codec,
            parity,
            incremental,
            ..options()
        };
        for step in 1..=3 {
            let state = State::small(step);
            save(&steps, step, &state, 3, &chosen);
            for world in worlds {
                assert_holds(&steps, step, &state, *world);
            }
        }
        assert_eq!(steps.steps().unwrap(), [1, 2, 3]);
        let restorer = Restorer::new(settings()).unwrap();
        let verdict = restorer.verify(&steps.checkpoint(2).unwrap()).unwrap();
        assert!(verdict.damage.is_empty(), "{:?}", verdict.damage);
        verdict.receipt
    };
    ways.map(receipt).into()
}

/// Saves four steps, tags one and prunes, which leaves steps 2 and 4. A tagged step is not removed.
pub(crate) fn tagged_and_pruned(steps: &Steps) {
    for step in 1..=4 {
        save(steps, step, &State::small(step), 2, &options());
    }
    steps.tag(2, "keep").unwrap();
    let pruned = steps.prune(&keep_last(1)).unwrap();
    assert_eq!(steps.steps().unwrap(), [2, 4], "{pruned:?}");
    assert_holds(steps, 2, &State::small(2), 1);
    assert!(steps.remove(2).is_err(), "it is tagged");
}

#[test]
fn a_state_saved_in_memory_is_restored_by_any_number_of_ranks() {
    for receipt in saved_and_restored(memory, &[1, 2, 5]) {
        for row in &receipt.routes {
            assert_eq!((row.route, row.reason), (Route::Buffered, Reason::StoreInMemory));
        }
    }
}

#[test]
fn steps_in_memory_are_tagged_pruned_and_removed() {
    let steps = memory();
    tagged_and_pruned(&steps);
    steps.remove(4).unwrap();
    assert_eq!(steps.steps().unwrap(), [2]);
}
