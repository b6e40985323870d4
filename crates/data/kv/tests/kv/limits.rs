//! The bound, the order of eviction, and the memory of the index.

use straightway_kv::{MissReason, Outcome, TierOptions};

use crate::fixture::{bytes_for, create, get, misses, namespace, open, put, taken};

#[test]
fn the_least_recently_used_chunk_is_evicted_and_the_bound_holds() {
    let folder = tempfile::tempdir().unwrap();
    let tier = create(folder.path(), 8);
    let slots = u64::from(tier.geometry().slots());
    let name = namespace("m");
    let numbers: Vec<u64> = (0..slots).collect();
    assert!(
        put(&tier, name, &numbers)
            .outcomes
            .iter()
            .all(|outcome| *outcome == Outcome::Stored)
    );
    // Chunk 0 is used, so chunk 1 is the oldest.
    assert_eq!(misses(&get(&tier, name, &[0])), [None]);
    put(&tier, name, &[100]);
    assert_eq!(
        misses(&get(&tier, name, &[0, 1, 2])),
        [None, Some(MissReason::Evicted), None]
    );
    assert_eq!(tier.counts().evicted, 1);
    for round in 0..30 {
        put(&tier, name, &[1000 + round, 2000 + round]);
        assert!(taken(folder.path()) <= bytes_for(8), "the bound is passed");
    }
    drop(tier);
    // The order of use survives a restart: 2029 was stored last, and 2028 is the next to be used.
    let tier = open(folder.path(), TierOptions::default());
    get(&tier, name, &[2028]);
    drop(tier);
    let tier = open(folder.path(), TierOptions::default());
    put(
        &tier,
        name,
        &(0..slots - 2).map(|number| 5000 + number).collect::<Vec<_>>(),
    );
    let left = misses(&get(&tier, name, &[2028, 2029, 1029]));
    assert_eq!(left[..2], [None, None]);
    assert!(left[2].is_some());
}

#[test]
fn a_batch_larger_than_the_tier_stores_what_fits() {
    let folder = tempfile::tempdir().unwrap();
    let tier = create(folder.path(), 8);
    let slots = tier.geometry().slots() as usize;
    let numbers: Vec<u64> = (0..50).collect();
    let done = put(&tier, namespace("m"), &numbers);
    let stored = done
        .outcomes
        .iter()
        .filter(|outcome| **outcome == Outcome::Stored)
        .count();
    assert_eq!(stored, slots, "slots that are being written are not evicted");
    assert_eq!(done.receipt.not_stored, 50 - slots as u64);
    let hits = get(&tier, namespace("m"), &numbers).receipt.hits;
    assert_eq!(hits, slots as u64);
}

#[test]
fn a_chunk_needs_at_most_96_bytes_of_memory_and_a_lookup_takes_microseconds() {
    let folder = tempfile::tempdir().unwrap();
    let tier = create(folder.path(), 3000);
    let name = namespace("m");
    let numbers: Vec<u64> = (0..2500).collect();
    for some in numbers.chunks(500) {
        put(&tier, name, some);
    }
    let (chunks, bytes) = tier.index_size();
    assert_eq!(chunks, 2500);
    assert!(bytes / chunks <= 96, "{} bytes a chunk", bytes / chunks);
    let keys: Vec<_> = numbers.iter().map(|number| crate::fixture::key(*number)).collect();
    let start = std::time::Instant::now();
    for _ in 0..8 {
        assert!(keys.iter().all(|key| tier.lookup(name, key).is_ok()));
    }
    let each = start.elapsed() / (8 * 2500);
    // Without optimisation, beside other tests: the benchmark has the real figure.
    assert!(each.as_micros() < 200, "{each:?}");
}
