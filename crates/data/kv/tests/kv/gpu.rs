//! Chunks in the memory of a GPU, on the stand-in driver.

use std::sync::Arc;

use straightway_core::Result;
use straightway_io::{Executor, GdsUse, Region, Settings};
use straightway_kv::{ChunkAt, KeyFile, Outcome, Part, Tier, TierOptions};
use straightway_standin::Standin;
use straightway_sys::cuda::{DeviceMemory, Driver};

use crate::fixture::{CHUNK, bytes_for, content, key, namespace};

/// The chunks of the test.
const CHUNKS: u64 = 9;

/// The pages of a chunk.
const PAGES: u64 = 4;

/// Stores chunks from scattered pages of a GPU, and loads them into other pages.
fn store_and_load(secret: Option<KeyFile>) -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        gpu_lanes: 2,
        gds: GdsUse::Off,
        ..Settings::default()
    };
    let executor = Executor::new(settings)?;
    let options = TierOptions {
        key: secret,
        ..TierOptions::default()
    };
    let sizes = (CHUNK, bytes_for(40));
    let tier = Tier::open_or_create(folder.path(), sizes, &executor, options)?;
    let context = Driver::load()?.device(0)?.context()?;
    let page_bytes = CHUNK / PAGES;
    let source = DeviceMemory::allocate(&context, usize::try_from(CHUNKS * CHUNK).unwrap())?;
    // Page `p` of chunk `c` is number `p * CHUNKS + c`.
    let at = |chunk: u64, page: u64| (page * CHUNKS + chunk) * page_bytes;
    for chunk in 0..CHUNKS {
        for (page, bytes) in (0..).zip(content(chunk).chunks(usize::try_from(page_bytes).unwrap())) {
            source.write(usize::try_from(at(chunk, page)).unwrap(), bytes)?;
        }
    }
    let source = Arc::new(Region::of_device(Arc::new(source)));
    let mut target = Arc::new(Region::device(&context, CHUNKS * CHUNK)?);
    let chunks = |region: &Arc<Region>| -> Vec<_> {
        let part = |chunk, page| Part {
            region: Arc::clone(region),
            at: at(chunk, page),
            bytes: page_bytes,
        };
        let chunk = |number| ChunkAt {
            key: key(number),
            parts: (0..PAGES).map(|page| part(number, page)).collect(),
        };
        (0..CHUNKS).map(chunk).collect()
    };
    let done = tier.store(namespace("m"), &chunks(&source))?.wait()?;
    if let Some(error) = done.error {
        return Err(error);
    }
    assert_eq!(done.outcomes, vec![Outcome::Stored; 9]);
    let done = tier.load(namespace("m"), &chunks(&target), None)?.wait()?;
    assert_eq!(done.outcomes, vec![Outcome::Hit; 9]);
    let target = Arc::get_mut(&mut target).unwrap();
    for chunk in 0..CHUNKS {
        let mut seen = vec![0; usize::try_from(page_bytes).unwrap()];
        for (page, bytes) in (0..).zip(content(chunk).chunks(usize::try_from(page_bytes).unwrap())) {
            target.read_at(at(chunk, page), &mut seen)?;
            assert!(seen == bytes, "wrong bytes in page {page} of chunk {chunk}");
        }
    }
    Ok(())
}

#[test]
fn chunks_travel_between_scattered_pages_of_a_gpu() {
    for seed in 0..2 {
        Standin::run(&format!("seed={seed} delay_us_max=200"), |standin| {
            store_and_load(None).unwrap();
            store_and_load(Some(KeyFile::new([3; 32]))).unwrap();
            standin.assert_clean();
        });
    }
}
