//! Saves of one rank.

use std::{fs, sync::Arc};

use straightway_checkpoint::{Busy, CheckpointSaver, Rank, Restorer, SaveSource, SaverOptions, Steps, Wanted};
use straightway_core::{Place, Rate, receipt::Bound};
use straightway_io::{Executor, Region, Settings};
use straightway_weights::{Dtype, Rectangle, Shape};

use crate::fixture::{State, assert_holds, noise, options, save, saver, settings, sources};

#[test]
fn a_saved_state_is_restored_byte_for_byte_and_the_last_step_is_the_latest() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = saver(folder.path(), options()).unwrap();
    for step in [1, 2, 10] {
        let committed = save(&mut saver, step, &State::small(step)).unwrap();
        assert_eq!(committed.bytes, committed.written_bytes);
    }
    let store = Steps::open(folder.path()).unwrap();
    assert_eq!(store.steps().unwrap(), [1, 2, 10]);
    assert_eq!(store.latest().unwrap(), 10);
    for step in [1, 2, 10] {
        assert_holds(folder.path(), step, &State::small(step));
    }
    assert_eq!(store.manifest(2).unwrap().metadata, "{\"lr\":0.1}");
}

#[test]
fn a_tensor_changed_right_after_save_returned_is_saved_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = saver(folder.path(), SaverOptions::default()).unwrap();
    // Large enough that the flush is still under way when the tensor is changed.
    let was = noise(1, 40 << 20);
    let mut bytes = was.clone();
    let shape = Shape::from(&[bytes.len() as u64][..]);
    let source = SaveSource::whole("t", Dtype::U8, shape.clone(), &bytes);
    saver.save(1, &[source], "null").unwrap();
    bytes.fill(0);
    saver.wait().unwrap();
    let checkpoint = Steps::open(folder.path()).unwrap().open_latest().unwrap();
    let mut region = Arc::new(Region::host(was.len() as u64).unwrap());
    let wanted = Wanted {
        name: "t".to_owned(),
        rectangle: Rectangle::whole(&shape),
        region: Arc::clone(&region),
        at: 0,
    };
    let fetched = Restorer::new(settings())
        .unwrap()
        .restore(&checkpoint, &[wanted])
        .unwrap();
    let receipt = fetched.receipt;
    assert_eq!(receipt.bytes, was.len() as u64);
    let sum: u64 = receipt.routes.iter().map(|r| r.bytes).sum();
    assert_eq!(sum, receipt.bytes, "every byte went some way");
    assert!(receipt.ios >= 10 && receipt.storage_bytes >= receipt.bytes);
    assert!(receipt.latency.storage.count == receipt.ios && receipt.latency.copy.count == fetched.chunks);
    assert!(receipt.lanes > 0 && receipt.staging_bytes_peak > 0);
    assert!(Arc::get_mut(&mut region).unwrap().as_slice() == was);
}

#[test]
fn a_state_of_several_segments_is_whole_and_its_memory_serves_again() {
    let folder = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    let mut saver = saver(folder.path(), SaverOptions::default()).unwrap();
    // Two segments, the second of them short, and a tensor across their boundary.
    let mut bytes = vec![1_u8; 260 << 20];
    let shape = Shape::from(&[bytes.len() as u64][..]);
    let like = SaveSource::whole("t", Dtype::U8, shape.clone(), &bytes);
    saver.prepare(&[like]).unwrap();
    for step in 1..=2_u8 {
        let seam = 256 << 20;
        bytes[seam - 5000..seam + 5000].fill(step);
        let source = SaveSource::whole("t", Dtype::U8, shape.clone(), &bytes);
        saver.save(step.into(), &[source], "null").unwrap();
        saver.wait().unwrap();
        let checkpoint = Steps::open(folder.path()).unwrap().open_latest().unwrap();
        let mut region = Arc::new(Region::host(20_000).unwrap());
        let wanted = Wanted {
            name: "t".to_owned(),
            rectangle: Rectangle::whole(&shape)
                .cut("t", 0, seam as u64 - 10_000, 20_000)
                .unwrap(),
            region: Arc::clone(&region),
            at: 0,
        };
        let restorer = Restorer::new(settings()).unwrap();
        restorer.restore(&checkpoint, &[wanted]).unwrap();
        let seen = Arc::get_mut(&mut region).unwrap().as_slice();
        assert!(seen == &bytes[seam - 10_000..seam + 10_000]);
        assert!(restorer.verify(&checkpoint).unwrap().damage.is_empty());
    }
}

