//! Tiers and chunks of tests.

use std::{path::Path, sync::Arc};

use straightway_io::{Executor, Region, Settings};
use straightway_kv::{ChunkAt, Done, Key, KvNamespace, MissReason, NamespaceParts, Outcome, Tier, TierOptions};

/// The length of a chunk.
pub(crate) const CHUNK: u64 = 8192;

/// The same in memory.
pub(crate) const CHUNK_LEN: usize = 8192;

/// An executor with small rings.
pub(crate) fn executor() -> Executor {
    let settings = Settings {
        chunk_bytes: 1 << 20,
        ..Settings::default()
    };
    Executor::new(settings).unwrap()
}

/// The bound of a tier with room for that many chunks.
pub(crate) fn bytes_for(chunks: u64) -> u64 {
    // The superblock, and for each of up to 64 segments a header, a ring and the padding of its records.
    chunks * (CHUNK + 128) + 4096 + 3 * 4096 * segments(chunks)
}

fn segments(chunks: u64) -> u64 {
    let mut segments = 64;
    while segments > 1 && chunks < 4 * segments {
        segments /= 2;
    }
    segments
}

/// A new tier with room for at least that many chunks.
pub(crate) fn create(path: &Path, chunks: u64) -> Tier {
    Tier::create(path, CHUNK, bytes_for(chunks)).unwrap();
    open(path, TierOptions::default())
}

pub(crate) fn open(path: &Path, options: TierOptions) -> Tier {
    Tier::open(path, &executor(), options).unwrap()
}

pub(crate) fn namespace(model: &str) -> KvNamespace {
    KvNamespace::new(NamespaceParts {
        model,
        ..NamespaceParts::default()
    })
    .unwrap()
}

pub(crate) fn key(number: u64) -> Key {
    Key::of(&number.to_le_bytes())
}

/// The bytes of a chunk: each is different, and tells its number.
pub(crate) fn content(number: u64) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let words = (0..CHUNK / 8).flat_map(|_| next().to_le_bytes());
    words.collect()
}

/// Stores chunks with these numbers.
pub(crate) fn put(tier: &Tier, namespace: KvNamespace, numbers: &[u64]) -> Done {
    let mut memory = Region::host(CHUNK * numbers.len() as u64).unwrap();
    for (place, number) in memory.as_mut_slice().chunks_mut(CHUNK_LEN).zip(numbers) {
        place.copy_from_slice(&content(*number));
    }
    let memory = Arc::new(memory);
    let chunks: Vec<_> = (0..)
        .zip(numbers)
        .map(|(at, number)| ChunkAt::whole(key(*number), &memory, at * CHUNK, CHUNK))
        .collect();
    tier.store(namespace, &chunks).unwrap().wait().unwrap()
}

/// Loads chunks with these numbers, and checks the bytes of every hit. The memory of a miss is not written.
pub(crate) fn get(tier: &Tier, namespace: KvNamespace, numbers: &[u64]) -> Done {
    let mut memory = Arc::new(Region::host(CHUNK * numbers.len() as u64).unwrap());
    let wanted: Vec<_> = (0..)
        .zip(numbers)
        .map(|(at, number)| ChunkAt::whole(key(*number), &memory, at * CHUNK, CHUNK))
        .collect();
    let batch = tier.load(namespace, &wanted, None).unwrap();
    drop(wanted);
    let done = batch.wait().unwrap();
    let memory = Arc::get_mut(&mut memory).expect("the batch has ended");
    for ((bytes, number), outcome) in memory.as_slice().chunks(CHUNK_LEN).zip(numbers).zip(&done.outcomes) {
        match outcome {
            Outcome::Hit => assert!(bytes == content(*number), "wrong bytes for chunk {number}"),
            _ => assert!(
                bytes.iter().all(|byte| *byte == 0),
                "a miss wrote to the memory of chunk {number}"
            ),
        }
    }
    done
}

/// The reasons of the misses, and `None` for each hit.
pub(crate) fn misses(done: &Done) -> Vec<Option<MissReason>> {
    let reason = |outcome: &Outcome| match outcome {
        Outcome::Hit => None,
        Outcome::Miss(reason) => Some(*reason),
        other => panic!("{other:?} is no outcome of a load"),
    };
    done.outcomes.iter().map(reason).collect()
}

/// The bytes that the files of a folder take, and their lengths.
pub(crate) fn taken(path: &Path) -> u64 {
    let files = std::fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap());
    files
        .map(|meta| {
            let blocks = std::os::unix::fs::MetadataExt::blocks(&meta) * 512;
            blocks.max(meta.len())
        })
        .sum()
}
