//! Several ranks that share only a file system.

use std::{fs, sync::Arc, time::Duration};

use straightway_checkpoint::{CheckpointSaver, Rank, SaverOptions, ShardReport, Steps, fresh_run};
use straightway_core::ErrorKind;
use straightway_io::{Executor, wrapper::faulty::Faults};
use straightway_weights::Dtype;

use crate::fixture::{Piece, State, assert_holds, executor, options, save, save_ranks, saver, settings, sources};

fn rank_saver(store: &Steps, rank: u32, world: u32, run: &str, options: SaverOptions) -> CheckpointSaver {
    let rank = Rank { rank, world };
    CheckpointSaver::new(store.clone(), rank, run, executor(), options).unwrap()
}

#[test]
fn a_part_that_all_ranks_have_is_stored_once_and_the_state_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::small(1);
    let ranks: Vec<_> = (0..4).map(|rank| state.cut(1, rank, 4)).collect();
    for outcome in save_ranks(folder.path(), 8, &ranks, &options()) {
        outcome.unwrap();
    }
    assert_holds(folder.path(), 8, &state);
    let manifest = Steps::open(folder.path()).unwrap().manifest(8).unwrap();
    assert_eq!(manifest.tensor("scale").unwrap().parts.len(), 1);
    assert_eq!((manifest.world, manifest.shards.len()), (4, 4));
    assert!(!folder.path().join("step-8/part-00000.json").exists());
}

#[test]
fn a_missing_rank_fails_the_save_after_the_timeout_by_name_and_the_next_one_works() {
    let folder = tempfile::tempdir().unwrap();
    let store = Steps::create(folder.path()).unwrap();
    let (run, state) = (fresh_run(), State::small(1));
    let hasty = SaverOptions {
        timeout: Duration::from_millis(300),
        ..options()
    };
    let mut first = rank_saver(&store, 0, 3, &run, hasty.clone());
    let mut second = rank_saver(&store, 1, 3, &run, options());
    for (rank, saver) in [(0, &mut first), (1, &mut second)] {
        let pieces = state.cut(0, rank, 3);
        saver.save(1, &sources(&pieces), "null").unwrap();
    }
    let start = std::time::Instant::now();
    let error = first.wait().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient);
    assert!(
        error.to_string().contains("nothing came from 1 of 3 ranks: 2"),
        "{error}"
    );
    let error = second.wait().unwrap_err();
    assert!(error.to_string().contains("the coordinator gave it up"), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10));
    assert_eq!(store.steps().unwrap(), [0_u64; 0]);
    drop((first, second));
    let ranks: Vec<_> = (0..3).map(|rank| state.cut(0, rank, 3)).collect();
    for outcome in save_ranks(folder.path(), 1, &ranks, &options()) {
        outcome.unwrap();
    }
    assert_holds(folder.path(), 1, &state);
}

#[test]
fn a_rank_that_cannot_write_its_shard_says_why_and_the_coordinator_need_not_wait() {
    let folder = tempfile::tempdir().unwrap();
    let store = Steps::create(folder.path()).unwrap();
    let state = State::small(1);
    let mut first = rank_saver(&store, 0, 2, "run", options());
    let faults = Faults {
        seed: 1,
        error_per_mille: 1000,
        error_code: 28,
        ..Faults::default()
    };
    let broken = Arc::new(Executor::with_parts(settings(), faults.into()).unwrap());
    let rank = Rank { rank: 1, world: 2 };
    let mut second = CheckpointSaver::new(store.clone(), rank, "run", broken, options()).unwrap();
    first.save(1, &sources(&state.cut(0, 0, 2)), "null").unwrap();
    second.save(1, &sources(&state.cut(0, 1, 2)), "null").unwrap();
    let error = first.wait().unwrap_err().to_string();
    assert!(error.contains("rank 1 failed: "), "{error}");
    assert!(error.contains("No space left on device"), "{error}");
    assert_eq!(second.wait().unwrap_err().os_code(), Some(28));
    assert_eq!(store.steps().unwrap(), [0_u64; 0]);
}