#[test]
fn any_safetensors_reader_reads_the_shard_of_a_plain_save() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::small(7);
    save(&mut saver(folder.path(), options()).unwrap(), 3, &state).unwrap();
    let shard = fs::read(folder.path().join("step-3/rank-00000-of-00001.safetensors")).unwrap();
    let read = safetensors::SafeTensors::deserialize(&shard).unwrap();
    assert_eq!(read.len(), state.tensors.len());
    for tensor in &state.tensors {
        let view = read.tensor(&tensor.name).unwrap();
        assert_eq!(view.data(), tensor.bytes);
        let shape: Vec<_> = view.shape().iter().map(|n| *n as u64).collect();
        assert_eq!(shape, tensor.shape.to_vec());
    }
    let header = u64::from_le_bytes(shard[..8].try_into().unwrap());
    assert_eq!((header + 8) % 4096, 0, "data begins on a page");
}

#[test]
fn opaque_bytes_are_restored_and_marked_as_opaque() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = saver(folder.path(), options()).unwrap();
    let state = [
        SaveSource::opaque("optimizer/step", b"\x80\x04K*."),
        SaveSource::opaque("none", b""),
    ];
    saver.save(1, &state, "null").unwrap();
    saver.wait().unwrap();
    let checkpoint = Steps::open(folder.path()).unwrap().open_latest().unwrap();
    let tensor = checkpoint.manifest().tensor("optimizer/step").unwrap();
    assert!(tensor.opaque);
    let restorer = Restorer::new(settings()).unwrap();
    assert_eq!(restorer.opaque(&checkpoint, "optimizer/step").unwrap(), b"\x80\x04K*.");
    assert_eq!(restorer.opaque(&checkpoint, "none").unwrap(), b"");
    assert!(restorer.opaque(&checkpoint, "nothing").is_err());
}

#[test]
fn a_restore_keeps_its_rate_limit_with_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::of(1, &[("t", Dtype::U8, &[8 << 20])]);
    save(&mut saver(folder.path(), options()).unwrap(), 1, &state).unwrap();
    let checkpoint = Steps::open(folder.path()).unwrap().open_latest().unwrap();
    let tensors: Vec<_> = checkpoint.manifest().tensors.iter().collect();
    let limited = Settings {
        rate_max: Some(Rate(4e6)),
        cached_lanes: 4,
        ..settings()
    };
    let restorer = Restorer::new(limited).unwrap();
    let restore = || {
        let gathered = restorer.gather(&checkpoint, &tensors, Place::Host).unwrap();
        let receipt = gathered.fetched.receipt;
        // The burst allowance of 50 ms and the last chunk may come on top.
        assert!(receipt.seconds > 1.2, "{receipt}");
        receipt.seconds < 6.0 && receipt.bound_by == Bound::Throttle
    };
    // It takes 2 s, and a busy machine may be slower than the limit.
    assert!((0..5).any(|_| restore()));
}

