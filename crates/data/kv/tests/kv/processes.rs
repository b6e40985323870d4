//! Several open tiers on one folder. Each has its own leases, index and mappings, as a process has.

use std::sync::atomic::{AtomicBool, Ordering};

use straightway_core::ErrorKind;
use straightway_kv::{MissReason, Outcome, Tier, TierOptions};

use crate::fixture::{CHUNK, bytes_for, get, misses, namespace, open, put, taken};

fn writer(writers: u32) -> TierOptions {
    TierOptions {
        writers,
        ..TierOptions::default()
    }
}

#[test]
fn each_process_finds_what_the_others_store() {
    let folder = tempfile::tempdir().unwrap();
    Tier::create(folder.path(), CHUNK, bytes_for(400)).unwrap();
    let tiers = [0; 3].map(|_| open(folder.path(), writer(3)));
    let name = namespace("m");
    for (number, tier) in (0..).zip(&tiers) {
        assert_eq!(put(tier, name, &[number]).outcomes, [Outcome::Stored]);
    }
    for tier in &tiers {
        assert_eq!(misses(&get(tier, name, &[0, 1, 2])), [None; 3]);
        assert_eq!(put(tier, name, &[0, 1, 2]).outcomes, [Outcome::Present; 3]);
    }
    // More than the ring of changes has.
    let many: Vec<u64> = (100..220).collect();
    put(&tiers[0], name, &many);
    assert_eq!(get(&tiers[1], name, &many).receipt.hits, 120);
    assert!(taken(folder.path()) <= bytes_for(400));
}

#[test]
fn a_process_without_a_lease_is_told_and_gets_one_when_it_is_free() {
    let folder = tempfile::tempdir().unwrap();
    Tier::create(folder.path(), CHUNK, bytes_for(3)).unwrap();
    let (one, other) = (open(folder.path(), writer(1)), open(folder.path(), writer(1)));
    put(&one, namespace("m"), &[1]);
    let done = put(&other, namespace("m"), &[2]);
    let error = done.error.unwrap();
    assert_eq!(
        (error.kind(), done.outcomes),
        (ErrorKind::Busy, vec![Outcome::NotStored])
    );
    assert!(Tier::clear(folder.path()).is_err(), "a segment is leased");
    assert_eq!(misses(&get(&other, namespace("m"), &[1])), [None]);
    drop((one, other));
    let later = open(folder.path(), writer(1));
    assert_eq!(put(&later, namespace("m"), &[2]).outcomes, [Outcome::Stored]);
    drop(later);
    Tier::clear(folder.path()).unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn an_eviction_by_another_process_is_a_miss_with_that_reason() {
    let folder = tempfile::tempdir().unwrap();
    Tier::create(folder.path(), CHUNK, bytes_for(3)).unwrap();
    let (one, other) = (open(folder.path(), writer(1)), open(folder.path(), writer(1)));
    let name = namespace("m");
    let slots = u64::from(one.geometry().slots());
    put(&one, name, &(0..slots).collect::<Vec<_>>());
    // The other process uses chunk 0, which keeps it.
    assert_eq!(misses(&get(&other, name, &[1, 0])), [None, None]);
    put(&one, name, &(50..50 + slots - 2).collect::<Vec<_>>());
    assert_eq!(misses(&get(&other, name, &[0])), [None]);
    put(&one, name, &(100..100 + slots).collect::<Vec<_>>());
    assert_eq!(misses(&get(&other, name, &[0, 100])), [Some(MissReason::Evicted), None]);
}

#[test]
fn loads_beside_evictions_never_return_another_chunk() {
    let folder = tempfile::tempdir().unwrap();
    Tier::create(folder.path(), CHUNK, bytes_for(6)).unwrap();
    let name = namespace("m");
    let stop = AtomicBool::new(false);
    let loads = std::thread::scope(|scope| {
        let reader = || {
            let tier = open(folder.path(), writer(2));
            let mut hits = 0;
            while !stop.load(Ordering::Relaxed) {
                // `get` compares the bytes of every hit.
                hits += get(&tier, name, &(0..12).collect::<Vec<_>>()).receipt.hits;
            }
            hits
        };
        let readers = [0; 2].map(|_| scope.spawn(reader));
        let tier = open(folder.path(), writer(2));
        for round in 0..300_u64 {
            put(&tier, name, &[round % 12, (round * 7 + 3) % 12]);
        }
        stop.store(true, Ordering::Relaxed);
        readers.map(|reader| reader.join().unwrap())
    });
    assert!(loads.iter().all(|hits| *hits > 0), "{loads:?}");
}
