//! Damaged, truncated and swapped files: a miss, or an error that names the file.

use std::{
    fs,
    path::{Path, PathBuf},
};

use straightway_kv::{MissReason, Outcome, Tier, TierOptions};

use crate::fixture::{CHUNK, CHUNK_LEN, bytes_for, create, executor, get, misses, namespace, open, put};

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    files
}

/// Opens a tier whose files may be damaged. Every load returns the right bytes or a miss.
fn check(folder: &Path, what: &str) -> Option<u64> {
    match Tier::open(folder, &executor(), TierOptions::default()) {
        Ok(tier) => Some(get(&tier, namespace("m"), &[1, 2, 3]).receipt.hits),
        Err(error) => {
            assert!(
                error.to_string().contains("superblock") || error.to_string().contains("segment-"),
                "{what}: {error}"
            );
            None
        }
    }
}

#[test]
fn no_flipped_bit_gives_a_wrong_chunk() {
    let folder = tempfile::tempdir().unwrap();
    Tier::create(folder.path(), CHUNK, bytes_for(4)).unwrap();
    put(&open(folder.path(), TierOptions::default()), namespace("m"), &[1, 2, 3]);
    // One executor for all: a test is about files.
    let executor = executor();
    let every = std::env::var_os("STRAIGHTWAY_KV_ALL").is_some();
    let mut opened = 0;
    for path in files(folder.path()) {
        let good = fs::read(&path).unwrap();
        let is_payload = path.extension().is_some_and(|end| end == "chunks");
        let used = good.len();
        // Chunks are visited at some bits, journals in records that are not empty.
        let stride = if is_payload && !every { 997 } else { 1 };
        let bits = (0..8 * used).step_by(stride).filter(|bit| {
            let near = &good[(bit / 8) / 128 * 128..][..128.min(used - (bit / 8) / 128 * 128)];
            every || is_payload || (near.iter().any(|byte| *byte != 0) && bit % 7 == 0)
        });
        for bit in bits {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            fs::write(&path, &bad).unwrap();
            let reader = TierOptions {
                stores: false,
                ..TierOptions::default()
            };
            match Tier::open(folder.path(), &executor, reader) {
                // `get` compares the bytes of every hit.
                Ok(tier) => opened += usize::from(get(&tier, namespace("m"), &[1, 2, 3]).receipt.hits > 0),
                Err(error) => assert!(error.to_string().contains("superblock"), "{error}"),
            }
        }
        fs::write(&path, &good).unwrap();
    }
    assert!(opened > 0);
    assert_eq!(check(folder.path(), "the original"), Some(3));
}

#[test]
fn a_damaged_chunk_is_a_miss_with_that_reason_and_can_be_stored_again() {
    let folder = tempfile::tempdir().unwrap();
    let tier = create(folder.path(), 3);
    put(&tier, namespace("m"), &[1, 2, 3]);
    drop(tier);
    let chunks = folder.path().join("segment-00.chunks");
    let mut bytes = fs::read(&chunks).unwrap();
    bytes[CHUNK_LEN + 100] ^= 4;
    fs::write(&chunks, bytes).unwrap();
    let tier = open(folder.path(), TierOptions::default());
    assert_eq!(tier.verify().unwrap().damaged, 1);
    let tier = open(folder.path(), TierOptions::default());
    let done = get(&tier, namespace("m"), &[1, 2, 3]);
    assert_eq!(misses(&done), [None, Some(MissReason::Damaged), None]);
    let warning = &done.receipt.warnings[0];
    assert!(
        warning.contains("segment-00.chunks") && warning.contains("slot 1"),
        "{warning}"
    );
    assert_eq!(put(&tier, namespace("m"), &[2]).outcomes, [Outcome::Stored]);
    assert_eq!(misses(&get(&tier, namespace("m"), &[1, 2, 3])), [None; 3]);
}

#[test]
fn truncated_and_swapped_files_are_misses_or_errors_that_name_the_file() {
    let make = || {
        let folder = tempfile::tempdir().unwrap();
        let tier = create(folder.path(), 8);
        put(&tier, namespace("m"), &[1, 2, 3, 4, 5, 6, 7, 8]);
        assert!(tier.leased() == 2, "the test needs two segments");
        folder
    };
    let folder = make();
    let names = files(folder.path());
    for path in &names {
        let good = fs::read(path).unwrap();
        for length in [0, 1, 4096, good.len() as u64 / 2, good.len() as u64 - 1] {
            fs::OpenOptions::new()
                .write(true)
                .open(path)
                .unwrap()
                .set_len(length)
                .unwrap();
            check(folder.path(), &format!("{} at {length}", path.display()));
            fs::write(path, &good).unwrap();
        }
    }
    assert_eq!(check(folder.path(), "the original"), Some(3));
    // Each kind of file, swapped with that of the other segment, and both.
    let folder = make();
    let swap = |end: &str| {
        let name = |number: u32| folder.path().join(format!("segment-{number:02}.{end}"));
        fs::rename(name(0), folder.path().join("aside")).unwrap();
        fs::rename(name(1), name(0)).unwrap();
        fs::rename(folder.path().join("aside"), name(1)).unwrap();
    };
    swap("chunks");
    assert_eq!(check(folder.path(), "swapped chunks"), Some(0));
    swap("journal");
    assert_eq!(check(folder.path(), "swapped segments"), Some(0));
    // A segment of another tier.
    let (one, other) = (make(), make());
    for name in [
        "segment-00.chunks",
        "segment-00.journal",
        "segment-01.chunks",
        "segment-01.journal",
    ] {
        fs::copy(other.path().join(name), one.path().join(name)).unwrap();
    }
    assert_eq!(check(one.path(), "segments of another tier"), Some(0));
}

#[test]
fn a_journal_that_is_truncated_under_a_running_process_gives_misses() {
    let folder = tempfile::tempdir().unwrap();
    let tier = create(folder.path(), 3);
    put(&tier, namespace("m"), &[1, 2, 3]);
    let journal = folder.path().join("segment-00.journal");
    fs::OpenOptions::new()
        .write(true)
        .open(&journal)
        .unwrap()
        .set_len(0)
        .unwrap();
    assert_eq!(get(&tier, namespace("m"), &[1, 2, 3]).receipt.hits, 0);
    let done = put(&tier, namespace("m"), &[4]);
    assert_eq!(done.outcomes, [Outcome::NotStored], "its record is lost");
    drop(tier);
    // The next process formats it again.
    let tier = open(folder.path(), TierOptions::default());
    assert_eq!(put(&tier, namespace("m"), &[4]).outcomes, [Outcome::Stored]);
    assert_eq!(misses(&get(&tier, namespace("m"), &[4])), [None]);
}