#[test]
fn a_second_save_waits_for_the_first_or_is_refused_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    let state = State::of(1, &[("t", Dtype::U8, &[4 << 20])]);
    let pieces = state.cut(0, 0, 1);
    let refusing = SaverOptions {
        busy: Busy::Refuse,
        ..SaverOptions::default()
    };
    // Slow enough that the first save is still under way at the second.
    let slow = Settings {
        rate_max: Some(Rate(8e6)),
        ..settings()
    };
    let slow = Arc::new(Executor::new(slow).unwrap());
    let store = Steps::create(folder.path()).unwrap();
    let alone = Rank { rank: 0, world: 1 };
    let mut saver = CheckpointSaver::new(store, alone, "slow", slow, refusing).unwrap();
    saver.save(1, &sources(&pieces), "null").unwrap();
    let error = saver.save(2, &sources(&pieces), "null").unwrap_err();
    assert!(error.to_string().contains("still under way"), "{error}");
    saver.wait().unwrap().unwrap();
    assert!(!saver.is_busy());
    assert_eq!(saver.progress().moved_bytes(), saver_bytes(folder.path()));
    saver.save(3, &sources(&pieces), "null").unwrap();
    drop(saver);
    assert_eq!(Steps::open(folder.path()).unwrap().steps().unwrap(), [1, 3]);
    let mut patient = crate::fixture::saver(folder.path(), SaverOptions::default()).unwrap();
    patient.save(4, &sources(&pieces), "null").unwrap();
    patient.save(5, &sources(&pieces), "null").unwrap();
    patient.wait().unwrap();
    assert_eq!(Steps::open(folder.path()).unwrap().steps().unwrap(), [1, 3, 4, 5]);
}

fn saver_bytes(folder: &std::path::Path) -> u64 {
    Steps::open(folder).unwrap().manifest(1).unwrap().shards[0].bytes
}

#[test]
fn a_state_larger_than_the_memory_allowed_for_it_is_refused_with_the_figures() {
    let folder = tempfile::tempdir().unwrap();
    let tight = SaverOptions {
        memory_bytes_max: 4096,
        ..options()
    };
    let mut saver = saver(folder.path(), tight).unwrap();
    let error = save(&mut saver, 1, &State::small(1)).unwrap_err();
    assert!(error.to_string().contains("4 KiB of memory are allowed"), "{error}");
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        1,
        "only the lock is there"
    );
}

#[test]
fn inconsistent_sources_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = saver(folder.path(), options()).unwrap();
    let shape = || Shape::from(&[4_u64][..]);
    let mut refused = |sources: &[SaveSource<'_>]| saver.save(1, sources, "null").unwrap_err().to_string();
    let short = SaveSource::whole("w", Dtype::F32, shape(), &[0; 15]);
    assert!(refused(&[short]).contains("15 bytes are given"));
    let one = SaveSource::whole("w", Dtype::U8, shape(), &[0; 4]);
    assert!(refused(&[one.clone(), one.clone()]).contains("two tensors are called \"w@0\""));
    let other = SaveSource {
        dtype: Dtype::I8,
        rectangle: Rectangle::whole(&shape()).cut("w", 0, 1, 1).unwrap(),
        memory: straightway_weights::Holding::Host(&[0; 1]),
        ..one.clone()
    };
    assert!(refused(&[one, other]).contains("differ in dtype or shape"));
    assert!(refused(&[SaveSource::opaque("__metadata__", b"x")]).contains("__metadata__"));
}

#[test]
fn metadata_that_json_cannot_hold_is_refused_at_the_call_and_the_last_save_is_unaffected() {
    let folder = tempfile::tempdir().unwrap();
    let mut saver = saver(folder.path(), options()).unwrap();
    let state = [SaveSource::opaque("x", b"x")];
    saver
        .save(1, &state, "{\"seed\":340282366920938463463374607431768211455}")
        .unwrap();
    let deep = "[".repeat(200) + &"]".repeat(200);
    for bad in ["{not json", "NaN", "[Infinity]", "1e999", "\"\\ud800\"", &deep] {
        let error = saver.save(2, &state, bad).unwrap_err();
        assert!(
            error.to_string().contains("its metadata cannot be stored as JSON"),
            "{error}"
        );
    }
    saver.wait().unwrap().unwrap();
    saver.save(2, &state, "null").unwrap();
    saver.wait().unwrap().unwrap();
    let store = Steps::open(folder.path()).unwrap();
    assert_eq!(store.steps().unwrap(), [1, 2]);
    let metadata = store.manifest(1).unwrap().metadata;
    assert_eq!(metadata, "{\"seed\":340282366920938463463374607431768211455}");
}