/// Leaves the files of a run of two ranks that died after the coordinator had announced itself and rank 1 had written
/// and reported its shard.
fn leave_half(store: &Steps, run: &str, state: &State) {
    let mut orphan = rank_saver(store, 1, 2, run, options());
    orphan.write_shard(5, &sources(&state.cut(0, 1, 2))).unwrap();
    let part = orphan.wait_part().unwrap();
    let attempt = store.folder().join(format!(".step-5.{run}-1"));
    let dead = "00000000deadbeef";
    fs::write(attempt.join(format!("coordinator-{dead}")), "").unwrap();
    fs::write(attempt.join(format!("part-00001-{dead}.json")), part.text()).unwrap();
    fs::write(attempt.join("rank-00001-of-00002.safetensors"), "half").unwrap();
    fs::write(attempt.join(format!("failed-00001-{dead}.txt")), "it died").unwrap();
}

#[test]
fn a_run_that_is_started_again_under_its_name_never_commits_what_its_dead_ranks_left() {
    let (old, new) = (State::small(1), State::small(2));
    for late in [0, 1] {
        let folder = tempfile::tempdir().unwrap();
        let store = Steps::create(folder.path()).unwrap();
        leave_half(&store, "again", &old);
        // Either rank may restart first.
        let one = |rank: u32| {
            if rank == late {
                std::thread::sleep(Duration::from_millis(150));
            }
            let mut saver = rank_saver(&store, rank, 2, "again", options());
            let pieces = new.cut(0, rank.into(), 2);
            for step in [5, 6] {
                saver.save(step, &sources(&pieces), "null").unwrap();
                saver.wait().unwrap();
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| one(0));
            scope.spawn(|| one(1));
        });
        for step in [5, 6] {
            assert_holds(folder.path(), step, &new);
            let names = fs::read_dir(folder.path().join(format!("step-{step}"))).unwrap();
            assert_eq!(names.count(), 3, "two shards and a manifest");
        }
    }
}

#[test]
fn a_run_that_is_started_again_waits_for_its_own_ranks_and_not_for_dead_ones() {
    let folder = tempfile::tempdir().unwrap();
    let store = Steps::create(folder.path()).unwrap();
    leave_half(&store, "again", &State::small(1));
    let hasty = SaverOptions {
        timeout: Duration::from_millis(300),
        ..options()
    };
    let mut first = rank_saver(&store, 0, 2, "again", hasty);
    let pieces = State::small(2).cut(0, 0, 2);
    first.save(5, &sources(&pieces), "null").unwrap();
    let error = first.wait().unwrap_err().to_string();
    assert!(error.contains("nothing came from 1 of 2 ranks: 1"), "{error}");
    assert_eq!(store.steps().unwrap(), [0_u64; 0]);
}

#[test]
fn leftovers_of_an_earlier_run_are_swept_and_never_used() {
    let folder = tempfile::tempdir().unwrap();
    let store = Steps::create(folder.path()).unwrap();
    let (old, new) = (State::small(1), State::small(2));
    leave_half(&store, "crashed", &old);
    let ranks: Vec<_> = (0..2).map(|rank| new.cut(0, rank, 2)).collect();
    for outcome in save_ranks(folder.path(), 5, &ranks, &options()) {
        outcome.unwrap();
    }
    assert_holds(folder.path(), 5, &new);
    let mut names: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, [".lock", "step-5"]);
}

#[test]
fn a_second_job_is_refused_by_the_name_of_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let store = Steps::create(folder.path()).unwrap();
    let _first = rank_saver(&store, 0, 1, "job-1", options());
    let alone = Rank { rank: 0, world: 1 };
    let error = CheckpointSaver::new(store, alone, "job-2", executor(), options()).unwrap_err();
    assert!(
        error.to_string().contains("another job saves there: run job-1"),
        "{error}"
    );
}

