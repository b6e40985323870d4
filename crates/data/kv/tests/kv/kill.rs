//! Processes that are killed while they store, load and evict.

use std::{
    path::Path,
    process::{Child, Command},
    time::Duration,
};

use straightway_core::random::Seed;
use straightway_kv::{Tier, TierOptions};

use crate::fixture::{CHUNK, bytes_for, get, namespace, open, put, taken};

/// The variable with the folder of a child process.
const FOLDER: &str = "STRAIGHTWAY_KV_KILLED";

/// The variable with the number of kills. Each takes about a fifth of a second.
const KILLS: &str = "STRAIGHTWAY_KV_KILLS";

/// The chunks that the processes store. A third of them fits.
const CHUNKS: u64 = 120;

/// Stores, loads and evicts until it is killed. Every hit is compared.
#[test]
fn worker() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let options = TierOptions {
        writers: 2,
        ..TierOptions::default()
    };
    let tier = open(Path::new(&folder), options);
    let mut random = Seed(std::process::id().into()).rng();
    loop {
        let mut some = || (0..8).map(|_| random.below(CHUNKS)).collect::<Vec<_>>();
        put(&tier, namespace("m"), &some());
        get(&tier, namespace("m"), &some());
    }
}

fn start(folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "kill::worker", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn after_kills_of_two_processes_no_chunk_is_wrong_and_the_bound_holds() {
    let kills = std::env::var(KILLS).map_or(12, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    Tier::create(folder.path(), CHUNK, bytes_for(CHUNKS / 3)).unwrap();
    let mut random = Seed(41).rng();
    let mut children = [start(folder.path()), start(folder.path())];
    let all: Vec<u64> = (0..CHUNKS).collect();
    let mut hits = 0;
    for kill in 0..kills {
        std::thread::sleep(Duration::from_millis(40 + random.below(200)));
        let child = &mut children[kill % 2];
        assert!(
            child.try_wait().unwrap().is_none(),
            "a process found a wrong chunk, or failed: kill {kill}"
        );
        child.kill().unwrap();
        child.wait().unwrap();
        *child = start(folder.path());
        assert!(taken(folder.path()) <= bytes_for(CHUNKS / 3), "the bound is passed");
        let reader = TierOptions {
            stores: false,
            ..TierOptions::default()
        };
        hits += get(&open(folder.path(), reader), namespace("m"), &all).receipt.hits;
    }
    for child in &mut children {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(hits > 0);
    let verified = open(folder.path(), TierOptions::default()).verify().unwrap();
    assert_eq!(
        (verified.damaged, verified.errors),
        (0, Vec::<String>::new()),
        "a kill damages nothing"
    );
    eprintln!("{kills} kills, {hits} hits, {} chunks are whole", verified.good);
}
