//! Stores and loads by one process.

use std::{sync::Arc, time::Duration};

use straightway_core::ErrorKind;
use straightway_io::Region;
use straightway_kv::{ChunkAt, KeyFile, MissReason, Outcome, Part, Prefill, Tier, TierOptions};

use crate::fixture::{CHUNK, CHUNK_LEN, bytes_for, create, executor, get, key, misses, namespace, open, put};

#[test]
fn chunks_are_loaded_as_they_were_stored_also_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (namespace("one"), namespace("other"));
    let tier = create(folder.path(), 40);
    let done = put(&tier, one, &[1, 2, 3, 2]);
    assert_eq!(
        (done.receipt.stored, done.receipt.present, done.receipt.bytes),
        (3, 1, 3 * CHUNK)
    );
    assert!(done.error.is_none());
    let check = |tier: &Tier| {
        let done = get(tier, one, &[3, 9, 1, 2, 1]);
        assert_eq!(misses(&done), [None, Some(MissReason::NeverStored), None, None, None]);
        assert_eq!((done.receipt.hits, done.receipt.misses.never_stored), (4, 1));
        assert_eq!(
            done.receipt.routes.iter().map(|part| part.bytes).sum::<u64>(),
            4 * CHUNK
        );
        assert_eq!(misses(&get(tier, other, &[1])), [Some(MissReason::OtherConfiguration)]);
        assert_eq!(tier.lookup(one, &key(1)), Ok(()));
        assert_eq!(tier.lookup(one, &key(5)), Err(MissReason::NeverStored));
    };
    check(&tier);
    assert_eq!(put(&tier, one, &[1]).outcomes, [Outcome::Present]);
    drop(tier);
    check(&open(folder.path(), TierOptions::default()));
    let reader = TierOptions {
        stores: false,
        ..TierOptions::default()
    };
    let reader = open(folder.path(), reader);
    check(&reader);
    let memory = Arc::new(Region::host(CHUNK).unwrap());
    let error = reader
        .store(one, &[ChunkAt::whole(key(1), &memory, 0, CHUNK)])
        .unwrap_err();
    assert!(error.to_string().contains("for reading only"), "{error}");
    let stats = reader.stats();
    assert_eq!((stats.chunks, stats.namespaces, stats.damaged_records), (3, 1, 0));
    let verified = reader.verify().unwrap();
    assert_eq!((verified.chunks, verified.good), (3, 3));
}

#[test]
fn a_receipt_says_what_the_hits_were_worth() {
    let folder = tempfile::tempdir().unwrap();
    let tier = create(folder.path(), 8);
    put(&tier, namespace("m"), &[1, 2]);
    let memory = Arc::new(Region::host(2 * CHUNK).unwrap());
    let wanted = [1, 2].map(|number| ChunkAt::whole(key(number), &memory, (number - 1) * CHUNK, CHUNK));
    let prefill = Prefill {
        tokens_per_chunk: 512.0,
        tokens_per_s: 1.0,
    };
    let batch = tier.load(namespace("m"), &wanted, Some(prefill)).unwrap();
    let receipt = batch.wait().unwrap().receipt;
    let saved = receipt.seconds_saved.unwrap();
    assert!((saved - (1024.0 - receipt.seconds)).abs() < 1e-9, "{saved}");
    let text = receipt.to_string();
    assert!(text.starts_with("2 of 2 chunks, 16 KiB in "), "{text}");
    let json = serde_json::to_value(&receipt).unwrap();
    assert_eq!(
        (&json["schema"], &json["hits"]),
        (&"straightway.kv/1".into(), &2.into())
    );
    let counts = tier.counts();
    assert_eq!((counts.hits, counts.stored, counts.loaded_bytes), (2, 2, 2 * CHUNK));
}

