//! Steps in a bucket: object versions, late ranks, differences, exports and sweeps.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use straightway_checkpoint::{
    CheckpointSaver, Codec, Manifest, Rank, Restorer, SaverOptions, StepChange, Steps, fresh_run,
};
use straightway_core::{ErrorKind, Result};
use straightway_io::{
    Store,
    store::{Condition, Durability, Location, Missing, StoreExt, list_all},
};
use straightway_lab::S3Server;
use straightway_weights as weights;

use crate::{
    fixture::{State, executor, options, restore, settings, sources},
    s3::{fresh, objects},
    store::{assert_holds, save},
};

/// Steps below a new prefix, if there is a server.
fn bucket() -> Option<(Arc<dyn Store>, Steps)> {
    let store = fresh(&S3Server::shared()?.url());
    Some((Arc::clone(&store), Steps::in_store(store)))
}

/// The objects of a step.
fn below(store: &Arc<dyn Store>, step: u64) -> Arc<dyn Store> {
    let folder = format!("step-{step}");
    store.below(folder.as_ref(), Missing::Refuse).unwrap()
}

/// Puts new versions of a step's objects whose names contain `word`: with the same bytes, or with one bit flipped.
fn replace(store: &Arc<dyn Store>, step: u64, word: &str, flips: bool) {
    let step = below(store, step);
    for object in list_all(&*step).unwrap().objects {
        if !object.name.to_string_lossy().contains(word) {
            continue;
        }
        let mut bytes = step.get(&object.name, 1 << 30).unwrap();
        *bytes.last_mut().unwrap() ^= u8::from(flips);
        step.put(&object.name, &bytes, &Condition::Always, Durability::Synced)
            .unwrap();
    }
}

fn held(steps: &Steps, step: u64, state: &State) -> Result<()> {
    restore(&steps.checkpoint(step)?, &state.cut(0, 0, 1)).map(drop)
}

fn manifest(steps: &Steps, step: u64) -> Manifest {
    steps.manifest(step).unwrap()
}

#[test]
fn a_shard_that_was_replaced_is_refused_when_it_is_opened() {
    let Some((store, steps)) = bucket() else {
        return;
    };
    let state = State::small(3);
    save(&steps, 1, &state, 2, &options());
    let versions = manifest(&steps, 1).versions.unwrap();
    assert_eq!(versions.objects.len(), 2);
    replace(&store, 1, "rank", true);
    let error = held(&steps, 1, &state).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("replaced since it was saved"), "{error}");
    let verdict = Restorer::new(settings())
        .unwrap()
        .verify(&steps.checkpoint(1).unwrap())
        .unwrap();
    assert!(!verdict.damage.is_empty() && !verdict.is_mendable);
}

#[test]
fn a_replaced_shard_is_rebuilt_from_parity() {
    let Some((store, steps)) = bucket() else {
        return;
    };
    let state = State::small(4);
    let chosen = SaverOptions { parity: 1, ..options() };
    save(&steps, 1, &state, 3, &chosen);
    assert_eq!(manifest(&steps, 1).versions.unwrap().objects.len(), 4);
    replace(&store, 1, "rank-00001", true);
    assert_holds(&steps, 1, &state, 1);
}

#[test]
fn a_manifest_has_the_versions_of_the_earlier_steps_it_references() {
    let Some((store, steps)) = bucket() else {
        return;
    };
    let chosen = SaverOptions {
        incremental: true,
        codec: Codec::Zstd,
        ..options()
    };
    let mut state = State::small(5);
    save(&steps, 1, &state, 1, &chosen);
    state.tensors[1].bytes[0] ^= 1;
    save(&steps, 2, &state, 1, &chosen);
    let second = manifest(&steps, 2);
    assert_eq!(second.referenced(), [1]);
    let named: Vec<_> = second.versions.unwrap().objects.iter().map(|o| o.step).collect();
    assert_eq!(named, [1, 2]);
    held(&steps, 2, &state).unwrap();
    replace(&store, 1, "rank", true);
    let error = held(&steps, 2, &state).unwrap_err();
    assert!(error.to_string().contains("replaced since it was saved"), "{error}");
}

#[test]
fn a_step_that_was_copied_elsewhere_is_restored_from_there() {
    let Some((store, steps)) = bucket() else {
        return;
    };
    let state = State::small(6);
    save(&steps, 1, &state, 2, &options());
    let (other, copied) = bucket().unwrap();
    let (from, to) = (below(&store, 1), below(&other, 1));
    for object in list_all(&*from).unwrap().objects {
        let mut bytes = from.get(&object.name, 1 << 30).unwrap();
        // Another upload has another version even if its bytes are the same.
        if object.name != "manifest.json" {
            bytes.push(0);
        }
        to.put(&object.name, &bytes, &Condition::Always, Durability::Synced)
            .unwrap();
    }
    assert_holds(&copied, 1, &state, 1);
}

