//! Kills processes at random moments of saving, committing, pruning and restoring.
//!
//! A child repeats these operations in a folder that outlives it. The state of a step is a function of its number.
//! After each kill, every listed step must be complete, and every step that the child was told is committed must still
//! exist, unless the child was pruning.

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use straightway_checkpoint::{Codec, SaverOptions, Steps};
use straightway_weights::Dtype;

use crate::fixture::{State, assert_holds, keep_last, noise, options, save, saver};

/// The number of kills, unless the environment sets it.
const KILLS: u64 = 500;

/// Environment variables: the folder, which makes this process a child, and the number of kills.
const FOLDER: &str = "STRAIGHTWAY_KILL_FOLDER";
const COUNT: &str = "STRAIGHTWAY_KILLS";

/// Steps that the child keeps.
const KEPT: usize = 3;

fn state(step: u64) -> State {
    // Only part of it changes from step to step, so that an incremental save can reference the rest.
    let mut state = State::of(1, &[("same", Dtype::U8, &[9000]), ("new", Dtype::F32, &[500])]);
    state.tensors[1].bytes = noise(step, 2000);
    state
}

fn child_options(step: u64) -> SaverOptions {
    SaverOptions {
        incremental: !step.is_multiple_of(3),
        codec: if step.is_multiple_of(2) { Codec::Lz4 } else { Codec::Raw },
        parity: usize::from(step.is_multiple_of(5)),
        ..options()
    }
}

/// The child process. It never ends by itself.
#[test]
#[ignore = "it runs as a child of another test"]
fn child() {
    let folder = std::env::var_os(FOLDER).expect("set by the test that starts it");
    let folder = PathBuf::from(folder);
    let store = Steps::create(&folder).unwrap();
    let mut log = fs::OpenOptions::new().append(true).open(folder.join("log")).unwrap();
    let mut step = store.steps().unwrap().pop().unwrap_or(0);
    loop {
        step += 1;
        let mut saver = saver(&folder, child_options(step)).unwrap();
        save(&mut saver, step, &state(step)).unwrap();
        // In one write: a kill between the number and its newline would join it to the next.
        log.write_all(format!("{step}\n").as_bytes()).unwrap();
        drop(saver);
        let retention = keep_last(KEPT);
        store.prune(&retention).unwrap();
        assert_holds(&folder, store.latest().unwrap(), &state(step));
    }
}

fn spawn(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "kill::child", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn after_a_kill_every_committed_step_is_restored_byte_for_byte_and_the_next_save_works() {
    let kills = std::env::var(COUNT).map_or(KILLS, |count| count.parse().unwrap());
    let folder = tempfile::tempdir_in("/dev/shm")
        .or_else(|_| tempfile::tempdir())
        .unwrap();
    fs::write(folder.path().join("log"), "").unwrap();
    let store = Steps::create(folder.path()).unwrap();
    let mut known = 0;
    for kill in 0..kills {
        let mut child = spawn(folder.path());
        // From before its start to after some rounds. A round takes a few milliseconds.
        let delay = noise(kill, 2);
        let delay = u64::from(u16::from_le_bytes([delay[0], delay[1]])) % 20_000;
        std::thread::sleep(Duration::from_micros(3000 + delay));
        let early = child.try_wait().unwrap();
        assert!(early.is_none(), "the child ended by itself: {early:?}");
        child.kill().unwrap();
        child.wait().unwrap();
        let steps = store.steps().unwrap();
        for &step in steps.iter().filter(|step| **step > known) {
            assert_holds(folder.path(), step, &state(step));
        }
        let log = fs::read_to_string(folder.path().join("log")).unwrap();
        let told: u64 = log.lines().last().map_or(0, |line| line.parse().unwrap());
        let last = steps.last().copied().unwrap_or(0);
        assert!(last >= told, "step {told} was committed and is gone: {steps:?}");
        known = last;
    }
    let steps = store.steps().unwrap();
    for &step in &steps {
        assert_holds(folder.path(), step, &state(step));
    }
    let next = steps.last().unwrap() + 1;
    let mut saver = saver(folder.path(), options()).unwrap();
    save(&mut saver, next, &state(next)).unwrap();
    let names = fs::read_dir(folder.path()).unwrap().flatten();
    let hidden: Vec<_> = names
        .map(|entry| entry.file_name().into_string().unwrap())
        .filter(|name| name.starts_with('.') && name != ".lock")
        .collect();
    assert!(hidden.is_empty(), "crashed saves were not swept: {hidden:?}");
    eprintln!("{kills} kills; {next} steps were saved on the way");
}
