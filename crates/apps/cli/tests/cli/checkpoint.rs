//! `checkpoint` on small folders: the output and exit code of each subcommand.

use std::{
    fs,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::process::Signal;
use serde_json::Value;
use straightway_checkpoint::{CheckpointSaver, Rank, SaveSource, SaverOptions, Steps, fresh_run};
use straightway_io::{Executor, Settings};
use straightway_weights::{Dtype, Shape};

use crate::test_dir::{Ran, TestDir, noise};

/// A folder `run` with steps 10, 20 and 30; the last two are equal.
fn checkpoints(dir: &TestDir) {
    let options = SaverOptions {
        incremental: true,
        ..SaverOptions::default()
    };
    save(dir, options, 64, [(10, 1), (20, 2), (30, 2)]);
}

/// Saves steps. Each has `rows` rows of data from its seed.
fn save<const N: usize>(dir: &TestDir, options: SaverOptions, rows: usize, steps: [(u64, u64); N]) {
    let store = Steps::create(&dir.path("run")).unwrap();
    let executor = Arc::new(Executor::new(Settings::default()).unwrap());
    let alone = Rank { rank: 0, world: 1 };
    let mut saver = CheckpointSaver::new(store, alone, &fresh_run(), executor, options).unwrap();
    for (step, seed) in steps {
        let weight = noise(rows << 10, seed);
        let shape = Shape::from(&[rows as u64, 1024][..]);
        let state = [
            SaveSource::whole("weight", Dtype::U8, shape, &weight),
            SaveSource::opaque("rng", b"42"),
        ];
        saver.save(step, &state, "{\"loss\":1.5}").unwrap();
        saver.wait().unwrap();
    }
}

fn run(dir: &TestDir, line: &str) -> Ran {
    dir.run(line.split(' '))
}

fn json(dir: &TestDir, line: &str, code: i32) -> Value {
    let ran = run(dir, line);
    assert_eq!(ran.code, Some(code), "{}", ran.err);
    serde_json::from_str(&ran.out).unwrap()
}

#[test]
fn complete_steps_of_a_folder_are_listed_and_no_others() {
    let dir = TestDir::new();
    checkpoints(&dir);
    fs::create_dir(dir.path("run/.step-40.dead-1")).unwrap();
    fs::create_dir(dir.path("run/step-50")).unwrap();
    let list = json(&dir, "checkpoint ls run --json", 0);
    let steps = list["steps"].as_array().unwrap();
    let numbers: Vec<_> = steps.iter().map(|s| s["step"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [10, 20, 30]);
    assert_eq!(steps[2]["written_bytes"], 0);
    assert_eq!(steps[2]["refers_to"], serde_json::json!([20]));
    let ran = run(&dir, "checkpoint ls run");
    assert_eq!(ran.code, Some(0));
    assert!(ran.out.contains("64 KiB"), "{}", ran.out);
    fs::write(dir.path("run/step-20/manifest.json"), "{}").unwrap();
    let list = json(&dir, "checkpoint ls run --json", 1);
    assert!(
        list["steps"][1]["error"].as_str().unwrap().contains("too short"),
        "{list}"
    );
}

#[test]
fn verify_exits_with_0_for_an_intact_step_and_1_with_the_damage() {
    let dir = TestDir::new();
    checkpoints(&dir);
    let ran = run(&dir, "checkpoint verify run --step 10");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert!(ran.out.starts_with("step 10 is whole: "), "{}", ran.out);
    let shard = dir.path("run/step-10/rank-00000-of-00001.safetensors");
    let file = fs::OpenOptions::new().write(true).open(shard).unwrap();
    file.write_all_at(b"?", 5000).unwrap();
    let ran = run(&dir, "checkpoint verify run --step 10");
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.out
            .contains("chunk 0 of run/step-10/rank-00000-of-00001.safetensors"),
        "{}",
        ran.out
    );
    assert!(ran.out.ends_with("step 10 is damaged\n"), "{}", ran.out);
    let said = json(&dir, "checkpoint verify run --step 10 --json", 1);
    assert_eq!(
        (&said["is_whole"], &said["is_mendable"]),
        (&false.into(), &false.into())
    );
    let ran = run(&dir, "checkpoint restore run --step 10");
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("its checksum is"), "{}", ran.err);
}