/// Rank 1 of 2, which saves step 1 and waits five minutes for its coordinator.
fn patient(steps: &Steps, state: &State, run: &str) -> CheckpointSaver {
    let patient = SaverOptions {
        timeout: Duration::from_mins(5),
        ..options()
    };
    let rank = Rank { rank: 1, world: 2 };
    let mut saver = CheckpointSaver::new(steps.clone(), rank, run, executor(), patient).unwrap();
    saver.save(1, &sources(&state.cut(0, 1, 2)), "null").unwrap();
    saver
}

/// Checks that a save that waits for its coordinator fails soon, for this reason.
fn assert_told_soon(mut late: CheckpointSaver, why: &str) {
    let start = Instant::now();
    let error = late.wait().unwrap_err();
    assert!(error.to_string().contains(why), "{error}");
    assert!(start.elapsed() < Duration::from_secs(20));
}

#[test]
fn a_rank_that_comes_after_its_step_was_committed_is_told_soon() {
    let Some((_, steps)) = bucket() else { return };
    let state = State::small(7);
    let late = patient(&steps, &state, &fresh_run());
    // Another job saves the same step meanwhile.
    save(&steps, 1, &state, 1, &options());
    assert_told_soon(late, "committed without this rank");
}

#[test]
fn a_rank_whose_coordinator_gave_up_before_it_wrote_is_told_soon() {
    let Some((store, steps)) = bucket() else {
        return;
    };
    let run = fresh_run();
    let late = patient(&steps, &State::small(8), &run);
    // As a coordinator does that abandons the attempt: records that are put later do not bring it back.
    let attempt = store
        .below(format!(".step-1.{run}-1").as_ref(), Missing::Refuse)
        .unwrap();
    attempt.remove("begun".as_ref(), Durability::Synced).unwrap();
    assert_told_soon(late, "gave it up");
}

#[test]
fn steps_in_a_bucket_are_compared_and_exported_to_buckets_and_folders() {
    let Some((store, steps)) = bucket() else {
        return;
    };
    let (old, mut new) = (State::small(9), State::small(9));
    new.tensors[0].bytes[5] ^= 1;
    save(&steps, 1, &old, 2, &options());
    save(&steps, 2, &new, 3, &options());
    let restorer = Restorer::new(settings()).unwrap();
    let (first, second) = (steps.checkpoint(1).unwrap(), steps.checkpoint(2).unwrap());
    let difference = restorer.diff(&first, &second).unwrap();
    let of = new.tensors[0].bytes.len() as u64;
    let change = StepChange::Bytes { different: 1, of };
    assert_eq!(difference.changes, [("w".to_owned(), change)]);
    assert_eq!(difference.same, 4);
    let writer = weights::FileSaver::new(executor());
    let folder = tempfile::tempdir().unwrap();
    let inside = Location {
        store: Arc::clone(&store),
        name: "exported".into(),
    };
    let places = [inside.clone(), Location::from(folder.path())];
    let mut files = Vec::new();
    for place in places {
        let exported = restorer.export(&second, &writer, place, 3000).unwrap();
        assert!(exported.files.len() > 1 && exported.tensors == 5, "{exported:?}");
        files = exported.files;
    }
    let exported = inside.below(Missing::Refuse).unwrap();
    for file in files.iter().map(String::as_str).chain(["model.safetensors.index.json"]) {
        let in_bucket = exported.get(file.as_ref(), 1 << 30).unwrap();
        assert!(in_bucket == std::fs::read(folder.path().join(file)).unwrap(), "{file}");
    }
    let error = restorer.export(&first, &writer, inside, 3000).unwrap_err();
    assert!(error.to_string().contains("not empty"), "{error}");
}

#[test]
fn a_sweep_removes_only_old_objects_that_belong_to_no_step() {
    let Some((store, steps)) = bucket() else {
        return;
    };
    save(&steps, 1, &State::small(1), 1, &options());
    let before = objects(&*store);
    let rank = Rank { rank: 1, world: 2 };
    let run = fresh_run();
    let mut orphan = CheckpointSaver::new(steps.clone(), rank, &run, executor(), options()).unwrap();
    orphan.write_shard(2, &sources(&State::small(2).cut(0, 1, 2))).unwrap();
    orphan.wait_part().unwrap();
    assert!(objects(&*store).len() > before.len());
    assert!(steps.sweep_left(Duration::from_hours(1)).unwrap().is_empty());
    let swept = steps.sweep_left(Duration::ZERO).unwrap();
    assert_eq!(swept, [format!(".step-2.{run}-1")]);
    assert_eq!(objects(&*store), before);
}
