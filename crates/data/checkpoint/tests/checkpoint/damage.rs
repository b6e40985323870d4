//! Damaged files: every damage is detected, named, and repaired if there is parity.

use std::{fs, os::unix::fs::FileExt, path::Path};

use straightway_checkpoint::{CheckpointSaver, Codec, Manifest, Rank, Restorer, SaverOptions, Steps, Sum, fresh_run};
use straightway_core::{ErrorKind, Place, Reason, receipt::RouteBytes};
use straightway_io::{Executor, Settings, wrapper::faulty::Faults};
use straightway_weights::{Dtype, FileSaver, Model};

use crate::fixture::{State, assert_holds, executor, options, restore, save, save_ranks, saver, settings, sources};

fn flip(file: &fs::File, bit: u64) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, bit / 8).unwrap();
    byte[0] ^= 1 << (bit % 8);
    file.write_all_at(&byte, bit / 8).unwrap();
}

fn open(path: &Path) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Whether a read of all of step 1 detects damage.
fn is_found(store: &Steps, restorer: &Restorer) -> bool {
    match store.checkpoint(1) {
        Err(_) => true,
        Ok(checkpoint) => !restorer.verify(&checkpoint).unwrap().damage.is_empty(),
    }
}

#[test]
fn every_bit_that_is_flipped_anywhere_in_a_checkpoint_is_found() {
    let folder = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let state = State::of(1, &[("w", Dtype::U8, &[3, 7])]);
    save(&mut saver(folder.path(), options()).unwrap(), 1, &state).unwrap();
    let store = Steps::open(folder.path()).unwrap();
    let one_thread = Settings {
        cached_lanes: 1,
        ..settings()
    };
    let restorer = Restorer::new(one_thread).unwrap();
    assert!(!is_found(&store, &restorer));
    for entry in fs::read_dir(folder.path().join("step-1")).unwrap() {
        let path = entry.unwrap().path();
        let file = open(&path);
        for bit in 0..file.metadata().unwrap().len() * 8 {
            flip(&file, bit);
            assert!(is_found(&store, &restorer), "bit {bit} of {}", path.display());
            flip(&file, bit);
        }
    }
    assert!(!is_found(&store, &restorer));
}

#[test]
fn a_damaged_chunk_is_named_with_its_file_and_tensor_and_nothing_of_it_is_delivered() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::of(1, &[("w", Dtype::U8, &[9000]), ("x", Dtype::U8, &[3000])]);
    save(&mut saver(folder.path(), options()).unwrap(), 1, &state).unwrap();
    let file = open(&folder.path().join("step-1/rank-00000-of-00001.safetensors"));
    flip(&file, (4096 + 4096 + 100) * 8);
    let checkpoint = Steps::open(folder.path()).unwrap().checkpoint(1).unwrap();
    let error = restore(&checkpoint, &state.cut(0, 0, 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let message = error.to_string();
    assert!(message.contains("chunk 2 of"), "{message}");
    assert!(message.contains("rank-00000-of-00001.safetensors"), "{message}");
    assert!(message.contains("tensor \"w\""), "{message}");
    // Tensors in other chunks are not affected.
    let whole = restore(&checkpoint, &state.cut(0, 0, 1)[1..]).unwrap();
    assert!(whole[0] == state.tensors[1].bytes);
}

#[test]
fn a_failed_export_leaves_neither_files_nor_an_index_and_can_be_run_again() {
    let folder = tempfile::tempdir().unwrap();
    let (run, target) = (folder.path().join("run"), folder.path().join("model"));
    let state = State::of(1, &[("a", Dtype::U8, &[9000]), ("b", Dtype::U8, &[9000])]);
    save(&mut saver(&run, options()).unwrap(), 1, &state).unwrap();
    let restorer = Restorer::new(settings()).unwrap();
    let writer = FileSaver::new(executor());
    let export = || {
        let checkpoint = Steps::open(&run).unwrap().checkpoint(1).unwrap();
        restorer.export(&checkpoint, &writer, &target, 9000)
    };
    // The damage is in `b`. It is found after the file of `a` was written.
    let shard = open(&run.join("step-1/rank-00000-of-00001.safetensors"));
    let bit = (4096 + 9000 + 4500) * 8;
    flip(&shard, bit);
    let error = export().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert!(error.to_string().contains("tensor \"b\""), "{error}");
    let left = fs::read_dir(&target).unwrap();
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.is_empty(), "{left:?}");
    flip(&shard, bit);
    assert_eq!(export().unwrap().files.len(), 2);
    let model = Model::open(&target).unwrap();
    assert_eq!((model.shards.len(), model.tensors.len()), (2, 2));
}