#[test]
fn two_steps_are_compared() {
    let dir = TestDir::new();
    checkpoints(&dir);
    let ran = run(&dir, "checkpoint diff run 10 20");
    assert_eq!(ran.code, Some(1), "{}", ran.err);
    assert!(ran.out.starts_with("~ weight: "), "{}", ran.out);
    assert!(ran.out.ends_with("1 tensor is the same\n"), "{}", ran.out);
    let said = json(&dir, "checkpoint diff run 20 30 --json", 0);
    assert_eq!((&said["is_same"], &said["same"]), (&true.into(), &2.into()));
}

#[test]
fn a_sweep_removes_leftovers_of_crashed_saves_and_no_step() {
    let dir = TestDir::new();
    checkpoints(&dir);
    fs::create_dir(dir.path("run/.step-40.dead-1")).unwrap();
    let said = json(&dir, "checkpoint sweep run --age 0 --json", 0);
    assert_eq!(said["swept"], serde_json::json!([".step-40.dead-1"]));
    let ran = run(&dir, "checkpoint sweep run");
    assert_eq!(ran.out, "nothing was left behind\n");
    assert_eq!(
        json(&dir, "checkpoint ls run --json", 0)["steps"]
            .as_array()
            .map(Vec::len),
        Some(3)
    );
    assert_eq!(run(&dir, "checkpoint sweep run --age -1").code, Some(2));
}

#[test]
fn pruning_keeps_the_latest_the_tagged_and_their_referenced_steps() {
    let dir = TestDir::new();
    checkpoints(&dir);
    fs::create_dir(dir.path("run/.step-40.dead-1")).unwrap();
    let said = json(&dir, "checkpoint tag run 10 best --json", 0);
    assert_eq!(
        (&said["step"], &said["tags"]),
        (&10.into(), &serde_json::json!(["best"]))
    );
    let ran = run(&dir, "checkpoint prune run --keep 1 --dry-run");
    assert_eq!(ran.out, "3 steps stay\n");
    assert_eq!(run(&dir, "checkpoint tag run 10 best --remove").code, Some(0));
    let ran = run(&dir, "checkpoint prune run --keep 1");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(ran.out, "removed step 10\nswept .step-40.dead-1\n2 steps stay\n");
    assert!(!dir.path("run/step-10").exists());
    assert_eq!(run(&dir, "checkpoint verify run").code, Some(0));
    assert_eq!(run(&dir, "checkpoint prune run --keep 0").code, Some(2));
}

#[test]
fn a_step_is_exported_as_a_model_and_restored_into_memory() {
    let dir = TestDir::new();
    checkpoints(&dir);
    let ran = run(&dir, "checkpoint export run model");
    assert_eq!(ran.code, Some(0), "{}", ran.err);
    assert_eq!(ran.out, "1 tensor, 64 KiB, in 1 file\nleft out (not tensors): rng\n");
    assert_eq!(run(&dir, "load model --verify").code, Some(0));
    assert_eq!(run(&dir, "checkpoint export run model").code, Some(2));
    let said = json(&dir, "checkpoint restore run --json", 0);
    assert_eq!((&said["step"], &said["bytes"]), (&30.into(), &65_538.into()));
}