#[test]
fn a_chunk_may_lie_in_several_pages_of_several_regions() {
    let folder = tempfile::tempdir().unwrap();
    let tier = create(folder.path(), 8);
    let mut source = Region::host(CHUNK).unwrap();
    source.as_mut_slice().copy_from_slice(&crate::fixture::content(5));
    let (source, name) = (Arc::new(source), namespace("m"));
    let part = |region: &Arc<Region>, at, bytes| Part {
        region: Arc::clone(region),
        at,
        bytes,
    };
    // Its second half first.
    let half = CHUNK / 2;
    let swapped = ChunkAt {
        key: key(5),
        parts: vec![part(&source, half, half), part(&source, 0, half)],
    };
    let done = tier.store(name, &[swapped]).unwrap().wait().unwrap();
    assert_eq!(done.outcomes, [Outcome::Stored]);
    let mut pages = [0; 2].map(|_| Arc::new(Region::host(CHUNK).unwrap()));
    let wanted = ChunkAt {
        key: key(5),
        parts: vec![part(&pages[0], 100, half + 1), part(&pages[1], 0, half - 1)],
    };
    let done = tier.load(name, &[wanted], None).unwrap().wait().unwrap();
    assert_eq!(done.outcomes, [Outcome::Hit]);
    let mut all = Vec::new();
    let [first, second] = &mut pages;
    let half = CHUNK_LEN / 2;
    all.extend_from_slice(&Arc::get_mut(first).unwrap().as_slice()[100..][..=half]);
    all.extend_from_slice(&Arc::get_mut(second).unwrap().as_slice()[..half - 1]);
    all.rotate_left(half);
    assert!(all == crate::fixture::content(5));

    let short = ChunkAt::whole(key(6), &source, 0, CHUNK - 1);
    let error = tier.store(name, &[short]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let outside = ChunkAt::whole(key(6), &source, 1, CHUNK);
    assert!(tier.load(name, &[outside], None).is_err());
}

#[test]
fn an_encrypted_chunk_opens_with_its_key_only() {
    let folder = tempfile::tempdir().unwrap();
    let with = |secret: Option<u8>| TierOptions {
        key: secret.map(|byte| KeyFile::new([byte; 32])),
        ..TierOptions::default()
    };
    Tier::create(folder.path(), CHUNK, bytes_for(40)).unwrap();
    let tier = open(folder.path(), with(Some(1)));
    let done = put(&tier, namespace("m"), &[1, 2, 3]);
    assert!(done.receipt.encrypted && done.receipt.stored == 3);
    assert_eq!(misses(&get(&tier, namespace("m"), &[1, 2, 3])), [None; 3]);
    assert_eq!(tier.verify().unwrap().good, 3);
    drop(tier);
    // The drive has none of the bytes.
    let plain = crate::fixture::content(1);
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let bytes = std::fs::read(entry.unwrap().path()).unwrap();
        assert!(!bytes.windows(16).step_by(8).any(|window| window == &plain[..16]));
    }
    for other in [Some(2), None] {
        let tier = open(folder.path(), with(other));
        assert_eq!(misses(&get(&tier, namespace("m"), &[1])), [Some(MissReason::WrongKey)]);
        assert_eq!(tier.verify().unwrap().wrong_key, 3);
    }
    assert_eq!(
        misses(&get(&open(folder.path(), with(Some(1))), namespace("m"), &[1])),
        [None]
    );
}

#[test]
fn a_batch_tells_its_end_by_a_descriptor_and_returns_its_memory_when_it_is_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    let tier = create(folder.path(), 600);
    let numbers: Vec<u64> = (0..500).collect();
    put(&tier, namespace("m"), &numbers);
    let mut memory = Arc::new(Region::host(500 * CHUNK).unwrap());
    let wanted = |memory: &Arc<Region>| -> Vec<_> {
        let chunk = |number: &u64| ChunkAt::whole(key(*number), memory, number * CHUNK, CHUNK);
        numbers.iter().map(chunk).collect()
    };
    let batch = tier.load(namespace("m"), &wanted(&memory), None).unwrap();
    let descriptor = batch.descriptor().unwrap();
    let mut polled = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
    rustix::event::poll(&mut polled, Some(&Duration::from_mins(1).try_into().unwrap())).unwrap();
    assert!(polled[0].revents().contains(rustix::event::PollFlags::IN) && batch.is_done());
    assert_eq!(batch.wait().unwrap().receipt.hits, 500);

    let batch = tier.load(namespace("m"), &wanted(&memory), None).unwrap();
    batch.cancel();
    // It may have ended before.
    let _ = batch.wait();
    assert!(Arc::get_mut(&mut memory).is_some(), "nothing uses the memory any more");
    // A cancelled store gives its slots back.
    for _ in 0..20 {
        let chunks: Vec<_> = (0..100)
            .map(|number| ChunkAt::whole(key(1000 + number), &memory, number * CHUNK, CHUNK))
            .collect();
        let batch = tier.store(namespace("m"), &chunks).unwrap();
        batch.cancel();
        let _ = batch.wait();
    }
    assert_eq!(put(&tier, namespace("m"), &[2000]).outcomes, [Outcome::Stored]);
    assert!(Tier::create(folder.path(), CHUNK, 1 << 20).is_err());
    let other = Tier::open_or_create(folder.path(), (CHUNK, 1 << 20), &executor(), TierOptions::default());
    assert_eq!(other.unwrap_err().kind(), ErrorKind::Invalid);
}