#[test]
fn a_shard_that_is_truncated_deleted_or_longer_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::small(1);
    save(&mut saver(folder.path(), options()).unwrap(), 1, &state).unwrap();
    let store = Steps::open(folder.path()).unwrap();
    let path = folder.path().join("step-1/rank-00000-of-00001.safetensors");
    let bytes = fs::read(&path).unwrap();
    for length in [0, 1, 4096, bytes.len() - 1] {
        fs::write(&path, &bytes[..length]).unwrap();
        let checkpoint = store.checkpoint(1).unwrap();
        let error = restore(&checkpoint, &state.cut(0, 0, 1)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    fs::write(&path, [&bytes[..], b"x"].concat()).unwrap();
    assert!(is_found(&store, &Restorer::new(settings()).unwrap()));
    fs::remove_file(&path).unwrap();
    let checkpoint = store.checkpoint(1).unwrap();
    let error = restore(&checkpoint, &state.cut(0, 0, 1)).unwrap_err();
    assert!(
        error.to_string().contains("it is missing, but its manifest names it"),
        "{error}"
    );
    fs::write(&path, bytes).unwrap();
    assert_holds(folder.path(), 1, &state);
}

/// Seals a manifest's text again after it was tampered with.
fn reseal(path: &Path, change: impl FnOnce(String) -> String) {
    let text = fs::read_to_string(path).unwrap();
    let (body, _) = text.rsplit_once(",\"crc64\"").unwrap();
    let body = change(body.to_owned());
    let sum = Sum::of(body.as_bytes());
    fs::write(path, format!("{body},\"crc64\":\"{sum}\"}}\n")).unwrap();
}

#[test]
fn a_manifest_of_a_newer_version_is_refused_by_name_however_it_is_sealed() {
    let folder = tempfile::tempdir().unwrap();
    save(&mut saver(folder.path(), options()).unwrap(), 1, &State::small(1)).unwrap();
    let store = Steps::open(folder.path()).unwrap();
    let path = folder.path().join("step-1/manifest.json");
    reseal(&path, |text| text.replace("\"version\":1", "\"version\":2"));
    let error = store.manifest(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(
        error
            .to_string()
            .contains("it is of version 2, and 1 is the newest known"),
        "{error}"
    );
    fs::write(
        &path,
        "{\"schema\":\"straightway.checkpoint\",\"version\":7,\"seal\":{}}",
    )
    .unwrap();
    assert_eq!(store.manifest(1).unwrap_err().kind(), ErrorKind::Unsupported);
}

#[test]
fn a_newer_version_with_an_invalid_seal_is_reported_as_damage() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = saver(folder.path(), options()).unwrap();
    save(&mut saver, 1, &State::small(1)).unwrap();
    let path = folder.path().join("step-1/manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    // One flipped bit turns a 1 into a 3.
    fs::write(&path, text.replace("\"version\":1", "\"version\":3")).unwrap();
    let error = Steps::open(folder.path()).unwrap().manifest(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let said = error.to_string();
    assert!(said.contains("its checksum does not match"), "{said}");
    assert!(said.contains("of version 3"), "{said}");
}

#[test]
fn an_element_that_no_shard_has_is_refused_before_anything_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::of(1, &[("w", Dtype::U8, &[10])]);
    save(&mut saver(folder.path(), options()).unwrap(), 1, &state).unwrap();
    let path = folder.path().join("step-1/manifest.json");
    reseal(&path, |text| text.replace("\"lengths\":[10]", "\"lengths\":[7]"));
    let error = Steps::open(folder.path()).unwrap().checkpoint(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error
            .to_string()
            .contains("tensor \"w\" is not whole: some of it is in no shard"),
        "{error}"
    );
}

#[test]
fn any_two_of_five_shards_may_be_lost_where_there_are_two_parity_files() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::small(3);
    let ranks: Vec<_> = (0..5).map(|rank| state.cut(0, rank, 5)).collect();
    let guarded = SaverOptions {
        parity: 2,
        codec: Codec::Zstd,
        ..options()
    };
    for outcome in save_ranks(folder.path(), 1, &ranks, &guarded) {
        outcome.unwrap();
    }
    assert_holds(folder.path(), 1, &state);
    let shard = |rank: usize| folder.path().join(format!("step-1/rank-{rank:05}-of-00005.chunks"));
    let restorer = Restorer::new(settings()).unwrap();
    let store = Steps::open(folder.path()).unwrap();
    for (a, b) in [(0, 1), (2, 4), (1, 3)] {
        let (kept_a, kept_b) = (fs::read(shard(a)).unwrap(), fs::read(shard(b)).unwrap());
        fs::remove_file(shard(a)).unwrap();
        fs::write(shard(b), vec![0; kept_b.len()]).unwrap();
        assert_holds(folder.path(), 1, &state);
        let verdict = restorer.verify(&store.checkpoint(1).unwrap()).unwrap();
        assert!(!verdict.damage.is_empty() && verdict.is_mendable);
        let checkpoint = store.checkpoint(1).unwrap();
        let tensors: Vec<_> = checkpoint.manifest().tensors.iter().collect();
        let gathered = restorer.gather(&checkpoint, &tensors, Place::Host).unwrap();
        let receipt = gathered.fetched.receipt;
        let by = |reason| {
            let is = |r: &&RouteBytes| (r.reason == Reason::Rebuilt) == reason;
            receipt.routes.iter().filter(is).map(|r| r.bytes).sum::<u64>()
        };
        assert!(by(true) > 0 && by(false) > 0);
        assert_eq!(by(true) + by(false), receipt.bytes);
        fs::write(shard(a), kept_a).unwrap();
        fs::write(shard(b), kept_b).unwrap();
    }
    (0..3).for_each(|rank| fs::remove_file(shard(rank)).unwrap());
    let error = restore(&store.checkpoint(1).unwrap(), &state.cut(0, 0, 1)).unwrap_err();
    assert!(error.to_string().contains("3 shards have lost this chunk"), "{error}");
}

#[test]
fn an_i_o_error_fails_the_save_or_the_restore_and_touches_nothing_that_was_committed() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::small(1);
    save(&mut saver(folder.path(), options()).unwrap(), 1, &state).unwrap();
    let faults = Faults {
        seed: 1,
        error_per_mille: 1000,
        error_code: 5,
        ..Faults::default()
    };
    let executor = Executor::with_parts(settings(), faults.into()).unwrap();
    let restorer = Restorer::on(&executor);
    let store = Steps::open(folder.path()).unwrap();
    let alone = Rank { rank: 0, world: 1 };
    let run = fresh_run();
    let mut broken = CheckpointSaver::new(store.clone(), alone, &run, executor.into(), options()).unwrap();
    let pieces = state.cut(0, 0, 1);
    broken.save(2, &sources(&pieces), "null").unwrap();
    let error = broken.save(3, &sources(&pieces), "null").unwrap_err();
    assert_eq!(
        error.os_code(),
        Some(5),
        "the next save tells what came of the last: {error}"
    );
    drop(broken);
    let verdict = restorer.verify(&store.checkpoint(1).unwrap()).unwrap();
    assert!(!verdict.damage.is_empty());
    assert_eq!(store.steps().unwrap(), [1]);
    assert_holds(folder.path(), 1, &state);
    save(&mut saver(folder.path(), options()).unwrap(), 2, &state).unwrap();
}