#[test]
fn a_trial_saves_and_restores_and_leaves_nothing_behind() {
    let dir = TestDir::new();
    let line = "checkpoint bench . --size 3MiB --ranks 3 --rounds 2 --parity 1 --codec lz4 --json";
    let said = json(&dir, line, 0);
    let rounds = said["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), 2);
    assert!(rounds.iter().all(|r| r["durable_s"].as_f64().unwrap() > 0.0));
    assert_eq!(fs::read_dir(dir.root()).unwrap().count(), 0);
    assert_eq!(run(&dir, "checkpoint bench . --ranks 0").code, Some(2));
}

#[test]
fn an_interrupted_trial_exits_with_130_and_leftovers_of_a_killed_one_are_removed() {
    let dir = TestDir::new();
    let line = "checkpoint bench . --size 32MiB --ranks 2 --rounds 100 --limit 4MB/s";
    let has_begun = || {
        let find = |name: &str| walk(dir.root()).any(|path| path.ends_with(name));
        find("rank-00000-of-00002.safetensors")
    };
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let mut running = dir.start(line.split(' '));
        assert!(running.wait_until(has_begun), "it never began");
        running.signal(signal);
        let asked = Instant::now();
        let ran = running.wait();
        if signal == Signal::KILL {
            break;
        }
        assert!(asked.elapsed() < Duration::from_secs(10), "it took its time");
        assert_eq!(ran.code, Some(130), "{ran:?}");
        assert!(ran.err.contains("interrupted"), "{}", ran.err);
        assert_eq!(dir.names(), [""; 0]);
    }
    // The leftovers of the killed trial are removed by the next one.
    assert_ne!(dir.names(), [""; 0]);
    let next = "checkpoint bench . --size 1MiB --ranks 1 --rounds 1";
    assert_eq!(run(&dir, next).code, Some(0));
    assert_eq!(dir.names(), [""; 0]);
    let ran = run(&dir, "checkpoint bench . --rounds 0");
    assert_eq!(ran.code, Some(2), "{ran:?}");
}

#[test]
fn an_interrupted_comparison_exits_with_130() {
    let dir = TestDir::new();
    save(&dir, SaverOptions::default(), 24 << 10, [(10, 1), (20, 2)]);
    let mut running = dir.start("checkpoint diff run 10 20 --limit 1MB/s".split(' '));
    assert!(running.wait_until_caught(Signal::INT), "it never began");
    running.signal(Signal::INT);
    let ran = running.wait();
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert!(ran.err.contains("interrupted"), "{}", ran.err);
}

#[test]
fn an_unreadable_step_is_named_by_ls_and_prune() {
    let dir = TestDir::new();
    checkpoints(&dir);
    let ran = run(&dir, "checkpoint ls run/step-10");
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("hint: name the folder above"), "{}", ran.err);
    fs::write(dir.path("run/step-10/tags.json"), "[").unwrap();
    fs::write(dir.path("run/step-20/manifest.json"), "{").unwrap();
    let list = json(&dir, "checkpoint ls run --json", 1);
    assert!(list["steps"][0]["error"].as_str().unwrap().contains("tags.json"));
    assert_eq!(list["steps"][2]["step"], 30);
    let said = json(&dir, "checkpoint prune run --keep 1 --json", 0);
    assert_eq!(said["removed"], serde_json::json!([]));
    let left = said["left"].as_array().unwrap();
    let steps: Vec<_> = left.iter().map(|l| l["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [20, 10]);
    let ran = run(&dir, "checkpoint prune run --keep 1");
    assert!(ran.out.contains("step 20 stays: "), "{}", ran.out);
}

/// All files of a folder, at any depth.
fn walk(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let mut left = vec![folder.to_owned()];
    let mut files = Vec::new();
    while let Some(folder) = left.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                left.push(path);
            } else {
                files.push(path);
            }
        }
    }
    files.into_iter()
}

#[test]
fn missing_folders_and_steps_are_errors_with_a_hint() {
    let dir = TestDir::new();
    checkpoints(&dir);
    let ran = run(&dir, "checkpoint restore run --step 11");
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("its 3 steps are 10 to 30"), "{}", ran.err);
    assert!(ran.err.contains("hint: `straightway checkpoint ls`"), "{}", ran.err);
    dir.folder("empty");
    let ran = run(&dir, "checkpoint verify empty");
    assert!(ran.err.contains("no complete checkpoint is in it"), "{}", ran.err);
}