#[test]
fn a_step_that_exists_is_refused_and_stays_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (State::small(1), State::small(2));
    let mut saver = saver(folder.path(), options()).unwrap();
    save(&mut saver, 1, &first).unwrap();
    let error = save(&mut saver, 1, &second).unwrap_err();
    assert!(error.to_string().contains("that step is there already"), "{error}");
    // Two jobs without working locks: both write, and the one that commits last is refused.
    let store = Steps::open(folder.path()).unwrap();
    let part = |run: &str, state: &State| {
        let mut writer = rank_saver(&store, 0, 1, run, options());
        writer.write_shard(2, &sources(&state.cut(0, 0, 1))).unwrap();
        writer.wait_part().unwrap()
    };
    drop(saver);
    let early = part("a", &first);
    let kept = folder.path().join(".step-2.a-1");
    let aside = folder.path().join("kept-from-the-sweep");
    fs::rename(&kept, &aside).unwrap();
    let late = part("b", &second);
    fs::rename(&aside, &kept).unwrap();
    store.commit(vec![early], "null", 0).unwrap();
    let error = store.commit(vec![late], "null", 0).unwrap_err();
    assert!(error.to_string().contains("that step is there already"), "{error}");
    assert_holds(folder.path(), 1, &first);
    assert_holds(folder.path(), 2, &first);
}

#[test]
fn parts_that_the_caller_gathers_are_committed_and_bad_ones_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = Steps::create(folder.path()).unwrap();
    let state = State::of(4, &[("w", Dtype::U8, &[40])]);
    let mut savers = [0, 1].map(|rank| rank_saver(&store, rank, 2, "run", options()));
    let mut step = |step: u64, pieces: [&[Piece]; 2]| {
        let mut parts = Vec::new();
        for (saver, pieces) in savers.iter_mut().zip(pieces) {
            saver.write_shard(step, &sources(pieces)).unwrap();
            // As text, as it is sent from rank to rank.
            let text = saver.wait_part().unwrap().text();
            parts.push(ShardReport::parse("a part", text.as_bytes()).unwrap());
        }
        store.commit(parts, "{}", 0)
    };
    let (left, right) = (state.cut(0, 0, 2), state.cut(0, 1, 2));
    step(1, [&left, &right]).unwrap();
    assert_holds(folder.path(), 1, &state);
    let error = step(2, [&left, &left]).unwrap_err();
    assert!(error.to_string().contains("tensor \"w\" is not whole"), "{error}");
    let error = step(3, [&left, &state.cut(0, 0, 1)]).unwrap_err();
    assert!(error.to_string().contains("overlap"), "{error}");
    let other = State::of(4, &[("w", Dtype::I8, &[40])]);
    let error = step(4, [&left, &other.cut(0, 1, 2)]).unwrap_err();
    let said = "tensor \"w\": rank 0 has a tensor, U8 of shape [40] under that name, and rank 1 a tensor, I8";
    assert!(error.to_string().contains(said), "{error}");
    savers[0].write_shard(5, &sources(&left)).unwrap();
    let lonely = savers[0].wait_part().unwrap();
    let error = store.commit(vec![lonely.clone()], "{}", 0).unwrap_err();
    assert!(
        error.to_string().contains("1 parts are not one for each of 2 ranks"),
        "{error}"
    );
    assert_eq!(store.steps().unwrap(), [1]);
}

#[test]
fn a_rank_that_is_not_one_of_its_world_and_a_run_with_a_bad_name_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let store = Steps::create(folder.path()).unwrap();
    for (rank, world, run) in [(2, 2, "r"), (0, 0, "r"), (0, 1, "../r"), (0, 1 << 20, "r")] {
        let rank = Rank { rank, world };
        assert!(CheckpointSaver::new(store.clone(), rank, run, executor(), options()).is_err());
    }
    for chunk_bytes in [0, 100, 5000, 1 << 40] {
        let odd = SaverOptions {
            chunk_bytes,
            ..options()
        };
        let rank = Rank { rank: 0, world: 1 };
        assert!(CheckpointSaver::new(store.clone(), rank, "r", executor(), odd).is_err());
    }
}