#[test]
fn short_and_late_i_o_changes_nothing() {
    let state = State::of(5, &[("w", Dtype::F32, &[300, 200])]);
    for seed in 0..8 {
        let folder = tempfile::tempdir().unwrap();
        save(&mut saver(folder.path(), options()).unwrap(), 1, &state).unwrap();
        let faults = Faults {
            seed,
            short_per_mille: 400,
            late_per_mille: 300,
            ..Faults::default()
        };
        let odd = Executor::with_parts(settings(), faults.into()).unwrap();
        let checkpoint = Steps::open(folder.path()).unwrap().checkpoint(1).unwrap();
        // Both buffered and direct.
        for evicted in [false, true] {
            if evicted {
                let shard = folder.path().join("step-1/rank-00000-of-00001.safetensors");
                straightway_io::File::open(&shard).unwrap().evict().unwrap();
            }
            let verdict = Restorer::on(&odd).verify(&checkpoint).unwrap();
            assert!(verdict.damage.is_empty(), "{:?}", verdict.damage);
        }
    }
}

#[test]
fn invalid_manifests_are_refused() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../attacks/manifest");
    let mut count = 0;
    for entry in fs::read_dir(corpus).unwrap() {
        let path = entry.unwrap().path();
        let error = Manifest::parse("it", &fs::read(&path).unwrap()).unwrap_err();
        assert!(!error.to_string().is_empty());
        count += 1;
    }
    assert!(count >= 10, "the corpus is there");
}
